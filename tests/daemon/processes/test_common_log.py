"""Lines that every process comes to are written once, and no news is lost by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from twisted.logger import LogEvent

from mcproxy.daemon.processes import common_log
from mcproxy.daemon.processes.common_log import CommonLog, CommonLogs
from tests.daemon.processes.family import FakeChildren
from tests.support.clock import Clock

Say = Callable[..., bool]


class Bench:
    """Processes a, b and c, and what the supervisor wrote."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.written: list[str] = []
        children = FakeChildren()
        self.logs = CommonLogs(cast(Any, children), cast(Any, self.clock), self.written.append)
        self.channels = {name: children.add(name)[1] for name in "abc"}
        self._ends = {name: CommonLog(cast(Any, channel)) for name, channel in self.channels.items()}

    def says(self, name: str, text: str, subject: tuple[str, ...] | None, state: str = "") -> bool:
        event: LogEvent = {"log_format": text} if subject is None else {"log_subject": subject, "log_format": text}
        if state:
            event["log_state"] = state
        return self._ends[name].divert(event, f"{name}: {text}\n")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(common_log, "isInIOThread", lambda: True)
    return Bench()


def test_a_state_is_told_by_whoever_sees_it_first(bench: Bench) -> None:
    endpoint = ("endpoint", "east", "https://a")
    for name in "abc":
        bench.says(name, "is out", endpoint, "out")
    bench.clock.advance(3600)
    bench.says("c", "is out", endpoint, "out")
    for name in "bca":
        bench.says(name, "takes requests", endpoint, "ready")
    bench.says("c", "is out", endpoint, "out")
    assert bench.written == ["a: is out\n", "b: takes requests\n", "c: is out\n"]


def test_subjects_do_not_hide_each_other(bench: Bench) -> None:
    bench.says("a", "is out", ("endpoint", "east", "https://a"), "out")
    bench.says("b", "is out", ("endpoint", "east", "https://b"), "out")
    bench.says("c", "is out", ("endpoint", "west", "https://a"), "out")
    assert len(bench.written) == 3


def test_without_a_state_others_are_silent_for_a_minute_and_the_first_one_never(bench: Bench) -> None:
    for name in "abca":
        bench.says(name, "cannot read it", ("credential", "east"))
    assert bench.written == ["a: cannot read it\n"] * 2
    bench.clock.advance(60)
    bench.says("b", "cannot read it", ("credential", "east"))
    assert bench.written[2:] == ["b: cannot read it\n"]


def test_a_reload_begins_anew(bench: Bench) -> None:
    bench.says("a", "misses a right", ("right", "east"), "missing")
    bench.logs.reloaded()
    bench.says("b", "misses a right", ("right", "east"), "missing")
    assert len(bench.written) == 2


def test_all_other_lines_are_the_processes_own(bench: Bench) -> None:
    assert not bench.says("a", "a client did something", None)
    assert bench.says("a", "is out", ("endpoint",))
    bench.channels["b"].lose()
    assert not bench.says("b", "is out", ("endpoint",)), "without a supervisor nobody else would write it"


def test_a_line_of_another_thread_is_written_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_log, "isInIOThread", lambda: False)
    assert not bench.says("a", "is out", ("endpoint",))
    assert not bench.written


def test_subjects_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_log, "_MOST_SUBJECTS", 3)
    bench.logs.reloaded()
    for number in range(5):
        bench.says("a", "is out", ("endpoint", str(number)), "out")
    bench.says("b", "is out", ("endpoint", "4"), "out")
    assert len(bench.written) == 5
    bench.says("b", "is out", ("endpoint", "0"), "out")
    assert len(bench.written) == 6, "the oldest one is forgotten"
