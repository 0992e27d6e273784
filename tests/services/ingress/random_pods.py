"""Pods of random traffic: HTTP/1.1 and HTTP/2 requests as they come, and what may become of each of them.

A body is told by its length alone (`body`), so that half of one never looks whole: `X-Length` in a head says how long
it is, in requests as in responses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from h2 import events
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from twisted.internet.protocol import Factory

from tests.proxy.harness import Upstream, UpstreamEnd
from tests.proxy.http2_peers import H2Upstream, H2UpstreamEnd, PeerStream

CHECK = b"/healthz"
SIZES = (1, 2000, 300_000)
"""Bytes of bodies; the last is more than any window."""
RUBBISH = (
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nX-A: b\x00c\r\n\r\n",
    b"\x00" * 100 + b"\r\n\r\n",
)
CODES = (ErrorCodes.CANCEL, ErrorCodes.INTERNAL_ERROR, ErrorCodes.ENHANCE_YOUR_CALM, ErrorCodes.NO_ERROR)

#: What becomes of a request that has no response yet, and of a response that has begun, by version.
FATES = {
    ("h1", False): ("whole", "begin", "break", "close", "half-close", "rubbish", "freeze", "early", "interim"),
    ("h1", True): ("rest", "rest", "break", "close", "half-close", "rubbish", "freeze"),
    ("h2", False): ("whole", "begin", "break", "half-close", "rubbish", "freeze", "early", "reset", "refuse", "goaway"),
    ("h2", True): ("rest", "rest", "break", "half-close", "rubbish", "freeze", "reset"),
    ("ws", False): ("switch", "switch", "break", "close", "rubbish", "freeze", "whole"),
    ("ws", True): ("echo", "echo", "break", "close", "half-close"),
}


def body(length: int) -> bytes:
    """Return the body of a length; its beginnings are no bodies."""
    return b"." * (length - 1) + b"!"


def framed(head: bytes, rest: bytes) -> tuple[bytes, int | None]:
    """Return the body of an HTTP/1.1 message as far as it has come, and what it takes of `rest` once it is whole."""
    lines = [line.partition(b":") for line in head.lower().split(b"\r\n")[1:]]
    fields = {name: value.strip() for name, _, value in lines}
    if fields.get(b"transfer-encoding") != b"chunked":
        length = int(fields.get(b"content-length", b"0"))
        return rest[:length], length if len(rest) >= length else None
    found, at = b"", 0
    while b"\r\n" in rest[at:]:
        end = rest.index(b"\r\n", at)
        size = int(rest[at:end].partition(b";")[0], 16)
        if not size:
            done = rest.find(b"\r\n\r\n", end)  # after trailers, if any
            return found, done + 4 if done >= 0 else None
        found += rest[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
    return found, None


def x_length(head: bytes) -> int | None:
    """Return what X-Length says; None without one."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"x-length:"):
            return int(line[9:])
    return None


class H2CPod(H2Upstream):
    """A pod that speaks HTTP/2 with prior knowledge."""

    def listen(self, reactor: Any, port: int) -> Any:
        return reactor.listenTCP(port, _H2C(self), interface="127.0.0.1")


class _H2C(Factory):
    noisy = False

    def __init__(self, pod: H2CPod) -> None:
        self._pod = pod

    def buildProtocol(self, addr: Any) -> H2UpstreamEnd:
        self._pod.h2.append(H2UpstreamEnd(self._pod))
        return self._pod.h2[-1]


@dataclass(eq=False)
class Pending:
    """A request at a pod."""

    pod: Upstream
    version: str  # h1, h2, ws
    head: bytes
    end: UpstreamEnd | None = None
    stream: PeerStream | None = None
    complete: bool = True  # with all its body
    begun: bool = False
    rest: bytes = b""  # of the response, with its framing
    chunked: bool = False

    @property
    def alive(self) -> bool:
        if self.stream is not None:
            return self.stream.reset is None and not self.stream.finished and self.stream.peer.lost is None
        return self.end is not None and self.end.lost is None


class RandomPods:
    """The pods, and the requests that they have; `wrong` says what came to them that should not have."""

    def __init__(self, random: Random, fated: Callable[[str, str], None]) -> None:
        """`fated` is told the version and the fate of each request."""
        self.random = random
        self.pending: list[Pending] = []
        self.wrong: list[str] = []
        self.frozen: set[Upstream] = set()
        self._fated = fated
        self._seen: dict[UpstreamEnd, int] = {}
        self._uploads: dict[UpstreamEnd, Pending] = {}

    def follow(self, pod: Upstream) -> None:
        """Have a new pod's requests meet their fates."""
        if isinstance(pod, H2Upstream):
            pod.stream_event = lambda stream, event: self._on_stream(pod, stream, event)
            pod.settings = {SettingCodes.MAX_CONCURRENT_STREAMS: self.random.choice([1, 3, 100])}
        else:
            pod.reply = lambda end: self._received(pod, end)

    def act(self) -> None:
        """Decide what becomes of one request, or do the next thing of it."""
        self.pending = [each for each in self.pending if each.alive]
        there = [each for each in self.pending if each.pod not in self.frozen]
        if not there:
            return
        pending = self.random.choice(there)
        fate = self.random.choice(FATES[pending.version, pending.begun])
        if fate == "early" and pending.complete:
            fate = "whole"
        if fate == "rubbish" and pending.version == "h1" and pending.begun and not pending.chunked:
            fate = "break"  # within a body anything is data
        self._fated(pending.version, fate)
        if fate == "freeze":
            self.pending.remove(pending)
        elif pending.stream is not None:
            with contextlib.suppress(ProtocolError):  # what closed it is among the events still to come
                self._of_http2(pending, pending.stream, fate)
        elif pending.end is not None:
            self._of_http1(pending, pending.end, fate)

    # -- HTTP/1.1 ---------------------------------------------------------------------------------------------------

    def _of_http1(self, pending: Pending, end: UpstreamEnd, fate: str) -> None:
        if fate == "break":
            end.abort()
        elif fate == "close":
            end.close()
        elif fate == "half-close":
            self.pending.remove(pending)
            end.finish()
        elif fate == "rubbish":
            self.pending.remove(pending)
            end.send(b"xyz\r\n" if pending.chunked else self.random.choice(RUBBISH))
            if pending.begun:
                end.abort()
        elif fate == "interim":
            end.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        elif fate == "switch":
            pending.begun = True
            self._seen[end] = 1 << 60  # what follows on this connection is no further request
            end.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
        elif fate == "echo":
            end.send(b"data")
        elif fate == "rest":
            self._whole(pending, end, pending.rest)
        else:
            self._begin(pending, end, whole=fate != "begin", close=fate == "early")

    def _begin(self, pending: Pending, end: UpstreamEnd, *, whole: bool, close: bool) -> None:
        content = body(self.random.choice(SIZES))
        head = b"HTTP/1.1 200 OK\r\nX-Length: %d\r\n" % len(content)
        how = self.random.choice(["length", "chunked", "close"])
        if how == "close" and not close:
            end.send(head + b"\r\n" + (content if whole else content[: len(content) // 2]))
            self.pending.remove(pending)
            # An orderly end within the body would have it look whole, to anybody.
            end.close() if whole else end.abort()
            return
        if how == "length":
            pieces = head + b"Content-Length: %d\r\n\r\n" % len(content), content
        else:
            pending.chunked = True
            chunks = [content[at : at + 50_000] for at in range(0, len(content), 50_000)]
            framing = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
            pieces = head + b"Transfer-Encoding: chunked\r\n\r\n", framing + b"0\r\n\r\n"
        if whole:
            self._whole(pending, end, b"".join(pieces), close=close)
            return
        cut = self.random.randrange(len(pieces[1]))
        pending.chunked &= self.random.random() < 0.5
        if pending.chunked:
            cut = len(pieces[1]) - len(b"0\r\n\r\n")
        pending.begun, pending.rest = True, pieces[1][cut:]
        end.send(pieces[0] + pieces[1][:cut])

    def _whole(self, pending: Pending, end: UpstreamEnd, data: bytes, *, close: bool = False) -> None:
        """The last bytes of a response; its connection is kept, or not."""
        self.pending.remove(pending)
        end.send(data)
        if close or self.random.random() < 0.2:
            end.close()

    def _received(self, pod: Upstream, end: UpstreamEnd) -> None:
        """Take note of each request, and of the rest of those that had begun."""
        while True:
            text = end.received[self._seen.get(end, 0) :]
            head, found, rest = text.partition(b"\r\n\r\n")
            if not found:
                return
            content, taken = framed(head, rest)
            pending = self._uploads.pop(end, None)
            if pending is None and head.startswith(b"GET " + CHECK):
                if pod not in self.frozen:
                    end.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            elif pending is None:
                version = "ws" if b"\r\nupgrade:" in head.lower() else "h1"
                pending = Pending(pod, version, head, end)
                self.pending.append(pending)
            if pending is not None:
                pending.complete = taken is not None
            if taken is None:
                assert pending is not None
                self._uploads[end] = pending
                return
            length = x_length(head)
            if length is not None and content != body(length):
                self.wrong.append(f"{len(content)} of {length} bytes looked whole to a pod")
            self._seen[end] = self._seen.get(end, 0) + len(head) + 4 + taken

    # -- HTTP/2 -----------------------------------------------------------------------------------------------------

    def _on_stream(self, pod: Upstream, stream: PeerStream, event: Any) -> None:
        if isinstance(event, events.RequestReceived):
            if stream.fields[b":path"] == CHECK:
                if pod not in self.frozen:
                    with contextlib.suppress(ProtocolError):
                        stream.head([(b":status", b"200")], end=True)
                return
            stream.reads = self.random.random() < 0.8
            self.pending.append(Pending(pod, "h2", b"", stream=stream, complete=False))
        elif isinstance(event, events.StreamEnded):
            for each in self.pending:
                if each.stream is stream:
                    each.complete = True
            length = stream.fields.get(b"x-length")
            if length is not None and stream.data != body(int(length)):
                self.wrong.append(f"{len(stream.data)} of {length!r} bytes looked whole to a pod over HTTP/2")

    def _of_http2(self, pending: Pending, stream: PeerStream, fate: str) -> None:
        peer = stream.peer
        stream.read_on()
        if fate == "break":
            peer.abort()
        elif fate == "half-close":
            peer.transport.loseWriteConnection()  # type: ignore[union-attr]
        elif fate == "rubbish":
            peer.transport.write(self.random.choice(RUBBISH))  # type: ignore[union-attr]
        elif fate == "reset":
            stream.cancel(self.random.choice(CODES))
        elif fate == "refuse":
            stream.cancel(ErrorCodes.REFUSED_STREAM)
        elif fate == "goaway":
            last = self.random.choice([0, stream.number, max(peer.streams)])
            peer.goaway(last, self.random.choice([ErrorCodes.NO_ERROR, ErrorCodes.ENHANCE_YOUR_CALM]))
            for each in peer.streams.values():
                each.finished |= each.number > last  # nobody answers those
        elif fate == "rest":
            self.pending.remove(pending)
            stream.send(pending.rest)
            stream.end(self.random.choice([None, [(b"x-done", b"1")]]))
        else:
            content = body(self.random.choice(SIZES))
            stream.head([(b":status", b"200"), (b"x-length", b"%d" % len(content))])
            cut = self.random.randrange(len(content)) if fate == "begin" else len(content)
            stream.send(content[:cut])
            pending.begun, pending.rest = True, content[cut:]
            if fate != "begin":
                self.pending.remove(pending)
                stream.end()
            if fate == "early" and stream.finished and not stream.ended:
                stream.cancel(ErrorCodes.NO_ERROR)
