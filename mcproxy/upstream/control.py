"""Sends the proxy's own requests to a cluster (control requests): reviews, discovery, lists and watches.

Control requests are streams of the endpoint's pool (`http.connection_pool.Use`): over HTTP/2 many share a connection,
over HTTP/1.1 each has its own. So they use the same engines and the same TLS transport as clients' requests. Heads are
bounded, and chain and name (`tls.serverName`, SNI, addresses in certificates) are verified in one place for both.
Control requests only use connections with the proxy's own certificate, and never have the fields that name users in
clients' requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from twisted.internet.defer import Deferred

from mcproxy.http.client_stream import ConnectionClosed, HTTP1Required, RequestNotProcessed
from mcproxy.http.connection_pool import Use
from mcproxy.http.messages import RequestHead, UpstreamProtocolError
from mcproxy.net.causes import Cause, CauseCode
from mcproxy.upstream.control_stream import BodyTooLarge, ControlError, ControlStream, broken_off
from mcproxy.upstream.credentials import CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from mcproxy.http.client_stream import ClientStream

__all__ = ["ControlClient", "ControlError", "ControlResponse", "NotPermittedError", "Use", "request_head"]

_MAX_BODY = 4 * 1024 * 1024
_MAX_RESENDS = 4
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS"})
_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")  # visible ASCII without `#`, which begins a fragment
_FIELD = re.compile(rb"[A-Za-z0-9-]+: [\x20-\x7e]*")
_ENCODING = b"Accept-Encoding: identity\r\n"  # because a compressed body can expand to gigabytes


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """A response of any status. `headers` are in the order received, with names as the server wrote them."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes = field(repr=False)

    def header(self, name: bytes) -> bytes:
        """Return the first value of a field (`name` in lower case), b"" if it is absent."""
        return next((value for known, value in self.headers if known.lower() == name), b"")

    @property
    def etag(self) -> str:
        """The ETag in the form for If-None-Match; "" if there is none."""
        text = self.header(b"etag").decode("latin-1")
        return text if text.isascii() and text.isprintable() and len(text) <= 1000 else ""


class NotPermittedError(Exception):
    """A request was not sent, because the caller's permission has ended."""


class ControlClient:
    """Sends the control requests of one cluster."""

    def __init__(self, credentials: CredentialSource, context: UpstreamContext) -> None:
        self._credentials = credentials
        self._context = context

    async def request(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        body: bytes = b"",
        timeout: float,
        max_body: int = _MAX_BODY,
        permit: Callable[[], bool] = lambda: True,
    ) -> ControlResponse:
        """Send one request with the cluster's credential; after a 401, renew the credential and try once more.

        `path` begins with a slash and can have a query. `timeout` (seconds) limits the whole request. `permit` is
        called right before the request is sent, when connection and credential are available. Raises `ControlError`,
        `net.connect_errors.ConnectError`, `CredentialError`, and `NotPermittedError` if `permit` returns False.
        """

        def too_late(_: object, seconds: float) -> NoReturn:  # called with any exception of the cancelled coroutine
            raise ControlError(_no_answer(endpoint, path, seconds))

        work = Deferred.fromCoroutine(self._whole(endpoint, method, path, headers, body, max_body, permit))
        return await work.addTimeout(timeout, self._context.reactor, too_late)

    async def stream(
        self,
        endpoint: Endpoint,
        path: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        head_timeout: float,
        use: Use = Use.SHORT,
        beside: ControlStream | None = None,
        upgrade: bytes | None = None,
    ) -> ControlStream:
        """GET `path`; return when the head of the response has arrived. The caller reads the body piece by piece.

        This is like `request`, but `head_timeout` (seconds) ends with the head, and the body has no limit. The reader
        sets one, and must call `ControlStream.close` unless it reads to the end. Cancelling ends the stream, and over
        HTTP/1.1 its connection. `beside`: a stream of `endpoint` whose connection is used if it has room. `upgrade`:
        the protocol to request over HTTP/1.1; if the endpoint switches to it, `ControlStream.side` is the tunnel.
        """

        def too_late(_: object, seconds: float) -> NoReturn:
            raise ControlError(_no_answer(endpoint, path, seconds))

        work = Deferred.fromCoroutine(
            self._with_credential(endpoint, "GET", path, headers, b"", use, beside, upgrade=upgrade)
        )
        return await work.addTimeout(head_timeout, self._context.reactor, too_late)

    async def _whole(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        max_body: int,
        permit: Callable[[], bool],
    ) -> ControlResponse:
        response = await self._with_credential(endpoint, method, path, headers, body, Use.SHORT, None, permit)
        try:
            content = await response.read_all(max_body)
        except BodyTooLarge:
            raise ControlError(f"{endpoint.name} answered with more than {max_body} bytes on {path}") from None
        return ControlResponse(response.status, response.headers, content)

    async def _with_credential(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        use: Use,
        beside: ControlStream | None,
        permit: Callable[[], bool] = lambda: True,
        upgrade: bytes | None = None,
    ) -> ControlStream:
        for attempt in (1, 2):
            authorization = await self._authorization()
            fields = [_ENCODING, *endpoint.own_fields, *(_field(name, value) for name, value in headers)]
            if authorization is not None:
                fields.append(b"Authorization: %b\r\n" % authorization)
            response = await self._respond(endpoint, method, path, fields, body, use, beside, permit, upgrade)
            if response.status != 401:
                break
            if attempt == 2 or not self._credentials.invalidate(authorization):
                self._credentials.note_refusal(self._context.reactor.seconds(), authorization)
                break
            response.close()
        if _is_encoded(response):
            response.close()
            raise ControlError(f"{endpoint.name} sent a compressed response on {path}, not requested")
        return response

    async def _authorization(self) -> bytes | None:
        if not self._credentials.is_ready:
            await self._credentials.ready()
        return self._credentials.authorization()

    async def _respond(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        fields: Sequence[bytes],
        body: bytes,
        use: Use,
        beside: ControlStream | None,
        permit: Callable[[], bool],
        upgrade: bytes | None,
    ) -> ControlStream:
        """Send one request; return its response when the head has arrived. Raises as `request` does.

        The request is sent again if the endpoint has not processed it, or if it only reads and its kept or shared
        connection was closed.
        """
        target = endpoint.path_prefix + _target(path)
        head = request_head(method, len(body))
        head.upgrade = upgrade
        pool = endpoint.control_pool
        stream: ClientStream | None = None if beside is None else beside.sibling()
        refusals = 0
        http1, repeated = upgrade is not None, False
        while True:
            if stream is None and not repeated:
                stream = pool.take_own(use, http1=http1)
            kept = stream is not None
            if stream is None:
                stream = await pool.open_own(use, http1=http1)
            if not permit():
                if not stream.multiplexed:  # a stream of HTTP/2 is not open yet
                    stream.cancel()
                raise NotPermittedError
            response = ControlStream(
                stream, endpoint, path, self._context.reactor.seconds, apart=use is Use.BULK and not http1
            )
            stream.send_head(head, target, endpoint.host_header, tuple(fields), response, 0.0)
            if body:
                stream.send_body(body)
                stream.end_body([])
            try:
                await response.head()
            except RequestNotProcessed as problem:
                refusals += 1
                if refusals > _MAX_RESENDS:
                    raise ControlError(f"{endpoint.name} refuses the request on {path}: {problem}") from None
                http1 = http1 or isinstance(problem, HTTP1Required)
            except ConnectionClosed:
                context = kept or stream.multiplexed  # other requests may have caused the end of the connection
                if not context or stream.began or repeated or method not in _REPEATABLE:
                    raise ControlError(broken_off(endpoint, path)) from None
                repeated = True  # if one kept connection was dead, others may be dead too
            except UpstreamProtocolError as problem:
                cause = broken_off(endpoint, path)
                raise ControlError(Cause(f"{cause}: {problem}", cause.code)) from None
            else:
                return response
            stream = None


def request_head(method: str, length: int = 0) -> RequestHead:
    """Return the head of a request with a body of `length` bytes, for `ClientStream.send_head`."""
    head = RequestHead()
    head.method = method.encode("ascii")
    head.target = head.host = head.fields = b""  # given to `send_head`
    head.http11 = head.keep_alive = True
    head.length = length
    head.upgrade = None
    head.expects_continue = head.te_trailers = False
    return head


def _target(path: str) -> bytes:
    """Return the bytes of a path. Raises ControlError if it is invalid, because parts of it come from a cluster."""
    target = path.encode("utf-8", "replace")
    if not _TARGET.fullmatch(target):
        raise ControlError("a path with blanks, control or other characters is not sent")
    return target


def _field(name: str, value: str) -> bytes:
    field = f"{name}: {value}".encode("utf-8", "replace")
    if not _FIELD.fullmatch(field):
        raise ControlError(f"a value of {name} with control or other characters is not sent")
    return field + b"\r\n"


def _is_encoded(response: ControlStream) -> bool:
    return any(
        name.lower() == b"content-encoding" and value.lower() not in (b"", b"identity")
        for name, value in response.headers
    )


def _no_answer(endpoint: Endpoint, path: str, seconds: float) -> Cause:
    return Cause(f"no answer from {endpoint.name} on {path} within {seconds:g} s", CauseCode.NO_ANSWER)
