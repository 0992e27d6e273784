"""Writes to an aggregate, and all requests for subresources: each goes to the member that owns the object.

    create            by the aggregate's create rules
    update, patch     to the owner; an apply or PUT of what does not exist is a create
    delete            to the owner; of a collection to each member in scope
    subresources      to the owner; those that stream go through unchanged

A member is asked with the user's identity, so that it authorizes the write itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate import warnings
from mcproxy.aggregate.cache.object import CLUSTER_ANNOTATION, CLUSTER_LABEL
from mcproxy.aggregate.member_requests import accepted, client_fields, edit_query, hand_back, is_success, message_of
from mcproxy.aggregate.view.scope import Scope
from mcproxy.aggregate.writes import answers, create_rules, owner, self_review, visibility
from mcproxy.aggregate.writes.body_reader import read_body
from mcproxy.aggregate.writes.delete_collection import DeleteCollection
from mcproxy.aggregate.writes.fan_out import FanOut
from mcproxy.aggregate.writes.owner import Absent, Owner, OwnerLookup
from mcproxy.aggregate.writes.request_body import BodyKind, RequestBody
from mcproxy.identity.authorization.attributes import required_attributes
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.kube import json_edit
from mcproxy.kube.errors import method_not_allowed, not_found
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES
from mcproxy.kube.status import StatusError
from mcproxy.net.wall_time import wall_seconds

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.view.aggregate_views import AggregateViews
    from mcproxy.aggregate.view.view import MemberView, View
    from mcproxy.config.model import Aggregate
    from mcproxy.http.messages import Header
    from mcproxy.kube.resource import APIResource, GroupVersionResource

_STREAMING = STREAM_SUBRESOURCES | {"log", "proxy"}
_ANSWERED_BY_STATUS = frozenset({"eviction", "binding"})
"""Subresources that change the object itself, of which the answer does not tell the version."""
_CREATED_BY_PUT = frozenset(
    {
        ("", "endpoints"),
        ("", "events"),
        ("", "limitranges"),
        ("", "services"),
        ("coordination.k8s.io", "leases"),
        ("events.k8s.io", "events"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "rolebindings"),
        ("rbac.authorization.k8s.io", "roles"),
    }
)
"""Resources of which a PUT makes what does not exist (`AllowCreateOnUpdate` of their strategies); no custom ones."""


class Writes:
    """What of one aggregate is asked of its members each time: writes, subresources, fan-out, self reviews."""

    def __init__(self, views: AggregateViews, clock: IReactorTime) -> None:
        """`clock.seconds()` is seconds since 1970."""
        self._views = views
        self._clock = clock

    async def serve(self, request: AggregatedRequest, resource: APIResource, view: View | None) -> None:
        """Answer a write, or a request for a subresource; `view` is None for what is not cached. Raises StatusError."""
        if view is not None:
            await _Write(request, view, resource.gvr, self._views.aggregate, self._clock).run()
        else:
            await self._uncached(request, resource)

    async def fan_out(self, request: AggregatedRequest, resource: APIResource) -> None:
        """Answer a get or list with what all members answer now. Raises StatusError."""
        fan_out = FanOut(request, resource, self._parts(resource), self._clock)
        await (fan_out.get() if request.info.verb == "get" else fan_out.list_all())

    async def self_review(self, request: AggregatedRequest) -> None:
        """Answer a review that a user makes about themselves. Raises StatusError."""
        primary = self._views.aggregate.primary
        clusters = list(dict.fromkeys(([primary] if primary is not None else []) + list(request.members)))
        if request.info.resource == "selfsubjectreviews":
            await self_review.who_am_i(request, clusters, wall_seconds(self._clock))
        elif request.info.resource == "selfsubjectaccessreviews":
            await self_review.access_review(request, clusters)
        else:
            await self_review.rules_review(request, clusters)

    def _parts(self, resource: APIResource) -> list[tuple[str, tuple[str, ...]]]:
        """Return the members that have a resource in scope, each with the namespaces."""
        scope = Scope(self._views.aggregate.cache.resources)
        return [
            (member.name, namespaces)
            for member in self._views.members
            if resource.gvr in member.discovery.resources and (namespaces := scope.namespaces(member.name, resource))
        ]

    async def _uncached(self, request: AggregatedRequest, resource: APIResource) -> None:
        """Answer a write of what is not cached: unchanged by the member that has the object, or that a rule names."""
        info, gvr, aggregate = request.info, resource.gvr, self._views.aggregate
        parts = [
            member
            for member, namespaces in self._parts(resource)
            if not info.namespace or {"", info.namespace} & set(namespaces)
        ]
        if info.verb == "create" and not info.subresource:
            rule = create_rules.find_rule(aggregate, gvr)
            if create_rules.follows_label(rule):
                raise create_rules.no_label_followed(gvr)
            name = create_rules.member_of(rule, aggregate)
        elif not info.name:
            raise method_not_allowed()
        else:
            namespace = info.namespace if resource.namespaced else ""
            name = await owner.uncached_owner(request, gvr, namespace, info.name, parts)
        request.served_by(name, cached=False)
        await request.forward(name, request.target)


class _Write:
    """One request."""

    def __init__(
        self,
        request: AggregatedRequest,
        view: View,
        gvr: GroupVersionResource,
        aggregate: Aggregate,
        clock: IReactorTime,
    ) -> None:
        info = request.info
        self._request = request
        self._view = view
        self._gvr = gvr
        self._aggregate = aggregate
        self._clock = clock
        self._method = request.head.method
        self._namespace = info.namespace if view.resource.namespaced else ""
        self._name = _object_name(info.name, info.subresource)
        self._subresource = info.subresource
        self._warnings: list[Header] = []

    async def run(self) -> None:
        verb, request = self._request.info.request_verb, self._request
        if not self._view.covers(self._namespace):
            raise self._outside()
        if self._subresource and (self._subresource in _STREAMING or request.head.upgrade is not None):
            await self._stream()
        elif verb == "create" and not self._subresource:
            await self._create()
        elif verb == "deletecollection":
            body = RequestBody(await read_body(request.exchange), request.head.header(b"content-type"))
            await DeleteCollection(request, self._view, self._gvr, self._namespace, body, self._clock).run()
        elif self._name and (self._subresource or verb in ("update", "patch", "delete")):
            await self._routed()
        else:
            raise method_not_allowed()

    def _outside(self) -> StatusError:
        """Return the 404 for a namespace outside the scope: there, nothing exists."""
        if self._name:
            return not_found(self._gvr.group, self._gvr.resource, self._name)
        return not_found("", "namespaces", self._namespace)

    def _lookup(self) -> OwnerLookup:
        return OwnerLookup(self._request, self._view, self._gvr, self._namespace, self._name)

    # -- to the owner -----------------------------------------------------------------------------------------

    async def _stream(self) -> None:
        found = await self._lookup().find()
        if isinstance(found, Absent):
            raise found.refusal
        self._request.served_by(found.name, cached=False)
        await self._request.forward(found.name, self._request.target)

    async def _routed(self) -> None:
        request, lookup = self._request, self._lookup()
        accept = accepted(request, protobuf=True)
        body = RequestBody(await read_body(request.exchange), request.head.header(b"content-type"))
        label = body.cluster()
        found = await lookup.find(label, ask_only_one=self._may_create(body))
        if isinstance(found, Absent):
            self._warnings += found.warnings
            if found.forbidden or self._subresource or not self._may_create(body):
                raise _with_warnings(found.refusal, self._warnings)
            await self._create_with(accept, body, label)
            return
        try:
            sent = self._for_member(found.member, body, found.cached)
        except StatusError:  # of the body: the same for everybody, so it must not tell that the object exists
            await self._check_seen(lookup, found)
            raise
        response = await self._send_to(found.name, accept, *sent, content_type=body.content_type)
        if response.status == 403:
            await self._check_seen(lookup, found, response)
        await self._answer(found.member, response, body, found.cached)

    async def _check_seen(self, lookup: OwnerLookup, found: Owner, response: MemberResponse | None = None) -> None:
        """Raise StatusError if the user may not know that the object exists: that of one that does not.

        `response` is the owner's 403. It is handed on if it is not of authorization: a user may have the right to write
        what they may not read.
        """
        if len(self._view.layout) == 1:
            return  # it was not looked for
        absent = await lookup.may_see(found)
        if absent is None:
            return
        request = self._request
        if absent.forbidden and response is not None:
            wanted = required_attributes(request.info, request.target)[0]
            if not message_of(response).startswith(forbidden(request.user_for(found.name), wanted).message):
                return
        raise _with_warnings(absent.refusal, [*self._warnings, *absent.warnings])

    def _may_create(self, body: RequestBody) -> bool:
        """Whether the request, at a member that does not have the object, would create it."""
        if self._method == b"PATCH":
            return body.is_apply
        return self._method == b"PUT" and (self._gvr.group, self._gvr.resource) in _CREATED_BY_PUT

    # -- create -----------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        request = self._request
        rule = create_rules.find_rule(self._aggregate, self._gvr)
        if not create_rules.follows_label(rule):
            name = create_rules.member_of(rule, self._aggregate)
            if self._part(name) is None:
                request.served_by(name, cached=False)
                await request.forward(name, request.target)
                return
        accept = accepted(request, protobuf=True)
        body = RequestBody(await read_body(request.exchange), request.head.header(b"content-type"))
        await self._create_with(accept, body, body.cluster())

    async def _create_with(self, accept: bytes, body: RequestBody, label: str | None) -> None:
        """Create at the member that the rules name."""
        rule = create_rules.find_rule(self._aggregate, self._gvr)
        if create_rules.follows_label(rule):
            choice = [member.name for member in self._view.members if member.covers(self._namespace)]
            name = create_rules.labelled_member(label, choice, self._view.resource, self._name or body.name())
        else:
            name = create_rules.member_of(rule, self._aggregate)
            if label is not None and label != name:
                text = f"the label {CLUSTER_LABEL}={label} is not followed: a create rule of this server names {name}"
                self._warnings.append(warnings.warning(text))
        member = self._part(name)
        if member is None:  # a rule may name a cluster where the resource is not in scope
            response = await self._send_to(name, accept, body.data, self._request.target)
            self._request.served_by(name, cached=False)
            hand_back(self._request, response, more=self._warnings)
            return
        await self._answer(member, await self._send(member, accept, body), body, None)

    def _part(self, name: str) -> MemberView | None:
        member = self._view.member(name)
        return member if member is not None and member.covers(self._namespace) else None

    # -- one request to a member, and its answer ---------------------------------------------------------------

    async def _send(self, member: MemberView, accept: bytes, body: RequestBody) -> MemberResponse:
        data, target = self._for_member(member, body, None)
        return await self._send_to(member.name, accept, data, target, content_type=body.content_type)

    def _for_member(self, member: MemberView, body: RequestBody, cached: CachedObject | None) -> tuple[bytes, bytes]:
        """Return the body and the target as the member gets them. Raises StatusError for what it could not be told."""
        data = body.for_member(member.name, self._owner_part(member), self._kind(), bare=_bare(cached))
        target = self._request.target
        version = parse_query(target.partition(b"?")[2]).get("resourceVersion")
        if version:
            target = edit_query(target, {"resourceVersion": self._owner_part(member)(version)})
        return data, target

    async def _send_to(
        self, name: str, accept: bytes, data: bytes, target: bytes, *, content_type: bytes | None = None
    ) -> MemberResponse:
        request = self._request
        fields = [(b"Accept", accept), *client_fields(request)]
        sent = content_type if content_type is not None else request.head.header(b"content-type")
        if sent is not None:
            fields.append((b"Content-Type", sent))
        return await request.send(name, self._method, target, fields=fields, body=data)

    def _owner_part(self, member: MemberView) -> Callable[[str], str]:
        subject = self._lookup().subject
        return lambda text: self._view.reader.owner_part(text, member.name, subject)

    def _kind(self) -> BodyKind:
        if self._method == b"DELETE":
            return BodyKind.DELETE_OPTIONS
        return BodyKind.EVICTION if self._subresource == "eviction" else BodyKind.OBJECT

    async def _answer(
        self, member: MemberView, response: MemberResponse, body: RequestBody, cached: CachedObject | None
    ) -> None:
        """Hand a member's answer back, once the cache shows what it says; `cached` is the object before."""
        request, view = self._request, self._view
        request.served_by(member.name, cached=False)
        if not is_success(response) or self._subresource == "token":
            hand_back(request, response, more=self._warnings)
            return
        reads = self._method in (b"GET", b"HEAD")
        written = answers.read(response)
        unchanged = reads or self._is_dry_run(body)
        if not unchanged:
            await self._until_visible(member, written, cached)

        def version(number: int) -> str:
            if unchanged:  # the object's own version, as a get has it, so that `kubectl diff` shows no difference
                return view.format.object(member.index, number)
            versions = view.versions_of(frozenset(request.members), self._namespace)
            return view.format.written(versions, member.index, number)

        hand_back(request, response, body=answers.edited(response, version), more=self._warnings)

    async def _until_visible(
        self, member: MemberView, written: answers.WrittenObject, cached: CachedObject | None
    ) -> None:
        stores = member.stores_of(self._namespace)
        if self._method == b"DELETE" and not self._subresource and not written.stays:
            await visibility.until_gone(stores, {(self._namespace, self._name): written.uid}, self._clock)
        elif written.version:
            await visibility.until_version(stores, written.version)
        elif self._subresource in _ANSWERED_BY_STATUS and cached is not None and not visibility.is_deleted(cached):
            key = self._namespace, self._name
            await visibility.until_changed(stores, {key: cached.version}, self._clock)

    def _is_dry_run(self, body: RequestBody) -> bool:
        if "dryRun" in parse_query(self._request.target.partition(b"?")[2]):
            return True
        return self._kind() is not BodyKind.OBJECT and body.is_dry_run


def _object_name(name: str, subresource: str) -> str:
    """Return the name of the object whose subresource is asked for: `https:web:443` is a port of the service web."""
    if subresource != "proxy" or ":" not in name:
        return name
    parts = name.split(":")
    return parts[1] if len(parts) == 3 else parts[0]


def _bare(cached: CachedObject | None) -> tuple[str, ...]:
    """Return those of labels and annotations that the member's own object does not have."""
    if cached is None:
        return ()
    found = ["labels"] if cached.labels.keys() == {CLUSTER_LABEL} else []
    # The annotations are looked for as the decoder writes those of an object that has none.
    if b'"annotations":{"%b":"' % CLUSTER_ANNOTATION.encode() in cached.head + cached.tail:
        metadata = cached.metadata_json(b"0").decode("utf-8", "surrogateescape")
        if _annotations(metadata) == [CLUSTER_ANNOTATION]:
            found.append("annotations")
    return tuple(found)


def _annotations(metadata: str) -> list[str]:
    for member in json_edit.members(metadata, 0):
        if member.name == "annotations":
            return [each.name for each in json_edit.members(metadata, member.value)]
    return []


def _with_warnings(refusal: StatusError, more: list[Header]) -> StatusError:
    if more:
        refusal.headers = (*refusal.headers, *more)
    return refusal
