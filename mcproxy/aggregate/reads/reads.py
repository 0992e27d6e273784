"""Gets and lists from the caches of an aggregate's members, answered as by a single cluster.

    method, Accept, options -> selection -> fresh enough caches -> state of the stores -> page -> bytes

Source: `reference/list-watch.md`, "Reads from cache"; apiserver `endpoints/handlers/get.go` for the order of checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcproxy.aggregate.authorization import check_decided
from mcproxy.aggregate.encoding.encoder import Encoder, encoder_for
from mcproxy.aggregate.encoding.objects import ItemWriter, ListMeta, Representation, requested_representation
from mcproxy.aggregate.freshness import FreshnessWaiter, check_absent, check_readable, may_have, subject
from mcproxy.aggregate.reads.continue_token import (
    TOKEN_VERSION,
    ContinueToken,
    decode_token,
    layout_digest,
    listed_digest,
)
from mcproxy.aggregate.reads.list_page import Batch, Lister, PageStart, SelectedPage, hidden_of
from mcproxy.aggregate.reads.list_state import HeldSnapshots, ListState, ListStates
from mcproxy.aggregate.reads.response_body import NOT_READY, SLICE, InThread, Pieces, ResponseBody, in_media_type
from mcproxy.aggregate.selection import KnownField, Selection, parse_selection
from mcproxy.aggregate.warnings import block, left_out_text, warnings
from mcproxy.kube.list_options import ListOptions, parse, resource_version
from mcproxy.kube.media_types import JSON, YAML, accepts_gzip, negotiate
from mcproxy.kube.query_parameters import boolean, parse_query
from mcproxy.kube.status import StatusError, method_not_allowed, not_found
from mcproxy.net.wall_time import wall_clock

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from mcproxy.aggregate.request import AggregatedRequest, LeftOut
    from mcproxy.aggregate.view.view import View

_NAMESPACES = ("", "namespaces")
"""Resources whose names can exist in several clusters without a Warning: each cluster has its own."""
_FIRST_STEP = 16
"""Number of objects in the first slice of a response, while the size of the objects is unknown."""


@dataclass(frozen=True, slots=True)
class _ReadOptions:
    """The options of a get or a list."""

    query: dict[str, str]
    namespace: str  # "" for all, and for cluster-scoped resources
    media_type: str
    wanted: Representation


class Reads:
    """Answers gets and lists of one aggregate; it owns the states that are held for further pages."""

    def __init__(
        self,
        clock: IReactorTime,
        waiter: FreshnessWaiter,
        in_thread: InThread,
    ) -> None:
        """`in_thread` runs the compression of bodies."""
        self._clock = clock
        self._in_thread = in_thread
        self._waiter = waiter
        self._held = HeldSnapshots(clock)
        self._states = ListStates(self._waiter, self._held)

    def stop(self) -> None:
        """Drop the held states, since the aggregate ends."""
        self._held.clear()

    # -- get --------------------------------------------------------------------------------------------------

    async def get(
        self, request: AggregatedRequest, view: View, allowed: Sequence[str], left_out: Sequence[LeftOut] = ()
    ) -> None:
        """Answer a get of one object from the caches of the `allowed` members. Raises StatusError."""
        check_decided(left_out, self._waiter.freshness.unavailable)
        read_options = _read_options(request, view)
        name, namespace = request.info.name, read_options.namespace
        text = resource_version(read_options.query)
        readable = await self._states.fresh(view, allowed, namespace, text, name, left_out)
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
        chosen = view.conflicts.chosen(namespace)
        readable_names = [member.name for member in readable.members]
        check_readable(view, [each for each in readable_names if each == chosen or not found], namespace, name)
        if not found:
            check_absent(subject(view, name), view, namespace, left_out, readable.away)
            error = not_found(gvr.group, gvr.resource, name)
            error.headers += tuple(warnings(texts))
            raise error
        member, store, obj = next((each for each in found if each[0].name == chosen), found[0])
        if len(found) > 1 and member.name != chosen and gvr[::2] != _NAMESPACES:
            others = ", ".join(other.name for other, _, _ in found[1:])
            texts.append(f'{gvr} "{name}" is of cluster {member.name}; there is one of that name in {others}, too')
        request.served_by(member.name, cached=True)
        version = view.format.object_template(member.index)(obj.version)
        body = self._encoder(view, read_options.wanted).single(store, obj, version)
        await self._send(request, read_options, texts, iter((Pieces([body], len(body)),)))

    # -- list -------------------------------------------------------------------------------------------------

    async def list(
        self,
        request: AggregatedRequest,
        view: View,
        allowed: Sequence[str],
        left_out: Sequence[LeftOut] = (),
        known_field: KnownField | None = None,
    ) -> None:
        """Answer a list from the caches of the `allowed` members. Raises StatusError.

        `known_field` returns whether the resource's published schema has a field path, for field selectors.
        """
        check_decided(left_out, self._waiter.freshness.unavailable)
        read_options = _read_options(request, view, listing=True)
        options = parse(read_options.query)
        gvr, namespace = view.resource.gvr, read_options.namespace
        custom = view.custom
        selection = parse_selection(
            options.label_selector, options.field_selector, gvr, custom=custom, known_field=known_field
        )
        listed = listed_digest(*gvr, namespace, options.label_selector, options.field_selector)
        token = _token(options, listed)
        only = selection.name or ""
        state = await self._states.find(view, allowed, namespace, options, only, token, left_out)
        members = {each.member.name: each.member for each in state.stores}
        unreadable = only and any(each.may_have_unreadable(namespace, only) for each in members.values())
        if only and token is None and (unreadable or may_have(view, namespace, left_out, state.away)):
            found = await Lister(self._clock, state.stores, namespace, selection).page(1)
            if not found.items:  # an empty list of a single name means the same as a 404 for the object
                check_absent(subject(view, only), view, namespace, left_out, state.away)
                check_readable(view, members, namespace, only)
        start = None
        if token is not None:
            start = PageStart(view.layout.index(token.cluster), *token.last)
        hidden = self._states.hidden(state, namespace, only)
        if hidden is None:
            hidden = await hidden_of(self._clock, view.conflicts, state.stores, namespace, only)
        lister = Lister(self._clock, state.stores, namespace, selection, start, hidden)
        metadata = ListMeta(state.resource_version)
        page: SelectedPage | None = None
        limit = 0 if options.resource_version == "0" else options.limit
        if limit:
            page = await lister.page(limit)
            if page.last is not None:
                self._states.hold(state, hidden)
                metadata = self._next_page(view, state, page, lister, selection, listed)
        request.served_by(*dict.fromkeys(each.member.name for each in state.stores), cached=True)
        items = iter(page.items) if page is not None else lister.batches()
        source = self._body(view, state, read_options.wanted, metadata, items)
        texts = [text for each in state.stores for text in each.store.warnings]
        texts += state.warnings
        if not only or unreadable:
            texts += [text for each in members.values() if (text := each.unreadable(namespace)) is not None]
        texts += _own_warnings(view, namespace, left_out)
        await self._send(request, read_options, texts, source)

    def _next_page(
        self, view: View, state: ListState, page: SelectedPage, lister: Lister, selection: Selection, listed: str
    ) -> ListMeta:
        assert page.last is not None
        store_state, obj = page.last
        token = ContinueToken(
            version=TOKEN_VERSION,
            resource_version=state.resource_version,
            cluster=store_state.member.name,
            key=f"{obj.namespace}/{obj.name}",
            listed=listed,
            stores=state.store_versions(),
            order=layout_digest(view.layout.names),
            state=state.digest(),
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
    ) -> Iterator[Pieces]:
        """Yield the body; the first item has no comma before it."""
        encoder = self._encoder(view, wanted)
        stores = [store_state.store for store_state in state.stores]
        columns = encoder.columns(store_state.snapshot for store_state in state.stores)
        known = stores or [store for member in view.members for store in member.stores]
        list_kind = known[0].list_kind if known else view.resource.list_kind
        head, tail = encoder.envelope(metadata, list_kind, columns)
        yield Pieces([head], len(head))
        writers: dict[int, ItemWriter] = {}
        first, step = True, _FIRST_STEP
        for store_state, objects in items:
            if not objects:
                yield NOT_READY
                continue
            writer = writers.get(id(store_state))
            if writer is None:
                version = view.format.object_template(store_state.member.index)
                writer = writers[id(store_state)] = encoder.items(store_state.snapshot, version, columns)
            place = 0
            while place < len(objects):
                parts = writer(objects[place : place + step])
                place += step
                if first:
                    parts[0] = parts[0][1:]
                    first = False
                size = sum(map(len, parts))
                yield Pieces(parts, size)
                # Adapt the number of objects per slice to their size, which can be 500 bytes or a megabyte.
                step = max(1, min(len(objects), step * SLICE // size))
        yield Pieces([tail], len(tail))

    def _encoder(self, view: View, wanted: Representation) -> Encoder:
        return encoder_for(wanted, view.resource, wall_clock(self._clock), custom=view.custom)

    # -- shared by get and list -------------------------------------------------------------------------------

    async def _send(
        self, request: AggregatedRequest, read_options: _ReadOptions, texts: Sequence[str], source: Iterator[Pieces]
    ) -> None:
        pretty = boolean(read_options.query.get("pretty"))
        source = await in_media_type(self._clock, self._in_thread, source, read_options.media_type, pretty=pretty)
        fields = b"Content-Type: %b\r\n" % read_options.media_type.encode() + block(warnings(texts))
        sender = ResponseBody(self._clock, request.exchange, self._in_thread)
        gzip = accepts_gzip(request.head.header(b"accept-encoding"))
        await sender.send(request.own_fields(fields), source, gzip=gzip)


def _read_options(request: AggregatedRequest, view: View, *, listing: bool = False) -> _ReadOptions:
    """Read the options of a request. Raises StatusError 400, 405, 406."""
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
    return _ReadOptions(
        query=query,
        namespace=request.info.namespace if resource.namespaced else "",
        media_type=accepted.media_type,
        wanted=requested_representation(accepted, query.get("includeObject", "")),
    )


def _own_warnings(view: View, namespace: str, left_out: Sequence[LeftOut]) -> Sequence[str]:
    texts = [left_out_text(each.member, each.why) for each in left_out]
    if not view.covers(namespace):
        texts.append(f"namespace {namespace} is not read from any cluster's cache here")
    return texts


def _token(options: ListOptions, listed: str) -> ContinueToken | None:
    if not options.continue_token:
        return None
    if options.resource_version not in ("", "0"):
        raise StatusError(400, "specifying resource version is not allowed when using continue")
    token = decode_token(options.continue_token)
    if token.listed != listed:
        raise StatusError(
            400,
            "invalid continue token: it was made for another resource, namespace or selector than this list has",
        )
    return token
