"""Queues of several processes for one limit."""

from __future__ import annotations

import gc
from itertools import pairwise
from random import Random

import pytest

from mcproxy.config.model import FlowControl, Per, Queue
from mcproxy.daemon.errors import describe
from mcproxy.dispatch import limiter
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.dispatch.flow_controller import InFlightController
from mcproxy.dispatch.limiter import POLL_INTERVAL
from mcproxy.dispatch.tables import layout
from mcproxy.dispatch.tables.directory import Directory, DirectoryFullError
from mcproxy.dispatch.tables.limit_shares import LimitId
from tests.dispatch.flow_controls import QUEUE, Waiting, bucket, held, inflight
from tests.dispatch.permits import at_once
from tests.dispatch.tables.machine import Machine, machine
from tests.dispatch.test_flow_controls_random import RandomTraffic


def flows(processes: Machine, column: int, *controls: FlowControl) -> FlowControls:
    built = FlowControls.build(controls, processes.clock, tables=processes.tables(column))
    built.activate()
    return built


def cancel(waiting: list[Waiting]) -> None:
    for each in waiting:
        each.cancel()


def test_who_waits_in_one_process_is_admitted_by_what_ends_in_another() -> None:
    with machine() as processes:
        one, two = (
            flows(processes, column, inflight(max=1, queue=QUEUE)).limits_for(["interactive"], "east")
            for column in range(2)
        )
        permit = held(at_once(one.acquire("alice", False)))
        waiting = Waiting(two)
        processes.advance(1.0)
        assert not waiting.over
        permit.release()
        assert not waiting.over
        processes.readers.run()  # it is told, and does not wait for its next look
        assert waiting.permit is not None
        waiting.permit.release()
        assert held(at_once(one.acquire("alice", False)))


def test_what_arrives_all_the_time_in_one_process_does_not_keep_out_who_waits_in_another() -> None:
    with machine() as processes:
        busy, quiet = (
            flows(processes, column, inflight(max=2, queue=QUEUE)).limits_for(["interactive"], "east")
            for column in range(2)
        )
        running = [held(at_once(busy.acquire("alice", False))) for _ in range(2)]
        waiting = Waiting(quiet)
        arriving = []
        for _ in range(3):  # each that ends is followed by another at once
            arriving.append(Waiting(busy))
            running.pop(0).release()
            processes.advance(0.01)
            running += [one.permit for one in arriving if one.permit is not None and one.permit not in running]
        assert waiting.permit is not None
        for permit in (*running, waiting.permit):
            permit.release()
        for one in arriving:
            one.cancel()


def test_a_token_that_is_waited_for_does_not_go_to_what_arrives_elsewhere() -> None:
    with machine() as processes:
        busy, quiet = (
            flows(processes, column, bucket(qps=1, burst=1, queue=QUEUE)).limits_for(["bulk"], "east")
            for column in range(2)
        )
        held(at_once(busy.acquire("alice", False)))
        waiting = Waiting(quiet)
        for _ in range(110):
            processes.advance(0.01)
            if at_once(busy.acquire("alice", False)) is not None:
                break
        assert waiting.permit is not None
        assert not processes.clock.getDelayedCalls()


def test_who_goes_away_leaves_the_token_to_others() -> None:
    with machine() as processes:
        one, two = (
            flows(processes, column, bucket(qps=1, burst=1, queue=QUEUE)).limits_for(["bulk"], "east")
            for column in range(2)
        )
        held(at_once(one.acquire("alice", False)))
        waiting = [Waiting(one), Waiting(one)]
        for each in waiting:
            each.cancel()
        processes.advance(1.0)
        assert at_once(two.acquire("alice", False)) is not None


def test_a_stopped_process_does_not_keep_the_others_waiting() -> None:
    with machine() as processes:
        one, two = (
            flows(processes, column, inflight(max=1, queue=QUEUE)).limits_for(["interactive"], "east")
            for column in (1, 2)
        )
        stopped = processes.tables(0).counts(LimitId("interactive", "short", Per.ALL), 1)
        permit = held(at_once(one.acquire("alice", False)))
        assert not stopped.take_in_turn("")  # and that was the last thing it did
        waiting = Waiting(two)
        permit.release()
        processes.advance(0.01)
        for _ in range(50):
            processes.advance(0.01)
        assert waiting.permit is not None


def test_many_keys_that_wait_are_looked_at_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody tells them; the first ones, for which there is nothing, do not keep the others from their look."""
    monkeypatch.setattr(limiter, "_MAX_CHECKED", 10)
    users = [f"user-{number}" for number in range(25)]
    with machine() as processes:
        one, two = (
            flows(processes, column, inflight(max=1, queue=QUEUE, per=Per.USER)).limits_for(["interactive"], "east")
            for column in range(2)
        )
        running = [held(at_once(one.acquire(user, False))) for user in users]
        waiting = [Waiting(two, user) for user in users]
        for permit in running[10:]:
            permit.release()  # what this wakes the other process with is not read
        admitted = []
        for _ in range(4):
            processes.clock.advance(POLL_INTERVAL)
            admitted.append(sum(each.permit is not None for each in waiting))
        assert admitted[-1] == 15
        assert admitted[0] <= 10
        assert all(more - before <= 10 for before, more in pairwise(admitted))
        assert [each.permit is None for each in waiting] == [True] * 10 + [False] * 15
        for permit in running[:10]:
            permit.release()
        processes.clock.advance(POLL_INTERVAL)
        assert all(each.permit is not None for each in waiting)
        for each in waiting:
            held(each.permit).release()
        assert not processes.clock.getDelayedCalls()


def test_each_key_that_waits_is_looked_at_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    with machine() as processes:
        one, two = (
            flows(processes, column, inflight(max=1, queue=QUEUE, per=Per.USER)).limits_for(["interactive"], "east")
            for column in range(2)
        )
        running = [held(at_once(one.acquire(user, False))) for user in ("ann", "bob")]
        waiting = [Waiting(two, user) for user in ("ann", "bob")]
        mutexes = processes.memory.memory.mutexes
        lock = mutexes.lock

        def counted(number: int) -> None:
            woken.append(number)
            lock(number)

        monkeypatch.setattr(mutexes, "lock", counted)  # of the slots that are looked at
        processes.clock.advance(POLL_INTERVAL)
        assert len(woken) == len(set(woken)) == 2
        for permit in running:
            permit.release()
        processes.clock.advance(POLL_INTERVAL)
        for each in waiting:
            held(each.permit).release()


def test_the_first_of_many_that_is_admitted_may_take_all_others_back() -> None:
    """As a client does whose connection with all its requests ends."""
    with machine() as processes:
        one, two = (
            flows(processes, column, inflight(max=1, queue=QUEUE, per=Per.USER)).limits_for(["interactive"], "east")
            for column in range(2)
        )
        users = [f"user-{number}" for number in range(5)]
        running = [held(at_once(one.acquire(user, False))) for user in users]
        waiting = [Waiting(two, user) for user in users]
        first = waiting[0]
        first.then = lambda: cancel(waiting[1:])
        for permit in running:
            permit.release()
        processes.clock.advance(POLL_INTERVAL)
        held(first.permit).release()
        assert not processes.clock.getDelayedCalls()
        assert all(at_once(one.acquire(user, False)) is not None for user in users)


def test_queues_empty_when_a_process_dies_that_had_all() -> None:
    with machine() as processes:
        control = inflight(max=3, queue=QUEUE)
        dead, alive = (flows(processes, column, control).limits_for(["interactive"], "east") for column in range(2))
        for _ in range(3):
            held(at_once(dead.acquire("alice", False)))
        waiting = [Waiting(alive) for _ in range(3)]
        processes.memory.reclaim(0)
        processes.readers.run()
        assert all(one.permit is not None for one in waiting)


@pytest.mark.parametrize("shared", [False, True])
def test_a_switch_to_long_running_counts_there_in_all_processes(shared: bool) -> None:
    with machine() as processes:
        control = inflight(max=1, max_long_running=1, shared=shared)
        one, two = (flows(processes, column, control).limits_for(["interactive"], "east") for column in range(2))
        permit = one.switch_to_long_running(held(at_once(one.acquire("alice", False))), "alice")
        short = held(at_once(two.acquire("alice", False)))
        with pytest.raises(Exception, match="too many requests"):
            at_once(two.acquire("alice", True))
        with pytest.raises(Exception, match="too many requests"):
            two.switch_to_long_running(short, "alice")
        permit.release()
        two.switch_to_long_running(short, "alice").release()


def test_a_reload_in_one_process_holds_in_the_other_before_its_own() -> None:
    with machine() as processes:
        tables = [processes.tables(column) for column in range(2)]
        before, after = [inflight(max=1)], [inflight(max=3)]
        runtimes = [FlowControls.build(before, processes.clock, tables=each) for each in tables]
        for runtime in runtimes:
            runtime.activate()
        new = FlowControls.build(after, processes.clock, runtimes[0], tables[0])
        old = runtimes[1].limits_for(["interactive"], "east")
        held(at_once(old.acquire("alice", False)))
        with pytest.raises(Exception, match="max 1"):
            at_once(old.acquire("alice", False))
        new.activate()
        assert at_once(old.acquire("alice", False)) is not None


def test_a_limit_that_comes_back_has_the_parameters_of_then() -> None:
    with machine() as processes:
        tables = processes.tables(0)
        first = FlowControls.build([inflight(max=1)], processes.clock, tables=tables)
        first.activate()
        without = FlowControls.build([], processes.clock, first, tables)
        without.activate()
        again = FlowControls.build([inflight(max=2)], processes.clock, without, tables)
        again.activate()
        limits = again.limits_for(["interactive"], "east")
        assert [held(at_once(limits.acquire("alice", False))) for _ in range(2)]


def test_more_limits_over_reloads_than_there_are_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "RECORDS", 128)
    with machine() as processes:
        tables, previous = processes.tables(0), None
        for number in range(layout.RECORDS // 2 + 50):  # two records each
            control = inflight(f"limit-{number}", max=1)
            previous = FlowControls.build([control], processes.clock, previous, tables)
            previous.activate()
            permit = held(at_once(previous.limits_for([control.name], "east").acquire("alice", False)))
            with pytest.raises(Exception, match="too many requests"):
                at_once(previous.limits_for([control.name], "east").acquire("alice", False))
            permit.release()


def test_a_table_may_be_collected_while_the_mutex_of_its_record_is_held() -> None:
    with machine() as processes:
        tables = processes.tables(0)
        limit = LimitId("interactive", "short", Per.ALL)
        gone = tables.counts(limit, 1)
        cycle = [gone]
        cycle.append(cycle)  # type: ignore[arg-type]
        del gone, cycle
        mutexes = processes.memory.memory.mutexes
        mutexes.lock(layout.DIRECTORY_MUTEX)
        gc.collect()  # it must not wait for the mutex
        mutexes.release(layout.DIRECTORY_MUTEX)
        record = Directory(processes.memory.memory).find(limit, shared=False)
        assert record is not None
        tables.counts(LimitId("other", "short", Per.ALL), 1)
        assert processes.memory.memory.words[record + layout.D_USERS] == 0


def test_more_limits_at_a_time_than_there_are_records_are_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layout, "RECORDS", 4)
    with machine() as processes:
        tables = processes.tables(0)
        controls = [bucket(f"limit-{number}") for number in range(5)]
        runtime = FlowControls.build(controls[:4], processes.clock, tables=tables)
        with pytest.raises(DirectoryFullError) as caught:
            FlowControls.build(controls, processes.clock, runtime, tables)
        assert describe(caught.value) == (
            "there are more than 4096 limits (a MaxRequestsInflight has two, a listener one)",
            "use one flow control for several policies",
        )
        assert runtime.controls.keys() == {f"limit-{number}" for number in range(4)}


class TrafficOfThree:
    """Three processes under random load; what they have in flight together never exceeds a maximum."""

    def __init__(self, random: Random, processes: Machine) -> None:
        self.processes = processes
        self.maximum = random.choice([1, 2, 3, 5])
        control = inflight(
            max=self.maximum, queue=Queue(size=random.choice([1, 3, 20]), timeout=2.0), per=random.choice(list(Per))
        )
        self.random = random
        self.flows = [flows(processes, column, control) for column in range(3)]
        self.waiting: list[Waiting] = []
        self.most = 0

    def step(self) -> None:
        choice = self.random.random()
        running = [one for one in self.waiting if one.permit is not None]
        if choice < 0.5:
            limits = self.random.choice(self.flows).limits_for(["interactive"], "east")
            self.waiting.append(Waiting(limits, self.random.choice(["alice", "bob"])))
        elif choice < 0.8 and running:
            one = self.random.choice(running)
            assert one.permit is not None
            one.permit.release()
            self.waiting.remove(one)
        elif choice < 0.85:
            pending = [one for one in self.waiting if not one.over]
            if pending:
                self.random.choice(pending).cancel()
        else:
            self.processes.advance(self.random.choice([0.0, 0.001, 0.05, 0.3]))
        self.waiting = [one for one in self.waiting if one.error is None]
        self.check()

    def check(self) -> None:
        counts = self._in_flight()
        for key in ("", "east", "alice", "bob"):
            total = max(each.count(key) for each in counts)
            assert total <= self.maximum
            self.most = max(self.most, total)
        assert sum(each.in_use for each in counts) == sum(one.permit is not None for one in self.waiting)

    def finish(self) -> None:
        for _ in range(2000):
            for one in list(self.waiting):
                if one.permit is not None:
                    self.waiting.remove(one)
                    one.permit.release()  # which may admit others of them
            self.waiting = [one for one in self.waiting if one.error is None]
            self.processes.advance(0.05)
            if not self.waiting:
                break
        assert not self.waiting
        assert not any(each.count(key) for each in self._in_flight() for key in ("", "east", "alice", "bob"))
        assert not self.processes.clock.getDelayedCalls()

    def _in_flight(self) -> list:  # type: ignore[type-arg]
        controls = [each.controls["interactive"] for each in self.flows]
        return [control.short.requests for control in controls if isinstance(control, InFlightController)]


@pytest.mark.parametrize("batch", range(3))
def test_random_load_of_three_processes_keeps_the_maximum_and_ends_with_nothing(batch: int) -> None:
    for seed in range(batch * 5, batch * 5 + 5):
        with machine() as processes:
            traffic = TrafficOfThree(Random(seed), processes)
            for _ in range(250):
                traffic.step()
            assert traffic.most == traffic.maximum
            traffic.finish()


@pytest.mark.parametrize("batch", range(2))
def test_what_holds_for_the_tables_of_one_process_holds_for_shared_ones(batch: int) -> None:
    for seed in range(batch * 8, batch * 8 + 8):
        with machine() as processes:
            traffic = RandomTraffic(Random(seed), processes.clock, processes.tables(0))
            for _ in range(200):
                traffic.step()
            traffic.finish()
