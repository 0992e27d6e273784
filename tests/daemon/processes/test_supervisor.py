"""What the supervisor tells its children in which order, and what it does about those that end or fail."""

from __future__ import annotations

import dataclasses
import errno
import gc
import os
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.logger import LogLevel

from mcproxy.config import model
from mcproxy.daemon.errors import DaemonError, ProcessError
from mcproxy.daemon.processes.config_rollout import PREPARE_TIMEOUT
from mcproxy.daemon.processes.slots import REPLACED_WITHIN
from mcproxy.net.bind import BindError
from mcproxy.net.tls_contexts import PairError
from mcproxy.observe.events import EVENTS
from tests.daemon.processes.scripted import World, config, die, fail, wait, world
from tests.support.logged import captured_logs

__all__ = ["world"]

run = pytest_twisted.ensureDeferred
OLD, NEW = config(), config(level="debug")


def in_force(world: World) -> dict[str, str]:
    """The level that each living child has in force."""
    return {child.name: child.in_force.logging.level for child in world.living if child.in_force is not None}


class TestStart:
    @run  # type: ignore[untyped-decorator]
    async def test_all_prepare_before_any_commits_and_the_keeper_commits_first(self, world: World) -> None:
        ready: Deferred[None] = Deferred()
        world.on("keeper", "commit", wait(ready))
        started = Deferred.fromCoroutine(world.supervisor.start(config(keeper=True)))
        await world.until(lambda: "keeper commit" in world.events)
        await world.settled()
        assert {"worker-0 prepare", "worker-1 prepare", "keeper prepare"} <= set(world.events)
        assert "worker-0 commit" not in world.events
        ready.callback(None)
        await started
        assert world.since(0, "commit") == ["keeper commit", "worker-0 commit", "worker-1 commit"]

    @pytest.mark.parametrize("error", [DaemonError("no disk", todo="mount it"), PairError("certificate a: no PEM")])
    @run  # type: ignore[untyped-decorator]
    async def test_what_a_child_raises_is_raised_and_all_are_ended(self, world: World, error: Exception) -> None:
        world.on("worker-1", "prepare", fail(error))
        with pytest.raises(type(error), match=str(error)):
            await world.supervisor.start(OLD)
        await world.settled()
        assert world.living == []

    @run  # type: ignore[untyped-decorator]
    async def test_an_address_in_use_starts_no_process(self, world: World) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            bind = model.TCPBind("127.0.0.1", taken.getsockname()[1])
            listener = model.ListenerConfig(name="a", bind=bind)
            with pytest.raises(BindError):
                await world.supervisor.start(dataclasses.replace(OLD, listeners=(listener,)))
        assert world.events == []

    @pytest.mark.parametrize("moment", ["start", "prepare"])
    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_ends_is_started_again_once(self, world: World, moment: str) -> None:
        world.on("worker-0", moment, die)
        await world.supervisor.start(OLD)
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_ends_twice_is_the_error(self, world: World) -> None:
        world.on("worker-0", "prepare", die, die)
        with pytest.raises(DaemonError, match="worker-0 ended while it prepared the configuration: SIGKILL"):
            await world.supervisor.start(OLD)
        await world.settled()
        assert world.living == []

    @run  # type: ignore[untyped-decorator]
    async def test_an_end_while_starting_starts_nobody_any_more(self, world: World) -> None:
        world.on("worker-0", "prepare", wait(Deferred()))
        started = Deferred.fromCoroutine(world.supervisor.start(OLD))
        await world.until(lambda: "worker-1 prepare" in world.events)
        world.supervisor.abort()
        with pytest.raises(DaemonError):
            await started
        await world.settled()
        assert world.living == []
        assert world.since(0, "spawned") == ["worker-0 spawned", "worker-1 spawned"]


class TestReload:
    @run  # type: ignore[untyped-decorator]
    async def test_where_one_cannot_prepare_all_discard(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-1", "prepare", fail(DaemonError("no disk")))
        gc.collect()
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(DaemonError, match="no disk"):
            await world.supervisor.apply(NEW)
        assert world.events[-1] == "worker-0 discard"
        left = set(os.listdir("/proc/self/fd")) - before  # the child that failed, which is in this process, has its own
        assert len(left) <= 1, "the memory of the configuration is left open"
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}
        await world.supervisor.apply(NEW)
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_a_bug_in_one_refuses_it_and_kills_nobody(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-1", "prepare", fail(ZeroDivisionError("a bug")))
        with pytest.raises(ProcessError, match="ZeroDivisionError: a bug"):
            await world.supervisor.apply(NEW)
        await world.settled()
        assert not any("dies" in event for event in world.events)

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_ends_as_it_prepares_is_replaced_and_asked_again(self, world: World) -> None:
        await world.supervisor.start(OLD)
        mark = len(world.events)
        world.on("worker-1", "prepare", die)
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        await world.until(lambda: "worker-1 dies" in world.events)
        await world.settled()
        world.reactor.advance(0)
        await applied
        # With the old configuration first, so that it serves even if the reload is refused in the end.
        assert [event for event in world.since(mark) if event.startswith("worker-1")] == [
            *("worker-1 prepare", "worker-1 dies", "worker-1 spawned", "worker-1 start"),
            *("worker-1 prepare", "worker-1 commit", "worker-1 prepare", "worker-1 commit"),
        ]
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_ends_twice_as_it_prepares_refuses_it(self, world: World) -> None:
        await world.supervisor.start(OLD)
        first = world.child("worker-1")
        world.on("worker-1", "prepare", die, lambda child: None, die)
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        await world.until(lambda: not first.running)
        await world.settled()
        world.reactor.advance(0)
        with pytest.raises(DaemonError, match="worker-1 ended while it prepared"):
            await applied
        await world.pass_time(1)
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}

    @run  # type: ignore[untyped-decorator]
    async def test_a_worker_that_ends_again_and_again_is_not_waited_for(self, world: World) -> None:
        """The new configuration may be what mends it; so it is started with that at once."""
        await world.supervisor.start(OLD)
        for delay in (0.0, 1.0, 2.0):
            world.child("worker-1").die()
            await world.settled()
            world.reactor.advance(delay)
            await world.settled()
        world.child("worker-1").die()
        await world.settled()
        await world.supervisor.apply(NEW)
        assert in_force(world) == {"worker-0": "debug"}
        world.reactor.advance(0)
        await world.settled()
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @pytest.mark.parametrize("moment", ["start", "prepare"])
    @run  # type: ignore[untyped-decorator]
    async def test_a_successor_that_never_serves_refuses_it(self, world: World, moment: str) -> None:
        """What the others have prepared is not in force in it; with the reload done it would serve the old one."""
        await world.supervisor.start(OLD)
        hung: Deferred[None] = Deferred()
        world.on("worker-1", moment, wait(hung))
        world.child("worker-1").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        failure: list[Any] = []
        applied.addErrback(failure.append)
        await world.pass_time(REPLACED_WITHIN - 0.5)
        assert failure == []
        await world.pass_time(1.0)
        (refused,) = failure
        assert refused.check(DaemonError)
        assert str(refused.value) == "worker-1 has ended, and its successor does not start"
        assert refused.value.todo
        assert in_force(world) == {"worker-0": "info"}
        assert world.child("worker-0").config == NEW
        assert world.events[-1] == "worker-0 discard"
        hung.callback(None)
        await world.settled()
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}
        await world.supervisor.apply(NEW)
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @pytest.mark.parametrize("broken", ["memfd_create", "dump"])
    @run  # type: ignore[untyped-decorator]
    async def test_a_configuration_that_cannot_be_written_refuses_it_and_leaves_nothing_open(
        self, world: World, broken: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def fail(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        path = tmp_path / "a.sock"
        listener = model.ListenerConfig(name="a", bind=model.UnixBind(str(path)))
        new = dataclasses.replace(NEW, listeners=(listener,))
        await world.supervisor.start(OLD)
        mark = len(world.events)
        gc.collect()
        before = set(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(os if broken == "memfd_create" else pickle, broken, fail)
            with pytest.raises(OSError, match="No space left"):
                await world.supervisor.apply(new)
        assert set(os.listdir("/proc/self/fd")) <= before
        assert not path.exists()
        assert world.since(mark) == []
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}
        await world.supervisor.apply(new)
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}
        assert all(len(child.sockets) == 1 for child in world.living)

    @run  # type: ignore[untyped-decorator]
    async def test_a_configuration_that_a_child_cannot_map_refuses_it_in_all(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-1", "prepare", fail(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))))
        with pytest.raises(DaemonError, match="Cannot allocate memory"):
            await world.supervisor.apply(NEW)
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}
        await world.supervisor.apply(NEW)
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_one_that_does_not_answer_is_killed_and_refuses_it(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-1", "prepare", wait(Deferred()))
        hung = world.child("worker-1")
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        failure: list[Any] = []
        applied.addErrback(failure.append)
        await world.pass_time(PREPARE_TIMEOUT - 1.0)
        assert hung.running
        await world.pass_time(2.0)
        assert not bool(hung.running)
        assert len(failure) == 1
        assert in_force(world) == {"worker-0": "info", "worker-1": "info"}

    @pytest.mark.parametrize("moment", ["after it has prepared", "commit"])
    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_ends_after_the_decision_is_replaced_with_the_new(
        self, world: World, moment: str
    ) -> None:
        await world.supervisor.start(OLD)
        slow: Deferred[None] = Deferred()
        world.on("worker-0", "prepare", wait(slow))
        if moment == "commit":
            world.on("worker-1", "commit", die)
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        await world.until(lambda: world.events.count("worker-1 prepare") == 2)
        await world.settled()
        if moment != "commit":
            world.child("worker-1").die()
            await world.settled()
        slow.callback(None)
        await applied
        world.reactor.advance(0)
        await world.settled()
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_no_successor_serves_the_old_one_once_the_reload_is_done(self, world: World) -> None:
        """It was starting with the old one when the others committed the new one."""
        await world.supervisor.start(OLD)
        slow: Deferred[None] = Deferred()
        late: Deferred[None] = Deferred()
        world.on("worker-0", "prepare", wait(slow))
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        await world.until(lambda: world.events.count("worker-1 prepare") == 2)
        await world.settled()
        world.on("worker-1", "commit", wait(late))
        world.child("worker-1").die()
        await world.settled()
        world.reactor.advance(0)
        await world.until(lambda: world.events.count("worker-1 commit") == 2)  # of the old one, by the successor
        slow.callback(None)
        await world.settled()
        assert not applied.called
        late.callback(None)
        await applied
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_more_workers_start_before_any_commits(self, world: World) -> None:
        await world.supervisor.start(OLD)
        mark = len(world.events)
        await world.supervisor.apply(config(4, level="debug"))
        committed = world.events.index("worker-0 commit", mark)
        assert {"worker-2 prepare", "worker-3 prepare"} <= set(world.events[mark:committed])
        assert in_force(world) == dict.fromkeys(("worker-0", "worker-1", "worker-2", "worker-3"), "debug")

    @run  # type: ignore[untyped-decorator]
    async def test_a_refused_reload_leaves_no_added_worker(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-0", "prepare", fail(DaemonError("no disk")))
        with pytest.raises(DaemonError):
            await world.supervisor.apply(config(4))
        await world.settled()
        assert sorted(child.name for child in world.living) == ["worker-0", "worker-1"]

    @run  # type: ignore[untyped-decorator]
    async def test_fewer_workers_the_others_get_the_new_one_and_retire(self, world: World) -> None:
        await world.supervisor.start(config(3))
        mark = len(world.events)
        leaving = world.child("worker-2")
        await world.supervisor.apply(config(2, level="debug"))
        await world.settled()
        assert [event for event in world.since(mark) if event.startswith("worker-2")] == [
            *("worker-2 prepare", "worker-2 commit", "worker-2 retire", "worker-2 has ended")
        ]
        assert leaving.in_force == config(2, level="debug")
        assert sorted(child.name for child in world.living) == ["worker-0", "worker-1"]
        await world.pass_time(40)
        assert len(world.living) == 2

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_still_ends_what_it_has_gets_the_configurations_that_come(self, world: World) -> None:
        """What a reload takes away is gone for its open requests too."""
        await world.supervisor.start(config(3))
        retiring = world.child("worker-2")
        world.on("worker-2", "retire", lambda child: Deferred())
        await world.supervisor.apply(config(2))
        await world.settled()
        await world.supervisor.apply(config(2, level="debug"))
        assert retiring.in_force == config(2, level="debug")
        assert not retiring.sockets, "it accepts nothing any more"
        world.on("worker-2", "prepare", fail(DaemonError("no disk")))
        await world.supervisor.apply(config(2))
        assert in_force(world).items() >= {"worker-0": "info", "worker-1": "info"}.items()
        world.on("worker-2", "prepare", die)
        await world.supervisor.apply(config(2, level="debug"))
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_is_told_to_end_between_the_steps_commits_too(self, world: World) -> None:
        """It serves until its successor does."""
        await world.supervisor.start(OLD)
        leaving = world.child("worker-1")
        other: Deferred[None] = Deferred()
        world.on("worker-0", "prepare", wait(other))
        applied = Deferred.fromCoroutine(world.supervisor.apply(NEW))
        await world.until(lambda: leaving.config == NEW)
        hung: Deferred[None] = Deferred()
        world.on("worker-1", "start", wait(hung))
        leaving.channel.tell("leaving")
        await world.pass_time(1.0)
        assert world.child("worker-1") is not leaving
        other.callback(None)
        await world.until(lambda: leaving.in_force == NEW)
        hung.callback(None)
        await applied
        await world.settled()
        assert in_force(world) == {"worker-0": "debug", "worker-1": "debug"}

    @run  # type: ignore[untyped-decorator]
    async def test_the_keeper_comes_and_goes_with_aggregates(self, world: World) -> None:
        await world.supervisor.start(OLD)
        await world.supervisor.apply(config(keeper=True))
        assert in_force(world).keys() == {"worker-0", "worker-1", "keeper"}
        await world.supervisor.apply(OLD)
        await world.settled()
        assert in_force(world).keys() == {"worker-0", "worker-1"}


class TestReplacement:
    @run  # type: ignore[untyped-decorator]
    async def test_at_once_then_after_1_2_4_seconds_and_so_on(self, world: World) -> None:
        await world.supervisor.start(OLD)
        for delay in (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
            dead = world.child("worker-0")
            dead.die()
            await world.settled()
            if delay:
                world.reactor.advance(delay - 0.1)
                await world.settled()
                assert not any(child.name == "worker-0" for child in world.living)
            world.reactor.advance(0.11)
            await world.settled()
            assert world.child("worker-0").in_force == OLD
        await world.pass_time(60)
        world.child("worker-0").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        assert world.child("worker-0").in_force == OLD

    @run  # type: ignore[untyped-decorator]
    async def test_a_successor_has_the_sockets_and_others_lend_theirs_while_it_waits(self, world: World) -> None:
        listener = model.ListenerConfig(name="a", bind=model.TCPBind("127.0.0.1", 0))
        await world.supervisor.start(dataclasses.replace(OLD, listeners=(listener,)))
        first, second = world.child("worker-0").sockets, world.child("worker-1").sockets
        assert {*first}.isdisjoint(second)
        world.child("worker-1").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        assert world.child("worker-1").sockets == second
        assert world.child("worker-0").sockets == first
        world.child("worker-1").die()
        await world.settled()
        assert world.child("worker-0").sockets == [*first, *second]
        world.reactor.advance(1)
        await world.settled()
        assert world.child("worker-1").sockets == second
        assert world.child("worker-0").sockets == first

    @run  # type: ignore[untyped-decorator]
    async def test_others_lend_theirs_also_when_it_began_to_wait_in_a_reload_that_is_refused(
        self, world: World
    ) -> None:
        listener = model.ListenerConfig(name="a", bind=model.TCPBind("127.0.0.1", 0))
        old, new = (dataclasses.replace(each, listeners=(listener,)) for each in (OLD, NEW))
        await world.supervisor.start(old)
        both = {*world.child("worker-0").sockets, *world.child("worker-1").sockets}
        world.child("worker-1").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        refused: Deferred[None] = Deferred()
        world.on("worker-0", "prepare", wait(refused))
        reload = Deferred.fromCoroutine(world.supervisor.apply(new))
        await world.settled()
        world.child("worker-1").die()  # it is delayed: its second death
        await world.settled()
        refused.errback(DaemonError("no disk"))
        with pytest.raises(DaemonError, match="no disk"):
            await reload
        await world.settled()
        assert {*world.child("worker-0").sockets} == both

    @run  # type: ignore[untyped-decorator]
    async def test_permits_come_back_before_the_successor_starts(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.supervisor.children.on_lost(lambda child: world.note(child.name, f"lost, column {child.column}"))
        mark = len(world.events)
        world.child("worker-1").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        assert world.since(mark)[:3] == ["worker-1 dies", "worker-1 lost, column 1", "worker-1 spawned"]

    @run  # type: ignore[untyped-decorator]
    async def test_another_worker_leads_when_the_leader_ends_and_keeps_that(self, world: World) -> None:
        await world.supervisor.start(OLD)
        leader = world.supervisor.children.leader
        assert leader is not None
        assert leader.name == "worker-0"
        await world.settled()
        world.child("worker-0").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        leader = world.supervisor.children.leader
        assert leader is not None
        assert leader.name == "worker-1"
        assert world.leads == [("worker-0", True), ("worker-1", True)]

    @run  # type: ignore[untyped-decorator]
    async def test_a_silent_child_is_killed_and_replaced(self, world: World) -> None:
        await world.supervisor.start(OLD)
        await world.pass_time(2)
        world.child("worker-0").answers_pings = False
        await world.pass_time(9)
        assert "worker-0 dies" not in world.events
        with captured_logs() as events:
            await world.pass_time(3)
        assert world.events.count("worker-0 dies") == 1
        killed, replaced = [event for event in events if event["log_level"] is LogLevel.error]
        assert "for 11 s" in killed["cause"]
        assert replaced["cause"] == "the supervisor killed it, see the line before"
        assert world.child("worker-0").in_force == OLD

    @run  # type: ignore[untyped-decorator]
    async def test_a_supervisor_that_stood_still_blames_nobody(self, world: World) -> None:
        await world.supervisor.start(OLD)
        await world.pass_time(2)
        world.reactor.advance(60)
        await world.pass_time(5)
        assert not any("dies" in event for event in world.events)

    @run  # type: ignore[untyped-decorator]
    async def test_one_that_was_told_to_end_goes_when_its_successor_serves(self, world: World) -> None:
        await world.supervisor.start(OLD)
        mark = len(world.events)
        world.child("worker-0").channel.tell("leaving")
        await world.settled()
        await world.pass_time(0.5)
        assert [event for event in world.since(mark) if event.startswith("worker-0")] == [
            *("worker-0 spawned", "worker-0 start", "worker-0 prepare", "worker-0 commit"),
            *("worker-0 retire", "worker-0 has ended"),
        ]
        assert world.supervisor.children.leader in list(world.supervisor.children)

    @run  # type: ignore[untyped-decorator]
    async def test_where_all_are_told_to_end_nobody_is_replaced(self, world: World) -> None:
        await world.supervisor.start(OLD)
        mark = len(world.events)
        world.child("worker-0").channel.tell("leaving")
        await world.settled()
        world.supervisor.begin_shutdown()
        await world.pass_time(1)
        assert world.since(mark, "spawned", "retire") == []

    @run  # type: ignore[untyped-decorator]
    async def test_a_successor_that_cannot_serve_is_tried_again(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-0", "prepare", fail(DaemonError("the disk is full", todo="free space")))
        with captured_logs() as events:
            world.child("worker-0").die()
            await world.settled()
            await world.pass_time(1.5)
        assert world.child("worker-0").in_force == OLD
        (line,) = [event for event in events if event.get("cause") == "the disk is full"]
        assert (line["process"], line["todo"]) == ("worker-0", "free space")

    @run  # type: ignore[untyped-decorator]
    async def test_a_successor_that_cannot_start_is_tried_again(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.fails = OSError(12, "Cannot allocate memory")
        world.child("worker-0").die()
        await world.settled()
        await world.pass_time(0.5)
        world.fails = None
        world.on("worker-0", "start", fail(DaemonError("no memory to share")))
        await world.pass_time(4)
        assert world.child("worker-0").in_force == OLD
        assert len(world.living) == 2

    @pytest.mark.parametrize(
        ("moment", "line"),
        [("serving", "a process ended unexpectedly and is replaced"), ("retire", "a process ended early")],
    )
    @run  # type: ignore[untyped-decorator]
    async def test_a_death_is_one_line(self, world: World, moment: str, line: str) -> None:
        await world.supervisor.start(config(3))
        with captured_logs() as events:
            if moment == "serving":
                world.child("worker-2").die()
            else:
                world.on("worker-2", moment, die)
                await world.supervisor.apply(OLD)
            await world.settled()
        (event,) = [event for event in events if event.get("process") == "worker-2" and "cause" in event]
        assert (event["log_format"], event["cause"]) == (line, "SIGKILL ended it")

    @run  # type: ignore[untyped-decorator]
    async def test_another_version_of_the_program_is_noticed(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.version = "9.9"
        with captured_logs() as events:
            world.child("worker-0").die()
            await world.settled()
            await world.pass_time(0.5)
        assert "program_versions_differ" in [event.get("event") for event in events]
        assert "mcproxy upgrade" in EVENTS["program_versions_differ"].line_todo


class TestStop:
    @run  # type: ignore[untyped-decorator]
    async def test_the_steps_go_to_all_and_the_keeper_ends_last(self, world: World) -> None:
        world.cut = {"worker-0": {"watches": 2}, "worker-1": {"watches": 1, "logs": 1}}
        await world.supervisor.start(config(keeper=True))
        mark = len(world.events)
        processes = world.supervisor
        processes.begin_shutdown()
        await processes.drain(5.0)
        await processes.close_listeners()
        await processes.finish()
        steps = [event.split()[1] for event in world.since(mark) if event.startswith("worker-0")]
        assert steps == ["begin_shutdown", "drain", "stop_accepting", "finish", "has"]
        assert world.events.index("keeper finish") > max(
            world.events.index(f"worker-{index} has ended") for index in (0, 1)
        )
        assert dict(processes.cut) == {"watches": 3, "logs": 1}
        assert world.living == []

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_ends_while_it_drains_is_replaced_and_drains(self, world: World) -> None:
        """Its address is still listened on, and the kernel gives it connections."""
        await world.supervisor.start(OLD)
        world.supervisor.begin_shutdown()
        await world.settled()
        world.on("worker-0", "drain", die)
        mark = len(world.events)
        await world.supervisor.drain(5.0)
        world.reactor.advance(0)
        await world.settled()
        assert [event for event in world.since(mark) if event.startswith("worker-0")] == [
            *("worker-0 drain", "worker-0 dies", "worker-0 spawned", "worker-0 start"),
            *("worker-0 prepare", "worker-0 commit", "worker-0 begin_shutdown", "worker-0 drain"),
        ]

    @run  # type: ignore[untyped-decorator]
    async def test_one_that_retires_has_the_drains_time_and_what_it_cuts_is_counted(self, world: World) -> None:
        await world.supervisor.start(config(3))
        world.on("worker-2", "retire", wait(Deferred()))
        world.cut = {"worker-2": {"tunnels": 1}}
        await world.supervisor.apply(config(2))
        world.supervisor.begin_shutdown()
        drained = Deferred.fromCoroutine(world.supervisor.drain(5.0))
        await world.pass_time(4.5)
        assert not drained.called
        await world.pass_time(0.5)
        await drained
        await world.supervisor.close_listeners()
        await world.supervisor.finish()
        assert dict(world.supervisor.cut) == {"tunnels": 1}
        assert world.living == []

    @run  # type: ignore[untyped-decorator]
    async def test_what_one_has_cut_counts_also_if_its_end_is_seen_before_its_answer(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await world.supervisor.start(OLD)
        world.cut = {"worker-1": {"tunnels": 2}}
        child = world.child("worker-1")

        def end() -> None:
            world.living.remove(child)
            child.running = False
            child.channel.close()
            child._ended(0)

        monkeypatch.setattr(child, "end", end)
        await world.supervisor.finish()
        assert dict(world.supervisor.cut) == {"tunnels": 2}

    @run  # type: ignore[untyped-decorator]
    async def test_listeners_are_closed_when_the_last_worker_has_closed_them(self, world: World) -> None:
        slow: Deferred[None] = Deferred()
        world.on("worker-1", "stop_accepting", wait(slow))
        await world.supervisor.start(OLD)
        closed = Deferred.fromCoroutine(world.supervisor.close_listeners())
        await world.until(lambda: "worker-0 stop_accepting" in world.events)
        await world.settled()
        assert not closed.called
        slow.callback(None)
        await closed

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_hangs_in_its_end_is_killed(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.supervisor.begin_shutdown()
        await world.supervisor.drain(5.0)
        await world.supervisor.close_listeners()
        world.child("worker-1").end = lambda: None  # type: ignore[method-assign]
        finished = Deferred.fromCoroutine(world.supervisor.finish())
        await world.pass_time(4)
        await finished
        assert world.events[-1] == "worker-1 dies"

    @run  # type: ignore[untyped-decorator]
    async def test_at_once_ends_all(self, world: World) -> None:
        await world.supervisor.start(config(keeper=True))
        world.cut = {"worker-0": {"tunnels": 2}, "worker-1": {"tunnels": 1}}
        world.supervisor.abort()
        await world.supervisor.wait_aborted()
        assert dict(world.supervisor.cut) == {"tunnels": 3}
        await world.settled()
        assert world.living == []

    @run  # type: ignore[untyped-decorator]
    async def test_retiring_for_another_daemon(self, world: World) -> None:
        await world.supervisor.start(config(keeper=True))
        mark = len(world.events)
        await world.supervisor.retire(5.0, handed_over=())
        assert world.living == []
        assert set(world.since(mark, "retire", "finish")) == {"worker-0 retire", "worker-1 retire", "keeper finish"}


class TestFigures:
    @run  # type: ignore[untyped-decorator]
    async def test_open_requests_are_those_of_the_workers_since_the_keepers_are_among_them(self, world: World) -> None:
        world.open = {"worker-0": 3, "worker-1": 4, "keeper": 2}
        await world.supervisor.start(config(keeper=True))
        figures = await world.supervisor.collect_figures()
        assert world.supervisor.running == 7
        shown: list[dict[str, Any]] = figures["processes"]
        assert [(each["name"], each["open"], each["leader"]) for each in shown] == [
            *(("supervisor", 0, False), ("keeper", 2, False), ("worker-0", 3, True), ("worker-1", 4, False))
        ]

    @run  # type: ignore[untyped-decorator]
    async def test_a_count_is_as_of_now_but_for_who_does_not_answer(self, world: World) -> None:
        world.open = {"worker-0": 3, "worker-1": 4}
        await world.supervisor.start(OLD)
        assert await world.supervisor.count_running() == 7
        world.open = {"worker-0": 1, "worker-1": 9}
        world.child("worker-1").answers_pings = False
        counted = Deferred.fromCoroutine(world.supervisor.count_running())
        await world.settled()
        await world.pass_time(0.5)
        assert await counted == 5

    @run  # type: ignore[untyped-decorator]
    async def test_a_child_that_does_not_answer_delays_status_for_two_seconds(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.on("worker-1", "figures", wait(Deferred()))
        figures = Deferred.fromCoroutine(world.supervisor.collect_figures())
        await world.pass_time(2)
        shown = [(each["name"], each["answered"]) for each in (await figures)["processes"]]
        assert shown == [("supervisor", True), ("worker-0", True), ("worker-1", False)]

    @run  # type: ignore[untyped-decorator]
    async def test_restarts_are_counted(self, world: World) -> None:
        await world.supervisor.start(OLD)
        world.child("worker-1").die()
        await world.settled()
        world.reactor.advance(0)
        await world.settled()
        shown = (await world.supervisor.collect_figures())["processes"]
        assert {each["name"]: each["restarts"] for each in shown} == {"supervisor": 0, "worker-0": 0, "worker-1": 1}
