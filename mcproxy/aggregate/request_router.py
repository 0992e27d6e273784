"""Chooses the part of this package that answers a request to an aggregate.

    not a resource        discovery, OpenAPI, version, probes; anything else: the primary
    self reviews          writes: asked of the primary and every member
    a cached resource     get, list: reads; watch: watch; anything else: writes
    one without watch     get, list: writes (uncached reads); anything else: writes
    outside the scope     the primary; without one 404
    in it, but not known  the members' discovery is read again; then as above, or 404

Reads from caches are authorized here, by each member; requests to a member are authorized there, and writes and
subresources here before (`writes.write_rights`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.aggregate.authorization import ViewAuthorizer
from mcproxy.aggregate.discovery.merge import BUILT_IN_GROUPS
from mcproxy.aggregate.discovery.merge_cache import Shown
from mcproxy.aggregate.reflector.member import rediscover, renew
from mcproxy.kube.apiserver_errors import method_not_allowed
from mcproxy.kube.query_parameters import check_timeout, parse_query
from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status import StatusError, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.authorization import MemberAuthorizer
    from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
    from mcproxy.aggregate.reads.reads import Reads
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.aggregate_views import AggregateViews
    from mcproxy.aggregate.view.view import View
    from mcproxy.aggregate.watch.watches import Watches
    from mcproxy.aggregate.writes.write_handler import WriteHandler
    from mcproxy.kube.resource import APIResource

_RETRY_AFTER = 5
_POLL = 0.05  # seconds between two polls of members that are being read for the first time
#: Answered for all users, as system:public-info-viewer allows it in every cluster.
_PUBLIC = frozenset({"healthz", "livez", "readyz", "version"})
_SELF_REVIEWS = frozenset(
    {
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
        ("authentication.k8s.io", "selfsubjectreviews"),
    }
)
_LONG_RUNNING_VERBS = frozenset({"watch", "proxy"})
_LONG_RUNNING_SUBRESOURCES = STREAM_SUBRESOURCES | {"log", "proxy"}
_WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})


class RequestRouter:
    """Answers the requests to one aggregate."""

    def __init__(
        self,
        clock: IReactorTime,
        views: AggregateViews,
        *,
        authorization: MemberAuthorizer,
        discovery: AggregateDiscovery,
        reads: Reads,
        watches: Watches,
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

    async def handle(self, request: AggregatedRequest, discovery: AggregateDiscovery | None = None) -> None:
        """Answer a request, or begin to. Raises StatusError.

        `discovery` is that of the server, if it has more than the aggregate: API services.
        """
        info = request.info
        if info.verb not in _LONG_RUNNING_VERBS and info.subresource not in _LONG_RUNNING_SUBRESOURCES:
            check_timeout(parse_query(request.target.partition(b"?")[2]))
        if not info.is_resource:
            await self._other(request, discovery or self._discovery)
        elif info.verb == "create" and (info.group, info.resource) in _SELF_REVIEWS and not info.subresource:
            await self._writes.self_review(request)
        else:
            await self._resource(request, GroupVersionResource(info.group, info.version, info.resource))

    async def _other(self, request: AggregatedRequest, discovery: AggregateDiscovery) -> None:
        """Answer a request that is not for a resource."""
        first = request.info.path.split("/", 2)[1]
        if first in _PUBLIC:
            mine = await discovery.serve(request)
        elif first in ("", "api", "apis", "openapi"):
            clusters, left_out = await self._authorization.discoverable(request, self.primary)
            request.leave_out(left_out)
            undecided = any(each.undecided for each in (*request.left_out, *left_out))
            if first in ("api", "apis"):
                await renew(self._views.members, self._clock)
            mine = await discovery.serve(request, Shown(clusters, undecided=undecided))
        else:
            mine = False
        if not mine:
            await self._outside(request)

    async def _resource(self, request: AggregatedRequest, gvr: GroupVersionResource) -> None:
        if self._views.names(gvr):
            await self._discovered()
            if not self._views.known(gvr) and request.info.verb != "proxy":
                await self._rediscover(gvr)
        view = self._views.view(gvr)
        resource = view.resource if view is not None else self._views.unwatchable(gvr)
        if resource is None or request.info.verb == "proxy":
            await self._outside(request)
            return
        _check_method(request)
        _check_namespace(request, resource)
        info = request.info
        if info.subresource or info.verb in _WRITES:
            await self._writes.serve(request, resource, None if view is None else view.pinned())
        elif view is None:
            if info.verb == "watch":
                raise method_not_allowed()
            await self._writes.read_uncached(request, resource)
        else:
            await self._cached(request, view)

    async def _cached(self, request: AggregatedRequest, view: View) -> None:
        """Answer a get, list or watch from caches, with the objects of the members that allow it."""
        verb = request.info.verb
        known_field = None if verb == "get" else await self._discovery.known_field(request, view.resource)
        if verb == "watch":
            await self._watches.serve(request, view, ViewAuthorizer(self._authorization, view), known_field)
            return
        view = view.pinned()
        members = [member.name for member in view.members]
        reads = ViewAuthorizer(self._authorization, view)
        allowed, left_out = await reads.allowed(request, members, verb, request.info)
        if verb == "get":
            await self._reads.get(request, view, allowed, left_out)
        else:
            await self._reads.list(request, view, allowed, left_out, known_field)

    # -- the scope ----------------------------------------------------------------------------------------------

    async def _discovered(self) -> None:
        """Wait until it is known what each member has, at most as long as a start may take."""
        while self._views.undiscovered and self._clock.seconds() < self._wait_until:
            await deferLater(self._clock, _POLL)

    async def _rediscover(self, gvr: GroupVersionResource) -> None:
        """Look whether a member has got a resource of the scope that none is known to have.

        It is never the primary's to answer: an object would be made there as the client sent it, and a watch would show
        the primary's versions for ever. Raises StatusError: 404 if no member has it, 503 if one cannot be asked.
        """
        unasked = await rediscover(self._views.in_scope(gvr), self._clock)
        if self._views.known(gvr):
            return
        if unasked:
            message = f"it is not known which clusters have {gvr}: {', '.join(unasked)} cannot be reached"
            raise retry_after(503, message, _RETRY_AFTER)
        raise _no_route()

    async def _outside(self, request: AggregatedRequest) -> None:
        """Have the primary answer what is not of the aggregate itself. Raises StatusError (404) without one."""
        if self.primary is None:
            raise _no_route()
        request.served_by(self.primary, cached=False)
        if request.info.is_resource:
            await self._writes.write_beyond(request, self.primary)
        else:
            await request.forward(self.primary, request.target)


def _no_route() -> StatusError:
    return StatusError(404, "the server could not find the requested resource", details={})


def _check_namespace(request: AggregatedRequest, resource: APIResource) -> None:
    """Raise StatusError (404) for a namespace in the path of a resource that has none, or for the name of an object
    without the namespace that it must have.

    A kube-apiserver has no such routes. A right in that namespace, which is what members are asked for, must not show
    what is cluster-wide. In `namespaces/NAME` the name is the namespace, too.
    """
    info = request.info
    if info.namespace and not resource.namespaced and (info.resource != "namespaces" or info.name != info.namespace):
        raise _no_route()
    # Of a collection the name is that of its field selector.
    named = bool(info.name) and info.verb not in ("list", "watch", "deletecollection")
    if named and not info.namespace and resource.namespaced:
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
