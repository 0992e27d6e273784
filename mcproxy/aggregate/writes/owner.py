"""Which member owns an object: as its cache says, else as the members say, asked with the user's identity.

An answer tells a user nothing that the members themselves would not: where one may not read an object, it is for that
user as if it did not exist there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.aggregate import warnings
from mcproxy.aggregate.cache.object import CLUSTER_LABEL
from mcproxy.aggregate.member_requests import ask_all, code_of, is_success, message_of, object_path
from mcproxy.identity.authorization.attributes import required_attributes
from mcproxy.identity.authorization.forbidden_message import forbidden
from mcproxy.kube.errors import not_found, qualified
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.kube.status import StatusError, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.object import CachedObject
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.aggregate.view.view import MemberView, View
    from mcproxy.http.messages import Header

LOOKUP_TIMEOUT = 3.0
"""Seconds for the members to say whether they have an object; one that is silent holds nobody up longer."""
_ACCEPT = (b"Accept", b"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json")


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that a request about one object goes to."""

    member: MemberView
    cached: CachedObject | None
    """The object, where it was found in the cache."""

    @property
    def name(self) -> str:
        return self.member.name


@dataclass(frozen=True, slots=True)
class Absent:
    """No member is known to have the object."""

    refusal: StatusError
    """What to answer a request that needs it."""
    forbidden: bool
    """No member lets the user see it."""
    warnings: tuple[Header, ...] = ()


class OwnerLookup:
    """Finds the owner of one object for one request."""

    def __init__(
        self, request: AggregatedRequest, view: View, gvr: GroupVersionResource, namespace: str, name: str
    ) -> None:
        """`namespace` is "" for a resource without namespaces."""
        self._request = request
        self._view = view
        self._gvr = gvr
        self._namespace = namespace
        self._name = name

    @property
    def subject(self) -> str:
        """The object as messages name it: `deployments.apps "web"`."""
        return f'{qualified(self._gvr.group, self._gvr.resource)} "{self._name}"'

    def not_found(self) -> StatusError:
        """Return the 404 of a kube-apiserver."""
        return not_found(self._gvr.group, self._gvr.resource, self._name)

    async def find(self, wanted: str | None = None, *, ask_only_one: bool = False) -> Owner | Absent:
        """Return the owner; `wanted` is the member that the client names itself, if it does.

        The only member of an aggregate is not asked, but taken for the owner, unless `ask_only_one`.

        Raises StatusError: 404 for a namespace outside the scope, 409 if several members have the object, and what a
        member's refusal or absence leaves open.
        """
        members = [member for member in self._view.members if member.covers(self._namespace)]
        if not members:
            raise self.not_found()
        if wanted is not None and (named := self._view.member(wanted)) is not None and named in members:
            members = [named]
        owners = [owner for member in members if (owner := self._cached(member)) is not None]
        if len(owners) == 1:
            return owners[0]
        if len(self._view.layout) == 1 and not ask_only_one:
            return Owner(members[0], None)  # whatever it answers is the answer
        return await self._ask([owner.member for owner in owners] or members, cached=bool(owners))

    async def may_see(self, owner: Owner) -> Absent | None:
        """Return None if the user may read the object at its owner; else what is answered where it is not there."""
        members = [member for member in self._view.members if member.covers(self._namespace)]
        found = await self._answers(members)
        answers = dict(zip((member.name for member in members), found, strict=True))
        if is_success(answers[owner.name]):
            return None
        return self._absent(members, found)

    def _cached(self, member: MemberView) -> Owner | None:
        for store in member.stores_of(self._namespace):
            found = store.get(self._namespace, self._name)
            if found is not None:
                return Owner(member, found)
        return None

    async def _ask(self, members: Sequence[MemberView], *, cached: bool) -> Owner | Absent:
        """Ask members; `cached`: their caches have the object."""
        answers = await self._answers(members)
        having = [member for member, answer in zip(members, answers, strict=True) if is_success(answer)]
        if len(having) == 1:
            if cached:  # of several that have it; which one is written to must not depend on which one is away
                for member, answer in zip(members, answers, strict=True):
                    if code_of(answer) not in (401, 403, 404) and not is_success(answer):
                        raise self._not_known(member, answer)
            return Owner(having[0], None)
        if having:
            raise several(self._gvr, self._name, [member.name for member in having])
        return self._absent(members, answers)

    def _not_known(self, member: MemberView, answer: MemberResponse | StatusError) -> StatusError:
        message = f"it is not known whether cluster {member.name} has {self.subject}: {message_of(answer)}"
        return retry_after(503, message, 1)

    async def _answers(self, members: Sequence[MemberView]) -> list[MemberResponse | StatusError]:
        path = object_path(self._gvr.path(self._namespace), self._name)

        async def send(member: str) -> MemberResponse:
            return await self._request.send(member, b"GET", path, fields=[_ACCEPT], timeout=LOOKUP_TIMEOUT)

        return await ask_all([member.name for member in members], send)

    def _absent(self, members: Sequence[MemberView], answers: Sequence[MemberResponse | StatusError]) -> Absent:
        """Return what to answer where no member gave the object."""
        notes = [warnings.never_synced_text(member.name) for member in self._view.undiscovered]
        refused: list[str] = []
        missing = False
        for member, answer in zip(members, answers, strict=True):
            code = code_of(answer)
            if code == 404:
                missing = True
            elif code in (401, 403):
                refused.append(member.name)
            elif member.synced:
                # Its last known state does not have the object.
                notes.append(f"cluster {member.name}: {message_of(answer)}")
                missing = True
            else:
                raise self._not_known(member, answer)
        shown = tuple(warnings.warnings(notes))
        if refused and not missing:
            # In the words of a member that has the object, so that they do not tell which one has it.
            user = self._request.user_for(refused[0])
            refusal = forbidden(user, required_attributes(self._request.info, self._request.target)[0])
            return Absent(refusal, True, shown)
        return Absent(self.not_found(), False, shown)


async def uncached_owner(
    request: AggregatedRequest, gvr: GroupVersionResource, namespace: str, name: str, members: Sequence[str]
) -> str:
    """Return the member that has an object of a resource that is not cached. Raises StatusError: 404, 409, 503."""
    path = object_path(gvr.path(namespace), name)

    async def send(member: str) -> MemberResponse:
        return await request.send(member, b"GET", path, fields=[_ACCEPT], timeout=LOOKUP_TIMEOUT)

    answers = await ask_all(members, send)
    having = [member for member, answer in zip(members, answers, strict=True) if is_success(answer)]
    if len(having) == 1:
        return having[0]
    if having:
        raise several(gvr, name, having)
    if any(code_of(answer) == 404 for answer in answers) or not answers:
        raise not_found(gvr.group, gvr.resource, name)
    return members[0]  # it refuses the rest, too, or says why it cannot answer


def several(gvr: GroupVersionResource, name: str, members: Sequence[str]) -> StatusError:
    """Return the 409 for an object that several members have.

    Its reason is not Conflict, upon which clients try again: `kubectl scale` would, in silence, until its deadline.
    """
    details = {"name": name, "group": gvr.group, "kind": gvr.resource}
    return StatusError(
        409,
        f'{qualified(gvr.group, gvr.resource)} "{name}" exists in several clusters: {", ".join(members)}; choose one '
        f"with the label {CLUSTER_LABEL} in the object that is sent, or through the path /clusters/{members[0]}/",
        reason="AlreadyExists",
        details={key: value for key, value in details.items() if value},
    )
