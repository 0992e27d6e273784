"""Lists that members answered to one request, merged into one: of objects, or rows of a Table.

For what is not read from caches. Items stay as the members wrote them but for label, annotation and version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.aggregate.cache.cached_object import CLUSTER_ANNOTATION, CLUSTER_LABEL, MalformedObject, refuse_crowded
from mcproxy.aggregate.encoding.columns import Columns, go_escaped, parse_columns
from mcproxy.kube import json_edit
from mcproxy.kube.metadata_edit import MetadataEdit
from mcproxy.kube.status import StatusError

if TYPE_CHECKING:
    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.aggregate.view.conflicts import Conflicts
    from mcproxy.kube.resource import GroupVersionResource

VersionOf = Callable[[str, str], str]
"""Member and its own version of an object -> the version to write."""


class ObjectMeta(msgspec.Struct):
    """What is read of an item's metadata."""

    name: str = ""
    namespace: str = ""
    uid: str = ""


class Item(msgspec.Struct):
    metadata: ObjectMeta | None = None


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
    object: Item | None = None


_ITEMS_A_TURN = 200  # of the reactor, which take about 20 ms
_MAX_COMMAS = 2_000_000
"""In one list: hundreds of thousands of objects, each of which costs memory until the answer is sent."""
_LIST = msgspec.json.Decoder(_List)
_ITEM = msgspec.json.Decoder(Item)
_ROW = msgspec.json.Decoder(_Row)
_ROW_OBJECT = msgspec.json.Decoder(_RowObject)
_encode = msgspec.json.Encoder().encode


class MemberList:
    """One member's list."""

    def __init__(self, answer: MemberResponse) -> None:
        """Raises StatusError (502) for what is no list in JSON."""
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
        """Return namespace and name of each item; None of a row of a Table that does not have its object.

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

    def objects(self) -> list[ObjectMeta]:
        """Return the metadata of the items of a list of objects. Raises StatusError (502)."""
        try:
            return [_ITEM.decode(item).metadata or ObjectMeta() for item in self.items]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _malformed(self.member, error) from None


def keep_one(lists: Sequence[MemberList], conflicts: Conflicts) -> None:
    """Take out of lists, which are in the order of their members, what rules of `conflicts` do not show: of a name that
    several have all but the chosen member's object, or the first one.

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


async def merged(
    lists: Sequence[MemberList],
    gvr: GroupVersionResource,
    version_of: VersionOf,
    clock: IReactorTime,
    *,
    resource_version: str = "",
    token: str = "",
    unreadable: dict[str, int] | None = None,
) -> bytes:
    """Return one list of the items of `lists`, which is not empty, in their order.

    `resource_version` and `token` (to go on with) are the list's, "" for none. All of them are Tables,
    or none is. Other work is done between the items of a long list. An item that cannot be edited is left out, and
    counted by member in `unreadable`; without that it raises StatusError (502).
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
        except json_edit.Malformed as error:
            if unreadable is None:
                raise _malformed(member, error) from None
            unreadable[member] = unreadable.get(member, 0) + 1
    return edited if places is None else [_moved(row, places, member) for row in edited]


def _places(columns: bytes | None, union: bytes) -> tuple[int, ...]:
    """Return the place in the union of each of a member's columns."""
    places = {column.name: place for place, column in enumerate(parse_columns(union) or ())}
    return (len(places), *(places[column.name] for column in parse_columns(columns) or ()))


def _moved(row: bytes, places: tuple[int, ...], member: str) -> bytes:
    """Return a row with its cells where the union of the columns has them."""
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
