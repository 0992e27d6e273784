"""Outgoing connections: name resolution, TCP, TLS, verification of chain and name, then connection of the protocol.

One timeout covers all these steps. The first address of a host that answers is used (`happy_eyeballs`). With an HTTP
proxy the first two steps lead to the proxy, which resolves the name of the server (`http_connect`).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from OpenSSL import SSL
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IProtocol, IReadWriteDescriptor, IResolutionReceiver
from twisted.python.failure import Failure
from zope.interface import implementer

from mcproxy.net.alpn import HTTP1_1
from mcproxy.net.causes import Cause, CauseCode, code_of
from mcproxy.net.connect_errors import (
    ConnectError,
    ConnectFailed,
    ConnectTimeout,
    DNSError,
    TLSError,
    from_errno,
    from_handshake,
    untrusted,
)
from mcproxy.net.happy_eyeballs import SILENT, Race, SocketAddress
from mcproxy.net.hostname_verification import check_name, is_ip, plain_name
from mcproxy.net.http_connect import HTTPProxy, ProxyRefused, request_connection, shown_address
from mcproxy.net.plain_stream import PlainStream
from mcproxy.net.reactor_interface import Reactor
from mcproxy.net.socket_options import tune
from mcproxy.net.socket_stream import SocketStream
from mcproxy.net.tls_contexts import SessionCache, Verified, VerifyResult
from mcproxy.net.tls_stream import Handshake, TLSStream


@dataclass(frozen=True)
class ClientTLS:
    """TLS settings for an endpoint. With `verify`, chain and `server_name` are verified.

    `client_context` must have made the context with the same `verify`."""

    context: SSL.Context
    server_name: str  # a DNS name (also sent as SNI, without a final dot) or an IP address
    verify: bool
    sessions: SessionCache | None = None


def connect(
    reactor: Reactor,
    host: str,
    port: int,
    protocol: IProtocol,
    *,
    tls: ClientTLS | None,
    timeout: float,
    alpn: tuple[bytes, ...] = (HTTP1_1,),
    proxy: HTTPProxy | None = None,
) -> Deferred[None]:
    """Connect `protocol` to host:port within `timeout` seconds, with `proxy` through that HTTP proxy.

    `alpn` are the protocols offered in TLS, best first. The server's choice is `alpn` of the transport, or None if the
    server does not use ALPN.

    The Deferred fires after TCP, TLS and certificate checks and the call of `protocol.makeConnection`; it fails with
    ConnectError. Cancelling it closes the socket.
    """
    attempt = _Attempt(reactor, shown_address(host, port), timeout)
    return attempt.run(attempt.over_tcp(host, port, protocol, tls, alpn, proxy))


def connect_over(
    reactor: Reactor,
    sock: socket.socket,
    protocol: IProtocol,
    *,
    where: str,
    tls: ClientTLS | None,
    timeout: float,
    alpn: tuple[bytes, ...] = (HTTP1_1,),
    on_close: Callable[[SocketStream], None],
) -> Deferred[SocketStream]:
    """Connect `protocol`, as `connect` does, over a connected stream socket (one end of a pair).

    The socket is closed on failure. `where` names the peer in errors. `on_close` is called when the socket of the
    resulting stream is closed.
    """
    attempt = _Attempt(reactor, where, timeout)
    return attempt.run(attempt.over_socket(sock, protocol, tls, alpn, on_close))


_CONNECT_REQUEST = "the CONNECT request to the proxy"
_TIMEOUTS = {
    "resolving its name": CauseCode.NO_ADDRESS,
    "the TLS handshake": CauseCode.HANDSHAKE_TIMEOUT,
    _CONNECT_REQUEST: CauseCode.NOT_REACHED_BY_PROXY,
}
_NOT_CONNECTED = frozenset(
    {CauseCode.REFUSED, CauseCode.NO_ANSWER_TO_CONNECT, CauseCode.UNREACHABLE, CauseCode.NOT_CONNECTED}
)
"""Codes of failed connections that concern the proxy instead of the server if they happen on the way to the proxy."""


class _Attempt:
    """A connection attempt; `stage` is its current step, for the message of a timeout.

    `where` is the server, or the HTTP proxy while it is being connected to.
    """

    def __init__(self, reactor: Reactor, where: str, timeout: float) -> None:
        self.reactor = reactor
        self.where = where
        self.timeout = timeout
        self.stage = "resolving its name"
        self.is_on_way_to_proxy = False

    def run(self, work: Any) -> Deferred[Any]:
        done: Deferred[Any] = Deferred.fromCoroutine(work)
        return done.addTimeout(self.timeout, self.reactor, self._timed_out)  # type: ignore[arg-type]

    def _timed_out(self, result: Any, timeout: float) -> Any:
        if isinstance(result, Failure) and not isinstance(result.value, CancelledError):
            return result
        cause = f"{self.where} took longer than {timeout:g} s in {self.stage}"
        raise ConnectTimeout(Cause(cause, self._code(_TIMEOUTS.get(self.stage, CauseCode.NO_ANSWER_TO_CONNECT))))

    def _code(self, code: CauseCode) -> CauseCode:
        return CauseCode.PROXY_UNREACHABLE if self.is_on_way_to_proxy and code in _NOT_CONNECTED else code

    async def over_tcp(
        self,
        host: str,
        port: int,
        protocol: IProtocol,
        tls: ClientTLS | None,
        alpn: tuple[bytes, ...],
        proxy: HTTPProxy | None,
    ) -> None:
        addresses, sock, address = await (self._dial(host, port) if proxy is None else self._dial_proxy(proxy))
        name = address[1]
        is_address_good = False
        try:
            if proxy is not None:
                is_address_good = await self._request_connection(sock, proxy, host, port)
            stream: SocketStream
            if tls is None:
                stream = PlainStream(self.reactor, sock, name)
            else:
                stream = await self._start_tls(sock, name, tls, alpn)
        except BaseException as error:
            sock.close()
            if len(addresses) > 1 and not is_address_good and not isinstance(error, ProxyRefused):
                # The peer can hang or be another server, although it accepts connections, so the next connection starts
                # with another address.
                SILENT.note(address, self.reactor.seconds())
            raise
        stream.attach(protocol)

    async def _dial(self, host: str, port: int) -> tuple[list[SocketAddress], socket.socket, SocketAddress]:
        """Return all addresses of host:port, a connected socket, and its address."""
        addresses = [_literal(plain_name(host), port)] if is_ip(host) else await _resolve(self.reactor, host, port)
        return addresses, *await self._connect_first(addresses)

    async def _dial_proxy(self, proxy: HTTPProxy) -> tuple[list[SocketAddress], socket.socket, SocketAddress]:
        server, self.where, self.is_on_way_to_proxy = self.where, proxy.where, True
        try:
            found = await self._dial(proxy.host, proxy.port)
        except ConnectError as error:
            error.cause = Cause(error.cause, self._code(code_of(error.cause)))
            raise
        self.where, self.is_on_way_to_proxy = server, False
        return found

    async def _request_connection(self, sock: socket.socket, proxy: HTTPProxy, host: str, port: int) -> bool:
        self.stage = _CONNECT_REQUEST
        await request_connection(self.reactor, sock, proxy, host, port)
        return True

    async def over_socket(
        self,
        sock: socket.socket,
        protocol: IProtocol,
        tls: ClientTLS | None,
        alpn: tuple[bytes, ...],
        on_close: Callable[[SocketStream], None],
    ) -> SocketStream:
        stream: SocketStream
        if tls is None:
            stream = PlainStream(self.reactor, sock, "", on_close=on_close)
        else:
            try:
                stream = await self._start_tls(sock, "", tls, alpn, on_close)
            except BaseException:
                sock.close()
                raise
        stream.attach(protocol)
        return stream

    async def _connect_first(self, addresses: list[SocketAddress]) -> tuple[socket.socket, SocketAddress]:
        self.stage = "connecting"
        if len(addresses) == 1:
            return await self._open(addresses[0]), addresses[0]
        return await Race(self.reactor, addresses, lambda each: Deferred.fromCoroutine(self._open(each))).won

    async def _open(self, address: SocketAddress) -> socket.socket:
        family, name = address
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise from_errno(error.errno or 0, self.where) from None
        try:
            tune(sock)
            number = sock.connect_ex(name)
            if number == errno.EINPROGRESS:
                waiting = _Connecting(self.reactor, sock, name)
                number = await waiting.done
            if number:
                raise from_errno(number, self.where)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _start_tls(
        self,
        sock: socket.socket,
        name: Any,
        tls: ClientTLS,
        alpn: tuple[bytes, ...],
        on_close: Callable[[SocketStream], None] | None = None,
    ) -> TLSStream:
        self.stage = "the TLS handshake"
        server_name = plain_name(tls.server_name)
        now = self.reactor.seconds()
        connection = SSL.Connection(tls.context, sock)
        connection.set_connect_state()
        if alpn != (HTTP1_1,):  # (HTTP1_1,) is the default of every context
            connection.set_alpn_protos(list(alpn))
        if not is_ip(server_name):
            connection.set_tlsext_host_name(_sni(server_name))
        result = VerifyResult()
        connection.set_app_data(result)
        offered = None if tls.sessions is None else tls.sessions.offer(connection, now)
        await _handshake(self.reactor, sock, connection, result, self.where)
        verified = Verified(now, server_name) if offered is None or result.verified else offered
        if tls.verify and (verified is not offered or offered.name != server_name):
            check_name(connection.get_peer_certificate(as_cryptography=True), server_name)
        connection.set_app_data(None)
        chosen = connection.get_alpn_proto_negotiated()
        if chosen and chosen not in alpn:
            raise TLSError(f"{self.where} chose a protocol that was not offered (ALPN)")
        remember = None if tls.sessions is None else partial(_keep_session, tls.sessions, verified)
        return TLSStream(
            self.reactor, sock, name, connection, server_name=server_name, on_close=on_close, first_read=remember
        )


def _sni(name: str) -> bytes:
    try:
        return name.encode("idna")
    except UnicodeError:
        raise TLSError(f"{name} is not a valid server name") from None


def _keep_session(sessions: SessionCache, verified: Verified, connection: SSL.Connection) -> None:
    sessions.put(connection.get_session(), verified)


async def _handshake(
    reactor: Reactor, sock: socket.socket, connection: SSL.Connection, result: VerifyResult, where: str
) -> None:
    done: Deferred[None] = Deferred(lambda _: handshake.stop())

    def finished(error: Exception | None) -> None:
        if error is None:
            done.callback(None)
        else:
            done.errback(error)

    handshake = Handshake(reactor, sock, connection, None, finished)
    handshake.start()
    try:
        await done
    except CancelledError:
        raise
    except Exception as error:
        if result.refusal:
            raise untrusted(where, result.refusal) from None
        raise from_handshake(error, where) from None


def _literal(host: str, port: int) -> SocketAddress:
    try:
        family, _, _, _, name = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)[0]
    except OSError as error:
        raise ConnectFailed(f"{host} is not a usable address: {error.strerror}") from None
    return family, name


async def _resolve(reactor: Reactor, host: str, port: int) -> list[SocketAddress]:
    """Resolve by the reactor's resolver (`resolver.Resolver` in the daemon). Raises DNSError."""
    receiver = _Receiver()
    reactor.nameResolver.resolveHostName(receiver, host, port)
    addresses = [_literal(address.host, port) for address in await receiver.done]
    if not addresses:
        raise DNSError(f"the name {host} has no address" + (f": {receiver.cause}" if receiver.cause else ""))
    return addresses


@implementer(IResolutionReceiver)
class _Receiver:
    """Collects the addresses of a look-up. A result after cancellation is dropped."""

    def __init__(self) -> None:
        self.done: Deferred[list[Any]] = Deferred()
        self.cause = ""
        """The reason why there is no address, if the resolver reports it."""
        self._addresses: list[Any] = []

    def resolutionBegan(self, resolutionInProgress: Any) -> None:
        pass

    def addressResolved(self, address: Any) -> None:
        self._addresses.append(address)

    def resolution_failed(self, cause: str) -> None:
        """Keep the cause of a failure; `resolver.Resolver` calls this before `resolutionComplete`."""
        self.cause = cause

    def resolutionComplete(self) -> None:
        if not self.done.called:
            self.done.callback(self._addresses)


@implementer(IReadWriteDescriptor)
class _Connecting:
    """Waits for a non-blocking connect(2); `done` fires with an errno, 0 for success."""

    def __init__(self, reactor: Reactor, sock: socket.socket, name: Any) -> None:
        self._reactor = reactor
        self._socket = sock
        self._name = name
        self.done: Deferred[int] = Deferred(lambda _: self._stop())
        reactor.addReader(self)
        reactor.addWriter(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "net"

    def doRead(self) -> None:
        self._check()

    def doWrite(self) -> None:
        self._check()

    def connectionLost(self, reason: Failure) -> None:
        self._check()

    def _check(self) -> None:
        if self.done.called:
            return
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not number:
            # The event can be for the previous owner of the descriptor, so check that the socket is connected.
            number = self._socket.connect_ex(self._name)
            if number in (errno.EALREADY, errno.EINPROGRESS):
                return
            if number == errno.EISCONN:
                number = 0
        self._stop()
        self.done.callback(number)

    def _stop(self) -> None:
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
