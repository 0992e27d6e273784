"""The dependencies of the daemon's state machine (`daemon.lifecycle`): the proxy, in this process or in several, and
what else a test can replace.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from twisted.internet.defer import Deferred

from mcproxy.config.model import Config
from mcproxy.daemon.daemon_log import LineObserver
from mcproxy.daemon.systemd import Notifier
from mcproxy.kube.healthz import Check
from mcproxy.net.bind import SystemdSockets
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.metrics import Metrics

if TYPE_CHECKING:
    from mcproxy.config.config_changes import ConfigChange
    from mcproxy.config.loaded import Loaded
    from mcproxy.daemon.upgrade import Takeover


class DaemonService(Protocol):
    """The running proxy: `service.SingleProcessService`, or `processes.supervisor.Supervisor`."""

    @property
    def running(self) -> int:
        """Open requests, watches and tunnels; several processes have reported theirs within the last second."""

    async def count_running(self) -> int:
        """Return the present value of `running`, within a second."""

    async def collect_figures(self) -> dict[str, Any]:
        """Return the present figures of all processes, for JSON (`daemon.status`).

        The key `process` is the resource usage of the only process; of several there is the list `processes`.
        """

    @property
    def metrics(self) -> Metrics:
        """The counts of all processes; those of other processes were reported within the last second."""

    async def collect_metrics(self) -> Metrics:
        """Return the present value of `metrics`, within some seconds."""

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight in all processes (`proxy.admin.request_list.merged`)."""

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of /readyz that not every process can make: those of the caches."""

    async def start(self, config: Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Build everything, bind all listeners, await `ready`, then accept; raises with nothing left open."""

    async def apply(self, config: Config) -> None:
        """Apply a new configuration; raises with nothing changed."""

    def begin_shutdown(self) -> None:
        """Fail readiness, and close kept connections with the next response. Everything is still accepted."""

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs and wait for the open ones, at most `timeout` seconds; then cut them."""

    async def close_listeners(self) -> None:
        """Close the listening sockets, in all processes: the addresses are free for another daemon then."""

    async def finish(self) -> None:
        """End watches cleanly, wait for short requests, both within fixed times, and close everything."""

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of requests that were cut, by kind; only kinds with any."""

    def abort(self) -> None:
        """End everything at once."""

    async def wait_aborted(self) -> None:
        """Wait until `abort` has ended everything, some seconds at most."""

    # -- for `daemon.upgrade` ---------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Save the state of aggregates, within a fixed time."""

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force (`str(bind)`) and their listening descriptors, which this process keeps."""

    def restore_sockets(self) -> None:
        """Undo changes to these sockets by another daemon that shared them and is gone."""

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        """End open requests and close everything, since another daemon serves; tunnels have `timeout` seconds.

        The other daemon accepts from the listening sockets of the addresses `handed_over`.
        """


class LogFiles(Protocol):
    """The log files of the proxy: `observe.request_logs.RequestLogs`, or those of all processes."""

    def reopen(self) -> Deferred[None]:
        """Reopen each by its name (log rotation); the Deferred fires when each was reopened or has failed."""

    def close(self) -> None:
        """Write the queued lines and close the files, at the end of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """The dependencies of a daemon: each can be replaced in a test."""

    reactor: Any
    path: str
    """The configuration file, absolute."""
    load: Callable[[str], Awaitable[Loaded]]
    """Reads and checks a file and the files that it names, without blocking the reactor. Raises ConfigErrors."""
    compare: Callable[[Config, Config], Awaitable[tuple[ConfigChange, ...]]]
    """Returns the changes from the first configuration to the second, without blocking the reactor."""
    dump: Callable[[Config, str], Awaitable[str]]
    """Returns a configuration as text, masked, in a form of `config.dump.FORMS`, without blocking the reactor."""
    notifier: Notifier
    observer: LineObserver
    log_files: LogFiles
    systemd_sockets: SystemdSockets = field(default_factory=lambda: SystemdSockets({}))
    takeover: Takeover | None = None
    """Handed over by the daemon that this one replaces; None: it replaces none."""


class RunningDaemon(Protocol):
    """The daemon (`lifecycle.Daemon`), as code that puts another configuration in force sees it."""

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def serving(self) -> bool: ...

    @property
    def counts(self) -> MetricCounts: ...

    async def apply(self, config: Config) -> None:
        """Put a configuration in force; raises with nothing changed."""

    def notify_ready(self, status: str) -> None:
        """Tell systemd that a reload has ended, if the daemon serves; `status` is "" if all is well."""
