"""Which part of this package answers a request to an aggregate.

    not a resource        discovery, OpenAPI, version, probes; anything else: the primary
    self reviews          writes: asked of the primary and every member
    a cached resource     get, list: reads; watch: watch; anything else: writes
    one without watch     get, list: fan-out; anything else: writes
    outside the scope     the primary; without one 404

Reads from caches are authorized here, by each member; what is sent to a member is authorized there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.aggregate.discovery.merge import BUILT_IN_GROUPS
from mcproxy.kube.errors import method_not_allowed
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status import StatusError, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.authorization import LeftOut, MemberReads
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.selection import KnownField
    from mcproxy.aggregate.view.sources import ClusterMember
    from mcproxy.aggregate.view.view import View
    from mcproxy.kube.resource import APIResource

_RETRY_AFTER = 5
_POLL = 0.05  # seconds between two looks at members that are being read for the first time
#: Answered whoever asks, as system:public-info-viewer has it in every cluster.
_PUBLIC = frozenset({"healthz", "livez", "readyz", "version"})
_SELF_REVIEWS = frozenset(
    {
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
        ("authentication.k8s.io", "selfsubjectreviews"),
    }
)
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class ViewsOfAggregate(Protocol):
    """What is read from cache (`view.aggregate_views.AggregateViews`)."""

    def view(self, gvr: GroupVersionResource) -> View | None: ...

    def unwatchable(self, gvr: GroupVersionResource) -> APIResource | None: ...

    def names(self, gvr: GroupVersionResource) -> bool: ...

    @property
    def undiscovered(self) -> Sequence[ClusterMember]: ...


class DiscoveryHandler(Protocol):
    """Answers what clients ask to find out what there is (`discovery.handler.AggregateDiscovery`)."""

    async def serve(self, request: AggregatedRequest) -> bool:
        """Answer the request if its path is one of discovery's, else return False. Raises StatusError."""

    async def known_field(self, request: AggregatedRequest, resource: APIResource) -> KnownField | None:
        """Return what the resource's published schema knows of field selectors; None: nothing that is needed."""


class ReadHandler(Protocol):
    """Answers gets and lists from caches (`reads.reads.Reads`)."""

    async def get(self, request: AggregatedRequest, view: View, allowed: Sequence[str], left_out: LeftOut) -> None: ...

    async def list(
        self,
        request: AggregatedRequest,
        view: View,
        allowed: Sequence[str],
        left_out: LeftOut,
        known_field: KnownField | None,
    ) -> None: ...


class WatchHandler(Protocol):
    """Answers watches from caches (`watch.watches.Watches`)."""

    async def serve(
        self, request: AggregatedRequest, view: View, reads: MemberReads, known_field: KnownField | None
    ) -> None:
        """Begin a watch. `reads` says whose objects may be read, now and as decisions expire."""


class WriteHandler(Protocol):
    """Sends what cannot be answered from caches to the members that it concerns."""

    async def serve(self, request: AggregatedRequest, resource: APIResource, view: View | None) -> None:
        """Answer a write, or a request for a subresource. `view` is None for what is not cached."""

    async def fan_out(self, request: AggregatedRequest, resource: APIResource) -> None:
        """Answer a get or list with what all members answer now."""

    async def self_review(self, request: AggregatedRequest) -> None:
        """Answer a review that a user makes about themselves."""


class Handler:
    """Answers the requests to one aggregate."""

    def __init__(
        self,
        clock: IReactorTime,
        views: ViewsOfAggregate,
        *,
        authorization: MemberReads,
        discovery: DiscoveryHandler,
        reads: ReadHandler,
        watches: WatchHandler,
        writes: WriteHandler,
        primary: str | None,
        wait_until: float,
    ) -> None:
        """`primary` may be changed by a reload. `wait_until` (seconds of `clock`): until then members that were never
        reached are waited for.
        """
        self.primary = primary
        self._clock = clock
        self._views = views
        self._authorization = authorization
        self._discovery = discovery
        self._reads = reads
        self._watches = watches
        self._writes = writes
        self._wait_until = wait_until

    async def handle(self, request: AggregatedRequest) -> None:
        """Answer a request, or begin to. Raises StatusError."""
        info = request.info
        if not info.is_resource:
            await self._other(request)
        elif info.verb == "create" and (info.group, info.resource) in _SELF_REVIEWS and not info.subresource:
            await self._writes.self_review(request)
        else:
            await self._resource(request, GroupVersionResource(info.group, info.version, info.resource))

    async def _other(self, request: AggregatedRequest) -> None:
        """Answer a request that is not for a resource."""
        first = request.info.path.split("/", 2)[1]
        if first in _PUBLIC:
            mine = await self._discovery.serve(request)
        elif first in ("", "api", "apis", "openapi"):
            _, left_out = await self._authorization.allowed(request, request.members, request.info.verb, request.info)
            request.leave_out(left_out)
            mine = await self._discovery.serve(request)
        else:
            mine = False
        if not mine:
            await self._outside(request)

    async def _resource(self, request: AggregatedRequest, gvr: GroupVersionResource) -> None:
        if self._views.names(gvr):
            await self._discovered()
        view = self._views.view(gvr)
        resource = view.resource if view is not None else self._views.unwatchable(gvr)
        if resource is None or request.info.verb == "proxy":
            self._check_known(gvr)
            await self._outside(request)
            return
        _check_method(request)
        _check_namespace(request, resource)
        info = request.info
        if info.subresource or info.verb in _WRITES:
            await self._writes.serve(request, resource, view)
        elif view is None:
            if info.verb == "watch":
                raise method_not_allowed()
            await self._writes.fan_out(request, resource)
        else:
            await self._cached(request, view)

    async def _cached(self, request: AggregatedRequest, view: View) -> None:
        """Answer a get, list or watch from caches, with the objects of the members that allow it."""
        verb = request.info.verb
        known_field = None if verb == "get" else await self._discovery.known_field(request, view.resource)
        if verb == "watch":
            await self._watches.serve(request, view, self._authorization, known_field)
            return
        members = [member.name for member in view.members]
        allowed, left_out = await self._authorization.allowed(request, members, verb, request.info)
        if verb == "get":
            await self._reads.get(request, view, allowed, left_out)
        else:
            await self._reads.list(request, view, allowed, left_out, known_field)

    # -- the scope ----------------------------------------------------------------------------------------------

    async def _discovered(self) -> None:
        """Wait until it is known what each member has, at most as long as a start may take."""
        while self._views.undiscovered and self._clock.seconds() < self._wait_until:
            await deferLater(self._clock, _POLL)

    def _check_known(self, gvr: GroupVersionResource) -> None:
        """Raise StatusError (503) if a resource that is not known may be one of a member that was never reached."""
        missing = self._views.undiscovered
        if missing and self._views.names(gvr):
            names = ", ".join(member.name for member in missing)
            message = f"it is not known yet which clusters have {gvr}: {names} could not be reached so far"
            raise retry_after(503, message, _RETRY_AFTER)

    async def _outside(self, request: AggregatedRequest) -> None:
        """Have the primary answer what is not of the aggregate itself. Raises StatusError (404) without one."""
        if self.primary is None:
            raise _no_route()
        request.served_by(self.primary, cached=False)
        await request.forward(self.primary, request.target)


def _no_route() -> StatusError:
    return StatusError(404, "the server could not find the requested resource", details={})


def _check_namespace(request: AggregatedRequest, resource: APIResource) -> None:
    """Raise StatusError (404) for a namespace in the path of a resource that has none.

    A kube-apiserver has no such route. A right in that namespace, which is what members are asked for, must not show
    what is cluster-wide. In `namespaces/NAME` the name is the namespace, too.
    """
    info = request.info
    if info.namespace and not resource.namespaced and (info.resource != "namespaces" or info.name != info.namespace):
        raise _no_route()


def _check_method(request: AggregatedRequest) -> None:
    """Raise StatusError (405) for a method that a kube-apiserver has no route for."""
    info = request.info
    verb, named = info.verb, bool(info.name)
    if not verb or request.head.method == b"HEAD":
        raise method_not_allowed()
    if info.subresource:
        return
    if verb in ("update", "patch") and not named:
        raise method_not_allowed()
    if (
        verb == "create" and named and (not info.group or info.group in BUILT_IN_GROUPS)
    ):  # a custom resource's route for it creates (recorded)
        raise method_not_allowed()
