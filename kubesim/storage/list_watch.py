"""LIST and WATCH: selectors, resourceVersions, pages of a consistent snapshot, continue tokens, streams of events.

`Watch` is the pure part of a watch: it turns the log of a collection into the events of one client (objects that begin
or cease to match a selector included). `events` adds time: bookmarks, the deadline, the end of a CRD. Source: apiserver
`storage/etcd3/store.go` GetList, `storage/continue.go` and `storage/cacher`, KEP-3157.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

from kubesim.apimachinery import selectors, status
from kubesim.apimachinery.resources import JSONDict, ResourceInfo, from_storage
from kubesim.storage.store import ADDED, DELETED, MODIFIED, Collection, Compacted, Event, ObjectKey, Store
from mcproxy.kube.list_options import ListOptions


def parse_revision(text: str) -> int:
    """Return a resourceVersion as a number; "" and "0" are 0. Raises ValueError with Go's message."""
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)


TOKEN_VERSION = "meta.k8s.io/v1"
LIST_TOO_OLD = "The resourceVersion for the provided list is too old."
CONTINUE_TOO_OLD = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)


@dataclass(frozen=True)
class Page:
    """The objects of a list, in the served version, and its metadata."""

    items: list[JSONDict]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


def encode_token(revision: int, start: str) -> str:
    """Return a continue token in Kubernetes' form."""
    text = json.dumps({"v": TOKEN_VERSION, "rv": revision, "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def decode_token(token: str) -> tuple[int, str]:
    """Return (revision, start). Raises APIError 400."""
    prefix = "invalid continue token: continue key is not valid"
    for index, char in enumerate(token):
        if not (char.isascii() and (char.isalnum() or char in "-_")):
            raise status.bad_request(f"{prefix}: illegal base64 data at input byte {index}")
    try:
        data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (binascii.Error, ValueError) as error:
        raise status.bad_request(f"{prefix}: illegal base64 data at input byte {len(token)}") from error
    version = data.get("v", "") if isinstance(data, dict) else ""
    if version != TOKEN_VERSION:
        raise status.bad_request(f"{prefix}: server does not recognize this encoded version {version}")
    start = str(data.get("start", ""))
    if not start or ".." in start.split("/"):
        raise status.bad_request(f"{prefix}: invalid start")
    revision = data.get("rv", 0)
    if not isinstance(revision, int):
        raise status.bad_request(f"{prefix}: json: cannot unmarshal into Go struct field .rv of type int64")
    return revision, start


def compile_selectors(resource: ResourceInfo, options: ListOptions) -> list[selectors.Matcher]:
    """Return the predicates of both selectors, over stored objects. Raises APIError 400."""
    matchers = (
        selectors.label_matcher(options.label_selector),
        selectors.field_matcher(options.field_selector, resource),
    )
    return [matcher for matcher in matchers if matcher is not None]


async def wait_for(store: Store, revision: int) -> None:
    """Wait for a revision in the future, up to too_large_wait_seconds. Raises APIError 504."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + store.options.too_large_wait_seconds
    while revision > store.revision:
        if loop.time() >= deadline:
            raise status.too_large_resource_version(str(revision), str(store.revision))
        await asyncio.sleep(0.02)


def wanted_revision(text: str) -> int:
    """Parse the resourceVersion parameter of a list or get. Raises APIError 400."""
    try:
        return parse_revision(text)
    except ValueError as error:
        raise status.bad_request(f"invalid resource version: {error}") from error


async def list_page(store: Store, resource: ResourceInfo, namespace: str, options: ListOptions) -> Page:
    """Return the page that the options request. Raises APIError 400, 410, 504."""
    matchers = compile_selectors(resource, options)
    collection = store.collection(resource.storage)
    if options.continue_token:
        return _continued(store, collection, resource, namespace, options, matchers)
    revision = wanted_revision(options.resource_version)
    await wait_for(store, revision)
    current = store.revision
    exact = options.match == "Exact" or (options.limit > 0 and revision > 0 and not options.match)
    limit = 0 if options.resource_version == "0" else options.limit
    if not exact:
        return _page(resource, namespace, collection.at(current).items(), current, "", limit, matchers)
    try:
        state = collection.at(revision)
    except Compacted as error:
        raise status.expired(LIST_TOO_OLD) from error
    return _page(resource, namespace, state.items(), revision, "", limit, matchers)


def _continued(
    store: Store,
    collection: Collection,
    resource: ResourceInfo,
    namespace: str,
    options: ListOptions,
    matchers: list[selectors.Matcher],
) -> Page:
    if options.resource_version not in ("", "0"):
        raise status.bad_request("specifying resource version is not allowed when using continue")
    revision, start = decode_token(options.continue_token)
    start = start.removeprefix("/")
    if revision <= 0:
        revision = store.revision
    try:
        state = collection.at(revision)
    except Compacted as error:
        raise status.expired(CONTINUE_TOO_OLD, continue_token=encode_token(-1, start)) from error
    limit = 0 if options.resource_version == "0" else options.limit
    return _page(resource, namespace, state.items(), revision, start, limit, matchers)


def _page(
    resource: ResourceInfo,
    namespace: str,
    objects: Iterable[tuple[ObjectKey, JSONDict]],
    revision: int,
    start: str,
    limit: int,
    matchers: list[selectors.Matcher],
) -> Page:
    items: list[JSONDict] = []
    last = ""
    remaining = 0
    for key, obj in objects:
        if namespace and key[0] != namespace:
            continue
        path = key[1] if namespace or not key[0] else f"{key[0]}/{key[1]}"
        if path < start or not all(matcher(obj) for matcher in matchers):
            continue
        if limit and len(items) >= limit:
            remaining += 1
            continue
        items.append(from_storage(resource, obj))
        last = path
    if not remaining:
        return Page(items, revision)
    token = encode_token(revision, f"/{last}\x00")
    return Page(items, revision, token, None if matchers else remaining)


def list_metadata(page: Page, *, custom: bool = False) -> JSONDict:
    """Return the ListMeta; that of custom resources always has `continue`."""
    metadata: JSONDict = {"resourceVersion": str(page.revision)}
    if page.continue_token or custom:
        metadata["continue"] = page.continue_token
    if page.remaining is not None:
        metadata["remainingItemCount"] = page.remaining
    return metadata


def envelope(resource: ResourceInfo, page: Page) -> JSONDict:
    """Return the list object; items of built-in kinds have neither kind nor apiVersion."""
    metadata = list_metadata(page, custom=not resource.builtin)
    items = page.items
    if resource.builtin:
        items = [{key: value for key, value in item.items() if key not in ("kind", "apiVersion")} for item in items]
    return {
        "kind": resource.list_kind or f"{resource.kind}List",
        "apiVersion": resource.group_version,
        "metadata": metadata,
        "items": items,
    }


Change = tuple[str, JSONDict]
"""(type, object in the served version): ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

WATCH_TOO_OLD = "The resourceVersion for the provided watch is too old."
UNCACHED = frozenset({("", "events")})
"""Resources that a real apiserver watches in etcd, without a cache; the message of their 410 differs."""
BOOKMARK_BEFORE_DEADLINE = 2.0


@dataclass
class Watch:
    """One client's watch of a collection; `position` is the newest revision that was sent."""

    collection: Collection
    resource: ResourceInfo
    namespace: str
    matchers: list[selectors.Matcher]
    position: int
    initial: list[JSONDict] = field(default_factory=list)

    def selects(self, obj: JSONDict) -> bool:
        return all(matcher(obj) for matcher in self.matchers)

    def current(self) -> list[JSONDict]:
        """Return the selected objects in their current state."""
        found = self.collection.objects
        return [
            from_storage(self.resource, found[key])
            for key in self.collection.keys()  # noqa: SIM118 - in etcd's order, not a mapping
            if (not self.namespace or key[0] == self.namespace) and self.selects(found[key])
        ]

    def advance(self, revision: int) -> Iterator[Change]:
        """Yield the changes up to a revision."""
        for event in self.collection.after(self.position):
            change = self._change(event)
            if change is not None:
                yield change[0], from_storage(self.resource, change[1])
        self.position = max(self.position, revision)

    def _change(self, event: Event) -> Change | None:
        if self.namespace and event.key[0] != self.namespace:
            return None
        before = event.previous is not None and self.selects(event.previous)
        after = event.type != DELETED and self.selects(event.object)
        if after:
            return (MODIFIED if before else ADDED), event.object
        if not before:
            return None
        if event.type == DELETED:
            return DELETED, event.object
        assert event.previous is not None
        metadata = {**event.previous["metadata"], "resourceVersion": event.object["metadata"]["resourceVersion"]}
        return DELETED, {**event.previous, "metadata": metadata}

    def bookmark(self, *, initial_end: bool = False) -> Change:
        """Return a BOOKMARK of the position."""
        metadata: JSONDict = {"resourceVersion": str(self.position)}
        if initial_end:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        obj: JSONDict = {"kind": self.resource.kind, "apiVersion": self.resource.group_version, "metadata": metadata}
        return "BOOKMARK", {**obj, **EMPTY_PARTS.get((self.resource.group, self.resource.plural), {})}


EMPTY_PARTS: dict[tuple[str, str], JSONDict] = {
    ("", "pods"): {"spec": {"containers": None}, "status": {}},
    ("", "namespaces"): {"spec": {}, "status": {}},
    ("", "services"): {"spec": {}, "status": {"loadBalancer": {}}},
    ("apps", "deployments"): {
        "spec": {"selector": None, "template": {"metadata": {}, "spec": {"containers": None}}, "strategy": {}},
        "status": {},
    },
}
"""The fields that Go writes for the zero value of a type; a bookmark's object is such a zero value."""


def open_watch(store: Store, resource: ResourceInfo, namespace: str, options: ListOptions) -> tuple[Watch, bool]:
    """Return a watch at its starting point, and whether it begins with the existing objects.

    Raises APIError 400 (selectors) and, unlike a list, 500 for a resourceVersion that is not a number.
    """
    matchers = compile_selectors(resource, options)
    try:
        revision = parse_revision(options.resource_version)
    except ValueError as error:
        raise status.APIError(500, "", str(error)) from error
    initial = options.initial_events if options.initial_events is not None else revision == 0
    watch = Watch(store.collection(resource.storage), resource, namespace, matchers, revision)
    if revision == 0 or initial:
        watch.position = store.revision
    return watch, bool(initial)


async def events(
    store: Store, resource: ResourceInfo, namespace: str, options: ListOptions
) -> AsyncGenerator[Change, None]:
    """Yield the changes until the deadline, or the end of the resource. Raises APIError only before the first.

    Later errors are ERROR events, since the 200 has been sent by then.
    """
    watch, initial = open_watch(store, resource, namespace, options)
    waiter = watch.collection.subscribe()
    try:
        async for change in _begin(store, watch, options, initial=initial):
            yield change
            if change[0] == "ERROR":
                return
        async for change in _follow(store, watch, waiter, options):
            yield change
    finally:
        watch.collection.unsubscribe(waiter)


async def _begin(store: Store, watch: Watch, options: ListOptions, *, initial: bool) -> AsyncIterator[Change]:
    wanted = int(options.resource_version or 0)
    if initial:
        if options.initial_events:
            try:
                await wait_for(store, wanted)
            except status.StatusError as error:
                yield "ERROR", error.status()
                return
        watch.position = store.revision
        for obj in watch.current():
            yield ADDED, obj
        whole = options.initial_events or not options.resource_version
        if whole and options.bookmarks:  # also for a plain watch without a resourceVersion, as recorded
            yield watch.bookmark(initial_end=True)
    elif wanted and wanted < watch.collection.since:
        yield _too_old(watch, wanted)


def _too_old(watch: Watch, wanted: int) -> Change:
    uncached = watch.resource.storage in UNCACHED
    text = WATCH_TOO_OLD if uncached else f"too old resource version: {wanted} ({watch.collection.since})"
    return "ERROR", status.expired(text).status()


async def _follow(store: Store, watch: Watch, waiter: asyncio.Event, options: ListOptions) -> AsyncIterator[Change]:
    loop = asyncio.get_running_loop()
    seconds = float(options.timeout) or store.random.uniform(*store.options.default_watch_seconds)
    deadline = loop.time() + seconds
    bookmark_at = _next_bookmark(store, loop.time(), deadline) if options.bookmarks else deadline
    definition = watch.collection.definition
    while True:
        waiter.clear()
        if watch.position < watch.collection.dropped:
            yield _too_old(watch, watch.position)
            return
        for change in watch.advance(store.revision):
            yield change
        if watch.collection.gone or watch.collection.definition != definition:
            return
        now = loop.time()
        if now >= deadline:
            return
        if options.bookmarks and now >= bookmark_at:
            if watch.position <= store.revision:  # else it began in the future, from before a backup was restored
                yield watch.bookmark()
            bookmark_at = _next_bookmark(store, now, deadline, sent=True)
        try:
            async with asyncio.timeout_at(min(deadline, bookmark_at)):
                await waiter.wait()
        except TimeoutError:
            pass


def _next_bookmark(store: Store, now: float, deadline: float, *, sent: bool = False) -> float:
    """Return the time of the next bookmark: periodic, 2 s before the deadline, and (as recorded) a second later."""
    last = deadline - BOOKMARK_BEFORE_DEADLINE
    if now < last:
        return min(now + store.options.bookmark_seconds, last)
    return last + 1.0 if sent and now < last + 0.5 else deadline + 1.0
