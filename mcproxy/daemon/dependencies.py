"""The dependencies of the daemon's state machine (`daemon.lifecycle`), which tests can replace.

The main dependency is the proxy itself, in one or several processes."""

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
        """Number of open requests, watches and tunnels; the numbers of other processes are at most a second old."""

    async def count_running(self) -> int:
        """Return the current value of `running`. The call takes at most a second."""

    async def collect_figures(self) -> dict[str, Any]:
        """Return the current figures of all processes, for JSON (`daemon.status`).

        The key `process` has the resource usage of a single process, the list `processes` that of several.
        """

    @property
    def metrics(self) -> Metrics:
        """The metrics of all processes; those of other processes are at most a second old."""

    async def collect_metrics(self) -> Metrics:
        """Return the current value of `metrics`. The call takes at most some seconds."""

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight in all processes (`proxy.admin.request_list.merged`)."""

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of /readyz for the caches, which only the process with the caches can make."""

    async def start(self, config: Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Build everything, bind all listeners, await `ready`, then accept. If it raises, nothing remains open."""

    async def apply(self, config: Config) -> None:
        """Apply a new configuration. If it raises, nothing has changed."""

    def begin_shutdown(self) -> None:
        """Fail /readyz, and close keep-alive connections after their next response. All requests are still accepted."""

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs, wait at most `timeout` seconds for open ones, then cut these."""

    async def close_listeners(self) -> None:
        """Close the listening sockets in all processes, so that another daemon can bind the addresses."""

    async def finish(self) -> None:
        """End watches cleanly and wait for short requests, each for a fixed time; then close everything."""

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of cut requests by kind, without zeros."""

    def abort(self) -> None:
        """End everything at once."""

    async def wait_aborted(self) -> None:
        """Wait at most some seconds until `abort` has ended everything."""

    # -- for `daemon.upgrade` ---------------------------------------------------------------------------------------

    async def save(self) -> None:
        """Save the state of aggregates, within a fixed time."""

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force (`str(bind)`) and their listening descriptors, which this process keeps."""

    def restore_sockets(self) -> None:
        """Undo changes of the listening sockets by another daemon that shared them and has ended."""

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        """End open requests and close everything after another daemon has taken over; tunnels have `timeout` seconds.

        The other daemon accepts connections from the listening sockets of the addresses `handed_over`.
        """


class LogFiles(Protocol):
    """The log files of the proxy: `observe.request_logs.RequestLogs`, or the log files of all processes."""

    def reopen(self) -> Deferred[None]:
        """Reopen each file by its name (log rotation). The Deferred fires when all are reopened or have failed."""

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
    """The hand-over from the daemon that this one replaces; None: it replaces no daemon."""


class RunningDaemon(Protocol):
    """The interface of `lifecycle.Daemon` for code that applies another configuration."""

    @property
    def config(self) -> Config:
        """The configuration in force."""

    @property
    def serving(self) -> bool: ...

    @property
    def counts(self) -> MetricCounts: ...

    async def apply(self, config: Config) -> None:
        """Put a configuration in force. If it raises, nothing has changed."""

    def notify_ready(self, status: str) -> None:
        """Notify systemd of the end of a reload, if the daemon serves; `status` is "" after a success."""
