"""Sends one write to an aggregate, or one request for a subresource, to the right member, and passes its answer back.

    create            by the aggregate's create rules
    update, patch     to the owner; an apply or PUT of a missing object is a create
    delete            to the owner; of a collection to each member in scope
    subresources      to the owner; streaming ones are forwarded unchanged

First each possible member is asked whether the user may make the request (`WriteRights`), then the body is read, then
the owner is looked up. The member gets the request with the user's identity, so the member authorizes it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate import warnings
from mcproxy.aggregate.authorization import WriteRights
from mcproxy.aggregate.cache.cached_object import CLUSTER_LABEL
from mcproxy.aggregate.freshness import NOT_REACHED, RETRY_AFTER, check_absent
from mcproxy.aggregate.reflector.member import rediscover
from mcproxy.aggregate.writes import create_target, member_requests, owner_lookup, read_your_writes
from mcproxy.aggregate.writes.delete_collection import DeleteCollection
from mcproxy.aggregate.writes.member_requests import (
    accepted,
    client_fields,
    edit_query,
    hand_back,
    is_success,
    message_of,
)
from mcproxy.aggregate.writes.owner_lookup import Absent, ClusterLabel, Owner, OwnerLookup
from mcproxy.aggregate.writes.request_body import BodyKind, RequestBody, bare_maps, is_apply, without_marks
from mcproxy.identity.authorization.attributes import forbidden, required_attributes
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.requestinfo import STREAM_SUBRESOURCES
from mcproxy.kube.status import StatusError, method_not_allowed, not_found, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.reflector.member import Member
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.view.aggregate_views import AggregateViews
    from mcproxy.aggregate.view.view import MemberView, View
    from mcproxy.aggregate.writes.held_bodies import HeldBody
    from mcproxy.aggregate.writes.owner_lookup import Fresh
    from mcproxy.config.model import CreateRule
    from mcproxy.http.messages import Header
    from mcproxy.kube.resource import GroupVersionResource

_STREAMING = STREAM_SUBRESOURCES | {"log", "proxy"}
_ANSWERED_BY_STATUS = frozenset({"eviction", "binding"})
"""Subresources that change the object itself, but whose answer does not contain its new version."""
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
"""Resources for which a PUT creates a missing object (`AllowCreateOnUpdate` of their strategies); custom resources are
not among them.
"""


class ObjectWrite:
    """One write or subresource request."""

    def __init__(
        self,
        request: AggregatedRequest,
        view: View,
        gvr: GroupVersionResource,
        views: AggregateViews,
        clock: IReactorTime,
        *,
        rights: WriteRights,
        held: HeldBody,
        fresh: Fresh,
        clusters: Mapping[str, Member],
    ) -> None:
        info = request.info
        self._rights = rights
        self._held = held
        self._fresh = fresh
        self._clusters = clusters
        self._request = request
        self._view = view
        self._gvr = gvr
        self._views = views
        self._aggregate = views.aggregate
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
            await self._require()
            await self._stream()
        elif verb == "create" and not self._subresource:
            await self._create()
        elif verb == "deletecollection":
            await self._require()
            body = RequestBody(await self._held.read(request.exchange), request.head.header(b"content-type"))
            await DeleteCollection(
                request, self._view, self._gvr, self._namespace, body, self._clock, self._rights
            ).run()
        elif self._name and (self._subresource or verb in ("update", "patch", "delete")):
            await self._require(self._target() if self._may_create() else None)
            await self._send_to_owner()
        else:
            raise method_not_allowed()

    def _outside(self) -> StatusError:
        """Return the 404 for a namespace that is out of scope, where nothing exists. Raises StatusError (503) if an
        unreachable member with the namespace in its scope may have the resource.
        """
        if self._name:
            lookup = self._lookup()
            check_absent(lookup.subject, self._view, self._namespace, self._request.left_out, ())
            return not_found(self._gvr.group, self._gvr.resource, self._name)
        return not_found("", "namespaces", self._namespace)

    def _lookup(self) -> OwnerLookup:
        return OwnerLookup(
            self._request, self._view, self._gvr, self._namespace, self._name, rights=self._rights, fresh=self._fresh
        )

    async def _require(self, target: str | None = None) -> None:
        """Leave out the members that do not allow the request. Raises StatusError if no member allows it."""
        members = [member.name for member in self._view.members if member.covers(self._namespace)]
        members += [name for name, _ in self._view.differing(self._namespace)]
        try:
            await self._rights.require(members, target)
        except StatusError as refusal:
            if (
                refusal.code == 403 and self._name
            ):  # a member that was never reached may allow the request and have the object
                check_absent(self._lookup().subject, self._view, self._namespace, self._request.left_out, ())
            raise

    def _target(self) -> str | None:
        """Return the cluster that a create rule names; None if the object's label decides or no rule matches."""
        try:
            rule = create_target.find_rule(self._aggregate, self._gvr)
            return None if create_target.follows_label(rule) else create_target.member_of(rule, self._aggregate)
        except StatusError:
            return None  # the refusal is sent later, if the object does not exist

    # -- to the owner -----------------------------------------------------------------------------------------

    async def _stream(self) -> None:
        lookup = self._lookup()
        found = await lookup.find_owner()
        if isinstance(found, Absent):
            await self._check_other_versions(found)
            raise found.refusal
        lookup.check_reachable(found)
        self._request.served_by(found.name, cached=False)
        try:
            await self._request.forward(found.name, self._request.target)
        except StatusError as refusal:
            raise lookup.unreachable(found, refusal) from None

    async def _send_to_owner(self) -> None:
        request, lookup = self._request, self._lookup()
        accept = accepted(request, protobuf=True)
        body = RequestBody(await self._held.read(request.exchange), request.head.header(b"content-type"))
        label = ClusterLabel(body.cluster(), self._method in (b"PUT", b"POST") or body.is_apply)
        found = await lookup.find_owner(label, ask_only_one=self._may_create())
        if isinstance(found, Absent):
            await self._check_other_versions(found)
            if found.forbidden or self._subresource or not self._may_create():
                raise found.refusal
            await self._create_with(accept, body, label.value)
            return
        self._check_label(found, label)
        try:
            sent = self._for_member(found.member, body, found.cached)
        except StatusError as refusal:
            if refusal.code == 409 and label.chooses and label.value == found.name:
                raise owner_lookup.other_version(lookup.subject, found.name) from None
            raise
        lookup.check_reachable(found)
        before = found.member.version(self._namespace)
        try:
            response = await self._send_to(found.name, accept, *sent, content_type=body.content_type)
        except StatusError as refusal:
            raise lookup.unreachable(found, refusal) from None
        if response.status == 403:
            await self._check_seen(lookup, found, response)
        await self._answer(found.member, response, body, found.cached, before)

    def _check_label(self, found: Owner, label: ClusterLabel) -> None:
        """Warn that the label chooses no member. Raises StatusError (409) if the client certainly meant its member."""
        name = label.value
        if name is None or name == found.name or self._method == b"DELETE" or self._part(name) is None:
            return
        by_rule = found.by_rule or (
            found.name == self._view.conflicts.chosen(self._namespace) and name not in self._request.members
        )
        if not by_rule:
            raise owner_lookup.elsewhere(self._gvr, self._name, found.name, name)
        text = f"the label {CLUSTER_LABEL}={name} is not followed: a conflicts rule of this server names {found.name}"
        self._warnings.append(warnings.warning(text))

    async def _check_seen(self, lookup: OwnerLookup, found: Owner, response: MemberResponse) -> None:
        """Raise the StatusError of a missing object if the user may not know that the object exists.

        `response` is the owner's 403: the right was revoked after the last review, or the member's decision differs
        from its review. A 403 that is not about authorization is passed on: a user can have the right to write an
        object but not the right to read it.
        """
        if len(self._view.layout) == 1:
            return  # the member was chosen without a look-up of the object
        absent = await lookup.may_see(found)
        if absent is None:
            return
        request = self._request
        if absent.forbidden:
            wanted = required_attributes(request.info, request.target)[0]
            if not message_of(response).startswith(forbidden(request.user_for(found.name), wanted).message):
                return
        raise absent.refusal  # without warnings, which would show that the object exists

    async def _check_other_versions(self, found: Absent) -> None:
        if not found.forbidden:
            await create_target.check_other_versions(self._request, self._view, self._namespace, self._name)

    def _may_create(self) -> bool:
        """Whether the request would create the object in a member that lacks it."""
        if self._subresource:
            return False
        if self._method == b"PATCH":
            return is_apply(self._request.head.header(b"content-type"))
        return self._method == b"PUT" and (self._gvr.group, self._gvr.resource) in _CREATED_BY_PUT

    # -- create -----------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        request = self._request
        rule = create_target.find_rule(self._aggregate, self._gvr)
        if not create_target.follows_label(rule):
            name = create_target.member_of(rule, self._aggregate)
            await self._rights.require((), name)
            await self._rediscover(name)
            if self._part(name) is None:
                await self._check_target(rule, name)
        else:
            await self._require()
        accept = accepted(request, protobuf=True)
        body = RequestBody(await self._held.read(request.exchange), request.head.header(b"content-type"))
        await self._create_with(accept, body, body.cluster())

    async def _create_with(self, accept: bytes, body: RequestBody, label: str | None) -> None:
        """Create the object in the member that the create rules name."""
        rule = create_target.find_rule(self._aggregate, self._gvr)
        if create_target.follows_label(rule):
            if label is None:
                body.check_object(self._view.resource.kind)
            await self._rediscover(label)
            choice = [member.name for member in self._view.members if member.covers(self._namespace)]
            if label is not None and label in self._aggregate.clusters and label not in choice:
                await self._check_target(rule, label)
            name = create_target.labelled_member(label, choice, self._view.resource, self._name or body.name())
        else:
            name = create_target.member_of(rule, self._aggregate)
            await self._rediscover(name)
            if label is not None and label != name:
                text = f"the label {CLUSTER_LABEL}={label} is not followed: a create rule of this server names {name}"
                self._warnings.append(warnings.warning(text))
        await self._rights.check(name)
        member = self._part(name)
        if member is None:  # a rule can name a cluster in which the resource is out of scope
            await self._check_target(rule, name)
            data = without_marks(body.data, body.content_type, name)
            response = await self._send_to(name, accept, data, self._request.target)
            self._request.served_by(name, cached=False)
            may_read = await self._rights.may_read(name, self._namespace, self._name)
            hand_back(self._request, response, more=self._warnings, may_read=may_read)
            return
        await self._answer(member, await self._send(member, accept, body), body, None)

    async def _check_target(self, rule: CreateRule, name: str) -> None:
        await create_target.check_target(
            self._clusters.get(name), rule, self._aggregate, self._view.resource, self._clock
        )

    async def _rediscover(self, name: str | None) -> None:
        """Check whether the resource has meanwhile been installed in the member that has to create the object. Without
        this check, the member would get the object as the client sent it. Raises StatusError (503) if the member cannot
        be asked.
        """
        absent = [
            each.member for each in self._view.state.absent if each.member.name == name and each.covers(self._namespace)
        ]
        if not absent:
            return
        unasked = await rediscover(absent, self._clock)
        view = self._views.view(self._gvr)
        if view is not None and name is not None and self._part(name) is None:
            self._view = view.pinned()  # the earlier view lacks the resource that was found now
        if unasked and name is not None and self._part(name) is None:
            why = f"it is not known whether cluster {name} has {self._gvr}: {NOT_REACHED}"
            raise retry_after(503, why, RETRY_AFTER)

    def _part(self, name: str) -> MemberView | None:
        member = self._view.member(name)
        return member if member is not None and member.covers(self._namespace) else None

    # -- one request to a member, and its answer ---------------------------------------------------------------

    async def _send(self, member: MemberView, accept: bytes, body: RequestBody) -> MemberResponse:
        data, target = self._for_member(member, body, None)
        return await self._send_to(member.name, accept, data, target, content_type=body.content_type)

    def _for_member(self, member: MemberView, body: RequestBody, cached: CachedObject | None) -> tuple[bytes, bytes]:
        """Return the body and the target for the member. Raises StatusError if the body cannot be converted."""
        data = body.for_member(member.name, self._owner_part(member), self._kind(), bare=bare_maps(cached))
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
        self,
        member: MemberView,
        response: MemberResponse,
        body: RequestBody,
        cached: CachedObject | None,
        before: int = 0,
    ) -> None:
        """Wait until the cache has the written state, then pass the member's answer back.

        `cached` is the cached object, and `before` the cache's version, at the time when the request was sent.
        """
        request, view = self._request, self._view
        request.served_by(member.name, cached=False)
        reads = self._method in (b"GET", b"HEAD")
        may_read = reads or await self._rights.may_read(member.name, self._namespace, self._name)
        if not is_success(response) or self._subresource == "token":
            hand_back(request, response, more=self._warnings, may_read=may_read and response.status != 401)
            return
        written = member_requests.read_written(response)
        # The answer to a write without a change has the object's present version, which the cache has already. The same
        # is true for the deletion of an object that finalizers already hold.
        same = 0 < written.version <= before and (self._method != b"DELETE" or written.stays)
        unchanged = reads or same or self._is_dry_run(body)
        readers: frozenset[str] = frozenset()
        if not unchanged:
            await self._until_visible(member, written, cached)
            readers = await self._rights.readers([each.name for each in view.members], self._namespace)

        def version(number: int) -> str:
            if unchanged:  # the object's own version, as in a get, so that `kubectl diff` shows no difference
                return view.format.object(member.index, number)
            # Include only other members that the user may watch: versions reveal when something changes, and a watch
            # from a version with a part of another member would end with 410.
            versions = view.versions_of(readers, self._namespace)
            return view.format.written(versions, member.index, number)

        edited = member_requests.edited_answer(response, version)
        hand_back(request, response, body=edited, more=self._warnings, may_read=may_read)

    async def _until_visible(
        self, member: MemberView, written: member_requests.WrittenObject, cached: CachedObject | None
    ) -> None:
        stores = member.stores_of(self._namespace)
        if self._method == b"DELETE" and not self._subresource and not written.stays:
            await read_your_writes.until_gone(stores, {(self._namespace, self._name): written.uid}, self._clock)
        elif written.version:
            await read_your_writes.until_version(stores, written.version)
        elif (
            self._subresource in _ANSWERED_BY_STATUS and cached is not None and not read_your_writes.is_deleted(cached)
        ):
            key = self._namespace, self._name
            await read_your_writes.until_changed(stores, {key: cached.version}, self._clock)

    def _is_dry_run(self, body: RequestBody) -> bool:
        if "dryRun" in parse_query(self._request.target.partition(b"?")[2]):
            return True
        return self._kind() is not BodyKind.OBJECT and body.is_dry_run


def _object_name(name: str, subresource: str) -> str:
    """Return the name of the object whose subresource is requested: `https:web:443` is a port of the service web."""
    if subresource != "proxy" or ":" not in name:
        return name
    parts = name.split(":")
    return parts[1] if len(parts) == 3 else parts[0]
