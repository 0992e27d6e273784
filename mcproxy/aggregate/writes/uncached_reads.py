"""Gets and lists of resources that can be listed but not watched: each request is sent to all members, their answers
merged.

metrics.k8s.io is such a resource, so `kubectl top` shows the nodes and pods of all members.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.aggregate import warnings
from mcproxy.aggregate.member_requests import (
    accepted,
    ask_all,
    client_fields,
    code_of,
    edit_query,
    hand_back,
    is_success,
    message_of,
    respond,
    selector_for,
    warnings_of,
)
from mcproxy.aggregate.undecided import NOT_REACHED, not_known
from mcproxy.aggregate.view.conflicts import NO_RULES, Conflicts
from mcproxy.aggregate.writes import member_answers
from mcproxy.aggregate.writes.merged_list import MemberList, keep_one, merged
from mcproxy.kube.media_types import JSON
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.status import StatusError, not_found, qualified, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.kube.resource import APIResource

TIMEOUT = 10.0
"""Seconds for each member: one that is silent is left out then."""
_RETRY_AFTER = 1  # second

MemberNamespaces = Sequence[tuple[str, Sequence[str]]]
"""The members that have the resource in scope, each with the namespaces in scope; "" is all of them."""
Answered = Sequence[tuple[str, "MemberResponse | StatusError"]]


class UncachedRead:
    """One such request."""

    def __init__(
        self,
        request: AggregatedRequest,
        resource: APIResource,
        members: MemberNamespaces,
        clock: IReactorTime,
        unasked: Sequence[str] = (),
        conflicts: Conflicts = NO_RULES,
    ) -> None:
        """`members` may name some that the request may not touch: they are left out with a Warning. `unasked` are
        those of which it cannot be known now whether they have the resource.
        """
        self._request = request
        self._resource = resource
        self._clock = clock
        self._conflicts = conflicts
        self._members = [(member, namespaces) for member, namespaces in members if member in request.members]
        left_out = {each.member: each.why for each in request.left_out}
        undecided = {each.member for each in request.left_out if each.undecided}
        self._may_have = [
            (member, left_out[member])
            for member, namespaces in members
            if member in undecided and self._covers(namespaces)
        ]
        self._may_have += [(member, NOT_REACHED) for member in unasked if member not in left_out or member in undecided]
        self._notes = [
            warnings.left_out_text(member, left_out.get(member, "it is not for this request"))
            for member, _ in members
            if member not in request.members
        ]
        self._query = parse_query(request.target.partition(b"?")[2])

    async def get(self) -> None:
        """Answer a get of one object: that of the member which a rule names, else the first that has it.

        Raises StatusError."""
        request, info = self._request, self._request.info
        accept = accepted(request, protobuf=True)
        members = [member for member, namespaces in self._members if self._covers(namespaces)]
        if not members:
            self._check_absent()
            raise not_found(info.group, info.resource, info.name)
        target = edit_query(request.target, {"resourceVersion": None})
        found = await self._ask([(member, target) for member in members], accept)
        having = [answer for _, answer in found if is_success(answer) and not isinstance(answer, StatusError)]
        if not having:
            self._check_absent()
            raise_failure(request, found, not_found(info.group, info.resource, info.name))
            return
        chosen = self._conflicts.chosen(info.namespace if self._resource.namespaced else "")
        first = next((answer for answer in having if answer.member == chosen), having[0])
        others = [answer for answer in having if answer is not first]
        if others and first.member != chosen:
            names = ", ".join(answer.member for answer in others)
            self._notes.append(
                f'{info.resource} "{info.name}" is shown of cluster {first.member}, and is also in: {names}'
            )
        self._note_failures(found)
        request.served_by(first.member, cached=False)
        body = member_answers.edited(first, str)
        hand_back(request, first, body=body, more=warnings.warnings(self._notes))

    def _check_absent(self) -> None:
        """Raise StatusError (503) if a member that is not asked may have the object."""
        info = self._request.info
        for member, why in self._may_have:
            raise not_known(f'{qualified(info.group, info.resource)} "{info.name}"', member, why)

    async def list_all(self) -> None:
        """Answer a list. Raises StatusError."""
        request = self._request
        accept = accepted(request, protobuf=False)
        targets = self._list_targets()
        found = await self._ask(targets, accept) if targets else []
        found, lists = _lists(found)
        if found and not lists:
            raise_failure(request, found, None)
            return
        self._note_failures(found)
        if len({each.is_table for each in lists}) > 1:  # a member that makes no Tables
            found, lists = _lists(await self._ask(targets, JSON.encode()))
        if self._conflicts.shows_one:
            keep_one(lists, self._conflicts)
        request.served_by(*dict.fromkeys(each.member for each in lists), cached=False)
        if lists and len({each.is_table for each in lists}) == 1:
            unreadable: dict[str, int] = {}
            body = await merged(
                lists, self._resource.gvr, lambda _, version: version, self._clock, unreadable=unreadable
            )
            self._notes += [warnings.unreadable_text(*each, more=False) for each in unreadable.items()]
        else:
            body = self._empty()
        passed = warnings_of(
            [answer for _, answer in found if is_success(answer) and not isinstance(answer, StatusError)]
        )
        respond(request, 200, body, [*passed, *warnings.warnings(self._notes)])

    def _list_targets(self) -> list[tuple[str, bytes]]:
        """Return the requests to send: one for each member, or one for each of its namespaces in scope."""
        request, info = self._request, self._request.info
        selector = self._query.get("labelSelector", "")
        targets = []
        covered = False
        for member, namespaces in self._members:
            if not self._covers(namespaces):
                continue
            covered = True
            wanted = selector_for(selector, member)
            if wanted is None:
                continue
            # The pages of several members cannot be put together: all is answered at once, as for limit=0.
            changes: dict[str, str | None] = {"limit": None, "continue": None, "resourceVersion": None}
            changes["resourceVersionMatch"] = None
            if wanted != selector:
                changes["labelSelector"] = wanted or None
            target = edit_query(request.target, changes)
            if info.namespace or "" in namespaces:
                targets.append((member, target))
                continue
            _, question, query = target.partition(b"?")
            gvr = self._resource.gvr
            targets += [(member, gvr.path(namespace).encode() + question + query) for namespace in namespaces]
        if not covered and self._members:
            self._notes.append(f'the namespace "{info.namespace}" is not in the scope of this server')
        return targets

    def _covers(self, namespaces: Sequence[str]) -> bool:
        namespace = self._request.info.namespace
        return not namespace or "" in namespaces or namespace in namespaces

    async def _ask(self, targets: Sequence[tuple[str, bytes]], accept: bytes) -> Answered:
        request = self._request
        fields = [(b"Accept", accept), *client_fields(request)]

        async def send(place: str) -> MemberResponse:
            member, target = targets[int(place)]
            return await request.send(member, b"GET", target, fields=fields, timeout=TIMEOUT)

        found = await ask_all([str(place) for place in range(len(targets))], send)
        return [(member, answer) for (member, _), answer in zip(targets, found, strict=True)]

    def _note_failures(self, found: Answered) -> None:
        for member, answer in found:
            if not is_success(answer) and code_of(answer) != 404:
                self._notes.append(warnings.left_out_text(member, message_of(answer)))

    def _empty(self) -> bytes:
        gvr = self._resource.gvr
        body = {"kind": self._resource.list_kind, "apiVersion": gvr.api_version, "metadata": {}, "items": []}
        return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def _lists(found: Answered) -> tuple[Answered, list[MemberList]]:
    """Return the answers and the lists in them; one that cannot be read counts as the failure of its member alone."""
    answers: list[tuple[str, MemberResponse | StatusError]] = []
    lists: list[MemberList] = []
    for member, answer in found:
        read = answer
        if is_success(answer) and not isinstance(answer, StatusError):
            try:
                lists.append(MemberList(answer))
            except StatusError as problem:
                read = problem
        answers.append((member, read))
    return answers, lists


def raise_failure(request: AggregatedRequest, found: Answered, missing: StatusError | None) -> None:
    """Answer where no member gave what was asked for: `missing` if they do not have it, else the first other failure.

    Raises StatusError, or hands back a member's own answer.
    """
    failed = [answer for _, answer in found if code_of(answer) != 404]
    if missing is not None and any(code_of(answer) == 404 for _, answer in found):
        broken = [answer for answer in failed if code_of(answer) >= 500 or code_of(answer) == 429]
        if not broken:
            raise missing
        raise retry_after(503, message_of(broken[0]), _RETRY_AFTER)
    hand_back(request, (failed or [answer for _, answer in found])[0])
