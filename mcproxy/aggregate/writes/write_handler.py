"""Handles requests that are always sent to members: writes, subresources, uncached reads and self reviews."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate.authorization import WriteRights
from mcproxy.aggregate.encoding.yaml_and_pretty import MAX_YAML, to_yaml
from mcproxy.aggregate.freshness import NOT_REACHED
from mcproxy.aggregate.view.conflicts import conflicts_of
from mcproxy.aggregate.view.scope import Scope, agree
from mcproxy.aggregate.writes import create_target, member_requests, owner_lookup, self_review
from mcproxy.aggregate.writes.held_bodies import MAX_BODY
from mcproxy.aggregate.writes.member_requests import client_fields, hand_back, is_success, prefers_yaml
from mcproxy.aggregate.writes.object_write import ObjectWrite
from mcproxy.aggregate.writes.request_body import without_marks
from mcproxy.aggregate.writes.uncached_reads import UncachedRead
from mcproxy.http.messages import split_fields
from mcproxy.kube.media_types import JSON, YAML
from mcproxy.kube.status import StatusError, method_not_allowed, not_found
from mcproxy.net.wall_time import wall_seconds
from mcproxy.requests.coroutines import InThread

if TYPE_CHECKING:
    from mcproxy.aggregate.authorization import MemberAuthorizer
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.aggregate_views import AggregateViews
    from mcproxy.aggregate.view.view import View
    from mcproxy.aggregate.writes.held_bodies import BodyBuffers, HeldBody
    from mcproxy.aggregate.writes.owner_lookup import Fresh
    from mcproxy.kube.resource import APIResource

_OF_OBJECTS = frozenset({"create", "update", "patch"})
_NEGOTIATED = frozenset({b"accept", b"content-type"})


class WriteHandler:
    """Handles the requests to one aggregate that are not answered from caches, by sending them to its members."""

    def __init__(
        self,
        views: AggregateViews,
        clock: IReactorTime,
        in_thread: InThread,
        decisions: MemberAuthorizer,
        fresh: Fresh,
        bodies: BodyBuffers,
        clusters: Mapping[str, Member] = MappingProxyType({}),
    ) -> None:
        """`in_thread` runs YAML conversions, `decisions` reviews users' rights in the members, `fresh` waits until
        caches have the present state, and `bodies` buffers all request bodies.

        `clusters` are the clusters whose discovery is followed, by name; they include primaries, and can change.
        """
        self._views = views
        self._clock = clock
        self._in_thread = in_thread
        self._decisions = decisions
        self._fresh = fresh
        self._bodies = bodies
        self._clusters = clusters

    async def serve(self, request: AggregatedRequest, resource: APIResource, view: View | None) -> None:
        """Answer a write or a subresource request; `view` is None for an uncached resource. Raises StatusError."""
        if view is None:
            await self._uncached(request, resource)
            return

        async def write(request: AggregatedRequest) -> None:
            rights = WriteRights(self._decisions, request, resource.gvr, self._clock)
            held = self._bodies.of(_user(request))
            try:
                await ObjectWrite(
                    request,
                    view,
                    resource.gvr,
                    self._views,
                    self._clock,
                    rights=rights,
                    held=held,
                    fresh=self._fresh,
                    clusters=self._clusters,
                ).run()
            finally:
                held.release()

        await answer_in_yaml(request, self._in_thread, write)

    async def read_uncached(self, request: AggregatedRequest, resource: APIResource) -> None:
        """Answer a get or list by asking all members. Raises StatusError."""
        namespace = request.info.namespace if resource.namespaced else ""
        unasked = self._views.unasked(resource, namespace)
        conflicts = conflicts_of(self._views.aggregate, resource.gvr)

        async def answer(request: AggregatedRequest) -> None:
            read = UncachedRead(request, resource, self._parts(resource), self._clock, unasked, conflicts)
            await (read.get() if request.info.verb == "get" else read.list_all())

        await answer_in_yaml(request, self._in_thread, answer)

    async def self_review(self, request: AggregatedRequest) -> None:
        """Answer a user's review of the user's own identity or rights. Raises StatusError."""
        await answer_in_yaml(request, self._in_thread, self._self_review)

    async def _self_review(self, request: AggregatedRequest) -> None:
        primary = self._views.aggregate.primary
        clusters = list(dict.fromkeys(([primary] if primary is not None else []) + list(request.members)))
        held = self._bodies.of(_user(request))
        try:
            if request.info.resource == "selfsubjectreviews":
                await self_review.who_am_i(request, clusters, held, wall_seconds(self._clock))
            elif request.info.resource == "selfsubjectaccessreviews":
                await self_review.access_review(request, clusters, held)
            else:
                await self_review.rules_review(request, clusters, held)
        finally:
            held.release()

    def _parts(self, resource: APIResource) -> list[tuple[str, tuple[str, ...]]]:
        """Return the members that have a resource in scope, each with the namespaces."""
        scope = Scope(self._views.aggregate.cache.resources)
        return [
            (member.name, namespaces)
            for member in self._views.members
            if (found := member.discovery.resources.get(resource.gvr)) is not None and agree(found, resource)
            if (namespaces := scope.namespaces(member.name, resource))
        ]

    async def _uncached(self, request: AggregatedRequest, resource: APIResource) -> None:
        """Answer a write to an uncached resource: by the member that has the object, or that a rule names."""
        info, gvr, aggregate = request.info, resource.gvr, self._views.aggregate
        rights = WriteRights(self._decisions, request, gvr, self._clock)
        parts = [
            member
            for member, namespaces in self._parts(resource)
            if not info.namespace or {"", info.namespace} & set(namespaces)
        ]
        namespace = info.namespace if resource.namespaced else ""
        if info.verb == "create" and not info.subresource:
            rule = create_target.find_rule(aggregate, gvr)
            if create_target.follows_label(rule):
                raise create_target.no_label_followed(gvr)
            name = create_target.member_of(rule, aggregate)
            await rights.require((), name)
            if namespace and not parts and not self._views.unasked(resource, namespace):
                raise not_found("", "namespaces", namespace)  # it is out of scope
            await create_target.check_target(self._clusters.get(name), rule, aggregate, resource, self._clock)
        elif not info.name:
            raise method_not_allowed()
        else:
            chosen = conflicts_of(aggregate, gvr).chosen(namespace)
            await rights.require(parts)
            undecided = {each.member: each.why for each in request.left_out if each.undecided}
            unasked = {member: undecided[member] for member in parts if member in undecided}
            unasked |= dict.fromkeys(self._views.unasked(resource, namespace), NOT_REACHED)
            members = [member for member in parts if member in request.members]
            name = await owner_lookup.uncached_owner(request, gvr, namespace, info.name, members, unasked, chosen)
        request.served_by(name, cached=False)
        if not _has_object(request):
            await request.forward(name, request.target)
            return
        fields = client_fields(request)
        fields += [(name.title(), value) for name, value in split_fields(request.head.fields) if name in _NEGOTIATED]
        held = self._bodies.of(_user(request))
        try:
            body = await _read_bare(request, held, name)
            response = await request.send(name, request.head.method, request.target, fields=fields, body=body)
        finally:
            held.release()
        may_read = await rights.may_read(name, namespace, info.name)
        edited = member_requests.edited_answer(response, str) if is_success(response) else None
        hand_back(request, response, body=edited, may_read=may_read)

    async def write_beyond(self, request: AggregatedRequest, cluster: str) -> None:
        """Let a cluster answer a request outside the scope, as if the client had sent it to the cluster.

        The aggregate's label and annotation are removed from an object. A body that is longer than a kube-apiserver
        accepts is forwarded without being read, so that the cluster refuses it. Raises StatusError.
        """
        if not _has_object(request) or request.head.length > MAX_BODY:
            await request.forward(cluster, request.target)
            return
        held = self._bodies.of(_user(request))
        try:
            await request.forward(cluster, request.target, await _read_bare(request, held, cluster))
        finally:
            held.release()


def _has_object(request: AggregatedRequest) -> bool:
    """Whether the body is an object or a patch of an object, and does not belong to a subresource."""
    info = request.info
    return info.verb in _OF_OBJECTS and not info.subresource and request.head.upgrade is None


async def _read_bare(request: AggregatedRequest, held: HeldBody, cluster: str) -> bytes:
    """Return the body for a cluster, without the aggregate's label and annotation. Raises StatusError."""
    return without_marks(await held.read(request.exchange), request.head.header(b"content-type"), cluster)


def _user(request: AggregatedRequest) -> str:
    """Return the user name by which held bodies are counted: that in the first member that knows the user, or ""."""
    for member in request.members:
        try:
            return request.user_for(member).name
        except StatusError:
            continue
    return ""


# -- answers in YAML ------------------------------------------------------------------------------------------
#
# Converts JSON answers to YAML for requests that are sent to members or answered here.
#
# Members get requests for JSON, in which the proxy edits the cluster's label and annotation and the versions. For a
# client that prefers YAML, a thread converts the complete answer. An answer longer than the limit for lists in YAML
# stays JSON, with that Content-Type: the write has been done, and a refusal would claim the opposite.


_JSON_TYPE = re.compile(rb"(?mi)^content-type: *" + JSON.encode() + rb"[^\r\n]*")


async def answer_in_yaml(
    request: AggregatedRequest, in_thread: InThread, answer: Callable[[AggregatedRequest], Awaitable[None]]
) -> None:
    """Answer a request with `answer`, and convert the answer to YAML if the client prefers YAML."""
    if not prefers_yaml(request):
        await answer(request)
        return
    held = _HeldAnswer(request)
    await answer(cast("AggregatedRequest", held))
    await held.exchange.send(in_thread)


class _HeldAnswer:
    """A request whose answer is buffered completely and converted to YAML; streamed answers pass through."""

    def __init__(self, request: AggregatedRequest) -> None:
        self._request = request
        self.exchange = _HeldExchange(request.exchange)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class _HeldExchange:
    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._answer: tuple[int, bytes, bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def answer(self, status: int, block: bytes, body: bytes) -> None:
        self._answer = status, block, body

    async def send(self, in_thread: InThread) -> None:
        if self._answer is None:
            return
        status, block, body = self._answer
        if body and len(body) <= MAX_YAML and _JSON_TYPE.search(block):
            try:
                body = await in_thread(to_yaml, body)
                block = _JSON_TYPE.sub(b"Content-Type: " + YAML.encode(), block)
            except (ValueError, RecursionError):
                pass  # a body that is not JSON despite its Content-Type is passed on unchanged
        self._exchange.answer(status, block, body)
