"""Opens connections through an HTTP proxy: the CONNECT request (RFC 9110 9.3.6) over a socket connected to the proxy.

The proxy resolves the server's name. Exactly the heads of the proxy's responses are read from the socket, because the
bytes after them are the server's. No body is read: a 2xx response to CONNECT has none, whatever its fields say, and
after any other response the connection is closed.
"""

from __future__ import annotations

import http
import os
import re
import socket
from dataclasses import dataclass, field

from twisted.internet.defer import Deferred, fail
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.net.causes import Cause, CauseCode
from mcproxy.net.connect_errors import ConnectError, ConnectFailed
from mcproxy.net.hostname_verification import is_ip
from mcproxy.net.reactor_interface import Reactor

_MAX_HEADS = 16 * 1024
"""Maximum bytes of all response heads together: the final one and the interim ones (1xx) before it."""
_START = b"HTTP/1."
_HEAD_END = re.compile(rb"\r?\n\r?\n")  # a single LF ends a line too (RFC 9112 2.2)
_STATUS_LINE = re.compile(rb"HTTP/1\.[0-9] ([1-9][0-9][0-9])(?: [^\r\n]*)?\r?\n")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}\Z")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{2,45}\Z")
_SWITCHING = 101  # not an interim response here, because no upgrade was requested (RFC 9110 15.2.2)


@dataclass(frozen=True, slots=True)
class HTTPProxy:
    """An HTTP proxy that is reached over TCP without TLS.

    `host` is a name or an address. `authorization` is the value of Proxy-Authorization, None without credentials.
    """

    host: str
    port: int
    authorization: bytes | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The proxy in error messages."""
        return f"the proxy {shown_address(self.host, self.port)}"


class ProxyRefused(ConnectFailed):
    """The proxy has answered the CONNECT request with a status other than 2xx."""


def connect_request(proxy: HTTPProxy, host: str, port: int) -> bytes:
    """Return the request for a connection to host:port.

    Raises ConnectFailed for a host that is neither a name nor an address, so that it cannot end the line.
    """
    authority = b"%b:%d" % (_authority_host(host), port)
    credentials = b"" if proxy.authorization is None else b"Proxy-Authorization: %b\r\n" % proxy.authorization
    return b"CONNECT %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (authority, authority, credentials)


def _authority_host(host: str) -> bytes:
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if ":" in name and _IPV6.match(name) and is_ip(name):
        return f"[{name}]".encode("ascii")
    if not _NAME.match(name):
        raise ConnectFailed(f"{host!r} is neither a host name nor an address, so no proxy is asked for it")
    return name.encode("ascii")


def request_connection(reactor: Reactor, sock: socket.socket, proxy: HTTPProxy, host: str, port: int) -> Deferred[None]:
    """Ask the proxy at the other end of `sock`, a connected non-blocking socket, for a connection to host:port.

    The Deferred fires after a 2xx response; what follows its head stays in the socket. It fails with ConnectError, with
    ProxyRefused for another status. There is no timeout here; cancelling it stops the use of the socket. The caller
    closes the socket.
    """
    try:
        request = connect_request(proxy, host, port)
    except ConnectError as error:
        return fail(error)
    exchange = _Exchange(reactor, sock, proxy, shown_address(host, port), request)
    exchange.doWrite()
    return exchange.done


@implementer(IReadWriteDescriptor)
class _Exchange:
    """Sends the request, then reads heads of responses; `done` fires as that of `request_connection`."""

    def __init__(self, reactor: Reactor, sock: socket.socket, proxy: HTTPProxy, server: str, request: bytes) -> None:
        self._reactor = reactor
        self._socket = sock
        self._proxy = proxy
        self._server = server
        self._unsent = request
        self._head = bytearray()  # the begun head; its bytes are no longer in the socket
        self._size = 0  # bytes of all heads so far
        self.done: Deferred[None] = Deferred(lambda _: self._stop())

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "net"

    def doWrite(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            self._reactor.addWriter(self)
            return
        except OSError as error:
            self._broken_off(error)
            return
        self._reactor.removeWriter(self)
        self._reactor.addReader(self)

    def doRead(self) -> None:
        """Peek at the received bytes, and read them up to the end of a head."""
        try:
            while not self.done.called:
                seen = self._socket.recv(_MAX_HEADS - self._size, socket.MSG_PEEK)
                if not seen:
                    self._broken_off(None)
                    return
                self._take(seen)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._broken_off(error)

    def _take(self, seen: bytes) -> None:
        before = len(self._head)
        self._head += seen
        end = _HEAD_END.search(self._head, max(0, before - 3))
        size = len(seen) if end is None else end.end() - before
        self._socket.recv(size)  # they have arrived, so all of them are read
        self._size += size
        if not self._head.startswith(_START[: len(self._head)]):
            self._not_http("does not answer as an HTTP proxy")
        elif end is not None:
            line = _STATUS_LINE.match(self._head)
            status = 0 if line is None else int(line[1])
            self._head.clear()
            if not status:
                self._not_http("does not answer as an HTTP proxy")
            else:
                self._answered(status)
        if self._size >= _MAX_HEADS and not self.done.called:
            self._not_http(f"answered with heads of more than {_MAX_HEADS // 1024} KiB")

    def _answered(self, status: int) -> None:
        if status < 200 and status != _SWITCHING:
            return
        if 200 <= status < 300:
            self._stop()
            self.done.callback(None)
            return
        cause = f"{self._proxy.where} refuses the connection to {self._server}: {status} {_phrase(status)}".rstrip()
        self._fail(ProxyRefused(Cause(cause, _code(status))))

    def _not_http(self, what: str) -> None:
        self._fail(ConnectFailed(Cause(f"{self._proxy.where} {what}", CauseCode.NOT_AN_HTTP_PROXY)))

    def _broken_off(self, error: OSError | None) -> None:
        reason = "" if error is None else f": {os.strerror(error.errno or 0).lower()}"
        what = f"closed the connection without an answer to the request for {self._server}{reason}"
        self._fail(ConnectFailed(Cause(f"{self._proxy.where} {what}", CauseCode.NOT_AN_HTTP_PROXY)))

    def connectionLost(self, reason: Failure) -> None:
        """Handle a dead socket; called by the reactor."""
        if not self.done.called:
            self._broken_off(None)

    def _fail(self, error: ConnectError) -> None:
        self._stop()
        self.done.errback(error)

    def _stop(self) -> None:
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)


def _code(status: int) -> CauseCode:
    if status == http.HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        return CauseCode.PROXY_CREDENTIALS
    return CauseCode.NOT_REACHED_BY_PROXY if status >= 500 else CauseCode.REFUSED_BY_PROXY


def _phrase(status: int) -> str:
    """Return the standard phrase, instead of the proxy's own, which can be any text; "" for an unknown status."""
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return ""


def shown_address(host: str, port: int) -> str:
    """Return an address as messages have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
