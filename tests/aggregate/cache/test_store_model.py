"""Two replicas' stores of one cluster against its true history, and an informer that resumes at either of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mcproxy.aggregate.cache.cached_object import Event, EventType
from mcproxy.aggregate.cache.event_log import EventLogLimits
from mcproxy.aggregate.cache.sequence import Snapshot
from mcproxy.aggregate.cache.store import OutOfOrder, Store
from mcproxy.aggregate.resource_version.reader import Expired
from tests.aggregate.cache.member import Member, State, followed, state_of
from tests.aggregate.cache.objects import PODS
from tests.support.clock import Clock

NAMES = st.sampled_from([f"n{number}" for number in range(8)])
REPLICAS = st.integers(0, 1)


class Follower:
    """A listener that keeps the state that events make."""

    def __init__(self, store: Store) -> None:
        self.state = state_of(store.snapshot())
        store.subscribe(self)

    def store_event(self, store: Store, event: Event) -> None:
        name = event.object.name
        if event.type is EventType.ADDED:
            assert name not in self.state
        else:
            assert event.previous is not None
            assert self.state[name] == (event.previous.uid, event.previous.version)
        assert store.version == event.version
        self.state = followed(self.state, event)

    def store_progress(self, store: Store) -> None:
        pass


class StoreModel(RuleBasedStateMachine):
    """Whatever happens, no state of a store is one that the cluster never had, and the informer loses nothing."""

    @initialize(limit=st.sampled_from([3, 15, 1000]), written=st.lists(NAMES))
    def start(self, limit: int, written: list[str]) -> None:
        self.member = Member()
        for name in written:
            self.member.write(name, delete=False)
        self.stores = [Store(Clock(), "east", PODS, limits=EventLogLimits(events=limit)) for _ in range(2)]
        for store in self.stores:
            self.relist_store(store)
        self.followers = [Follower(store) for store in self.stores]
        self.snapshots: list[tuple[Snapshot[Store], State]] = []
        self.seen = state_of(self.stores[0].snapshot())
        self.resume = self.stores[0].version

    @rule(name=NAMES, delete=st.booleans())
    def write(self, name: str, delete: bool) -> None:
        self.member.write(name, delete)

    @rule()
    def pass_version(self) -> None:
        self.member.pass_version()

    @rule(replica=REPLICAS, count=st.integers(1, 20))
    def watch(self, replica: int, count: int) -> None:
        store = self.stores[replica]
        for event_type, item in [event for event in self.member.events if event[1].version > store.version][:count]:
            store.apply(event_type, item)

    @rule(replica=REPLICAS, back=st.integers(1, 5))
    def watch_again_from_before(self, replica: int, back: int) -> None:
        store = self.stores[replica]
        seen = [event for event in self.member.events if event[1].version <= store.version]
        before = state_of(store.snapshot())
        for event_type, item in seen[-back:]:
            try:
                store.apply(event_type, item)
            except OutOfOrder:
                break
        assert state_of(store.snapshot()) == before

    @rule(replica=REPLICAS)
    def bookmark(self, replica: int) -> None:
        store = self.stores[replica]
        if not any(item.version > store.version for _, item in self.member.events):
            store.progress(self.member.version)

    @rule(replica=REPLICAS)
    def relist(self, replica: int) -> None:
        self.relist_store(self.stores[replica])

    @rule(replica=REPLICAS, data=st.data())
    def relist_in_any_order(self, replica: int, data: st.DataObject) -> None:
        replacement = self.stores[replica].replace()
        for item in data.draw(st.permutations(list(self.member.objects.values()))):
            replacement.add(item)
        replacement.commit(self.member.version)

    @rule(replica=REPLICAS)
    def snapshot(self, replica: int) -> None:
        snapshot = self.stores[replica].snapshot()
        self.snapshots.append((snapshot, state_of(snapshot)))

    @rule(replica=REPLICAS, count=st.integers(0, 5))
    def informer(self, replica: int, count: int) -> None:
        """Resume at a replica, see some events, lose the connection."""
        store = self.stores[replica]
        try:
            events = store.events_after(self.resume)
        except Expired:
            if store.version >= self.resume:  # it lists NotOlderThan what it has seen
                self.seen, self.resume = state_of(store.snapshot()), store.version
            return
        for event in events[:count]:
            name = event.object.name
            if event.type is not EventType.DELETED and name in self.seen:
                assert event.object.version >= self.seen[name][1], "an object went back in time"
            self.seen = followed(self.seen, event)
            self.resume = max(self.resume, event.version)
        if count >= len(events):
            self.resume = max(self.resume, store.version)  # a bookmark

    @invariant()
    def states_are_those_that_the_cluster_had(self) -> None:
        if not hasattr(self, "member"):
            return
        for store, follower in zip(self.stores, self.followers, strict=True):
            present = self.member.states[store.version]
            assert state_of(store.snapshot()) == present == follower.state
            assert store.size == sum(item.size for item in store.snapshot())
            for version, state in self.member.states.items():
                if version > store.version:
                    break
                try:
                    events = store.events_after(version)
                except Expired:
                    continue
                assert state_of(store.snapshot_at(version)) == state
                for event in events:
                    state = followed(state, event)
                assert state == present
        for snapshot, state in self.snapshots:
            assert state_of(snapshot) == state

    def teardown(self) -> None:
        if not hasattr(self, "member"):
            return
        for replica in (0, 1):
            self.watch(replica, 1000)
            self.bookmark(replica)
        self.informer(0, 1000)
        self.informer(1, 1000)
        assert self.seen == self.member.state()

    def relist_store(self, store: Store) -> None:
        replacement = store.replace()
        for _, item in sorted(self.member.objects.items()):
            replacement.add(item)
        replacement.commit(self.member.version)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
