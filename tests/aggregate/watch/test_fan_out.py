"""Many watchers: bytes are made once, turns are short, and who does not read costs only itself."""

from __future__ import annotations

import gc
import tracemalloc
from typing import cast

import pytest

from mcproxy.aggregate.encoding.encoder import Encoder
from mcproxy.aggregate.watch import changes
from mcproxy.aggregate.watch.fan_out import FanOut
from mcproxy.aggregate.watch.scheduler import WatchScheduler
from tests.aggregate.watch.room import RecordedExchange, Room


def room_of_one(*objects: tuple[str, int]) -> Room:
    room = Room("east", "west")
    room.sync("east", 10, *objects)
    room.sync("west", 10)
    return room


def fan_out(room: Room) -> FanOut:
    (found,) = room.watches._fan_outs.values()
    return found


def count_encodings(room: Room) -> list[int]:
    """Count, from now on, the lines that are made."""
    made = [0]
    for encoder in fan_out(room).encoders.values():
        original = encoder.event

        class Counting:
            key = encoder.key
            definitions = staticmethod(encoder.definitions)
            bookmark = staticmethod(encoder.bookmark)

            @staticmethod
            def event(*arguments: object, original: object = original, **more: object) -> bytes:
                made[0] += 1
                return original(*arguments, **more)  # type: ignore[operator, no-any-return]

        for group in fan_out(room)._groups.values():
            group._encoder = cast(Encoder, Counting())
    return made


def test_an_event_is_made_into_bytes_once_for_all_that_select_it() -> None:
    room = room_of_one()
    exchanges = [room.watch(f"resourceVersion={room.version()}") for _ in range(30)]
    selected = [room.watch(f"resourceVersion={room.version()}&labelSelector=app%3Dweb") for _ in range(30)]
    room.put("east", "a", 11, app="web")
    room.run()
    made = count_encodings(room)
    room.put("east", "a", 12, app="web")
    room.put("east", "b", 13)
    room.run()
    assert made == [2]
    expected = [("ADDED", "east/a", "11"), ("MODIFIED", "east/a", "12"), ("ADDED", "east/b", "13")]
    assert all(exchange.brief() == expected for exchange in exchanges)
    assert all(exchange.brief() == expected[:2] for exchange in selected)
    assert len({exchange.sent for exchange in exchanges}) == 1


def test_changes_within_20_ms_are_written_together() -> None:
    room = room_of_one()
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.put("east", "a", 11)
    room.run(0.03)
    before = exchange.writes
    for version in range(12, 20):
        room.put("east", "a", version)
        room.clock.advance(0.001)
    room.run(0.05)
    assert exchange.writes - before <= 2  # a flush may fall between them
    assert [data for _, _, data in exchange.brief()] == [str(version) for version in range(11, 20)]


def test_the_first_change_after_a_pause_goes_out_at_once() -> None:
    room = room_of_one()
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.run(1)
    room.put("east", "a", 11)
    room.clock.advance(0)
    room.clock.advance(0)
    assert exchange.brief() == [("ADDED", "east/a", "11")]


def test_a_turn_writes_to_a_bounded_number_of_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    room = room_of_one()
    exchanges = [room.watch(f"resourceVersion={room.version()}") for _ in range(500)]
    written = []
    turn = WatchScheduler._turn

    def counted(turns: WatchScheduler) -> None:
        before = sum(exchange.writes for exchange in exchanges)
        turn(turns)
        written.append(sum(exchange.writes for exchange in exchanges) - before)

    monkeypatch.setattr(WatchScheduler, "_turn", counted)
    room.put("east", "a", 11)
    room.run(0.05)
    assert max(written) <= 250
    assert sum(written) == 500
    assert all(exchange.brief() == [("ADDED", "east/a", "11")] for exchange in exchanges)


def test_many_watchers_are_written_to_less_often_and_a_change_after_a_pause_at_once() -> None:
    room = room_of_one()
    exchanges = [room.watch(f"resourceVersion={room.version()}") for _ in range(800)]
    room.run(1)
    room.put("east", "a", 11)
    room.run(0.01)
    assert {exchange.writes for exchange in exchanges} == {1}
    room.put("east", "a", 12)
    room.put("east", "a", 13)
    room.run(0.06)  # of 80 ms
    assert {exchange.writes for exchange in exchanges} == {1}
    room.run(0.03)
    assert {exchange.writes for exchange in exchanges} == {2}
    assert [len(exchange.events) for exchange in exchanges] == [3] * 800


def test_a_watcher_that_reads_again_in_time_gets_everything() -> None:
    room = room_of_one()
    fast, slow = (room.watch(f"resourceVersion={room.version()}") for _ in range(2))
    assert slow.handler is not None
    slow.handler.pause_response()
    for version in range(11, 400):
        room.put("east", "a", version)
        if version % 50 == 0:
            room.run(0.05)
    room.run()
    assert slow.events == []
    assert len(fast.events) == 389
    slow.read_on()
    room.run()
    assert slow.sent == fast.sent
    room.put("west", "a", 11)
    room.run()
    assert slow.sent == fast.sent
    assert len(fan_out(room)._groups) == 1


def test_a_watcher_that_does_not_read_is_ended_with_410_and_holds_nobody_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_CHANGES", 100)
    room = room_of_one()
    fast, slow = (room.watch(f"resourceVersion={room.version()}") for _ in range(2))
    assert slow.handler is not None
    slow.handler.pause_response()
    for version in range(11, 1011):
        room.put("east", "a", version)
        room.run(0.05)
    assert len(fast.events) == 1000
    assert len(fan_out(room).queue) <= 400
    slow.read_on()
    room.run()
    assert slow.brief() == [("ERROR", "410", "Expired")]
    assert slow.ended
    assert not slow.aborted
    room.run(2)
    assert len(fan_out(room).queue) == 0


def test_a_burst_may_be_longer_than_the_queue_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "MAX_CHANGES", 100)
    room = room_of_one(*((f"o{number:03}", 5) for number in range(300)))
    exchange = room.watch(f"resourceVersion={room.version()}")
    room.sync("east", 2000, *((f"o{number:03}", 1000 + number) for number in range(300)))
    room.run()
    assert [data for _, _, data in exchange.brief()] == [str(1000 + number) for number in range(300)]


def test_nothing_is_kept_for_watchers_that_have_everything() -> None:
    room = room_of_one()
    exchange = room.watch(f"resourceVersion={room.version()}")
    for version in range(11, 200):
        room.put("east", "a", version)
    room.run(3)
    assert len(exchange.events) == 189
    assert len(fan_out(room).queue) == 0


def test_what_a_stalled_watcher_costs_is_bounded() -> None:
    room = room_of_one()
    reads = room.watch(f"resourceVersion={room.version()}")
    stalled = [room.watch(f"resourceVersion={room.version()}") for _ in range(50)]
    for exchange in stalled:
        assert exchange.handler is not None
        exchange.handler.pause_response()
    reads.sent = b""
    for version in range(11, 1011):  # the store's own log is full of these, too
        room.put("east", "a", version)
    room.run()
    gc.collect()
    tracemalloc.start()
    for version in range(1011, 3011):
        room.put("east", "a", version)
        if version % 100 == 0:
            room.run(0.03)
            reads.sent = b""
    room.run(1.5)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 2000 < 4000  # for each change, in the store's log and the queue, for 50 watchers
    assert all(exchange.events == [] for exchange in stalled)


def test_initial_events_of_many_objects_go_out_in_slices_under_back_pressure() -> None:
    room = Room("east")
    room.sync("east", 20000, *((f"o{number:05}", 1 + number) for number in range(10000)))
    request = room.open("resourceVersion=0")
    exchange = request.recorded
    exchange.limit = 200_000
    room.run(3)
    assert 200_000 < len(exchange.sent) < 200_000 + 2 * 64 * 1024
    room.put("east", "o00000", 20001)
    exchange.read_on()
    room.run(3)
    assert [data for _, _, data in exchange.brief()] == [*(str(1 + number) for number in range(10000)), "20001"]


def test_watchers_with_other_rights_get_other_versions() -> None:
    room = room_of_one()
    both = room.watch(f"resourceVersion={room.version()}")
    room.rights.denied = {"west"}
    east = room.watch(f"resourceVersion={room.version(['east'])}")
    room.put("west", "secret", 11)
    room.put("east", "a", 11)
    room.run()
    assert both.brief() == [("ADDED", "west/secret", "11"), ("ADDED", "east/a", "11")]
    assert east.brief() == [("ADDED", "east/a", "11")]
    assert room.view.reader.read(east.version) == {"east": 11}
    assert b"secret" not in east.sent


def test_a_failing_watcher_disturbs_nobody() -> None:
    room = room_of_one()

    class Broken(RecordedExchange):
        def write(self, data: bytes) -> None:
            raise RuntimeError("a bug")

    good = room.watch(f"resourceVersion={room.version()}")
    request = room.open("resourceVersion=0")
    request.recorded.__class__ = Broken
    room.put("east", "a", 11)
    room.run()
    room.put("east", "b", 12)
    room.run()
    assert good.brief() == [("ADDED", "east/a", "11"), ("ADDED", "east/b", "12")]


def test_watchers_that_resume_in_a_member_that_is_still_away_are_a_group() -> None:
    room = Room("east", "west")
    room.sync("east", 10)
    version = room.view.format.list_version((10, 70))
    exchanges = [room.watch(f"resourceVersion={version}") for _ in range(5)]
    room.put("east", "a", 11)
    room.run()
    assert len(fan_out(room)._groups) == 1
    assert {exchange.version for exchange in exchanges} == {room.view.format.event((11, 70), 0, 11)}
    room.sync("west", 70, ("b", 60))
    room.put("west", "b", 71)
    room.run()
    assert exchanges[0].brief() == [("ADDED", "east/a", "11"), ("MODIFIED", "west/b", "71")]
