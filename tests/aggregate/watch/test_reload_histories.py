"""Random histories over reloads: members are added, removed, moved and made former ones, the form is changed, and
versions grow beyond what a form can hold, at each of two replicas at another time.

A client that is cut and resumed anywhere misses nothing; of every two versions of an object the later one compares
greater, where that is promised; and those of two and three members have 128 bits.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.aggregate.resource_version.formats import CRC_MODULUS, PACKED_SIZES, read_long, read_packed, version_format
from mcproxy.aggregate.resource_version.layout import Layout
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.view.aggregate_views import GreatestVersion
from tests.aggregate.resource_version.comparison import compare
from tests.aggregate.watch.room import Room
from tests.aggregate.watch.test_histories import Client, Cluster, Replica

NAMES = ("c0", "c1", "c2", "north")


class Written(NamedTuple):
    """A version that was seen: with what its writer knew."""

    text: str
    layout: tuple[str, ...]
    bits: int


class ReloadedReplica(Replica):
    """A replica that is reloaded. `reload` leaves stores of members that stay as they are."""

    def __init__(self, clusters: dict[str, Cluster], names: tuple[str, ...]) -> None:
        self.clusters = clusters
        self.namespaces = ("",)
        self.room = Room(*names)
        self.fed = {(name, ""): 0 for name in clusters}
        self.greatest = GreatestVersion(0, self.room.grow)
        for name in names:
            self.greatest.follow(self.room.stores[name][0])
            self.relist(name, "", 0)

    def feed(self, name: str, space: str, count: int) -> None:
        if name in self.room.stores:
            super().feed(name, space, count)

    def relist(self, name: str, space: str, skip: int) -> None:
        if name in self.room.stores:
            super().relist(name, space, skip)

    def catch_up(self) -> None:
        for name in list(self.room.stores):
            self.feed(name, "", len(self.clusters[name].history))
            self.room.store(name).progress(self.clusters[name].version)
        self.room.run(0.05)

    def reload(self, layout: tuple[str, ...], former: tuple[str, ...], *, karmada: bool) -> None:
        room = self.room
        room.karmada, room.former = karmada, former
        members = tuple(name for name in layout if name not in former)
        before = dict(room.stores)
        room.recompose(*members, layout=layout)
        for name in [name for name in before if name not in members]:
            self.greatest.leave(room.stores.pop(name)[0])
        for name in members:
            if name not in before:
                self.fed[name, ""] = 0
                self.greatest.follow(room.stores[name][0])

    def written(self, text: str) -> Written | None:
        """Return what a version is of, None for one that does not compare."""
        history = self.room.history
        layout: Layout | None
        if not text.isdecimal():
            return None
        if len(text) <= 20:
            return Written(text, history.present.names, history.bits) if len(history.present) == 1 else None
        if (packed := read_packed(text)) is not None:
            count = len(packed.versions)
            assert count in (2, 3)
            layout = history.find(count, packed.crc, 1 << PACKED_SIZES[count].crc)
            assert layout is not None
            # It may have been on the way since before the replica has seen more.
            return Written(text, layout.names, min(history.bits, PACKED_SIZES[count].part))
        else:
            long = read_long(text)
            assert long is not None
            layout = history.find(len(long.versions), long.crc, CRC_MODULUS)
            # Only what does not fit, here or where the client comes from, makes it longer.
            greatest = max(long.lead, *long.versions)
            fits = (
                len(long.versions) in PACKED_SIZES
                and max(greatest.bit_length(), history.bits) <= PACKED_SIZES[len(long.versions)].part
            )
            assert not fits
            assert layout is not None
            return Written(text, layout.names, max(history.bits, greatest.bit_length()))


class ReloadedClient(Client):
    def __init__(self) -> None:
        super().__init__(orders=False)
        self.versions: dict[tuple[str, str], list[tuple[int, Written]]] = {}  # of each object, by member and UID

    def take(self, event: dict[str, Any], replica: Replica, parts: dict[str, int]) -> None:
        assert isinstance(replica, ReloadedReplica)
        obj = event["object"]
        if event["type"] == "ERROR":
            assert obj["code"] == 410, obj
            self.list(replica)
            return
        metadata = obj["metadata"]
        text = self.version = metadata["resourceVersion"]
        if event["type"] == "BOOKMARK":
            replica.written(text)
            return
        member, uid, version = metadata["labels"]["mcproxy.io/cluster"], metadata["uid"], int(obj["data"]["v"])
        key = member, metadata["namespace"], metadata["name"]
        if event["type"] == "DELETED":
            self.objects.pop(key, None)
            return
        self.objects[key] = uid, version
        assert VersionReader(replica.room.history).owner_part(text, member) == str(version)
        written = replica.written(text)
        if written is not None:
            self.check(self.versions.setdefault((member, uid), []), version, written)
        member_view = replica.room.view.member(member)
        if member_view is not None:  # what a get and a write's answer have
            form, place = replica.room.view.format, member_view.index
            for other in (form.object(place, version), form.written(replica.room.view.versions, place, version)):
                if (also := replica.written(other)) is not None:
                    self.check(self.versions[member, uid], version, also) if (member, uid) in self.versions else None

    def check(self, seen: list[tuple[int, Written]], version: int, new: Written) -> None:
        """Compare with every earlier version of the object."""
        for before, old in seen:
            if before < version and new.layout[: len(old.layout)] == old.layout and new.bits >= old.bits:
                assert compare(old.text, new.text) == -1, (before, old, version, new)
        seen.append((version, new))


def play(seed: int, count: int) -> None:
    rng = random.Random(seed)
    clusters = {name: Cluster(name, 10 * (number + 1)) for number, name in enumerate(NAMES)}
    first = NAMES[: rng.randint(1, 4)]
    replicas = [ReloadedReplica(clusters, first) for _ in range(2)]
    client = ReloadedClient()
    client.list(replicas[0])
    client.watch(replicas[0], "allowWatchBookmarks=true")
    layout, karmada = first, False
    for _ in range(count):
        replica, cluster = rng.choice(replicas), clusters[rng.choice(layout)]
        action = rng.choices(
            ("write", "feed", "run", "resume", "break", "bookmark", "reload", "leap"), (8, 8, 2, 4, 1, 1, 2, 0.3)
        )[0]
        if action == "write":
            cluster.change("n1", f"o{rng.randrange(4)}", rng.random() < 0.3, rng.randint(1, 3))
        elif action == "leap":
            cluster.version += rng.choice((2**36, 2**54))
        elif action == "feed":
            replica.feed(cluster.name, "", rng.randint(1, 6))
        elif action == "run":
            replica.room.run(0.03)
        elif action == "resume":
            client.cut(rng.random())
            client.watch(replica, "allowWatchBookmarks=true")
        elif action == "break":
            replica.relist(cluster.name, "", rng.randint(0, 6))
        elif action == "bookmark":
            replica.room.clock.advance(61)
            replica.room.run(0.03)
        else:
            layout, former, karmada = changed(rng, layout, karmada=karmada)
            for each in rng.sample(replicas, rng.randint(1, 2)):
                each.reload(layout, former, karmada=karmada)
        for each in replicas:
            each.room.probed.update({name: one.version for name, one in clusters.items()})
    client.cut(1.0)
    for replica in replicas:
        replica.reload(NAMES, (), karmada=karmada)
    for replica in replicas:
        replica.catch_up()
        client.watch(replica)
        client.cut(1.0)
        expected = {
            (name, *key): value
            for name, cluster in clusters.items()
            for key, value in cluster.state(len(cluster.history)).items()
        }
        assert client.objects == expected


def changed(
    rng: random.Random, layout: tuple[str, ...], *, karmada: bool
) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return another configuration: the names in `clusters`, the former members, and the form."""
    former: tuple[str, ...] = ()
    absent = [name for name in NAMES if name not in layout]
    kind = rng.choice(("add", "add", "insert", "remove", "reorder", "former", "form"))
    if kind == "add" and absent:
        layout = (*layout, absent[0])
    elif kind == "insert" and absent:
        layout = (absent[0], *layout)
    elif kind == "remove" and len(layout) > 1:
        gone = rng.choice(layout)
        layout = tuple(name for name in layout if name != gone)
    elif kind == "reorder":
        layout = tuple(rng.sample(layout, len(layout)))
    elif kind == "former" and len(layout) > 1:
        former = (rng.choice(layout),)
    elif kind == "form":
        karmada = not karmada
    return layout, former, karmada


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.integers(0, 120))
def test_nothing_is_lost_over_reloads_and_later_versions_compare_greater(seed: int, count: int) -> None:
    play(seed, count)


@given(st.integers(2, 3), st.data())
def test_of_two_and_three_members_every_version_that_fits_has_128_bits(members: int, data: st.DataObject) -> None:
    form = version_format(Layout(NAMES[:members]))
    part = st.integers(0, 2 ** PACKED_SIZES[members].part - 1)
    versions = tuple(data.draw(st.lists(part, min_size=members, max_size=members)))
    place, version = data.draw(st.integers(0, members - 1)), data.draw(part)
    for text in (form.list_version(versions), form.object(place, version), form.event(versions, place, version)):
        assert (int(text).bit_length(), len(text)) == (128, 39)
