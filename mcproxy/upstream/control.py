"""Control traffic to a cluster: requests of the proxy itself (reviews, discovery, lists and watches), on treq.

treq gets its connections from `Endpoint.connect_control`, so this traffic runs over the same TLS transport as that of
clients: chain and name (`tls.serverName`, SNI, addresses in certificates) are verified in one place for both planes.
treq and twisted.web are imported with the first request (50 ms, 3.2 MiB); a daemon that needs none of this never
carries them. Health checks do without (`health_probe`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from twisted.internet.defer import Deferred

from mcproxy.upstream.control_stream import BodyTooLarge, ControlError, ControlStream, broken_off, fields_of
from mcproxy.upstream.credentials import CredentialSource
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.shared import Shared

if TYPE_CHECKING:
    from treq.client import HTTPClient
    from twisted.web.client import HTTPConnectionPool

__all__ = ["ControlClient", "ControlError", "ControlResponse"]

_IDLE_CONNECTIONS = 2  # kept for each endpoint
_IDLE_SECONDS = 45.0  # longer than the time between two polls of discovery, shorter than what load balancers allow
_MAX_BODY = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """An answer of any status. `headers` in the order of the wire, names as the server wrote them."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = field(repr=False)
    body: bytes = field(repr=False)


class ControlClient:
    """The control connections of one cluster."""

    def __init__(self, credentials: CredentialSource, shared: Shared) -> None:
        self._credentials = credentials
        self._shared = shared
        self._clients: dict[Endpoint, tuple[HTTPClient, HTTPConnectionPool]] = {}
        self._idle_seconds = _IDLE_SECONDS

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
    ) -> ControlResponse:
        """Send one request with the cluster's credential; a 401 renews it and tries once more.

        `path` begins with a slash and may have a query; `timeout` is in seconds for all of it. Raises `ControlError`,
        `net.errors.ConnectError` or `CredentialError`.
        """

        def too_late(_: object, seconds: float) -> NoReturn:  # whatever the cancelled coroutine raised
            raise ControlError(f"no answer from {endpoint.name} on {path} within {seconds:g} s")

        work = Deferred.fromCoroutine(self._with_credential(endpoint, method, path, headers, body, max_body))
        return await work.addTimeout(timeout, self._shared.reactor, too_late)

    async def stream(
        self,
        endpoint: Endpoint,
        path: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        head_timeout: float,
    ) -> ControlStream:
        """GET `path` and return when the head of the response is there; its body is read piece by piece.

        As `request`, but `head_timeout` (seconds) ends with the head, and the body has no limit: its reader sets one,
        and must call `ControlStream.close` unless it reads to the end. Cancelling ends the connection.
        """

        def too_late(_: object, seconds: float) -> NoReturn:
            raise ControlError(f"no answer from {endpoint.name} on {path} within {seconds:g} s")

        work = Deferred.fromCoroutine(self._open_stream(endpoint, path, headers))
        return await work.addTimeout(head_timeout, self._shared.reactor, too_late)

    def renew(self) -> None:
        """Use new connections from now on; running requests keep theirs."""
        clients, self._clients = self._clients, {}
        for _, pool in clients.values():
            pool.cachedConnectionTimeout = 0  # for those that are returned later
            pool.closeCachedConnections()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Close idle connections and keep none from now on; a request may still go to the next endpoint after this."""
        self._idle_seconds = 0.0
        self.renew()

    async def _with_credential(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        max_body: int,
    ) -> ControlResponse:
        for attempt in (1, 2):
            authorization = await self._authorization()
            response = await self._send(endpoint, method, path, _with(headers, authorization), body, max_body)
            if response.status != 401 or attempt == 2 or not self._credentials.invalidate(authorization):
                break
        return response

    async def _open_stream(self, endpoint: Endpoint, path: str, headers: tuple[tuple[str, str], ...]) -> ControlStream:
        for attempt in (1, 2):
            authorization = await self._authorization()
            response = await self._respond(endpoint, "GET", path, _with(headers, authorization), b"")
            if response.code != 401 or attempt == 2 or not self._credentials.invalidate(authorization):
                break
            ControlStream(response, endpoint, path).close()
        return ControlStream(response, endpoint, path)

    async def _authorization(self) -> bytes | None:
        if not self._credentials.is_ready:
            await self._credentials.ready()
        return self._credentials.authorization()

    async def _send(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        max_body: int,
    ) -> ControlResponse:
        from mcproxy.upstream.control_agent import TruncatedBody, collect

        response = await self._respond(endpoint, method, path, headers, body)
        try:
            collected = await collect(response, max_body)
        except TruncatedBody:
            raise ControlError(broken_off(endpoint, path)) from None
        except BodyTooLarge:
            raise ControlError(f"{endpoint.name} answered with more than {max_body} bytes on {path}") from None
        return ControlResponse(response.code, fields_of(response), collected)

    async def _respond(
        self, endpoint: Endpoint, method: str, path: str, headers: tuple[tuple[str, str], ...], body: bytes
    ) -> Any:
        """Send one request; return treq's response, whose body has not been read. Raises as `request` does."""
        from twisted.web.client import RequestTransmissionFailed, ResponseFailed
        from twisted.web.http_headers import Headers

        from mcproxy.upstream.control_agent import EncodedResponse

        fields = Headers()
        for name, value in headers:
            fields.addRawHeader(name, value)
        try:
            return await self._client(endpoint).request(
                method,
                endpoint.config.url + path,
                headers=fields,
                data=body or None,
                allow_redirects=False,  # a credential is sent only to configured addresses
                unbuffered=True,
                reactor=self._shared.reactor,  # type: ignore[arg-type]  # for its clock; else treq imports the global one
            )
        except (ResponseFailed, RequestTransmissionFailed):
            raise ControlError(broken_off(endpoint, path)) from None
        except EncodedResponse:
            raise ControlError(f"{endpoint.name} sent a compressed response on {path}, not requested") from None

    def _client(self, endpoint: Endpoint) -> HTTPClient:
        known = self._clients.get(endpoint)
        if known is None:
            from mcproxy.upstream.control_agent import make_client

            known = make_client(
                self._shared.reactor, endpoint, idle_connections=_IDLE_CONNECTIONS, idle_seconds=self._idle_seconds
            )
            self._clients[endpoint] = known
        return known[0]


def _with(headers: tuple[tuple[str, str], ...], authorization: bytes | None) -> tuple[tuple[str, str], ...]:
    return headers if authorization is None else (*headers, ("authorization", authorization.decode("ascii")))
