"""Random histories: a client whose watch is cut anywhere, and resumed at this or another replica, misses nothing.

Two replicas follow the same clusters, each at its own pace, with breaks after which they list anew. One client lists,
watches, is cut behind any event, resumes from that event's version at either replica, and lists anew on 410.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.aggregate.resource_version.reader import Expired
from mcproxy.aggregate.view.conflicts import NO_RULES, Conflicts
from tests.aggregate.watch.room import RecordedExchange, Room, make_object

NAMESPACES = ("n1", "n2")


class Cluster:
    """The truth: every change that a member has made."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.version = start
        self.history: list[tuple[int, str, str, str, bool]] = []  # version, namespace, name, uid, exists
        self.uids: dict[tuple[str, str], str] = {}

    def change(self, namespace: str, name: str, delete: bool, step: int) -> None:
        key = namespace, name
        if delete and key not in self.uids:
            return
        self.version += step
        uid = self.uids.pop(key) if delete else self.uids.setdefault(key, f"{self.name}-{name}-{self.version}")
        self.history.append((self.version, namespace, name, uid, not delete))

    def state(self, upto: int, namespace: str = "") -> dict[tuple[str, str], tuple[str, int]]:
        """Return (uid, version) of each object after `upto` changes."""
        found: dict[tuple[str, str], tuple[str, int]] = {}
        for version, space, name, uid, exists in self.history[:upto]:
            if namespace and space != namespace:
                continue
            found.pop((space, name), None)
            if exists:
                found[space, name] = uid, version
        return found


class Replica:
    """One proxy: how far it has got in the history of each cluster's namespaces."""

    def __init__(
        self,
        clusters: dict[str, Cluster],
        namespaces: tuple[str, ...],
        unsynced: str = "",
        conflicts: Conflicts = NO_RULES,
    ) -> None:
        self.clusters = clusters
        self.namespaces = namespaces
        self.room = Room(*clusters, namespaces=dict.fromkeys(clusters, namespaces), conflicts=conflicts)
        self.fed = {(name, space): 0 for name in clusters for space in namespaces}
        for name in clusters:
            for space in namespaces:
                if name != unsynced:
                    self.relist(name, space, 0)

    def feed(self, name: str, space: str, count: int) -> None:
        cluster, room = self.clusters[name], self.room
        if not room.store(name, space).synced:
            self.relist(name, space, count)
            return
        for _ in range(count):
            place = self.fed[name, space]
            if place == len(cluster.history):
                return
            self.fed[name, space] = place + 1
            version, namespace, item, uid, exists = cluster.history[place]
            if space and namespace != space:
                continue
            if exists:
                room.put(name, item, version, namespace=namespace, uid=uid)
            else:
                room.delete(name, item, version, namespace=namespace)

    def relist(self, name: str, space: str, skip: int) -> None:
        """Miss some changes, and list."""
        cluster = self.clusters[name]
        place = self.fed[name, space] = min(self.fed[name, space] + skip, len(cluster.history))
        store = self.room.store(name, space)
        replacement = store.replace()
        state = cluster.state(place, space)
        for (namespace, item), (uid, version) in sorted(state.items(), key=lambda entry: "/".join(entry[0])):
            replacement.add(make_object(store, item, version, namespace=namespace, uid=uid))
        replacement.commit(max(cluster.history[place - 1][0] if place else 1, store.version))

    def catch_up(self) -> None:
        for name, cluster in self.clusters.items():
            for space in self.namespaces:
                self.feed(name, space, len(cluster.history))
                self.room.store(name, space).progress(cluster.version)
        self.room.run(0.05)


class Client:
    """An informer. `back_in_time` has what it saw that it must not see."""

    def __init__(self, *, orders: bool) -> None:
        self.objects: dict[tuple[str, str, str], tuple[str, int]] = {}
        self.version = ""
        self.seen: dict[str, int] = {}  # the newest state of each object, by UID
        self.leads: dict[str, int] = {}
        self.exchange: RecordedExchange | None = None
        self.replica: Replica | None = None
        self.consumed = 0
        self.lists = 0
        self.orders = orders

    def list(self, replica: Replica) -> None:
        """List what is the most recent; or else begin with a watch of everything."""
        replica.catch_up()
        self.lists += 1
        self.objects = {}
        if self.lists % 2:
            self.version, self.seen, self.leads = "", {}, {}  # as a new client
            return
        for member in replica.room.view.members:
            for store in member.stores:
                for obj in store.snapshot():
                    self.objects[member.name, obj.namespace, obj.name] = obj.uid, obj.version
        self.version = replica.room.version()

    def watch(self, replica: Replica, query: str = "") -> None:
        try:
            self.exchange = replica.room.watch(f"resourceVersion={self.version}&{query}")
        except Expired:
            self.list(replica)
            self.exchange = replica.room.watch(f"resourceVersion={self.version}&{query}")
        self.replica, self.consumed = replica, 0

    def cut(self, keep: float) -> None:
        """The connection breaks behind some event of those that are on the way."""
        exchange, replica = self.exchange, self.replica
        assert exchange is not None
        assert replica is not None
        replica.room.run(0.06)
        events = exchange.events
        upto = self.consumed + round((len(events) - self.consumed) * keep)
        parts: dict[str, int] = {}
        for event in events[self.consumed : upto]:
            self.take(event, replica, parts)
        if exchange.handler is not None:
            exchange.handler.cancelled()
        self.exchange = None

    def take(self, event: dict[str, Any], replica: Replica, parts: dict[str, int]) -> None:
        obj = event["object"]
        if event["type"] == "ERROR":
            assert obj["code"] == 410, obj
            self.list(replica)
            return
        metadata = obj["metadata"]
        text = metadata["resourceVersion"]
        vector = replica.room.view.reader.read(text) or {}
        assert all(vector.get(name, 0) >= part for name, part in parts.items()), "the vector went back"
        parts.update(vector)
        self.version = text
        if event["type"] == "BOOKMARK":
            return
        key = metadata["labels"]["mcproxy.io/cluster"], metadata["namespace"], metadata["name"]
        uid, version, lead = metadata["uid"], int(obj["data"]["v"]), int(text)
        if self.orders:
            assert version >= self.seen.get(uid, 0), f"{key} went back from {self.seen[uid]} to {version}"
            if version > self.seen.get(uid, 0):
                assert lead > self.leads.get(uid, 0), f"the version of {key} went back"
        self.seen[uid] = max(version, self.seen.get(uid, 0))
        self.leads[uid] = lead
        if event["type"] == "DELETED":
            self.objects.pop(key, None)
        else:
            self.objects[key] = uid, version


def operations(seed: int, count: int) -> list[tuple[Any, ...]]:
    """Return random operations. Hypothesis chooses the seed alone: its own lists hardly ever get long enough."""
    rng = random.Random(seed)
    makers: list[tuple[int, Callable[[], tuple[Any, ...]]]] = [
        (8, lambda: ("write", rng.randrange(3), rng.randrange(4), space(), rng.random() < 0.3, rng.randint(1, 3))),
        (6, lambda: ("feed", rng.randrange(2), rng.randrange(3), space(), rng.randint(1, 6))),
        (1, lambda: ("break", rng.randrange(2), rng.randrange(3), space(), rng.randint(0, 6))),
        (1, lambda: ("progress", rng.randrange(2), rng.randrange(3), space())),
        (2, lambda: ("run", rng.randrange(2))),
        (3, lambda: ("resume", rng.randrange(2), rng.random())),
        (1, lambda: ("bookmark", rng.randrange(2))),
    ]

    def space() -> str:
        return rng.choice(NAMESPACES)

    weights = [weight for weight, _ in makers]
    return [rng.choices(makers, weights)[0][1]() for _ in range(count)]


def play(script: list[tuple[Any, ...]], count: int, namespaces: tuple[str, ...], *, late: bool, orders: bool) -> None:
    clusters = {f"c{number}": Cluster(f"c{number}", 10 * (number + 1)) for number in range(count)}
    replicas = [Replica(clusters, namespaces) for _ in range(2)]
    client = Client(orders=orders)
    if count > 1 and late:
        replicas[1] = Replica(clusters, namespaces, unsynced=f"c{count - 1}")
    client.list(replicas[0])
    client.watch(replicas[0], "allowWatchBookmarks=true")
    for name, *arguments in script:
        if name == "write":
            number, item, space, delete, step = arguments
            cluster = clusters[f"c{number % count}"]
            cluster.change(space, f"o{item}", delete, step)
            for each in replicas:
                each.room.probed[cluster.name] = cluster.version
            continue
        replica = replicas[arguments[0]]
        if name == "resume":
            client.cut(cast(float, arguments[1]))
            client.watch(replica, "allowWatchBookmarks=true")
        elif name == "run":
            replica.room.run(0.03)
        elif name == "bookmark":
            replica.room.clock.advance(61)
            replica.room.run(0.03)
        else:
            member = f"c{arguments[1] % count}"
            space = arguments[2] if len(namespaces) > 1 else ""
            if name == "feed":
                replica.feed(member, space, arguments[3])
            elif name == "break":
                replica.relist(member, space, arguments[3])
            elif replica.fed[member, space] == len(clusters[member].history):
                replica.room.store(member, space).progress(clusters[member].version)
    client.cut(1.0)
    for replica in replicas:
        replica.catch_up()
        client.watch(replica)
        client.cut(1.0)
        union = {
            (name, *key): value
            for name, cluster in clusters.items()
            for key, value in cluster.state(len(cluster.history)).items()
        }
        assert client.objects == union


SEEDS = st.integers(0, 2**32)
COUNTS = st.integers(0, 120)


@settings(max_examples=120, deadline=None)
@given(SEEDS, COUNTS, st.integers(1, 3))
def test_nothing_is_lost_and_nothing_goes_back_in_time(seed: int, count: int, members: int) -> None:
    play(operations(seed, count), members, ("",), late=bool(seed % 2), orders=True)


@settings(max_examples=80, deadline=None)
@given(SEEDS, COUNTS, st.integers(2, 3))
def test_nothing_is_lost_with_a_store_for_each_namespace(seed: int, count: int, members: int) -> None:
    play(operations(seed, count), members, NAMESPACES, late=bool(seed % 2), orders=False)
