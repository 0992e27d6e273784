"""Finds the member that owns an object: in the caches, else by asking the members with the user's identity.

Only members that allow the request are asked (`WriteRights`): for this user the object does not exist in the others. If
a member allows the write but not a get, the member's cache decides, after it has reached the present state. If several
members have the object, the owner is the member that the aggregate's `conflicts` name, else the member that the client
names by the label in the body. A member is never chosen because another one is unavailable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.aggregate.cache.cached_object import CLUSTER_LABEL
from mcproxy.aggregate.freshness import NOT_REACHED, check_absent, not_known
from mcproxy.aggregate.request import MemberResponse
from mcproxy.aggregate.warnings import left_out_text, warnings
from mcproxy.aggregate.writes.member_requests import ask_all, code_of, is_success, message_of, object_path
from mcproxy.identity.authorization.attributes import Attributes, forbidden, required_attributes
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status import StatusError, not_found, qualified

if TYPE_CHECKING:
    from mcproxy.aggregate.authorization import WriteRights
    from mcproxy.aggregate.cache.cached_object import CachedObject
    from mcproxy.aggregate.freshness import Readable
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.view import MemberView, View


Fresh = Callable[["View", Sequence[str], str], Awaitable["Readable"]]
"""Waits until members' caches for a namespace have the present state (`FreshnessWaiter.current`)."""

LOOKUP_TIMEOUT = 3.0
"""Maximum seconds that a request waits for members to answer whether they have an object."""
_SHOWN = 3  # maximum number of paths in a message
_NOT_THERE = (401, 403, 404)
"""Statuses of members that lack the object, or do not show it to the user."""
ACCEPT = (b"Accept", b"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json")


@dataclass(frozen=True, slots=True)
class ClusterLabel:
    """The label mcproxy.io/cluster in a client's body, and whether it chooses one of several members.

    A patch's label does not choose: kubectl computes a patch from an object that it read, perhaps another member's.
    """

    value: str | None = None
    chooses: bool = False


NO_LABEL = ClusterLabel()


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that gets a request about one object."""

    member: MemberView
    cached: CachedObject | None
    """The object, if it was found in the cache."""
    by_rule: bool = False
    """Several members may have the object, and the aggregate's `conflicts` name this member."""

    @property
    def name(self) -> str:
        return self.member.name


@dataclass(frozen=True, slots=True)
class Absent:
    """No member is known to have the object."""

    refusal: StatusError
    """The answer to a request that needs the object."""
    forbidden: bool
    """Whether all members refuse to show the object to the user."""


class OwnerLookup:
    """Finds the owner of one object for one request."""

    def __init__(
        self,
        request: AggregatedRequest,
        view: View,
        gvr: GroupVersionResource,
        namespace: str,
        name: str,
        *,
        rights: WriteRights,
        fresh: Fresh,
    ) -> None:
        """`namespace` is "" for a cluster-scoped resource. The request's members are those that allow the request."""
        self._request = request
        self._view = view
        self._gvr = gvr
        self._namespace = namespace
        self._name = name
        self._rights = rights
        self._fresh = fresh
        self._only = False  # whether the client has named the member

    @property
    def subject(self) -> str:
        """The object's name in messages: `deployments.apps "web"`."""
        return f'{qualified(self._gvr.group, self._gvr.resource)} "{self._name}"'

    def not_found(self) -> StatusError:
        """Return the 404 that a kube-apiserver sends for a missing object."""
        return not_found(self._gvr.group, self._gvr.resource, self._name)

    async def find_owner(self, label: ClusterLabel = NO_LABEL, *, ask_only_one: bool = False) -> Owner | Absent:
        """Return the owner; `label` is that of the body. The only member of an aggregate is the owner without being
        asked, unless `ask_only_one`.

        Raises StatusError: 404 for a namespace that is out of scope, 409 if several members have the object, and as
        `_absent` if a member refuses or is unavailable.
        """
        covering = [member for member in self._view.members if member.covers(self._namespace)]
        if not covering:
            check_absent(self.subject, self._view, self._namespace, self._request.left_out, ())
            raise self.not_found()
        members = [member for member in covering if member.name in self._request.members]
        wanted = label.value if label.chooses and any(each.name == label.value for each in covering) else None
        chosen = self._chosen(covering)
        if wanted is not None and wanted not in self._request.members:
            if chosen is not None and chosen in self._request.members and await self._has(chosen):
                return self._by_rule(chosen)
            raise self._left_out(wanted)
        owners = [owner for member in members if (owner := self._cached(member)) is not None]
        others = [owner for owner in owners if owner.name != chosen]
        if chosen is not None and others and self._may_have(chosen):
            if await self._has(chosen):
                return self._by_rule(chosen)
            owners = others
        if wanted is not None:
            owners = [owner for owner in owners if owner.name == wanted]
            members = [member for member in members if member.name in (wanted, chosen)]
            self._only = True
        if len(owners) == 1:
            return owners[0]
        if len(self._view.layout) == 1 and not ask_only_one and members:
            return Owner(members[0], None)  # the client gets this member's answer, also if the object is missing
        asked = [owner.member for owner in owners] or members
        return await self._ask(asked, label, wanted, chosen, cached=bool(owners))

    def _chosen(self, covering: Sequence[MemberView]) -> str | None:
        """Return the member that a rule of `conflicts` names, if the rule applies to this user. Raises StatusError
        (503) if it is unknown whether the rule applies, since the request may refer to that member's object.
        """
        chosen = self._view.conflicts.chosen(self._namespace)
        if chosen is None or chosen in self._request.members:
            return chosen
        left = next((each for each in self._request.left_out if each.member == chosen), None)
        if left is None or not any(member.name == chosen for member in covering):
            return chosen
        if left.undecided:
            raise self._not_known(chosen, left.why)
        return None

    def _left_out(self, member: str) -> StatusError:
        """Return the answer if the client names a member that does not allow the request."""
        left = next((each for each in self._request.left_out if each.member == member), None)
        why = f'cluster "{member}" is not for this request' if left is None else left.why
        if left is not None and left.undecided:
            return self._not_known(member, why)
        try:
            self._request.user_for(member)
        except StatusError as refusal:  # refused by a policy, or the user is unknown in the member
            return refusal
        return self._rights.refusal(member) or StatusError(403, why, details={})

    async def may_see(self, owner: Owner) -> Absent | None:
        """Return None if the user may read the object in its owner, else the answer for a missing object."""
        members = [member for member in self._view.members if member.covers(self._namespace)]
        found = await self._answers([member.name for member in members])
        answers = dict(zip((member.name for member in members), found, strict=True))
        if is_success(answers[owner.name]):
            return None
        return self._absent(members, found)

    def check_reachable(self, owner: Owner) -> None:
        """Raise StatusError (503) for an unavailable owner, with the same message as if the object might not exist."""
        if len(self._view.layout) > 1 and owner.member.member.unavailable_since is not None:
            raise not_known(self.subject, owner.name, NOT_REACHED)

    def unreachable(self, owner: Owner, refusal: StatusError) -> StatusError:
        """Return the answer for an owner to which the request could not be sent; the answer does not reveal that the
        owner has the object.
        """
        if len(self._view.layout) > 1 and refusal.code == 503:
            return self._not_known(owner.name, refusal.message)
        return refusal

    def _cached(self, member: MemberView) -> Owner | None:
        for store in member.stores_of(self._namespace):
            found = store.get(self._namespace, self._name)
            if found is not None:
                return Owner(member, found)
        key = f"{self._namespace}/{self._name}"
        if any(key in store.unreadable for store in member.stores_of(self._namespace)):
            return Owner(member, None)
        return None

    def _may_have(self, chosen: str) -> bool:
        """Whether `chosen`, the member that a rule names, has or may have the object."""
        member = self._view.member(chosen)
        if member is None:
            return chosen in self._view.unasked(self._namespace)
        if not member.covers(self._namespace):
            return False
        return self._cached(member) is not None or not member.synced or member.unavailable_since is not None

    async def _has(self, chosen: str) -> bool:
        """Ask the member `chosen` for the object. Raises StatusError (503) if the answer leaves its existence open."""
        (answer,) = await self._answers_or_cache([chosen])
        if not is_success(answer) and code_of(answer) not in _NOT_THERE:
            raise self._not_known(chosen, message_of(answer))
        return is_success(answer)

    def _by_rule(self, chosen: str) -> Owner:
        member = self._view.member(chosen)
        if member is None:
            raise self._not_known(chosen, "it was only just reached")
        found = self._cached(member)
        return Owner(member, None if found is None else found.cached, by_rule=True)

    async def _ask(
        self,
        members: Sequence[MemberView],
        label: ClusterLabel,
        wanted: str | None,
        chosen: str | None,
        *,
        cached: bool,
    ) -> Owner | Absent:
        """Ask members; `cached`: their caches have the object. `wanted` is the member that the label chooses."""
        answers = await self._answers_or_cache([member.name for member in members])
        having = [member for member, answer in zip(members, answers, strict=True) if is_success(answer)]
        names = [member.name for member in having]
        if having and names != [chosen]:
            # The choice among several owners must not depend on which member is unavailable.
            for member, answer in zip(members, answers, strict=True):
                if (cached or member.name == chosen) and not is_success(answer) and code_of(answer) not in _NOT_THERE:
                    raise self._not_known(member.name, message_of(answer))
            if chosen is not None and chosen in self._view.unasked(self._namespace):
                raise self._not_known(chosen, NOT_REACHED)
        if len(having) > 1 and chosen in names:
            return Owner(having[names.index(chosen)], None, by_rule=True)
        if wanted is not None:
            having = [member for member in having if member.name == wanted]
            answers = [answer for member, answer in zip(members, answers, strict=True) if member.name == wanted]
            members = [member for member in members if member.name == wanted]
        if len(having) == 1:
            return Owner(having[0], None)
        if having:
            raise several(self._gvr, self._name, names, label)
        return self._absent(members, answers)

    def _not_known(self, member: str, why: str) -> StatusError:
        found = self._view.member(member)
        if found is not None and found.member.unavailable_since is not None:
            why = NOT_REACHED  # the same message, however the proxy notices that the member is unavailable
        return not_known(self.subject, member, why)

    async def _answers_or_cache(self, members: Sequence[str]) -> list[MemberResponse | StatusError]:
        """Ask members; if a member allows this request but not a get, use its cache instead."""
        answers = await self._answers(members)
        blind = [
            member
            for member, answer in zip(members, answers, strict=True)
            if code_of(answer) in (401, 403) and self._view.member(member) is not None
        ]
        if not blind:
            return answers
        try:
            away = (await self._fresh(self._view, blind, self._namespace)).away
        except StatusError:  # no member is available
            away = blind
        for place, name in enumerate(members):
            member = self._view.member(name)
            if name not in blind or member is None:
                continue
            if self._cached(member) is not None:
                answers[place] = MemberResponse(name, 200, (), b"")
            elif name in away:
                answers[place] = self._not_known(name, NOT_REACHED)
            else:
                answers[place] = self.not_found()
        return answers

    async def _answers(self, members: Sequence[str]) -> list[MemberResponse | StatusError]:
        path = object_path(self._gvr.path(self._namespace), self._name)

        async def send(member: str) -> MemberResponse:
            return await self._request.send(member, b"GET", path, fields=[ACCEPT], timeout=LOOKUP_TIMEOUT)

        return await ask_all(members, send)

    def _absent(self, members: Sequence[MemberView], answers: Sequence[MemberResponse | StatusError]) -> Absent:
        """Return the answer if no member returned the object. Raises StatusError (503) if one may have the object."""
        refused: list[str] = []
        missing = False
        for member, answer in zip(members, answers, strict=True):
            code = code_of(answer)
            if code == 404:
                missing = True
            elif code in (401, 403):
                refused.append(member.name)
            else:  # the cache does not decide either, since it can lack newer objects
                raise self._not_known(member.name, message_of(answer))
        if not self._only:
            check_absent(self.subject, self._view, self._namespace, self._request.left_out, ())
        if refused and not missing:
            # The message is the one that a member with the object sends, so that it does not reveal who has the object.
            user = self._request.user_for(refused[0])
            refusal = forbidden(user, required_attributes(self._request.info, self._request.target)[0])
            return Absent(refusal, True)
        gone = self.not_found()
        left_out = [left_out_text(each.member, each.why) for each in self._request.left_out]
        gone.headers += tuple(warnings(left_out))
        return Absent(gone, False)


async def uncached_owner(
    request: AggregatedRequest,
    gvr: GroupVersionResource,
    namespace: str,
    name: str,
    members: Sequence[str],
    unasked: Mapping[str, str],
    chosen: str | None = None,
) -> str:
    """Return the member that has an object of an uncached resource; `chosen` is the member that a rule names.

    `members` allow the request. `unasked` are members that cannot be asked now but may have the resource or allow the
    request, each with the reason. Raises StatusError: 403, 404, 409, 503.
    """
    path = object_path(gvr.path(namespace), name)

    async def send(member: str) -> MemberResponse:
        return await request.send(member, b"GET", path, fields=[ACCEPT], timeout=LOOKUP_TIMEOUT)

    answers = await ask_all(members, send)
    having = [member for member, answer in zip(members, answers, strict=True) if is_success(answer)]
    if chosen in having:
        return chosen
    what = f'{qualified(gvr.group, gvr.resource)} "{name}"'
    if having and chosen is not None and chosen in unasked:
        raise not_known(what, chosen, unasked[chosen])
    for member, answer in zip(members, answers, strict=True):
        if having and member == chosen and code_of(answer) not in _NOT_THERE:
            raise not_known(what, member, message_of(answer))
    if len(having) == 1:
        return having[0]
    if having:
        raise several(gvr, name, having)
    for member, answer in zip(members, answers, strict=True):
        if code_of(answer) not in _NOT_THERE:
            raise not_known(what, member, message_of(answer))
    for member, why in unasked.items():
        raise not_known(what, member, why)
    if any(code_of(answer) == 404 for answer in answers) or not answers:
        raise not_found(gvr.group, gvr.resource, name)
    if len(members) == 1:
        return members[0]  # its answer is the answer
    # Only a get could show which of several members has the object.
    wanted = Attributes("get", gvr.group, gvr.version, gvr.resource, namespace=namespace, name=name)
    raise forbidden(request.user_for(members[0]), wanted)


def several(
    gvr: GroupVersionResource, name: str, members: Sequence[str], label: ClusterLabel = NO_LABEL
) -> StatusError:
    """Return the 409 for an object that several members have; it names the ways in which this request can choose."""
    paths = " or ".join(f"/clusters/{member}/" for member in members) if len(members) <= _SHOWN else "/clusters/NAME/"
    ways = f"through the path {paths}, or by a rule in `conflicts` of the aggregate"
    if label.chooses:
        ways = f"by the label {CLUSTER_LABEL} in the object that is sent, {ways}"
    elif label.value is not None:
        ways += f"; a patch does not choose by its label {CLUSTER_LABEL}"
    text = f"exists in several clusters: {', '.join(members)}; choose one {ways}"
    return _ambiguous(gvr, name, text)


def elsewhere(gvr: GroupVersionResource, name: str, member: str, label: str) -> StatusError:
    """Return the 409 for a patch whose label names a member other than the owner of the object."""
    text = (
        f"is in cluster {member}, and the label {CLUSTER_LABEL} of the patch names {label}; a patch does not choose by "
        f"its label: send it without the label, or go to the other cluster by a server-side apply, or through the path "
        f"/clusters/{label}/"
    )
    return _ambiguous(gvr, name, text)


def other_version(subject: str, member: str) -> StatusError:
    """Return the 409 for an object whose label chooses one member but whose resource version belongs to another
    member's object. A get from the aggregate can return such a version (`kubectl replace` uses it), so another get
    would not help.
    """
    return StatusError(
        409,
        f"Operation cannot be fulfilled on {subject}: the resource version is not of cluster {member}, which the label "
        f"{CLUSTER_LABEL} names; send the version that a get through the path /clusters/{member}/ shows, or none",
    )


def _ambiguous(gvr: GroupVersionResource, name: str, text: str) -> StatusError:
    """Return a 409. Its reason is not Conflict, since clients retry on Conflict: `kubectl scale` would retry silently
    until its deadline."""
    details = {"name": name, "group": gvr.group, "kind": gvr.resource}
    return StatusError(
        409,
        f'{qualified(gvr.group, gvr.resource)} "{name}" {text}',
        reason="AlreadyExists",
        details={key: value for key, value in details.items() if value},
    )
