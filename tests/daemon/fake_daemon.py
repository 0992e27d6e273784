"""A daemon with a fake proxy in it, run as a process of its own: `python -m tests.daemon.fake_daemon FILE`.

FILE is JSON: `control_socket`, `drain_timeout`, `shutdown_delay`, `level`, `problems` (the file is wrong),
`apply_error` and `start_error` (it cannot be applied), `start_delay` (seconds), `open` (requests that
never end). What the service is told goes to standard output, a word a line.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.task import deferLater

from mcproxy.config.loaded import Loaded
from mcproxy.config.model import Config, DaemonConfig, Logging
from mcproxy.config.problem import ConfigErrors, Problem
from mcproxy.daemon.errors import DaemonError
from mcproxy.daemon.main import run
from mcproxy.daemon.signals import ignore_until_ready
from mcproxy.kube.healthz import Check
from mcproxy.observe.metrics.metrics import Metrics

SETTINGS: dict[Config, dict[str, Any]] = {}


@dataclass
class FakeService:
    reactor: Any
    parts: Any
    request_logs: Any
    running: int = 0
    calls: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    write: Callable[[str], None] = lambda line: print(line, flush=True)

    async def start(self, config: Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        self._use(config, "start_error")
        await deferLater(self.reactor, SETTINGS[config].get("start_delay", 0.0))
        if ready is not None:
            await ready()
        self.write("started")

    async def apply(self, config: Config) -> None:
        self._use(config, "apply_error")
        self.write("applied")

    def _use(self, config: Config, error: str) -> None:
        settings = SETTINGS[config]
        if settings.get(error):
            raise DaemonError(settings[error], todo="mend it")
        self.running = settings.get("open", 0)

    def begin_shutdown(self) -> None:
        self.write("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        if self.running:
            await deferLater(self.reactor, timeout)
        self.write("drained")

    async def close_listeners(self) -> None:
        self.write("stopped accepting")

    async def finish(self) -> None:
        self.write("finished")

    def abort(self) -> None:
        self.write("aborted")

    async def wait_aborted(self) -> None:
        pass

    async def save(self) -> None:
        self.write("saved")

    @property
    def listening(self) -> list[tuple[str, int]]:
        return []

    def restore_sockets(self) -> None:
        self.write("restored")

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        self.write("retired")

    @property
    def cut(self) -> dict[str, int]:
        return {}

    async def count_running(self) -> int:
        return self.running

    async def collect_requests(self) -> dict[str, Any]:
        return {"total": 0, "requests": [], "missing": []}

    async def collect_checks(self) -> tuple[Check, ...]:
        return ()

    async def collect_figures(self) -> dict[str, Any]:
        return {"listeners": [], "clusters": []}

    async def collect_metrics(self) -> Metrics:
        return self.metrics


def load(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        settings = json.load(file)
    if settings.get("problems"):
        raise ConfigErrors(Problem(None, "a.key", what, "another value") for what in settings["problems"])
    config = Config(
        daemon=DaemonConfig(
            control_socket=settings.get("control_socket"),
            drain_timeout=settings.get("drain_timeout", 30.0),
            shutdown_delay=settings.get("shutdown_delay", 0.0),
        ),
        logging=Logging(level=settings.get("level", "info")),
        files=(path,),
    )
    SETTINGS[config] = settings
    return Loaded(config, tuple(Problem(None, "a.key", warning) for warning in settings.get("warnings", ())))


if __name__ == "__main__":
    ignore_until_ready()
    sys.exit(run(sys.argv[1], load=load, make_service=FakeService))
