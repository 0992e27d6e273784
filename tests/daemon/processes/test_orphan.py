"""A child without its supervisor: it serves until another daemon does, and hands that one its sockets before."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred, succeed
from twisted.logger import capturedLogs

from mcproxy.daemon.control.orphaned_sockets import POLL
from mcproxy.daemon.processes import orphan as module
from mcproxy.daemon.processes.orphan import Orphan, Shutdown
from mcproxy.daemon.service import SingleProcessService
from tests.support.clock import Clock

LISTENING = [("127.0.0.1:6443", 7), ("systemd:public", 8), ("unix:/run/x.sock", 9)]
OWN = ["127.0.0.1:6443", "unix:/run/x.sock"]


class FakeService:
    """Notes what it is told."""

    def __init__(self, control_socket: str | None) -> None:
        daemon = SimpleNamespace(control_socket=control_socket, drain_timeout=30.0)
        self.runtime = SimpleNamespace(config=SimpleNamespace(daemon=daemon))
        self.listening = list(LISTENING)
        self.running = 3
        self.cut = {"watches": 1, "tunnels": 2}
        self.told: list[Any] = []
        self.retired: Deferred[None] = Deferred()

    def begin_shutdown(self) -> None:
        self.told.append("begin_shutdown")

    def drain(self, timeout: float) -> Deferred[None]:
        self.told.append(("drain", timeout))
        return succeed(None)

    def stop_accepting(self) -> None:
        self.told.append("stop_accepting")

    def finish(self) -> Deferred[None]:
        self.told.append("finish")
        return succeed(None)

    def retire(self, timeout: float, handed_over: Collection[str] = ()) -> Deferred[None]:
        self.told.append(("retire", timeout, list(handed_over)))
        return self.retired


class Stage:
    """An orphan whose control socket answers with `status`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.service: FakeService = FakeService("/run/control.sock")
        self.shutdown = Shutdown(self.clock)
        self.status: dict[str, Any] | None = None
        self.asked = 0
        self.offers: list[tuple[str, list[tuple[str, int]]]] = []
        self.takes: Callable[[], Deferred[bool]] = lambda: succeed(True)
        self.ended: list[bool] = []
        """`at_once` of each time that the process was to end."""
        monkeypatch.setattr(module, "status_of", self._status_of)
        monkeypatch.setattr(module, "offer", self._offer)

    async def _status_of(self, reactor: Any, path: str) -> dict[str, Any] | None:
        assert path == "/run/control.sock"
        self.asked += 1
        return self.status

    def _offer(self, reactor: Any, path: str, listening: list[tuple[str, int]]) -> Deferred[bool]:
        self.offers.append((path, listening))
        return self.takes()

    def orphan(self, unneeded: Callable[[], Deferred[None]] | None = None) -> Orphan:
        return Orphan(self.clock, cast(SingleProcessService, self.service), self.shutdown, self._end, unneeded)

    def _end(self, at_once: bool = False) -> None:
        self.ended.append(at_once)

    def polls(self, status: dict[str, Any] | None, times: int = 3) -> None:
        """The control socket answers with this from now on, and is asked so many times."""
        self.status = status
        before = self.asked
        for _ in range(times):
            self.clock.advance(POLL)
        assert self.asked > before or self.service.told


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


@pytest.mark.parametrize(
    "status", [None, {}, {"state": "starting", "pid": 9}, {"state": "stopping", "pid": 9}, {"state": ["serving"]}]
)
def test_while_no_other_daemon_serves_it_serves_on(stage: Stage, status: dict[str, Any] | None) -> None:
    stage.status = status
    stage.orphan()
    stage.polls(status, 20)
    assert stage.asked == 21  # once as it begins, then after each pause
    assert stage.service.told == []
    assert stage.ended == []
    assert stage.offers == []


def test_it_retires_once_another_daemon_serves_and_ends_when_that_is_done(stage: Stage) -> None:
    stage.orphan()
    stage.polls({"state": "starting", "pid": 9})
    assert stage.service.told == []
    with capturedLogs() as logged:
        stage.polls({"state": "serving", "pid": 9})
    assert stage.service.told == [("retire", 30.0, [])]
    assert [(each["event"], each["pid"]) for each in logged] == [("orphan_draining", 9)]
    asked = stage.asked
    stage.polls({"state": "serving", "pid": 9})
    assert stage.asked == asked, "it has found the other one, and asks no more"
    assert stage.ended == []
    with capturedLogs() as logged:
        stage.service.retired.callback(None)
    assert stage.ended == [False]
    (stopped,) = logged
    assert (stopped["event"], stopped["cut"], stopped["cutWatches"]) == ("process_stopped", 3, 1)
    assert stage.clock.getDelayedCalls() == []


def test_a_daemon_that_starts_gets_the_sockets_once_and_only_its_own_are_left_open(stage: Stage) -> None:
    stage.orphan()
    wanting = {"state": "starting", "wantsSockets": True, "pid": 9}
    stage.polls(wanting)
    assert stage.offers == [("/run/control.sock", [(address, fd) for address, fd in LISTENING if address in OWN])]
    assert stage.service.told == []
    stage.polls({"state": "serving", "pid": 9})
    assert stage.service.told == [("retire", 30.0, OWN)]


def test_one_that_serves_but_is_not_the_one_that_took_the_sockets_has_sockets_of_its_own(stage: Stage) -> None:
    stage.orphan()
    stage.polls({"state": "starting", "wantsSockets": True, "pid": 9})
    stage.polls({"state": "starting", "wantsSockets": True, "pid": 10})  # 9 has died
    assert len(stage.offers) == 2
    stage.polls({"state": "serving", "pid": 11})
    assert stage.service.told == [("retire", 30.0, [])]


def test_sockets_that_were_not_taken_are_offered_again(stage: Stage) -> None:
    def stalls() -> Deferred[bool]:
        raise TimeoutError("timed out")

    stage.orphan()
    wanting = {"state": "starting", "wantsSockets": True, "pid": 9}
    stage.takes = stalls
    with capturedLogs() as logged:
        stage.polls(wanting, 1)
    assert [(each["event"], each["cause"]) for each in logged] == [("orphan_sockets_not_taken", "timed out")]
    stage.takes = lambda: succeed(False)
    stage.polls(wanting, 1)
    stage.takes = lambda: succeed(True)
    stage.polls(wanting, 3)
    assert len(stage.offers) == 3
    stage.polls({"state": "serving", "pid": 9})
    assert stage.service.told == [("retire", 30.0, OWN)]


def test_one_without_sockets_of_its_own_offers_none(stage: Stage) -> None:
    stage.service.listening = [("systemd:public", 8)]
    stage.orphan()
    stage.polls({"state": "starting", "wantsSockets": True, "pid": 9})
    assert stage.offers == []


def test_the_keeper_waits_for_the_workers_before_it_retires(stage: Stage) -> None:
    workers: Deferred[None] = Deferred()
    stage.orphan(lambda: workers)
    stage.polls({"state": "serving", "pid": 9})
    assert stage.service.told == []
    workers.callback(None)
    assert stage.service.told == [("retire", 30.0, [])]


def test_it_says_each_minute_that_its_supervisor_is_missing(stage: Stage) -> None:
    with capturedLogs() as logged:
        stage.orphan()
    (said,) = logged
    assert (said["event"], said["open"]) == ("supervisor_died", 3)
    with capturedLogs() as logged:
        stage.clock.advance(59.0)
        assert logged == []
        stage.clock.advance(1.0)
        assert [each["event"] for each in logged] == ["supervisor_died"]


def test_a_stop_ends_it_as_a_stop_of_a_daemon_does_and_a_second_one_at_once(stage: Stage) -> None:
    workers: Deferred[None] = Deferred()
    orphan = stage.orphan(lambda: workers)
    orphan.stop()
    assert stage.service.told == []
    workers.callback(None)
    assert stage.service.told == ["begin_shutdown", ("drain", 30.0), "stop_accepting", "finish"]
    assert stage.ended == [False]
    orphan.stop()
    assert stage.ended == [False, True]


def test_a_successor_that_serves_while_it_is_stopped_does_not_make_it_retire_too(stage: Stage) -> None:
    workers: Deferred[None] = Deferred()
    orphan = stage.orphan(lambda: workers)
    orphan.stop()
    stage.status = {"state": "serving", "pid": 9}
    stage.clock.advance(POLL)
    workers.callback(None)
    assert [told for told in stage.service.told if told[0] == "retire"] == []


def test_a_stop_while_it_retires_ends_it_at_once(stage: Stage) -> None:
    orphan = stage.orphan()
    stage.polls({"state": "serving", "pid": 9})
    assert (stage.service.told, stage.ended) == ([("retire", 30.0, [])], [])
    orphan.stop()
    assert (len(stage.service.told), stage.ended) == (1, [True])


def test_without_a_control_socket_it_drains_and_ends(stage: Stage) -> None:
    stage.service = FakeService(None)
    with capturedLogs() as logged:
        stage.orphan()
    assert stage.asked == 0
    assert stage.service.told == ["begin_shutdown", ("drain", 30.0), "stop_accepting", "finish"]
    assert stage.ended == [False]
    assert logged[0]["event"] == "supervisor_died"
    assert "control socket" in logged[0]["cause"]


def test_a_shutdown_that_had_begun_goes_on_without_a_look_for_a_successor(stage: Stage) -> None:
    stage.shutdown.begin(cast(SingleProcessService, stage.service))
    stage.status = {"state": "serving", "pid": 9}
    stage.orphan()
    assert stage.asked == 0
    assert stage.service.told == ["begin_shutdown", ("drain", 30.0), "stop_accepting", "finish"]


def test_a_failure_while_it_ends_ends_it_at_once(stage: Stage) -> None:
    stage.orphan()
    with capturedLogs() as logged:
        stage.polls({"state": "serving", "pid": 9})
        stage.service.retired.errback(RuntimeError("a mistake"))
    assert stage.ended == [True]
    assert logged[-1]["event"] == "internal_error"
