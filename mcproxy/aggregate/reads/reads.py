"""Get and list from the caches of an aggregate's members: one answer as if all were one cluster.

    method, Accept, options -> selection -> fresh enough caches -> state of the stores -> page -> bytes

Source: `reference/list-watch.md`, "Reads from cache"; apiserver `endpoints/handlers/get.go` for the order of checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.aggregate.authorization import check_decided
from mcproxy.aggregate.reads.continue_token import TOKEN_VERSION, ContinueToken, decode, listed_digest
from mcproxy.aggregate.reads.formatting import formatted
from mcproxy.aggregate.reads.freshness import Freshness, FreshnessWaiter, Probe
from mcproxy.aggregate.reads.list_page import Batch, Lister, Page, Start
from mcproxy.aggregate.reads.list_state import ListState, ListStates
from mcproxy.aggregate.reads.response_body import NOT_READY, SLICE, InThread, Pieces, ResponseBody
from mcproxy.aggregate.reads.snapshot import HeldSnapshots, Part
from mcproxy.aggregate.reads.writers import ItemWriter, item_writers
from mcproxy.aggregate.representation.columns import Columns
from mcproxy.aggregate.representation.objects import (
    TABLE,
    ListMeta,
    Representation,
    envelope,
    representation,
)
from mcproxy.aggregate.selection import KnownField, Selection, parse_selection
from mcproxy.aggregate.warnings import block, left_out_text, warnings
from mcproxy.kube.errors import method_not_allowed, not_found
from mcproxy.kube.list_options import ListOptions, parse
from mcproxy.kube.media_types import JSON, YAML, accepts_gzip, negotiate
from mcproxy.kube.query_parameters import boolean, parse_query
from mcproxy.kube.status import StatusError
from mcproxy.net.wall_time import wall_seconds

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.cache.object import CachedObject
    from mcproxy.aggregate.cache.store import Store
    from mcproxy.aggregate.request import AggregatedRequest
    from mcproxy.aggregate.view.view import MemberView, View

_FIRST_STEP = 16
"""Objects that are written first, while their size is not known."""
LeftOut = Sequence[tuple[str, str]]
"""Members whose objects the answer has not, each with the reason in words."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request asks for, as far as gets and lists have it in common."""

    query: dict[str, str]
    namespace: str  # "" for all, and for resources that have none
    media_type: str
    wanted: Representation


class Reads:
    """Answers gets and lists of one aggregate; owns the states that are held for further pages."""

    def __init__(
        self,
        clock: IReactorTime,
        probe: Probe,
        in_thread: InThread,
        freshness: Freshness = Freshness(),  # noqa: B008  a frozen value
    ) -> None:
        """`clock.seconds()` are seconds since 1970. `in_thread` compresses."""
        self._clock = clock
        self._in_thread = in_thread
        self._waiter = FreshnessWaiter(clock, probe, freshness)
        self._held = HeldSnapshots(clock)
        self._states = ListStates(self._waiter, self._held)

    def update(self, freshness: Freshness) -> None:
        """Take the settings of a reload."""
        self._waiter.freshness = freshness

    def stop(self) -> None:
        """The aggregate ends: no further pages come from the states that are held."""
        self._held.clear()

    # -- get --------------------------------------------------------------------------------------------------

    async def get(self, request: AggregatedRequest, view: View, allowed: Sequence[str], left_out: LeftOut = ()) -> None:
        """Answer a get of one object with what the caches of the `allowed` members have. Raises StatusError."""
        check_decided(left_out, self._waiter.freshness.unavailable)
        asked = _asked(request, view)
        name, namespace = request.info.name, asked.namespace
        text = asked.query.get("resourceVersion", "")
        readable = await self._states.fresh(view, allowed, namespace, text, name)
        texts = [text for member in readable.members for text in member.warnings(namespace)]
        texts += readable.warnings
        texts += _own_warnings(view, namespace, left_out)
        found = [
            (member, store, obj)
            for member in readable.members
            for store in member.stores_of(namespace)
            if (obj := store.get(namespace, name)) is not None
        ]
        gvr = view.resource.gvr
        if not found:
            error = not_found(gvr.group, gvr.resource, name)
            error.headers += tuple(warnings(texts))
            raise error
        member, store, obj = found[0]
        if len(found) > 1:
            others = ", ".join(other.name for other, _, _ in found[1:])
            texts.append(f'{gvr} "{name}" is of cluster {member.name}; there is one of that name in {others}, too')
        request.served_by(member.name, cached=True)
        body = self._object_body(view, member, store, obj, asked.wanted)
        await self._send(request, asked, texts, iter((Pieces([body], len(body)),)))

    def _object_body(
        self, view: View, member: MemberView, store: Store, obj: CachedObject, wanted: Representation
    ) -> bytes:
        if wanted.kind != TABLE:
            writer = item_writers(wanted, view.format.object_template(member.index), store, always_typed=True)
            return b"".join(writer([obj]))[1:] + b"\n"
        metadata = ListMeta(view.format.object(member.index, obj.version))
        columns = Columns([store.columns], view.resource.gvr, custom=store.items_typed)
        writer = self._table_writer(view, member, store, wanted, columns)
        head, tail = envelope(wanted, metadata, list_kind="", api_version="", custom=False, columns=columns.definitions)
        return head + b"".join(writer([obj]))[1:] + tail

    # -- list -------------------------------------------------------------------------------------------------

    async def list(
        self,
        request: AggregatedRequest,
        view: View,
        allowed: Sequence[str],
        left_out: LeftOut = (),
        known_field: KnownField | None = None,
    ) -> None:
        """Answer a list with what the caches of the `allowed` members have. Raises StatusError.

        `known_field` says which paths the resource's published schema has, for field selectors.
        """
        check_decided(left_out, self._waiter.freshness.unavailable)
        asked = _asked(request, view, listing=True)
        options = parse(asked.query)
        gvr, namespace = view.resource.gvr, asked.namespace
        custom = view.custom
        selection = parse_selection(
            options.label_selector, options.field_selector, gvr, custom=custom, known_field=known_field
        )
        listed = listed_digest(*gvr, namespace, options.label_selector, options.field_selector)
        token = _token(options, listed)
        state = await self._states.find(view, allowed, namespace, options, selection.name or "", token)
        start = None
        if token is not None:
            start = Start(view.layout.index(token.cluster), *token.last)
        lister = Lister(self._clock, state.parts, namespace, selection, start)
        metadata = ListMeta(state.resource_version)
        page: Page | None = None
        limit = 0 if options.resource_version == "0" else options.limit
        if limit:
            page = await lister.page(limit)
            if page.last is not None:
                metadata = self._next_page(state, page, lister, selection, listed)
        request.served_by(*dict.fromkeys(part.member.name for part in state.parts), cached=True)
        items = iter(page.items) if page is not None else lister.batches()
        source = self._body(view, state, asked.wanted, metadata, items, custom=custom)
        texts = [text for part in state.parts for text in part.store.warnings]
        texts += state.warnings
        texts += _own_warnings(view, namespace, left_out)
        await self._send(request, asked, texts, source)

    def _next_page(self, state: ListState, page: Page, lister: Lister, selection: Selection, listed: str) -> ListMeta:
        assert page.last is not None
        part, obj = page.last
        self._states.hold(state)
        token = ContinueToken(
            version=TOKEN_VERSION,
            resource_version=state.resource_version,
            cluster=part.member.name,
            key=f"{obj.namespace}/{obj.name}",
            listed=listed,
            stores=state.store_versions(),
        )
        remaining = None if selection else lister.count() - sum(len(objects) for _, objects in page.items)
        return ListMeta(state.resource_version, token.encode(), remaining)

    def _body(
        self,
        view: View,
        state: ListState,
        wanted: Representation,
        metadata: ListMeta,
        items: Iterator[Batch],
        *,
        custom: bool,
    ) -> Iterator[Pieces]:
        """Yield the body; the first item has no comma before it."""
        stores = [part.store for part in state.parts]
        columns = None
        if wanted.kind == TABLE:
            columns = Columns([store.columns for store in stores], view.resource.gvr, custom=custom)
        known = stores or [store for member in view.members for store in member.stores]
        head, tail = envelope(
            wanted,
            metadata,
            list_kind=known[0].list_kind if known else view.resource.list_kind,
            api_version=view.resource.gvr.api_version,
            custom=custom,
            columns=columns.definitions if columns is not None else b"",
        )
        yield Pieces([head], len(head))
        writers: dict[int, ItemWriter] = {}
        first, step = True, _FIRST_STEP
        for part, objects in items:
            if not objects:
                yield NOT_READY
                continue
            writer = writers.get(id(part))
            if writer is None:
                writer = writers[id(part)] = self._writer(view, part, wanted, columns)
            place = 0
            while place < len(objects):
                parts = writer(objects[place : place + step])
                place += step
                if first:
                    parts[0] = parts[0][1:]
                    first = False
                size = sum(map(len, parts))
                yield Pieces(parts, size)
                # As many objects as make a slice, whether they have 500 bytes or a megabyte.
                step = max(1, min(len(objects), step * SLICE // size))
        yield Pieces([tail], len(tail))

    def _writer(self, view: View, part: Part, wanted: Representation, columns: Columns | None) -> ItemWriter:
        if columns is not None:
            return self._table_writer(view, part.member, part.store, wanted, columns)
        return item_writers(wanted, view.format.object_template(part.member.index), part.store)

    def _table_writer(
        self, view: View, member: MemberView, store: Store, wanted: Representation, columns: Columns
    ) -> ItemWriter:
        return item_writers(
            wanted,
            view.format.object_template(member.index),
            store,
            printer=columns.printer(store.columns),
            now=wall_seconds(self._clock),
        )

    # -- what both have ---------------------------------------------------------------------------------------

    async def _send(
        self, request: AggregatedRequest, asked: _Asked, texts: Sequence[str], source: Iterator[Pieces]
    ) -> None:
        pretty = boolean(asked.query.get("pretty"))
        source = await formatted(self._clock, self._in_thread, source, asked.media_type, pretty=pretty)
        fields = b"Content-Type: %b\r\n" % asked.media_type.encode() + block(warnings(texts))
        sender = ResponseBody(self._clock, request.exchange, self._in_thread)
        gzip = accepts_gzip(request.head.header(b"accept-encoding"))
        await sender.send(request.own_fields(fields), source, gzip=gzip)


def _asked(request: AggregatedRequest, view: View, *, listing: bool = False) -> _Asked:
    """Read what is asked for. Raises StatusError 400, 405, 406."""
    if request.exchange.head.method != b"GET":
        raise method_not_allowed()
    resource = view.resource
    query = parse_query(request.target.partition(b"?")[2])
    accepted = negotiate(
        (request.head.header(b"accept") or b"").decode("latin-1"),
        custom=view.custom,
        list_of=(resource.gvr.group, resource.kind) if listing else None,
        writable=(JSON, YAML),
    )
    return _Asked(
        query=query,
        namespace=request.info.namespace if resource.namespaced else "",
        media_type=accepted.media_type,
        wanted=representation(accepted, query.get("includeObject", "")),
    )


def _own_warnings(view: View, namespace: str, left_out: LeftOut) -> Sequence[str]:
    texts = [left_out_text(member, why) for member, why in left_out]
    if not view.covers(namespace):
        texts.append(f"namespace {namespace} is not read from any cluster's cache here")
    return texts


def _token(options: ListOptions, listed: str) -> ContinueToken | None:
    if not options.continue_token:
        return None
    if options.resource_version not in ("", "0"):
        raise StatusError(400, "specifying resource version is not allowed when using continue")
    token = decode(options.continue_token)
    if token.listed != listed:
        raise StatusError(
            400,
            "invalid continue token: it was made for another resource, namespace or selector than this list has",
        )
    return token
