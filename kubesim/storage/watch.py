"""Watches: the changes of selected objects as a stream of events.

`Watch` is the pure part: it turns the log of a collection into the events of one client (objects that begin or cease to
match a selector included). `events` adds time: bookmarks, the deadline, the end of a CRD. Source: apiserver
`storage/cacher`, KEP-3157.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from kubesim.apimachinery import selectors, status
from kubesim.apimachinery.resources import ResourceInfo, from_storage
from kubesim.storage import lists
from kubesim.storage.lists import compile_selectors, wait_for
from kubesim.storage.store import ADDED, DELETED, MODIFIED, Collection, Event, Store
from mcproxy.kube.list_options import ListOptions

JSONDict = dict[str, Any]
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
"""The fields that Go writes for the zero value of a type, which a bookmark's object is."""


def open_watch(store: Store, resource: ResourceInfo, namespace: str, options: ListOptions) -> tuple[Watch, bool]:
    """Return a watch at its starting point, and whether it begins with the existing objects.

    Raises APIError 400 (selectors) and, unlike a list, 500 for a resourceVersion that is not a number.
    """
    matchers = compile_selectors(resource, options)
    try:
        revision = lists.parse_revision(options.resource_version)
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
            except status.APIError as error:
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
