"""Who gets a place when more wait than there are places: keys in turns, with a share, strangers that fail last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcproxy.identity.singleflight import FairSemaphore, NoRoomError


class Room:
    """Places whose holders and waiters are names of the form "key/number"."""

    def __init__(self, number: int, *, share: int = 1000, max_waiting: int = 1000) -> None:
        self.now = 0.0
        self.places = FairSemaphore(number, share=share, max_waiting=max_waiting, seconds=lambda: self.now)
        self.inside: list[str] = []
        self.served: list[str] = []
        self.evicted: list[str] = []
        self.waiters: dict[str, Entry] = {}

    def come(self, name: str) -> None:
        entry = self.waiters[name] = Entry(self, name)
        try:
            if self.places.acquire(entry.key, entry):
                entry.granted()
        except NoRoomError:
            entry.evicted()

    def go(self, name: str) -> None:
        self.inside.remove(name)
        self.places.release(name.partition("/")[0])

    def fail(self, key: str, times: int = 5, *, failed: bool = True) -> None:
        for _ in range(times):
            self.places.record(key, failed=failed)


class Entry:
    def __init__(self, room: Room, name: str) -> None:
        self.room, self.name, self.key = room, name, name.partition("/")[0]

    def granted(self) -> None:
        self.room.inside.append(self.name)
        self.room.served.append(self.name)

    def evicted(self) -> None:
        self.room.evicted.append(self.name)


def flood(room: Room, key: str, number: int) -> None:
    for each in range(number):
        room.come(f"{key}/{each}")


def test_keys_take_turns() -> None:
    room = Room(1)
    flood(room, "a", 5)
    room.come("b/0")
    room.come("c/0")
    while room.inside:
        room.go(room.inside[0])
    assert room.served == ["a/0", "a/1", "b/0", "c/0", "a/2", "a/3", "a/4"]


def test_one_key_holds_a_share_at_most_even_while_places_are_free() -> None:
    room = Room(8, share=2)
    flood(room, "stranger", 100)
    assert room.inside == ["stranger/0", "stranger/1"]
    flood(room, "alice", 2)
    assert room.inside[2:] == ["alice/0", "alice/1"]
    room.go("stranger/0")
    assert room.inside == ["stranger/1", "alice/0", "alice/1", "stranger/2"]


def test_a_key_at_its_share_does_not_hold_up_those_behind_it() -> None:
    room = Room(3, share=2)
    flood(room, "a", 4)
    flood(room, "b", 2)
    assert room.inside == ["a/0", "a/1", "b/0"]
    room.go("b/0")
    assert room.inside == ["a/0", "a/1", "b/1"]


def test_keys_with_many_failures_wait_behind_others() -> None:
    room = Room(1)
    room.fail("stranger")
    room.come("x/0")
    flood(room, "stranger", 3)
    flood(room, "alice", 3)
    for _ in range(7):
        room.go(room.inside[0])
    assert room.served == ["x/0", "alice/0", "alice/1", "alice/2", "stranger/0", "stranger/1", "stranger/2"]


def test_who_has_succeeded_waits_behind_no_stranger_however_many_they_are() -> None:
    """An IPv6 network of 48 bits has 65,536 of 64: each is a key that has not failed yet."""
    room = Room(2, max_waiting=10)
    room.fail("alice", 1, failed=False)
    room.now = 3600.0
    for stranger in range(5000):
        room.fail(f"s{stranger}", 1)
        room.come(f"s{stranger}/0")
    room.come("alice/0")
    room.come("new/0")
    assert room.evicted[-2:] == ["s11/0", "new/0"]  # nobody makes room for another stranger
    room.go("s0/0")
    assert room.served == ["s0/0", "s1/0", "alice/0"]
    room.come("late/0")
    room.fail("alice", 10)
    room.come("alice/1")
    assert room.evicted[-1] == "alice/1"  # who fails often is no better for it


def test_failures_are_forgotten_and_outweighed() -> None:
    room = Room(1)
    room.fail("a")
    room.fail("b")
    room.fail("b", 6, failed=False)
    room.come("x/0")
    room.come("a/0")
    room.come("b/0")
    room.go("x/0")
    assert room.inside == ["b/0"]
    room.now = 120.0
    room.come("c/0")
    room.come("a/1")
    room.go("b/0")
    room.go("c/0")
    assert room.inside == ["a/1"]


def test_a_full_queue_drops_the_newest_of_failing_keys_first_then_of_the_fullest() -> None:
    room = Room(1, max_waiting=4)
    room.fail("bad")
    room.come("x/0")
    flood(room, "bad", 2)
    flood(room, "many", 2)
    room.come("alice/0")
    assert room.evicted == ["bad/1"]
    room.come("bob/0")
    assert room.evicted == ["bad/1", "bad/0"]
    room.come("carol/0")
    assert room.evicted == ["bad/1", "bad/0", "many/1"]
    room.come("many/9")
    room.come("bad/9")
    assert room.evicted[3:] == ["many/9", "bad/9"]


def test_a_removed_waiter_is_not_served() -> None:
    room = Room(1)
    for name in ("x/0", "a/0", "b/0"):
        room.come(name)
    room.places.leave("a", room.waiters["a/0"])
    room.places.leave("a", room.waiters["a/0"])
    room.go("x/0")
    assert (room.inside, len(room.places)) == (["b/0"], 0)


actions = st.lists(
    st.tuples(st.sampled_from(["come", "go", "leave", "fail"]), st.sampled_from("abc"), st.integers(0, 5)), max_size=80
)


@given(actions, st.integers(1, 4), st.integers(1, 4), st.integers(0, 6))
def test_places_shares_and_the_queue_hold_whatever_happens(
    script: list[tuple[str, str, int]], number: int, share: int, most: int
) -> None:
    room = Room(number, share=share, max_waiting=most)
    count = 0
    left: list[str] = []
    for action, key, which in script:
        waiting = [name for name in room.waiters if name not in room.served + room.evicted + left]
        if action == "come":
            count += 1
            room.come(f"{key}/{count}")
        elif action == "go" and room.inside:
            room.go(room.inside[which % len(room.inside)])
        elif action == "leave" and waiting:
            name = waiting[which % len(waiting)]
            left.append(name)
            room.places.leave(name.partition("/")[0], room.waiters[name])
        elif action == "fail":
            room.fail(key, which)
        waiting = [name for name in room.waiters if name not in room.served + room.evicted + left]
        held = {one: sum(name.startswith(f"{one}/") for name in room.inside) for one in "abc"}
        assert len(room.inside) <= number
        assert max(held.values()) <= share
        assert len(room.places) == len(waiting) <= most
        if len(room.inside) < number:  # nobody waits who could have a place
            assert all(held[name.partition("/")[0]] >= share for name in waiting)
        for one in "abc":
            served = [int(name.partition("/")[2]) for name in room.served if name.startswith(f"{one}/")]
            if action != "fail" and not any(each[0] == "fail" for each in script):
                assert served == sorted(served)
