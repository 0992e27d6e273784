"""A child whose supervisor dies at any step of a stop goes on with the steps that are left, each once."""

from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.daemon.processes.orphan import Shutdown
from mcproxy.daemon.service import SingleProcessService
from tests.support.clock import Clock


class RecordingService:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.draining: Deferred[None] = Deferred()

    def begin_shutdown(self) -> None:
        self.calls.append("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        self.calls.append(f"drain {timeout:g}")
        await self.draining

    def stop_accepting(self) -> None:
        self.calls.append("stop_accepting")

    async def finish(self) -> None:
        self.calls.append("finish")


def run(coroutine: Any) -> Deferred[None]:
    return Deferred.fromCoroutine(coroutine)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (0, ["begin_shutdown", "drain 20", "stop_accepting", "finish"]),
        (1, ["drain 20", "stop_accepting", "finish"]),
        (2, ["drain 15", "stop_accepting", "finish"]),
        (3, ["finish"]),
    ],
)
def test_it_goes_on_where_the_supervisor_died(told: int, left: list[str]) -> None:
    clock, recorder = Clock(), RecordingService()
    shutdown, service = Shutdown(clock), cast(SingleProcessService, recorder)
    assert not shutdown.begun
    if told > 0:
        shutdown.begin(service)
        assert shutdown.begun
    if told > 1:
        run(shutdown.drain(service, 20.0))
        clock.advance(5)
    if told > 2:
        recorder.draining.callback(None)
        shutdown.stop_accepting(service)
    recorder.calls.clear()
    completed = run(shutdown.complete(service, 20.0))
    if told < 3:
        assert not shutdown.ends
        recorder.draining.callback(None)
    assert completed.called
    assert shutdown.ends
    assert recorder.calls == left


def test_no_time_is_left_to_drain_once_it_has_passed() -> None:
    clock, recorder = Clock(), RecordingService()
    shutdown, service = Shutdown(clock), cast(SingleProcessService, recorder)
    run(shutdown.drain(service, 20.0))
    clock.advance(60)
    run(shutdown.complete(service, 20.0))
    assert recorder.calls == ["drain 20", "begin_shutdown", "drain 0"]
