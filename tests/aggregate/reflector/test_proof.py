"""No version claims more than is proven: watches that are late while probes are not, and proof on demand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.cache.cached_object import Event
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.reflector import Reflector
from tests.aggregate.reflector.fake_member import FakeMember


class Seen:
    """What a store told, and whether its versions ever went back."""

    def __init__(self, store: Store) -> None:
        self.events: list[tuple[str, str, int]] = []
        self.versions = [store.version]
        store.subscribe(self)

    def store_event(self, store: Store, event: Event) -> None:
        self.events.append((event.type.value, event.object.name, event.version))
        self.versions.append(store.version)

    def store_progress(self, store: Store) -> None:
        self.versions.append(store.version)


class Replica:
    def __init__(self, member: FakeMember) -> None:
        self.reflector, self.store = member.follow()
        member.advance(0.1)
        assert self.store.synced
        self.seen = Seen(self.store)
        self.main = member.links[-1]

    @property
    def names(self) -> list[str]:
        return [item.name for item in self.store.snapshot()]


@pytest.fixture
def member() -> FakeMember:
    member = FakeMember()
    member.put("a")
    return member


@pytest.fixture
def east(member: FakeMember) -> Iterator[Replica]:
    replica = Replica(member)
    yield replica
    replica.reflector.stop()
    assert replica.seen.versions == sorted(replica.seen.versions)
    assert [call for call in member.clock.getDelayedCalls() if call.getTime() < member.clock.seconds() + 3] == []
    assert [link for link in member.links if link.open] == []


def wait(store: Store, version: int, seconds: float = 3.0) -> list[bool]:
    """Wait for a version; the result has the outcome as soon as there is one."""
    outcome: list[bool] = []
    Deferred.fromCoroutine(store.when_version(version, seconds)).addCallback(outcome.append)
    return outcome


def proofs(member: FakeMember) -> list[str]:
    """The versions from which second watches were opened."""
    return [link.query["resourceVersion"] for link in member.links if link.query["timeoutSeconds"] == "3"]


def test_a_silence_behind_a_probe_answers_reads_and_moves_no_version(member: FakeMember, east: Replica) -> None:
    """The cause of objects that were missing for ever at a second replica: the version of what was not seen."""
    before = east.store.version
    east.main.held = True
    late = member.put("late")
    present = member.touch()
    east.reflector.presumption.probed(present)
    answered: list[bool] = []
    Deferred.fromCoroutine(east.store.when_current(present, 3.0)).addCallback(answered.append)
    member.advance(0.2)
    assert answered == [True], "a read that is to be as new as now waits for nothing more"
    assert east.store.version == east.store.snapshot().version == before
    assert list(east.store.events_after(before)) == []

    # Whoever got that version resumes at another replica, which has the event: it is behind the version.
    west = Replica(member)
    assert west.store.version == present
    east.main.release()
    assert east.names == ["a", "late"]
    assert east.seen.events == [("ADDED", "late", late)], "a late event was refused"
    assert east.store.version == late
    assert len(member.links) == 2, "listed or watched anew"
    west.reflector.stop()


def test_what_was_presumed_of_a_watch_that_has_ended_holds_no_more(member: FakeMember, east: Replica) -> None:
    present = member.touch()
    east.reflector.presumption.probed(present)
    member.advance(0.2)
    assert Deferred.fromCoroutine(east.store.when_current(present, 1.0)).called
    member.held = True
    east.main.break_off()
    member.advance(0.05)
    assert not Deferred.fromCoroutine(east.store.when_current(present, 0.1)).called
    member.advance(0.2)


def test_a_version_that_no_event_brings_is_proven_by_a_short_second_watch(member: FakeMember, east: Replica) -> None:
    before, version = east.store.version, member.touch()
    outcome = wait(east.store, version)
    member.advance(0.15)
    assert proofs(member) == [], "the watch has its time first"
    member.advance(0.1)
    assert proofs(member) == [str(before)]
    member.advance(0.9)
    assert outcome == []
    member.advance(0.2)  # its bookmark, 2 s before its deadline
    assert outcome == [True]
    assert east.store.version == version
    assert not member.links[-1].open
    assert east.main.open


def test_the_watch_itself_is_proof_enough_if_it_tells_in_time(member: FakeMember, east: Replica) -> None:
    outcome = wait(east.store, member.revision + 1)
    member.advance(0.1)
    member.put("b")
    assert outcome == [True]
    member.advance(3.0)
    assert proofs(member) == []


def test_all_who_wait_share_a_proof_and_who_comes_later_gets_the_next(member: FakeMember, east: Replica) -> None:
    first = [wait(east.store, member.touch()) for _ in range(50)]
    member.advance(0.25)
    later = wait(east.store, member.touch())  # the bookmark is of its time, so it may be enough
    member.advance(1.05)
    assert first == [[True]] * 50
    assert later == [True]
    assert len(proofs(member)) == 1
    last = member.touch()
    outcome = wait(east.store, last)
    member.advance(1.4)
    assert outcome == [True]
    assert len(proofs(member)) == 2


def test_a_version_that_the_member_has_not_reached_is_proven_once_and_misses(member: FakeMember, east: Replica) -> None:
    outcomes = [wait(east.store, member.revision + 100) for _ in range(3)]
    member.advance(3.1)
    assert outcomes == [[False]] * 3
    assert len(proofs(member)) == 1
    assert east.store.version == member.revision


def test_a_read_that_is_to_be_as_new_as_now_opens_no_second_watch(member: FakeMember, east: Replica) -> None:
    Deferred.fromCoroutine(east.store.when_current(member.touch(), 3.0))
    member.advance(3.1)
    assert proofs(member) == []


def test_a_late_watch_brings_again_what_its_proof_has_told_and_it_is_told_once(
    member: FakeMember, east: Replica
) -> None:
    """Deleted objects too: what is late must not bring them back, and is no reason to list anew."""
    east.main.held = True
    member.put("b")
    member.put("c")
    member.put("b")
    member.delete("c")
    member.put("d")
    member.delete("d")
    member.put("d", "another")
    version = member.delete("a")
    outcome = wait(east.store, version)
    member.advance(0.3)
    assert outcome == [True], "the second watch tells the events at once"
    told = list(east.seen.events)
    assert len(told) == 8
    assert east.names == ["b", "d"]
    later = member.put("e")  # by both
    assert east.names == ["b", "d", "e"]
    east.main.release()
    assert east.names == ["b", "d", "e"]
    assert east.seen.events == [*told, ("ADDED", "e", later)]
    last = member.put("f")
    assert east.store.version == last
    assert [name for _, name, _ in east.seen.events[9:]] == ["f"]
    assert len(member.links) == 2, "it was listed or resumed"


def test_events_of_both_watches_may_come_in_any_mixture(member: FakeMember, east: Replica) -> None:
    outcome = wait(east.store, member.touch())
    member.advance(0.25)
    second = member.links[-1]
    expected = []
    for number in range(12):
        late = (east.main, second)[number % 3 == 0]
        late.held = True
        expected.append(("ADDED", f"n{number}", member.put(f"n{number}")))
        if number % 4 == 3:
            east.main.release()
            second.release()
    assert east.seen.events == expected
    member.advance(1.1)
    assert outcome == [True]


def test_a_watch_that_stays_silent_about_what_another_has_told_is_opened_anew(
    member: FakeMember, east: Replica
) -> None:
    east.main.held = True
    member.put("b")
    version = member.touch()
    wait(east.store, version)
    member.advance(1.4)
    assert not east.main.open
    member.advance(5.0)
    main = member.links[-1]
    assert main.open
    assert main.query["resourceVersion"] == str(version), "resumed from what is proven"
    assert int(main.query["timeoutSeconds"]) >= 300
    assert east.names == ["a", "b"]


def test_a_watch_is_given_a_second_for_what_another_has_told(member: FakeMember, east: Replica) -> None:
    """Also where the bookmark that ends the proof comes at once, as it may be."""
    east.main.held = True
    wait(east.store, member.put("b"))
    member.advance(0.3)
    member.links[-1].bookmark()
    member.advance(0.7)
    assert east.main.open
    east.main.release()
    member.advance(2)
    assert east.main.open
    east.main.held = True
    wait(east.store, member.put("c"))
    member.advance(0.3)
    member.links[-1].bookmark()
    member.advance(1.1)
    assert not east.main.open


def test_a_watch_that_has_nothing_to_tell_is_kept(member: FakeMember, east: Replica) -> None:
    wait(east.store, member.touch())
    member.advance(3.0)
    assert east.main.open


@pytest.mark.parametrize("status", [410, 500, 403])
def test_a_second_watch_that_is_refused_is_tried_again_and_harms_nothing(
    member: FakeMember, east: Replica, status: int
) -> None:
    member.statuses = [status]
    outcome = wait(east.store, member.touch())
    member.advance(0.3)
    assert len(proofs(member)) == 1
    member.advance(1.8)
    assert len(proofs(member)) == 2
    assert outcome == [True]
    assert east.main.open
    assert east.store.unavailable_since is None


def test_a_second_watch_that_breaks_or_stalls_proves_nothing(member: FakeMember, east: Replica) -> None:
    before, version = east.store.version, member.touch()
    outcome = wait(east.store, version)
    member.advance(0.25)
    member.links[-1].break_off()
    member.held = True
    member.advance(3.0)
    assert outcome == [False]
    assert east.store.version == before
    member.held = False
    member.advance(10.0)
    assert len([link for link in member.links if link.open]) == 1, "one that stalls is given up"


def test_a_watch_without_bookmarks_proves_nothing(member: FakeMember, east: Replica) -> None:
    outcome = wait(east.store, member.touch())
    member.advance(0.25)
    member.links[-1].bookmark = lambda: None  # type: ignore[method-assign]
    member.links[-1]._calls[0].cancel()
    member.advance(3.0)
    assert outcome == [False]


def test_a_proof_ends_with_the_watch_and_another_begins_with_the_next_one(member: FakeMember, east: Replica) -> None:
    """What is behind a break may be another cluster, or a list: only a watch that is followed may be overtaken."""
    outcome = wait(east.store, member.touch())
    member.advance(0.25)
    second = member.links[-1]
    east.main.break_off()
    assert not second.open
    member.advance(2.0)
    assert len(proofs(member)) == 2
    assert outcome == [True]


def test_another_cluster_behind_the_name_proves_nothing(member: FakeMember, east: Replica) -> None:
    before = east.store.version
    member.epoch += 1  # another connection broke: it may be another cluster now
    member.uid = "uid-2"
    outcome = wait(east.store, member.touch())
    member.advance(3.1)
    assert outcome == [False]
    assert proofs(member) == []
    assert east.store.version == before


def test_a_restored_backup_proves_nothing(member: FakeMember, east: Replica) -> None:
    member.put("b")
    member.epoch += 1
    version, member.revision = member.revision, 5
    outcome = wait(east.store, version + 1)
    member.advance(3.1)
    assert outcome == [False]
    assert proofs(member) == []


def test_a_connection_that_breaks_while_the_second_watch_is_opened_makes_it_void(
    member: FakeMember, east: Replica
) -> None:
    def broken() -> None:
        member.epoch += 1
        member.opening = lambda: None

    member.opening = broken
    outcome = wait(east.store, member.touch())
    member.advance(0.3)
    assert not member.links[-1].open
    member.advance(1.8)
    assert outcome == [True]


def test_who_stops_waiting_needs_no_proof(member: FakeMember, east: Replica) -> None:
    waiting = Deferred.fromCoroutine(east.store.when_version(member.touch(), 3.0))
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    member.advance(1.0)
    assert proofs(member) == []


def test_other_columns_in_the_second_watch_make_a_relist(member: FakeMember, east: Replica) -> None:
    east.store.columns = b'[{"name":"Old"}]'
    outcome = wait(east.store, member.touch())
    member.advance(0.25)
    row = b'{"cells":["x"],"object":{"metadata":{"name":"t","namespace":"demo","uid":"u","resourceVersion":"13"}}}'
    member.revision = 13
    table = b'{"kind":"Table","apiVersion":"meta.k8s.io/v1","columnDefinitions":[{"name":"New"}],"rows":[%s]}' % row
    member.links[-1].send(b'{"type":"ADDED","object":%b}\n' % table)
    member.advance(1.0)
    assert "sendInitialEvents" in member.links[-1].query
    assert outcome == [True]


def test_a_reflector_that_is_stopped_proves_nothing_more(member: FakeMember) -> None:
    replica = Replica(member)
    outcome = wait(replica.store, member.touch())
    member.advance(0.25)
    replica.reflector.stop()
    assert [link for link in member.links if link.open] == []
    member.advance(3.0)
    assert outcome == [False]
    assert len(proofs(member)) == 1


def test_the_stream_that_is_followed_is_known(member: FakeMember, east: Replica) -> None:
    reflector: Reflector = east.reflector
    assert reflector.stream is east.main  # type: ignore[comparison-overlap]
