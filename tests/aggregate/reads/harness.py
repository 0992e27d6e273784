"""Views over real stores, and requests whose responses are read back from the wire; time is a Clock's."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast
from urllib.parse import quote

from twisted.internet.defer import Deferred, succeed

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.freshness import Freshness, FreshnessWaiter
from mcproxy.aggregate.reads.reads import Reads
from mcproxy.aggregate.request import LeftOut
from mcproxy.aggregate.resource_version.formats import version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.selection import KnownField
from mcproxy.aggregate.view.conflicts import NO_RULES, Conflicts
from mcproxy.aggregate.view.view import AbsentMember, MemberView, View, ViewState
from mcproxy.http.exchange import Exchange
from mcproxy.http.h1.h1_exchange import H1Exchange
from mcproxy.http.messages import RequestHead
from mcproxy.kube.resource import APIResource
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.aggregate.objects import CREATED, PODS
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import Clock
from tests.support.fake_members import FakeMember, as_member

USER = UserInfo("alice", ())


class Response:
    """A response as a client sees it."""

    def __init__(self, wire: bytes) -> None:
        head, _, body = wire.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        self.status = int(lines[0].split(" ")[1])
        self.fields = [(name, value) for name, _, value in (line.partition(": ") for line in lines[1:])]
        self.chunked = ("Transfer-Encoding", "chunked") in self.fields
        self.complete = not self.chunked or body.endswith(b"0\r\n\r\n")
        self.body = _dechunked(body) if self.chunked else body

    def field(self, name: str) -> list[str]:
        return [field[1] for field in self.fields if field[0].lower() == name.lower()]

    @property
    def warnings(self) -> list[str]:
        texts = [text.removeprefix('299 - "').removesuffix('"') for text in self.field("Warning")]
        return [text.replace('\\"', '"') for text in texts]

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def names(self) -> list[str]:
        """Cluster and name of each item."""
        return [
            f"{item['metadata']['labels']['mcproxy.io/cluster']}/{item['metadata']['name']}"
            for item in self.json()["items"]
        ]


def _dechunked(body: bytes) -> bytes:
    out, rest = [], body
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        out.append(rest[:length])
        rest = rest[length + 2 :]
        if not length:
            break
    return b"".join(out)


class FakeConnection:
    """What an Exchange needs of a connection; `wire` is what was sent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.transport = self
        self.closing = False
        self.write_blocked = False
        self.wire = bytearray()
        self.writes: list[int] = []
        self.done = False
        self.aborted = False
        self.on_write: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        self.wire += data
        self.writes.append(len(data))
        if self.on_write is not None:
            self.on_write()

    def seconds(self) -> float:
        return self._clock.seconds()

    def close_after_response(self) -> None:
        self.closing = True

    def exchange_done(self, exchange: Exchange) -> None:
        self.done = True

    def abort(self) -> None:
        self.aborted = True

    def resume_body(self) -> None: ...


class ReadRequest(FakeRequest):
    """A request with an exchange."""

    def __init__(
        self, clock: Clock, target: str, *, method: bytes = b"GET", fields: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(target.encode(), USER, (), method=b"GET")
        head = RequestHead()
        head.method, head.target, head.http11, head.length = method, target.encode(), True, 0
        head.keep_alive, head.te_trailers = True, False
        head.fields = b"".join(b"%b: %b\r\n" % (k.encode(), v.encode()) for k, v in (fields or {}).items())
        self.connection = FakeConnection(clock)
        self.head = head
        self.exchange = H1Exchange(cast(Any, self.connection), head, clock.seconds())
        self.served: list[tuple[tuple[str, ...], bool]] = []

    def served_by(self, *members: str, cached: bool) -> None:
        self.served.append((members, cached))

    def pause(self) -> None:
        if self.exchange.handler is not None:
            self.exchange.handler.pause_response()

    @property
    def response(self) -> Response:
        return Response(bytes(self.connection.wire))


class Fleet:
    """One view over the stores of some members, and what reads it."""

    def __init__(
        self,
        members: Sequence[str] = ("east", "west"),
        resource: APIResource = PODS,
        *,
        freshness: Freshness = Freshness(),  # noqa: B008
        namespaces: Mapping[str, Sequence[str]] | None = None,
        undiscovered: Sequence[str] = (),
        karmada: bool = False,
        conflicts: Conflicts = NO_RULES,
    ) -> None:
        self.clock = Clock(CREATED)
        self.resource = resource
        self.stores: dict[str, Store] = {}
        self.members: dict[str, FakeMember] = {}
        parts = []
        layout = Layout((*members, *undiscovered))
        for member in members:
            stores = []
            for namespace in (namespaces or {}).get(member, ("",)):
                store = Store(self.clock, member, resource, namespace)
                self.stores[f"{member}/{namespace}" if namespace else member] = store
                stores.append(store)
            fake = self.members[member] = FakeMember(member)
            parts.append(MemberView(member, layout.index(member), as_member(fake), tuple(stores)))
        self.history = LayoutHistory(layout)
        state = ViewState(
            resource=resource,
            members=tuple(parts),
            undiscovered=tuple(as_member(FakeMember(name)) for name in undiscovered),
            history=self.history,
            karmada=karmada,
            format=version_format(layout, karmada=karmada),
            reader=VersionReader(self.history),
            absent=tuple(AbsentMember(as_member(FakeMember(name)), ("",)) for name in undiscovered),
            conflicts=conflicts,
        )
        self.view = View(state)
        self.probed: list[str] = []
        self.present: dict[str, int] = {}
        self.probe_errors: dict[str, Exception] = {}
        self.threads = 0
        self.reads = Reads(self.clock, FreshnessWaiter(self.clock, self.probe, freshness), self.in_thread)

    async def probe(self, store: Store, timeout: float) -> int:
        """The member's version: what `present` says, or what is cached."""
        self.probed.append(store.member)
        if store.member in self.probe_errors:
            raise self.probe_errors[store.member]
        return self.present.get(store.member, store.version)

    def in_thread(self, function: Callable[[bytes], bytes], data: bytes) -> Deferred[bytes]:
        self.threads += 1
        return succeed(function(data))

    def recall(self, names: Sequence[str]) -> None:
        """The aggregate had these members before."""
        self.history = LayoutHistory(self.history.present, (Layout(names),))
        state = replace(self.view.state, history=self.history, reader=VersionReader(self.history))
        self.view.update(state)

    # -- the members' side

    def decode(self, store: Store, obj: Mapping[str, Any]) -> CachedObject:
        found = store.decoder.decode_item(json.dumps(obj, separators=(",", ":")).encode(), self.clock.seconds())
        assert isinstance(found, CachedObject), found
        return found

    def fill(self, name: str, objects: Iterable[Mapping[str, Any]], version: int) -> Store:
        """Give a store its first list."""
        store = self.stores[name]
        replacement = store.replace()
        for obj in objects:
            replacement.add(self.decode(store, obj))
        replacement.commit(version)
        return store

    def apply(self, name: str, event: str, obj: Mapping[str, Any]) -> None:
        """An event of a member's watch."""
        store = self.stores[name]
        store.apply(EventType(event), self.decode(store, obj))

    # -- the client's side

    def begin(
        self,
        target: str,
        *,
        allowed: Sequence[str] | None = None,
        left_out: Sequence[tuple[str, str] | LeftOut] = (),
        known_field: KnownField | None = None,
        method: bytes = b"GET",
        slow: bool = False,
        **fields: str,
    ) -> tuple[ReadRequest, Deferred[None]]:
        """Begin a read; fields with `_` for `-`. `slow`: the send buffer is full after each write."""
        request = ReadRequest(
            self.clock, target, method=method, fields={key.replace("_", "-"): value for key, value in fields.items()}
        )
        if slow:
            request.connection.on_write = request.pause
        names = tuple(self.view.layout.names) if allowed is None else tuple(allowed)
        left = [LeftOut(*each) for each in left_out]
        single = bool(request.info.name) and request.info.verb == "get"
        work: Awaitable[None] = (
            self.reads.get(request, self.view, names, left)
            if single
            else self.reads.list(request, self.view, names, left, known_field)
        )

        async def run() -> None:
            await work

        return request, Deferred.fromCoroutine(run())

    def read(self, target: str, **options: Any) -> Response:
        """Read to the end; time passes only as far as the reactor's turns need. Raises StatusError."""
        request, done = self.begin(target, **options)
        return self.finish(request, done)

    def finish(self, request: ReadRequest, done: Deferred[None]) -> Response:
        outcome: list[Any] = []
        done.addBoth(outcome.append)
        for _ in range(100_000):
            if outcome:
                break
            self.clock.advance(0)
        assert outcome, "the read waits for something"
        if outcome[0] is not None:
            outcome[0].raiseException()
        assert request.connection.done
        return request.response

    def refusal(self, target: str, **options: Any) -> StatusError:
        """Return what a read is refused with."""
        try:
            self.read(target, **options)
        except StatusError as error:
            return error
        raise AssertionError("it was answered")


def query(path: str, **parameters: str | int) -> str:
    """Return a target."""
    pairs = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in parameters.items())
    return f"{path}?{pairs}" if pairs else path
