"""Gets and lists of resources that can be listed but not watched: sends each request to all members and merges their
answers.

metrics.k8s.io is such a resource, so `kubectl top` shows the nodes and pods of all members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.aggregate import warnings
from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL
from mcproxy.aggregate.cache.object_splitter import MalformedObject, refuse_crowded
from mcproxy.aggregate.encoding.column_definitions import parse_columns
from mcproxy.aggregate.encoding.columns import Columns, go_escaped
from mcproxy.aggregate.freshness import NOT_REACHED, not_known
from mcproxy.aggregate.view.conflicts import NO_RULES, Conflicts
from mcproxy.aggregate.writes import member_requests
from mcproxy.aggregate.writes.member_requests import (
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
from mcproxy.kube import json_edit
from mcproxy.kube.json_edit import MetadataEdit
from mcproxy.kube.media_types import JSON
from mcproxy.kube.numbers import json_float
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.status import StatusError, not_found, qualified, retry_after

if TYPE_CHECKING:
    from mcproxy.aggregate.request import AggregatedRequest, MemberResponse
    from mcproxy.kube.resource import APIResource, GroupVersionResource


MEMBER_TIMEOUT = 10.0
"""Maximum seconds for the answer of each member. After that, the member is left out."""
_RETRY_AFTER = 1  # second

MemberNamespaces = Sequence[tuple[str, Sequence[str]]]
"""The members that have the resource in scope, each with the namespaces in scope; "" is all namespaces."""
Answered = Sequence[tuple[str, "MemberResponse | StatusError"]]


class UncachedRead:
    """One get or list of an uncached resource."""

    def __init__(
        self,
        request: AggregatedRequest,
        resource: APIResource,
        members: MemberNamespaces,
        clock: IReactorTime,
        unasked: Sequence[str] = (),
        conflicts: Conflicts = NO_RULES,
    ) -> None:
        """`members` that the request may not touch are left out with a Warning. `unasked` are members that may have the
        resource but cannot be asked now.
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
        """Answer a get with the object of the member that a rule names, else of the first member that has it.

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
        body = member_requests.edited_answer(first, str)
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
        if len({each.is_table for each in lists}) > 1:  # a member does not support Tables
            found, lists = _lists(await self._ask(targets, JSON.encode()))
        if self._conflicts.shows_one:
            keep_one(lists, self._conflicts)
        request.served_by(*dict.fromkeys(each.member for each in lists), cached=False)
        if lists and len({each.is_table for each in lists}) == 1:
            unreadable: dict[str, int] = {}
            body = await merged_list(
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
            # Pages of several members cannot be merged: the answer has all items at once, as for limit=0.
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
            return await request.send(member, b"GET", target, fields=fields, timeout=MEMBER_TIMEOUT)

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
    """Return the answers and the lists in them; an unreadable list counts as a failure of its member only."""
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
    """Answer if no member succeeded: with `missing` if all members lack the object, else with the first other failure.

    Raises StatusError, or passes a member's own answer to the client.
    """
    failed = [answer for _, answer in found if code_of(answer) != 404]
    if missing is not None and any(code_of(answer) == 404 for _, answer in found):
        broken = [answer for answer in failed if code_of(answer) >= 500 or code_of(answer) == 429]
        if not broken:
            raise missing
        raise retry_after(503, message_of(broken[0]), _RETRY_AFTER)
    hand_back(request, (failed or [answer for _, answer in found])[0])


# -- merged lists ---------------------------------------------------------------------------------------------
#
# Merges the lists (of objects, or Tables) with which members answered one request.
#
# This is for resources that are not read from caches. In the members' items, only label, annotation and version change.


VersionOf = Callable[[str, str], str]
"""Maps a member and its own version of an object to the aggregate's version."""


class ItemMeta(msgspec.Struct):
    """The decoded parts of an item's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class MemberItem(msgspec.Struct):
    metadata: ItemMeta | None = None


class _ListMeta(msgspec.Struct):
    token: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    kind: str = ""
    api_version: str = msgspec.field(name="apiVersion", default="")
    metadata: _ListMeta | None = None
    items: list[msgspec.Raw] | None = None
    columns: msgspec.Raw = msgspec.field(name="columnDefinitions", default=msgspec.Raw(b""))
    rows: list[msgspec.Raw] | None = None


class _Row(msgspec.Struct):
    cells: list[Any] | None = None


class _RowObject(msgspec.Struct):
    object: MemberItem | None = None


_ITEMS_A_TURN = 200  # items in one turn of the reactor, which take about 20 ms
_MAX_COMMAS = 2_000_000
"""Maximum number of items in one list: each needs memory until the answer is sent."""
_LIST = msgspec.json.Decoder(_List)
_ITEM = msgspec.json.Decoder(MemberItem)
_ROW = msgspec.json.Decoder(_Row, float_hook=json_float)
_ROW_OBJECT = msgspec.json.Decoder(_RowObject)
_encode = msgspec.json.Encoder().encode


class MemberList:
    """One member's list."""

    def __init__(self, answer: MemberResponse) -> None:
        """Raises StatusError (502) for a body that is not a list in JSON."""
        self.member = answer.member
        try:
            refuse_crowded(answer.body, _MAX_COMMAS)
            found = _LIST.decode(answer.body)
        except (MalformedObject, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(answer.member, error) from None
        self.kind, self.api_version = found.kind, found.api_version
        self.continue_token = found.metadata.token if found.metadata is not None else ""
        self.is_table = found.kind == "Table"
        self.columns = bytes(found.columns) or None
        self.items = [bytes(item) for item in (found.rows if self.is_table else found.items) or ()]
        if not self.is_table and found.items is None and not found.kind.endswith("List"):
            raise _malformed(answer.member, f"it is a {found.kind or 'value without a kind'}")

    def keys(self) -> list[tuple[str, str] | None]:
        """Return namespace and name of each item; None for a Table's row without its object.

        Raises StatusError (502).
        """
        if not self.is_table:
            return [(meta.namespace, meta.name) for meta in self.objects()]
        try:
            found = [_ROW_OBJECT.decode(item).object for item in self.items]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(self.member, error) from None
        metas = [None if item is None else item.metadata for item in found]
        return [None if meta is None else (meta.namespace, meta.name) for meta in metas]

    def objects(self) -> list[ItemMeta]:
        """Return the metadata of the items of a list of objects. Raises StatusError (502)."""
        try:
            return [_ITEM.decode(item).metadata or ItemMeta() for item in self.items]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(self.member, error) from None


def keep_one(lists: Sequence[MemberList], conflicts: Conflicts) -> None:
    """Remove the objects that rules of `conflicts` hide from `lists`, which are in member order. If several members
    have an object of the same name, only the object of the chosen member stays, else that of the first member.

    Rows without an object have no name, so they stay. Raises StatusError (502).
    """
    keys = [each.keys() for each in lists]
    shown: dict[tuple[str, str], str] = {}
    for each, names in zip(lists, keys, strict=True):
        for key in names:
            if key is not None and (chosen := conflicts.shown(key[0])) is not None:
                if each.member == chosen:
                    shown[key] = chosen
                else:
                    shown.setdefault(key, each.member)
    for each, names in zip(lists, keys, strict=True):
        kept = zip(each.items, names, strict=True)
        each.items = [item for item, key in kept if key is None or shown.get(key, each.member) == each.member]


async def merged_list(
    lists: Sequence[MemberList],
    gvr: GroupVersionResource,
    version_of: VersionOf,
    clock: IReactorTime,
    *,
    resource_version: str = "",
    token: str = "",
    unreadable: dict[str, int] | None = None,
) -> bytes:
    """Return one list with the items of `lists`, which is not empty, in their order.

    `resource_version` and the continue `token` are those of the result, "" for none. Either all lists are Tables or
    none is. A long list takes several turns of the reactor. An item that cannot be edited is left out and counted by
    member in `unreadable`; if `unreadable` is None, such an item raises StatusError (502).
    """
    first = lists[0]
    columns = b""
    union: Columns | None = None
    if first.is_table:
        union = Columns([each.columns for each in lists], gvr, custom=False)
        columns = b'"columnDefinitions":' + union.definitions + b","
    parts: list[bytes] = []
    done = 0
    for each in lists:
        places = None
        if union is not None and any(other.columns != first.columns for other in lists):
            places = _places(each.columns, union.definitions)
        for begin in range(0, len(each.items), _ITEMS_A_TURN):
            if len(parts) - done >= _ITEMS_A_TURN:
                done = len(parts)
                await deferLater(clock, 0.0)
            parts += _edited(each, each.items[begin : begin + _ITEMS_A_TURN], version_of, places, unreadable)
    metadata = {"resourceVersion": resource_version, "continue": token}
    return b'{"kind":%b,"apiVersion":%b,"metadata":%b,%b"%b":[%b]}\n' % (
        _encode(first.kind),
        _encode(first.api_version),
        _encode({name: text for name, text in metadata.items() if text}),
        columns,
        b"rows" if first.is_table else b"items",
        b",".join(parts),
    )


def _edited(
    source: MemberList,
    items: Sequence[bytes],
    version_of: VersionOf,
    places: tuple[int, ...] | None,
    unreadable: dict[str, int] | None,
) -> list[bytes]:
    member = source.member
    edit = MetadataEdit(
        {CLUSTER_LABEL: member}, {CLUSTER_ANNOTATION: member}, lambda version: version_of(member, version)
    )
    change = json_edit.edit_row if source.is_table else json_edit.edit_metadata
    edited: list[bytes] = []
    for item in items:
        try:
            edited.append(change(item, edit))
        except json_edit.MalformedJSON as error:
            if unreadable is None:
                raise _malformed(member, error) from None
            unreadable[member] = unreadable.get(member, 0) + 1
    return edited if places is None else [_moved(row, places, member) for row in edited]


def _places(columns: bytes | None, union: bytes) -> tuple[int, ...]:
    """Return the index of each of a member's columns in the union."""
    places = {column.name: place for place, column in enumerate(parse_columns(union) or ())}
    return (len(places), *(places[column.name] for column in parse_columns(columns) or ()))


def _moved(row: bytes, places: tuple[int, ...], member: str) -> bytes:
    """Return a row with its cells at their indexes in the union of the columns."""
    try:
        cells = _ROW.decode(row).cells or []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(member, error) from None
    moved: list[Any] = [None] * places[0]
    for place, cell in zip(places[1:], cells, strict=False):
        moved[place] = cell
    return json_edit.replace(row, "cells", go_escaped(_encode(moved)))


def _malformed(member: str, problem: object) -> StatusError:
    text = f'cluster "{member}" answered with a list that cannot be read: {problem}'
    return StatusError(502, text[:500], reason="BadGateway")
