"""Answers requests for the ConfigMap by which API servers learn the trusted front proxies (server with API services).

The proxy queries the backend (of an aggregate: the primary, else the first member) with the client's identity, so the
backend's refusal is the answer. Gets, lists and watches of only this object are answered here. Lists of more objects,
and Tables (without data), show the backend's object. If a reload changes our data, watches end, and resuming clients
get the object again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from mcproxy.apiservices.extension_authentication import NAME, NAMESPACE, event_over, modified, over
from mcproxy.apiservices.object_merge import UnreadableAnswer, WholeLines
from mcproxy.kube import list_options, media_types
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.status import StatusError
from mcproxy.proxy import subrequest
from mcproxy.proxy.merged_watch import JSON, BackendWatch

if TYPE_CHECKING:
    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.apiservices.availability import Availability
    from mcproxy.http.messages import RequestHead
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.proxy.request import Request

_PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}".encode()
_LIMIT = 4 * 1024 * 1024  # maximum bytes of an answer; a ConfigMap has at most 1 MiB
_WRITES = ("update", "patch", "delete", "deletecollection")
_READS = ("get", "list", "watch")
_ACCEPT = ((b"Accept", media_types.JSON.encode()),)


class ExtensionAuthentication:
    """The ConfigMap of one server, under one Runtime."""

    def __init__(self, home: str, data: Mapping[str, str], known: Availability) -> None:
        """`home` is the ConfigMap's cluster; `data` replaces keys of the ConfigMap; `known` notifies of reloads."""
        self.home = home
        self._data = data
        self._known = known

    def takes(self, info: RequestInfo, head: RequestHead) -> bool:
        """Whether a request is answered here."""
        if (info.name, info.namespace, info.resource, info.group) != (NAME, NAMESPACE, "configmaps", ""):
            return False
        if info.subresource or head.method == b"HEAD":
            return False
        return info.verb in _WRITES or (info.verb in _READS and b"as=" not in (head.header(b"accept") or b""))

    async def serve(self, request: Request, info: RequestInfo, target: bytes, handle: subrequest.Handle) -> None:
        """Answer a request that `takes` accepts; `handle` sends requests to the backend.

        Raises StatusError, and CancelledError."""
        if info.verb in _WRITES:
            raise StatusError(
                403,
                f'configmaps "{NAME}" is forbidden: mcproxy puts its front proxies over it (apiServices of the '
                "server); what the cluster itself has in it is changed at the cluster",
                details={"name": NAME, "kind": "configmaps"},
            )
        media_types.negotiate((request.exchange.head.header(b"accept") or b"").decode("latin-1"))
        if info.verb == "watch":
            await self._watch(request, target, handle)
            return
        response = await self._ask(request, handle, target)
        if response.status != 200:
            subrequest.relay(request, response)
            return
        request.exchange.answer(200, request.own_fields(JSON), self._over(response.body))

    async def _watch(self, request: Request, target: bytes, handle: subrequest.Handle) -> None:
        options = list_options.parse(parse_query(target.partition(b"?")[2]), watch=True)
        first = b""
        if options.resource_version not in ("", "0") and not options.initial_events:
            response = await self._ask(request, handle, _PATH)
            if response.status == 200:
                try:
                    first = modified(response.body, self._data, options.resource_version)
                except UnreadableAnswer as problem:
                    raise _unreadable(problem) from None
            elif response.status != 404:
                subrequest.relay(request, response)
                return
        watch = _Watch(request, self._data, first)
        watch.follow(self._known.on_configured(watch.end_gracefully))
        try:
            stream = subrequest.stream(request, handle, target, fields=_ACCEPT, name="the backend", sink=watch)
            watch.opened(stream)
            refused = await watch.begun
        except BaseException:
            watch.stop()
            raise
        if refused is not None:
            watch.stop()
            subrequest.relay(request, refused)

    async def _ask(self, request: Request, handle: subrequest.Handle, target: bytes) -> MemberResponse:
        return await subrequest.fetch(request, handle, b"GET", target, fields=_ACCEPT, name="the backend", limit=_LIMIT)

    def _over(self, body: bytes) -> bytes:
        try:
            return over(body, self._data)
        except UnreadableAnswer as problem:
            raise _unreadable(problem) from None


class _Watch(BackendWatch):
    """A watch of the ConfigMap."""

    def __init__(self, request: Request, data: Mapping[str, str], first: bytes) -> None:
        super().__init__(request)
        self._data = data
        self._first = first
        self._whole = WholeLines()

    def _accepted(self) -> None:
        self._write([self._first] if self._first else [])

    def _lines(self, data: bytes) -> list[bytes]:
        return [event_over(line, self._data) for line in self._whole.of(data)]


def _unreadable(problem: UnreadableAnswer) -> StatusError:
    return StatusError(502, f"the backend has sent {problem}", reason="BadGateway")
