"""Resource versions over random histories: two replicas of an aggregate of three members, and clients that see objects
through one and resume at the other. No shared state but what the clients carry.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mcproxy.aggregate.cache.event_log import EventLogLimits
from mcproxy.aggregate.cache.sequence import ObjectSequence
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.resource_version.formats import VersionFormat, version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory, Versions
from mcproxy.aggregate.resource_version.reader import Expired, VersionReader
from tests.aggregate.cache.member import Member, State, followed, state_of
from tests.aggregate.cache.objects import PODS
from tests.aggregate.resource_version.comparison import compare
from tests.support.clock import Clock

MEMBERS = ("east", "west", "north")
NAMES = st.sampled_from(["a", "b", "c", "d"])
PLACES, REPLICAS = st.integers(0, len(MEMBERS) - 1), st.integers(0, 1)


class Replica:
    """One proxy: a store for each member, and both forms of resource versions."""

    def __init__(self, members: list[Member], limits: EventLogLimits) -> None:
        self.members = members
        self.stores = [Store(Clock(), name, PODS, limits=limits) for name in MEMBERS]
        self.limits = limits
        self.history = LayoutHistory(Layout(MEMBERS))
        for place in range(len(MEMBERS)):
            self.relist(place)

    @property
    def versions(self) -> Versions:
        return tuple(store.version for store in self.stores)

    def follow(self, place: int, count: int) -> None:
        store = self.stores[place]
        events = [event for event in self.members[place].events if event[1].version > store.version]
        for event_type, item in events[:count]:
            store.apply(event_type, item)
        if count >= len(events):
            store.progress(self.members[place].version)

    def relist(self, place: int) -> None:
        replacement = self.stores[place].replace()
        for _, item in sorted(self.members[place].objects.items()):
            replacement.add(item)
        replacement.commit(self.members[place].version)

    def restart(self) -> None:
        """Another process with the saved state: the objects, their versions, the layouts; no events."""
        self.history = LayoutHistory.from_json(self.history.to_json())
        for place, store in enumerate(self.stores):
            restored = Store(Clock(), store.member, PODS, limits=self.limits)
            assert restored.restore(ObjectSequence.from_sorted(list(store.snapshot())), store.version, None)
            self.stores[place] = restored

    def reader(self) -> VersionReader:
        return VersionReader(self.history)


class Client:
    """An informer: what it has seen, and the resource version that it resumes from, in one of the forms."""

    def __init__(self, karmada: bool) -> None:
        self.karmada = karmada
        self.text = ""
        self.seen: list[State] = [{} for _ in MEMBERS]

    def written(self, replica: Replica) -> VersionFormat:
        return version_format(replica.history.present, karmada=self.karmada)

    def list(self, replica: Replica) -> None:
        self.seen = [state_of(store.snapshot()) for store in replica.stores]
        self.text = self.written(replica).list_version(replica.versions)

    def watch(self, replica: Replica, count: int) -> None:
        """Resume, see some events, lose the connection."""
        parts = replica.reader().read(self.text)
        assert parts is not None
        versions = [parts.get(name, 0) for name in MEMBERS]
        try:
            events = [
                (place, event)
                for place, store in enumerate(replica.stores)
                for event in store.events_after(versions[place])
            ]
        except Expired:
            if all(store.version >= version for store, version in zip(replica.stores, versions, strict=True)):
                self.list(replica)
            return
        form = self.written(replica)
        for place, event in events[:count]:
            if event.version > versions[place]:
                versions[place] = event.version
            self.seen[place] = followed(self.seen[place], event)
            self.text = form.event(tuple(versions), place, event.version)
        if count >= len(events):
            moved = zip(versions, replica.versions, strict=True)
            self.text = form.list_version(tuple(max(pair) for pair in moved))  # a bookmark


class HistoriesModel(RuleBasedStateMachine):
    """Later states compare greater wherever they were seen, and who resumes loses nothing."""

    @initialize(limit=st.sampled_from([3, 1000]), karmada=st.booleans())
    def start(self, limit: int, karmada: bool) -> None:
        self.members = [Member() for _ in MEMBERS]
        self.replicas = [Replica(self.members, EventLogLimits(events=limit)) for _ in range(2)]
        self.client = Client(karmada)
        self.client.list(self.replicas[0])
        self.lists = ["1", "1"]
        self.objects: dict[tuple[int, str], tuple[int, str]] = {}  # its newest version seen anywhere, and as text

    @rule(place=PLACES, name=NAMES, delete=st.booleans())
    def write(self, place: int, name: str, delete: bool) -> None:
        self.members[place].write(name, delete)

    @rule(replica=REPLICAS, place=PLACES, count=st.integers(1, 10))
    def follow(self, replica: int, place: int, count: int) -> None:
        self.replicas[replica].follow(place, count)

    @rule(replica=REPLICAS, place=PLACES)
    def relist(self, replica: int, place: int) -> None:
        """The member was away, and is listed anew."""
        self.replicas[replica].relist(place)

    @rule(replica=REPLICAS)
    def restart(self, replica: int) -> None:
        self.replicas[replica].restart()

    @rule(replica=REPLICAS, count=st.integers(0, 5))
    def watch(self, replica: int, count: int) -> None:
        self.client.watch(self.replicas[replica], count)

    @rule(replica=REPLICAS)
    def list_compares_with_the_last_one(self, replica: int) -> None:
        text = version_format(self.replicas[replica].history.present).list_version(self.replicas[replica].versions)
        assert compare(self.lists[replica], text) <= 0
        self.lists[replica] = text

    @rule(replica=REPLICAS, place=PLACES, form=st.sampled_from(["get", "event", "write"]))
    def objects_compare_with_what_was_seen_of_them(self, replica: int, place: int, form: str) -> None:
        number, versions = version_format(Layout(MEMBERS)), self.replicas[replica].versions
        for item in self.replicas[replica].stores[place].snapshot():
            text = {
                "get": number.object(place, item.version),
                "event": number.event(versions, place, item.version),
                "write": number.written(versions, place, item.version),
            }[form]
            reader = VersionReader(LayoutHistory(Layout(MEMBERS)))
            assert reader.owner_part(text, MEMBERS[place]) == str(item.version)
            known, before = self.objects.get((place, item.name), (0, "1"))
            if item.version != known:
                assert compare(before, text) == (-1 if item.version > known else 1)
            if item.version > known:
                self.objects[place, item.name] = item.version, text

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        for replica in self.replicas:
            for place in range(len(MEMBERS)):
                replica.follow(place, 1000)
        for replica in self.replicas:
            self.client.watch(replica, 1000)
        assert self.client.seen == [member.state() for member in self.members]


TestHistoriesModel = HistoriesModel.TestCase
TestHistoriesModel.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
