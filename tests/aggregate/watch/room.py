"""A view of real stores, and watches on it whose exchanges record what is written."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, cast

from twisted.internet.defer import Deferred

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.request import LeftOut
from mcproxy.aggregate.resource_version.formats import LongFormat, version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.view.conflicts import NO_RULES, Conflicts
from mcproxy.aggregate.view.view import AbsentMember, MemberView, View, ViewState
from mcproxy.aggregate.watch.watch_handler import WatchHandler, WatchSettings
from mcproxy.http.exchange import Exchange, ExchangeHandler
from mcproxy.http.messages import Header
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.proxy.builders import FakeExchange
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import Clock
from tests.support.fake_members import FakeMember, as_member, as_members

CONFIGMAPS = APIResource(
    GroupVersionResource("", "v1", "configmaps"), "ConfigMap", "configmap", True, frozenset({"list", "watch", "get"})
)
START = 1_795_000_000.0
"""Seconds since 1970 at which the clocks of these tests begin."""


def make_object(
    store: Store, name: str, version: int, *, namespace: str = "demo", uid: str = "", **labels: str
) -> CachedObject:
    """Return an object as the store's decoder makes it; its data is its version, so that states can be told apart."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"{store.member}-{namespace}-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-11-21T09:26:39Z",
    }
    if labels:
        metadata["labels"] = labels
    document = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"v": str(version)}}
    made = store.decoder.decode_item(json.dumps(document, separators=(",", ":")).encode(), START)
    assert isinstance(made, CachedObject), made
    return made


class RecordedExchange(FakeExchange):
    """Stands in for an exchange: keeps what is written, and may be told that the client does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.head_written: tuple[int, bytes] | None = None
        self.out = b""
        self.sent = b""
        self.aborted = False
        self.writes = 0
        self.limit: int | None = None
        """Bytes after which the client is paused; None: it reads everything."""

    def respond(self, status: int, reason: bytes, fields: bytes, length: int, declared: int | None = None) -> None:
        assert length < 0
        self.head_written = status, fields

    def attach(self, handler: ExchangeHandler) -> None:
        self.handler = handler

    def write(self, data: bytes) -> None:
        assert not self.ended
        self.out += data

    def write_shared(self, data: bytes, chunk: bytes) -> None:
        assert chunk == b"%x\r\n%b\r\n" % (len(data), data)
        self.write(data)
        self.flush()

    def flush(self) -> None:
        if self.out:
            self.writes += 1
        self.sent += self.out
        self.out = b""
        if self.limit is not None and len(self.sent) > self.limit and self.handler is not None:
            self.handler.pause_response()

    def read_on(self) -> None:
        """The client reads again."""
        self.limit = None
        if self.handler is not None:
            self.handler.resume_response()

    def end(self, trailers: list[Header] | None = None) -> None:
        self.flush()
        self.ended = True
        self.handler = None

    def abort(self) -> None:
        self.ended = self.aborted = True

    @property
    def lines(self) -> list[bytes]:
        assert self.sent.endswith(b"\n") or not self.sent
        return self.sent.splitlines(keepends=True)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def brief(self, *, bookmarks: bool = False) -> list[tuple[str, str, str]]:
        """Return (type, cluster/name, data) of each event."""
        found = []
        for event in self.events:
            obj = event["object"]
            if event["type"] == "ERROR":
                found.append(("ERROR", str(obj["code"]), obj["reason"]))
            elif event["type"] != "BOOKMARK":
                metadata = obj["metadata"]
                place = f"{metadata['labels']['mcproxy.io/cluster']}/{metadata['name']}"
                found.append((event["type"], place, obj.get("data", {}).get("v", "")))
            elif bookmarks:
                found.append(("BOOKMARK", "", ""))
        return found

    @property
    def version(self) -> str:
        """The resource version of the last event: where the client resumes."""
        return str(self.events[-1]["object"]["metadata"]["resourceVersion"])


class WatchRequest(FakeRequest):
    """A request for a watch, decided for all members that these tests have; `recorded` is what its client gets."""

    def __init__(self, path: str, accept: str = "application/json") -> None:
        super().__init__(path.encode(), UserInfo("alice"), ("east", "west", "north", "far", "c0", "c1", "c2"))
        self.head.fields = b"Accept: %b\r\n" % accept.encode()
        self.recorded = RecordedExchange()
        self.exchange = cast(Exchange, self.recorded)
        self.served: tuple[str, ...] = ()

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        return b"Audit-Id: 1\r\n" + more

    def served_by(self, *members: str, cached: bool) -> None:
        self.served = members


class Rights:
    """Who may read: all members but `denied` and `unasked`."""

    recheck_after = 30.0

    def __init__(self) -> None:
        self.denied: set[str] = set()
        self.unasked: set[str] = set()
        """Those that cannot be asked."""
        self.asked = 0
        self.waiting: Deferred[None] | None = None
        """What an answer waits for."""

    async def allowed(
        self, request: Any, members: Sequence[str], verb: str, info: Any
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        assert verb == "watch"
        may, left_out = await self.again(request, members, info)
        if members and not may:
            raise StatusError(503, "nobody could be asked")
        return may, left_out

    async def again(
        self, request: Any, members: Sequence[str], info: Any
    ) -> tuple[tuple[str, ...], tuple[LeftOut, ...]]:
        self.asked += 1
        if self.waiting is not None:
            await self.waiting
        gone = self.denied | self.unasked
        may = tuple(member for member in members if member not in gone)
        if members and self.denied.issuperset(members):
            raise StatusError(403, "no")
        return may, tuple(LeftOut(member, "no", member in self.unasked) for member in members if member in gone)


class Fresh:
    """Caches that are as fresh as anybody wants, unless told otherwise."""

    def __init__(self) -> None:
        self.error: StatusError | None = None
        self.calls: list[Any] = []
        self.strict = False
        """Caches are as fresh as they are: one that has not reached a version is 504 at once."""

    async def current(self, view: View, allowed: Sequence[str], namespace: str) -> None:
        self.calls.append("current")
        if self.error is not None:
            raise self.error

    async def at_least(
        self, view: View, allowed: Sequence[str], namespace: str, wanted: dict[str, int], text: str
    ) -> None:
        self.calls.append(wanted)
        if self.error is not None:
            raise self.error
        for member in view.members if self.strict else ():
            version = wanted.get(member.name, 0)
            if any(not store.synced or store.version < version for store in member.stores_of(namespace)) and version:
                raise StatusError(504, "too large resource version")


class Room:
    """Members with their stores, a view of them, and watches. `namespaces` has those of members with several stores."""

    def __init__(
        self,
        *names: str,
        settings: WatchSettings = WatchSettings(),  # noqa: B008  a frozen value
        namespaces: dict[str, tuple[str, ...]] | None = None,
        resource: APIResource = CONFIGMAPS,
        clock: Clock | None = None,
        karmada: bool = False,
        conflicts: Conflicts = NO_RULES,
    ) -> None:
        self.conflicts = conflicts
        self.clock = clock or Clock(START)
        self.resource = resource
        self.karmada = karmada
        self.former: tuple[str, ...] = ()
        """Members that only have their place in the layout."""
        self.namespaces = namespaces or {}
        self.stores: dict[str, tuple[Store, ...]] = {}
        self.history = LayoutHistory(Layout(names))
        self.rights = Rights()
        self.fresh = Fresh()
        self.probed: dict[str, int] = {}
        self.undiscovered: tuple[FakeMember, ...] = ()
        self.absent: tuple[AbsentMember, ...] = ()
        self.view = View(self.state(names))
        self.watches = WatchHandler(self.clock, lambda: 0.5, settings, cast(Any, self.fresh), self.probe)

    async def probe(self, store: Store, timeout: float) -> int:
        return self.probed.get(store.member, store.version)

    def state(self, names: Sequence[str]) -> ViewState:
        """Return a composition of these members; those that have stores keep them."""
        for name in names:
            if name not in self.stores:
                self.stores[name] = tuple(
                    Store(self.clock, name, self.resource, namespace) for namespace in self.namespaces.get(name, ("",))
                )
        layout = self.history.present
        several = any(len(self.stores[name]) > 1 for name in names)
        written = version_format(layout, karmada=self.karmada, long=several, bits=self.history.bits)
        return ViewState(
            resource=self.resource,
            members=tuple(
                MemberView(name, layout.index(name), as_member(FakeMember(name)), self.stores[name]) for name in names
            ),
            undiscovered=tuple(as_members(self.undiscovered)),
            history=self.history,
            karmada=self.karmada,
            format=written,
            long=isinstance(written, LongFormat),
            reader=VersionReader(self.history, self.former),
            absent=self.absent,
            conflicts=self.conflicts,
        )

    def recompose(self, *names: str, layout: Sequence[str] | None = None) -> None:
        """A reload (`layout`: all members of the aggregate, where some lack the resource)."""
        self.history = self.history.changed(layout or names)
        self.view.update(self.state(names))

    def grow(self, bits: int) -> None:
        """Some member was seen at a version of so many bits."""
        self.history = self.history.grown(bits)
        self.view.update(self.state([member.name for member in self.view.members]))

    def store(self, name: str, namespace: str = "") -> Store:
        return next(store for store in self.stores[name] if store.namespace in ("", namespace))

    def sync(self, name: str, version: int, *objects: tuple[str, int], namespace: str = "") -> None:
        """A list of the member: names and versions."""
        store = self.store(name, namespace)
        replacement = store.replace()
        for item, at in sorted(objects):
            replacement.add(make_object(store, item, at, namespace=namespace or "demo"))
        replacement.commit(version)

    def put(self, name: str, item: str, version: int, *, namespace: str = "demo", uid: str = "", **labels: str) -> None:
        store = self.store(name, namespace)
        store.apply(EventType.MODIFIED, make_object(store, item, version, namespace=namespace, uid=uid, **labels))

    def delete(self, name: str, item: str, version: int, *, namespace: str = "demo") -> None:
        store = self.store(name, namespace)
        known = store.get(namespace, item)
        assert known is not None
        store.apply(EventType.DELETED, known.deleted_at(version))

    def run(self, seconds: float = 0.1) -> None:
        """Let the time pass in small steps, so that everything that is due is done."""
        for _ in range(round(seconds / 0.01)):
            self.clock.advance(0.01)

    def open(
        self, query: str = "", *, namespace: str = "", accept: str = "application/json", path: str = ""
    ) -> WatchRequest:
        """Begin a watch without letting it run. Raises what it raises before the response."""
        request = WatchRequest(f"{path or self.resource.gvr.path(namespace)}?watch=true&{query}", accept)
        served = Deferred.fromCoroutine(self.watches.serve(cast(Any, request), self.view, cast(Any, self.rights)))
        problems: list[Any] = []
        served.addErrback(lambda failure: problems.append(failure.value))
        if problems:
            raise problems[0]
        return request

    def watch(
        self, query: str = "", *, namespace: str = "", accept: str = "application/json", path: str = ""
    ) -> RecordedExchange:
        """Begin a watch, and let it come to the present."""
        request = self.open(query, namespace=namespace, accept=accept, path=path)
        self.run()
        return request.recorded

    def version(self, members: Collection[str] | None = None) -> str:
        """The resource version of a list now."""
        return self.view.format.list_version(self.view.versions_of(members))
