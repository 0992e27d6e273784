"""What happens in which order when reloads and stops meet; the outside of the daemon is in test_main."""

import gc
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import Logger, LogLevel, capturedLogs, formatEvent

from mcproxy.config.config_changes import ConfigChange, changes
from mcproxy.config.dump import as_text
from mcproxy.config.loaded import Loaded
from mcproxy.config.model import Aggregate, Config, DaemonConfig, Logging
from mcproxy.config.problem import ConfigErrors, Problem
from mcproxy.daemon import lifecycle
from mcproxy.daemon.control.commands import commands_of
from mcproxy.daemon.daemon_log import LineObserver
from mcproxy.daemon.dependencies import Dependencies
from mcproxy.daemon.lifecycle import State
from mcproxy.daemon.systemd import Notifier
from mcproxy.kube.healthz import Check
from mcproxy.net.tls_contexts import PairError
from mcproxy.observe.metrics.families import RELOADS, REQUESTS
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.request_logs import RequestLogs
from tests.support.clock import Clock


class Reactor(Clock):
    stopped = False

    def stop(self) -> None:
        self.stopped = True


@dataclass
class RecordingService:
    calls: list[str] = field(default_factory=list)
    running: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    starting: Deferred[None] | None = None
    applying: Deferred[None] | None = None
    draining: Deferred[None] = field(default_factory=Deferred)
    finishing: Deferred[None] = field(default_factory=Deferred)

    async def collect_metrics(self) -> Metrics:
        return self.metrics

    async def start(self, config: Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        if self.starting:
            await self.starting
        if ready is not None:
            await ready()
        self.calls.append("started")

    async def apply(self, config: Config) -> None:
        self.calls.append("apply begins")
        if self.applying:
            await self.applying
        self.calls.append("applied")

    def begin_shutdown(self) -> None:
        self.calls.append("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        self.calls.append(f"drain {timeout:g}")
        await self.draining

    async def close_listeners(self) -> None:
        self.calls.append("stop_accepting")

    async def finish(self) -> None:
        self.calls.append("finish")
        await self.finishing

    def abort(self) -> None:
        self.calls.append("abort")

    async def wait_aborted(self) -> None:
        pass

    async def save(self) -> None:
        self.calls.append("save")

    @property
    def listening(self) -> list[tuple[str, int]]:
        return []

    def restore_sockets(self) -> None:
        self.calls.append("restore_sockets")

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        self.calls.append(f"retire {timeout:g}")

    @property
    def cut(self) -> dict[str, int]:
        return {"logs": 2, "tunnels": 1}

    async def count_running(self) -> int:
        return self.running

    async def collect_requests(self) -> dict[str, Any]:
        return {"total": 0, "requests": [], "missing": []}

    async def collect_checks(self) -> tuple[Check, ...]:
        return ()

    async def collect_figures(self) -> dict[str, Any]:
        return {}


CONFIG = Config(daemon=DaemonConfig(shutdown_delay=5.0, drain_timeout=20.0))


class World:
    """A daemon with everything around it under the test's control."""

    def __init__(self, notifier: Notifier | None = None) -> None:
        self.reactor = Reactor()
        self.service = RecordingService()
        self.lines: list[str] = []
        self.next: Callable[[], Awaitable[Any]] = self.same
        self.observer = LineObserver(self.lines.append)
        self.daemon = lifecycle.Daemon(
            self.service,
            Dependencies(
                reactor=self.reactor,
                path="/etc/mcproxy/mcproxy.yaml",
                load=lambda _: self.next(),
                compare=self.compare,
                dump=self.dump,
                notifier=notifier or Notifier(""),
                observer=self.observer,
                log_files=RequestLogs(self.reactor),
            ),
        )

    async def compare(self, old: Config, new: Config) -> tuple[ConfigChange, ...]:
        return changes(old, new)

    async def dump(self, config: Config, form: str) -> str:
        return as_text(config, form)

    async def same(self) -> Loaded:
        return Loaded(CONFIG)

    def start(self) -> None:
        Deferred.fromCoroutine(self.daemon.start(Loaded(CONFIG)))


@pytest.fixture
def world() -> World:
    return World()


def test_stop_waits_for_the_shutdown_delay_then_drains(world: World) -> None:
    world.start()
    world.daemon.stop()
    assert world.service.calls == ["started", "begin_shutdown"]
    world.reactor.advance(4.9)
    assert world.service.calls == ["started", "begin_shutdown"]
    world.reactor.advance(0.1)
    assert world.service.calls[2:] == ["drain 20"]
    assert not world.reactor.stopped
    world.service.draining.callback(None)
    assert world.service.calls[3:] == ["stop_accepting", "finish"]
    assert not world.reactor.stopped
    with capturedLogs() as events:
        world.service.finishing.callback(None)
    world.reactor.advance(0)
    assert bool(world.reactor.stopped)
    assert world.daemon.exit_status == 0
    last = {name: value for name, value in events[-1].items() if not name.startswith("log_")}
    assert formatEvent(events[-1]) == "mcproxy has stopped"
    assert last == {"event": "daemon_stopped", "cut": 3, "cutLogs": 2, "cutTunnels": 1}


def test_the_last_line_comes_after_the_summaries_of_suppressed_ones(world: World) -> None:
    refused = Logger(namespace="mcproxy.proxy", observer=world.observer)
    for _ in range(12):
        refused.info("refused", client="192.0.2.1")
    world.start()
    world.daemon.stop()
    world.reactor.advance(5)
    world.service.draining.callback(None)
    with patch.object(lifecycle.log, "observer", world.observer):
        world.service.finishing.callback(None)
    assert "suppressed=2" in world.lines[-2]
    assert 'msg="mcproxy has stopped"' in world.lines[-1]


def test_stop_while_starting_aborts(world: World) -> None:
    world.service.starting = Deferred()
    world.start()
    world.daemon.stop()
    world.reactor.advance(0)
    assert world.reactor.stopped
    world.service.starting.callback(None)
    assert world.service.calls == ["abort", "started"]
    assert world.daemon.state is State.STOPPED


def test_stop_waits_until_a_change_under_way_is_whole(world: World) -> None:
    world.start()
    world.service.applying = Deferred()
    world.daemon.hangup()
    world.daemon.stop()
    assert world.service.calls == ["started", "apply begins"]
    world.service.applying.callback(None)
    assert world.service.calls == ["started", "apply begins", "applied", "begin_shutdown"]


def test_upgrade_that_waits_for_a_reload_when_the_stop_comes_is_refused_in_one_line(world: World) -> None:
    world.start()
    world.service.applying = Deferred()
    world.daemon.hangup()
    gc.collect()  # what earlier tests have left is not to log here
    with capturedLogs() as events:
        upgrade = Deferred.fromCoroutine(world.daemon.upgrade())
        world.daemon.stop()
        world.service.applying.callback(None)
        gc.collect()
    refused: list[str] = []
    upgrade.addErrback(lambda failure: refused.append(failure.getErrorMessage()))
    assert refused == ["mcproxy is stopping"]
    assert "save" not in world.service.calls
    assert [formatEvent(event) for event in events if event["log_level"].name in ("error", "critical")] == [
        "the program was not replaced; this one continues"
    ]


def test_reload_that_is_still_reading_when_the_stop_comes_changes_nothing(world: World) -> None:
    world.start()
    reading: Deferred[Loaded] = Deferred()

    async def read() -> Loaded:
        return await reading

    world.next = read
    world.daemon.hangup()
    world.daemon.stop()
    world.reactor.advance(5)
    reading.callback(Loaded(CONFIG))
    assert world.service.calls == ["started", "begin_shutdown", "drain 20"]


def test_hangup_while_starting_or_stopping_does_nothing(world: World) -> None:
    world.service.starting = Deferred()
    world.start()
    world.daemon.hangup()
    world.service.starting.callback(None)
    world.daemon.stop()
    world.daemon.hangup()
    assert world.service.calls == ["started", "begin_shutdown"]


def test_second_stop_ends_while_draining(world: World) -> None:
    world.start()
    world.daemon.stop()
    world.reactor.advance(5)
    world.daemon.stop()
    world.reactor.advance(0)
    assert world.service.calls[-1] == "abort"
    assert world.reactor.stopped


def test_bug_in_the_start_is_logged_with_its_traceback_and_ends_with_status_1(world: World) -> None:
    world.service.starting = Deferred()
    world.start()
    world.service.starting.errback(ZeroDivisionError("oh"))
    world.reactor.advance(0)
    assert world.reactor.stopped
    assert world.daemon.exit_status == 1


def test_certificate_that_only_openssl_refuses_is_the_file_s_fault(world: World) -> None:
    world.service.starting = Deferred()
    world.start()
    world.service.starting.errback(PairError("the key is too short"))
    world.reactor.advance(0)
    assert world.daemon.exit_status == 78


def test_drain_that_fails_still_ends_the_daemon(world: World) -> None:
    world.start()
    world.daemon.stop()
    world.reactor.advance(5)
    world.service.draining.errback(ZeroDivisionError())
    world.reactor.advance(0)
    assert world.reactor.stopped
    assert world.daemon.exit_status == 1


def test_level_of_a_reload_that_fails_is_not_taken(world: World) -> None:
    world.start()
    world.service.applying = Deferred()

    async def quiet() -> Loaded:
        return Loaded(Config(logging=Logging(level="error")))

    world.next = quiet
    world.daemon.hangup()
    world.service.applying.errback(OSError(98, "Address already in use"))
    assert world.observer.level == "info"
    world.service.applying = None
    world.daemon.hangup()
    assert world.observer.level == "error"


def test_watchdog_is_fed_while_serving_and_draining_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[float] = []
    notifier = Notifier("/nowhere", watchdog=30.0)
    monkeypatch.setattr(notifier, "_send", lambda **variables: fed.append(1) if "WATCHDOG" in variables else None)
    world = World(notifier)
    world.start()
    for _ in range(4):
        world.reactor.advance(15)
    assert len(fed) == 5
    world.daemon.stop()
    world.reactor.advance(15)
    assert len(fed) == 6
    world.service.draining.callback(None)
    world.service.finishing.callback(None)
    world.reactor.advance(60)
    assert len(fed) == 6


def ask(world: World, command: str, **request: Any) -> Any:
    answers: list[Any] = []

    async def get_answer() -> None:
        answers.append(await commands_of(world.daemon)[command](request))

    Deferred.fromCoroutine(get_answer())
    return answers[0]


def diff(world: World) -> Any:
    return ask(world, "diff")


def test_dump_is_of_what_is_in_force(world: World) -> None:
    assert ask(world, "dump")["errors"] == ["mcproxy is starting; ask again when it serves"]
    world.start()

    async def other() -> Loaded:
        return Loaded(Config(daemon=DaemonConfig(drain_timeout=7.0)))

    world.next = other
    before = ask(world, "dump", format="json")
    assert json.loads(before["configuration"])["daemon"]["drainTimeout"] == "20s"
    world.daemon.reload()
    assert dict(world.service.metrics.counts.of(RELOADS)) == {("accepted",): [1]}
    assert "drainTimeout: 7s" in ask(world, "dump")["configuration"]
    assert ask(world, "dump", format="xml")["errors"] == ["unknown format; known are: yaml, json"]
    refused = ask(world, "dump", file="/etc/other.yaml")
    assert (refused["ok"], refused["file"]) == (False, "/etc/mcproxy/mcproxy.yaml")


def test_reload_and_diff_warn_of_members_that_lose_their_places(world: World) -> None:
    def fleet(*clusters: str) -> Loaded:
        return Loaded(replace(CONFIG, aggregates=(Aggregate(name="fleet", clusters=clusters),)))

    async def two() -> Loaded:
        return fleet("east", "west")

    async def one() -> Loaded:
        return fleet("east")

    world.start()
    world.next = two
    told: list[Any] = []
    world.daemon.reload().addCallback(told.append)
    assert (told[0].ok, told[0].warnings) == (True, ())
    assert ask(world, "layouts")["layouts"] == {"fleet": ["east", "west"]}
    assert not ask(world, "layouts", file="/etc/other.yaml")["ok"]
    world.next = one
    warning = "a reload would take west out of resource versions"
    assert warning in diff(world)["warnings"][0]
    with capturedLogs() as events:
        world.daemon.reload().addCallback(told.append)
    assert told[1].ok
    assert warning in told[1].warnings[0]
    assert [warning in event["cause"] for event in events if event["log_level"] is LogLevel.warn] == [True]
    assert diff(world)["warnings"] == []


def test_a_warning_is_logged_once_however_often_the_file_is_read(world: World) -> None:
    def reload(*warnings: str) -> list[str]:
        """Reload; return what is logged of the warnings of the file."""

        async def load() -> Loaded:
            if not warnings:
                raise ConfigErrors([Problem(None, "", "wrong")])
            return Loaded(CONFIG, tuple(Problem(None, "", warning) for warning in warnings))

        world.next = load
        with capturedLogs() as events:
            world.daemon.reload().addCallback(told.append)
        return [event["cause"] for event in events if event["event"] == "config_warning"]

    told: list[Any] = []
    world.start()
    assert reload("a") == ["a"]
    assert reload("a") == []
    assert reload("a", "b") == ["b"]
    assert reload() == []  # the file is wrong: it says nothing of warnings
    assert reload("a", "b") == []
    assert reload("b") == []
    assert reload("a", "b") == ["a"]
    assert [each.warnings for each in told] == [("a",), ("a",), ("a", "b"), (), ("a", "b"), ("b",), ("a", "b")]


def test_status_has_the_last_reload_with_what_it_changed_or_why_it_was_refused(world: World) -> None:
    async def other() -> Loaded:
        return Loaded(Config(daemon=DaemonConfig(drain_timeout=7.0)))

    async def broken() -> Loaded:
        raise ConfigErrors([Problem(None, "daemon.a", "is wrong", "another value")])

    world.start()
    before = ask(world, "status")
    assert before["lastReload"] is None
    world.next = other
    world.daemon.hangup()
    done = ask(world, "status")
    assert done["lastReload"]["ok"]
    assert any("drainTimeout" in change for change in done["lastReload"]["changes"])
    assert done["configHash"] != before["configHash"]
    world.next = broken
    world.daemon.hangup()
    refused = ask(world, "status")
    assert (refused["lastReload"]["ok"], refused["lastReload"]["changes"]) == (False, [])
    assert "is wrong" in refused["lastReload"]["errors"][0]
    assert refused["configHash"] == done["configHash"]
    named_otherwise = ask(world, "status", file="/etc/other.yaml")
    assert (named_otherwise["ok"], named_otherwise["file"]) == (False, "/etc/mcproxy/mcproxy.yaml")


def test_rates_are_sampled_while_the_daemon_runs_and_no_longer(world: World) -> None:
    world.start()
    world.service.metrics.counts.series(REQUESTS, ("s", "east", "get", "pods", "500"))[0] += 50
    world.reactor.advance(5)
    world.reactor.advance(5)
    status = ask(world, "status")
    assert status["history"]["requestsPerSecond"] == [10.0, 0.0]
    assert status["history"]["errorsPerSecond"] == [10.0, 0.0]
    assert (status["totals"]["requests"], status["totals"]["errors"]) == (50, 50)
    world.daemon.stop()
    world.daemon.stop()  # at once
    world.reactor.advance(20)
    assert world.reactor.stopped
    assert not world.reactor.getDelayedCalls()
