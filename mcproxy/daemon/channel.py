"""The private connection between the supervisor and one of its children: messages with descriptors, both ways.

A message is a head of six bytes (length of the body, number of descriptors; big-endian) and a JSON object as its body.
SCM_RIGHTS carries the descriptors with the bytes of the head, so they arrive no later than the rest of the message:
one recvmsg(2) never returns bytes of two messages with descriptors (unix(7)).

    {"kind": "prepare", "id": 7, ...}       a request; without "id", a notice
    {"kind": "reply", "to": 7, ...}         its answer
    {"kind": "error", "to": 7, ...}         or the error raised there (`errors.encode_error`)
"""

from __future__ import annotations

import array
import errno
import itertools
import json
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.daemon.errors import (
    ProcessError,
    ProcessLost,
    ProcessTimeoutError,
    decode_error,
    encode_error,
    is_operational,
)
from mcproxy.net.listening_sockets import duplicates

log = Logger(__name__)

MAX_MESSAGE = 16 * 1024 * 1024
"""Greatest size of a message body (bytes)."""
MAX_QUEUED = 4 * MAX_MESSAGE
"""Limit of the bytes that wait for the other process to read them; beyond it, the channel is closed."""
MAX_DESCRIPTORS = 253
"""Most descriptors in one sendmsg(2): SCM_MAX_FD of Linux."""

HEAD = struct.Struct(">IH")
_RECEIVE = 256 * 1024

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """A request or a notice. The handler owns the descriptors `fds`."""

    kind: str
    fields: Fields
    fds: list[int] = field(default_factory=list)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def close(self) -> None:
        """Close the descriptors."""
        close_all(self.fds)


Handler = Callable[[ChannelMessage], "Awaitable[Fields | None] | Fields | None"]
"""Handles a message. Its result (or that of the returned awaitable) or its error is the answer to a request. The result
for a notice is dropped."""


def close_all(descriptors: Iterable[int]) -> None:
    """Close each descriptor."""
    for descriptor in descriptors:
        os.close(descriptor)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a channel, non-blocking, closed at exec."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    for end in ends:
        end.setblocking(False)
    return ends


@implementer(IReadWriteDescriptor)
class Channel:
    """One end of the channel, which reads from its creation on. A message without a handler is a bug of the peer."""

    def __init__(self, reactor: Any, connection: socket.socket) -> None:
        """`connection`: a non-blocking stream socket of AF_UNIX, which the channel owns from now on."""
        self._reactor = reactor
        self._socket = connection
        self._fd = connection.fileno()
        self._handlers: dict[str, Handler] = {}
        self._asked: dict[int, Deferred[Fields]] = {}
        self._ids = itertools.count(1)
        self._received = bytearray()
        self._received_fds: deque[int] = deque()
        self._queue: deque[tuple[memoryview, list[int]]] = deque()
        self._queued = 0
        self._waiting_for_loss: list[Deferred[None]] = []
        self.lost = False
        self.heard_at: float = reactor.seconds()
        """Time at which data last came from the other end."""
        reactor.addReader(self)

    # -- what callers use -------------------------------------------------------------------------------------------

    def on(self, kind: str, handler: Handler) -> None:
        """Register `handler` for the messages of a kind. Raises ValueError if the kind has a handler."""
        if kind in self._handlers:
            raise ValueError(f"two handlers of {kind}")
        self._handlers[kind] = handler

    def tell(self, kind: str, fds: Sequence[int] = (), **fields: Any) -> None:
        """Send a notice; nothing happens if the channel is lost. The caller keeps `fds` and may close them at once."""
        self._send({**fields, "kind": kind}, fds)

    async def ask(self, kind: str, fds: Sequence[int] = (), *, timeout: float | None, **fields: Any) -> Fields:
        """Send a request and return its answer.

        Raises ProcessLost, ProcessTimeoutError after `timeout` seconds, ProcessError for a bug of the other process, or
        the operational error that it raised (`errors.decode_error`).
        """
        if self.lost:
            raise ProcessLost
        number = next(self._ids)
        answer: Deferred[Fields] = Deferred()
        self._asked[number] = answer
        try:
            self._send({**fields, "kind": kind, "id": number}, fds)
            if timeout is not None:
                answer.addTimeout(timeout, self._reactor)
            return await answer
        except TimeoutError:
            raise ProcessTimeoutError(f"no answer to {kind} within {timeout:g} s") from None
        finally:
            self._asked.pop(number, None)

    def when_lost(self) -> Deferred[None]:
        """Return a Deferred that fires when the channel is closed at either end, or the other process is gone."""
        lost: Deferred[None] = Deferred()
        if self.lost:
            lost.callback(None)
        else:
            self._waiting_for_loss.append(lost)
        return lost

    def close(self) -> None:
        """Close this end, which the other process notices. A second call does nothing."""
        if not self.lost:
            self.connectionLost(Failure(CONNECTION_DONE))  # type: ignore[no-untyped-call]

    def close_after_rest(self) -> None:
        """Handle the messages which an ended process has sent, then close the channel to it."""
        readable = select.poll()
        readable.register(self._fd, select.POLLIN)
        while not self.lost and readable.poll(0):
            if self.doRead() is not None:
                break
        self.close()

    # -- sending ----------------------------------------------------------------------------------------------------

    def _send(self, message: Fields, fds: Sequence[int]) -> None:
        if self.lost:
            return
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_MESSAGE:
            raise ValueError(f"a message of {len(body)} bytes: {message['kind']}")
        frame = memoryview(HEAD.pack(len(body), len(fds)) + body)
        pieces = [(frame, list(fds[:MAX_DESCRIPTORS]))]
        for start in range(MAX_DESCRIPTORS, len(fds), MAX_DESCRIPTORS):  # each piece with its own byte of the head
            last, first = pieces.pop()
            pieces += [(last[:1], first), (last[1:], list(fds[start : start + MAX_DESCRIPTORS]))]
        for data, descriptors in pieces:
            if not self._queue:
                data, descriptors = self._write(data, descriptors)
            if data:
                self._queue.append((data, duplicates(descriptors)))
                self._queued += len(data)
        if self._queue:
            if self._queued > MAX_QUEUED:
                log.error("a process does not read its messages", event="process_not_reading", queued=self._queued)
                self.close()
            else:
                self._reactor.addWriter(self)

    def _write(self, data: memoryview, fds: list[int]) -> tuple[memoryview, list[int]]:
        """Send the bytes that the kernel accepts, and return the unsent ones. Reading detects a broken connection."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], rights)
        except (BlockingIOError, InterruptedError):
            return data, fds
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                return data[:0], []
            raise
        return data[sent:], []

    def doWrite(self) -> Any:
        """Send queued messages until the kernel accepts no more."""
        while self._queue:
            data, fds = self._queue.popleft()
            rest, unsent = self._write(data, fds)
            self._queued -= len(data) - len(rest)
            if fds and not unsent:
                close_all(fds)
            if rest:
                self._queue.appendleft((rest, unsent))
                return None
        self._reactor.removeWriter(self)
        return None

    # -- receiving --------------------------------------------------------------------------------------------------

    def doRead(self) -> Any:
        """Receive once, and handle the messages that are complete."""
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, controls, flags, _ = self._socket.recvmsg(_RECEIVE, space, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return CONNECTION_LOST
        for level, kind, content in controls:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(content[: len(content) - len(content) % received.itemsize])
                self._received_fds.extend(received)
        if not data:
            return CONNECTION_DONE
        self.heard_at = self._reactor.seconds()
        self._received += data
        if flags & socket.MSG_CTRUNC:
            self._mark_missing()
        return self._deliver()

    def _mark_missing(self) -> None:
        """Append -1 for each descriptor that the kernel dropped because this process can open no more (EMFILE)."""
        position = expected = 0
        while position + HEAD.size <= len(self._received):
            length, count = HEAD.unpack_from(self._received, position)
            position += HEAD.size + length
            expected += count
        self._received_fds.extend([-1] * (expected - len(self._received_fds)))

    def _deliver(self) -> Any:
        while not self.lost and len(self._received) >= HEAD.size:
            length, count = HEAD.unpack_from(self._received)
            if length > MAX_MESSAGE:
                log.error("a message of a process is too long", event="process_message_too_long", length=length)
                return CONNECTION_LOST
            if len(self._received) < HEAD.size + length:
                break
            fields = json.loads(bytes(self._received[HEAD.size : HEAD.size + length]))
            del self._received[: HEAD.size + length]
            fds = [self._received_fds.popleft() for _ in range(count)]
            kind, number = fields.pop("kind"), fields.pop("id", None)
            if -1 in fds:
                close_all(fd for fd in fds if fd >= 0)
                self._refuse(kind, number, OSError(errno.EMFILE, os.strerror(errno.EMFILE), "descriptors of a message"))
            else:
                self._handle(kind, number, fields, fds)
        return None

    def _handle(self, kind: str, number: int | None, fields: Fields, fds: list[int]) -> None:
        if kind in ("reply", "error"):
            self._answered(kind, fields)
            return
        handler = self._handlers.get(kind)
        if handler is None:
            close_all(fds)
            self._refuse(kind, number, ProcessError(f"nothing handles the message {kind}"))
            return
        answering = Deferred.fromCoroutine(_call(handler, ChannelMessage(kind, fields, fds)))
        answering.addCallbacks(
            lambda result: self._reply(number, result), lambda failure: self._refuse(kind, number, failure.value)
        )
        answering.addErrback(
            lambda failure: log.failure(
                "a message could not be answered", event="internal_error", failure=failure, kind=kind
            )
        )

    def _answered(self, kind: str, fields: Fields) -> None:
        answer = self._asked.pop(fields.pop("to"), None)  # None: the answer came too late
        if answer is None:
            return
        if kind == "reply":
            answer.callback(fields["result"])
        else:
            answer.errback(decode_error(fields["error"]))

    def _reply(self, number: int | None, result: Fields | None) -> None:
        if number is not None:
            self._send({"kind": "reply", "to": number, "result": result or {}}, ())

    def _refuse(self, kind: str, number: int | None, error: BaseException) -> None:
        if number is not None:
            self._send({"kind": "error", "to": number, "error": encode_error(error)}, ())
            if is_operational(error):
                return
        failure = Failure(error)  # type: ignore[no-untyped-call]
        log.failure(
            "a message of another process failed",
            event="internal_error",
            failure=failure,
            kind=kind,
        )

    # -- IReadWriteDescriptor -------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._fd

    def logPrefix(self) -> str:
        return "channel"

    def connectionLost(self, reason: Failure) -> None:
        """End the channel: pending requests fail with ProcessLost."""
        if self.lost:
            return
        self.lost = True
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        self._socket.close()
        for _, fds in self._queue:
            close_all(fds)
        self._queue.clear()
        close_all(fd for fd in self._received_fds if fd >= 0)
        self._received_fds.clear()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            answer.errback(ProcessLost())
        waiting, self._waiting_for_loss = self._waiting_for_loss, []
        for each in waiting:
            each.callback(None)


async def _call(handler: Handler, message: ChannelMessage) -> Fields | None:
    result = handler(message)
    return await result if isinstance(result, Awaitable) else result
