"""The supervisor of a daemon of several processes: implements `dependencies.DaemonService` by calls to all children.

The supervisor reads and checks files and opens listening sockets. No client traffic passes through it. It passes every
call on to all children. `processes.config_rollout` applies configurations in two phases, `processes.slots` replaces
ended children.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from twisted.internet.defer import Deferred, TimeoutError, succeed
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.daemon.errors import ProcessLost
from mcproxy.daemon.lazy_parts import SharedLimits
from mcproxy.daemon.processes.admin_relay import AdminRelay
from mcproxy.daemon.processes.children import Child, Children, Role, gather_results
from mcproxy.daemon.processes.common_log import CommonLogs
from mcproxy.daemon.processes.config_rollout import ConfigRollout, Generation
from mcproxy.daemon.processes.health import HealthRelay
from mcproxy.daemon.processes.keeper_links import KeeperLinks, has_aggregates, needs_keeper
from mcproxy.daemon.processes.keeper_reports import AvailabilityRelay, EndpointRelay
from mcproxy.daemon.processes.slots import Slots
from mcproxy.daemon.processes.socket_table import SocketTable
from mcproxy.daemon.processes.tunnels import TunnelRelay
from mcproxy.daemon.status import Figures
from mcproxy.daemon.status.process_status import KEYS, of_process, summed
from mcproxy.daemon.status.server_status import of_shared_limits
from mcproxy.dispatch.tables.shared_memory import SharedMemory
from mcproxy.kube.healthz import Check
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.request_logs import REOPENED_WITHIN
from mcproxy.proxy.admin.admin_interface import AdminSource
from mcproxy.proxy.admin.request_list import merged

log = Logger(__name__)

#: The resource usage of a process that has not reported it.
_UNKNOWN: Mapping[str, None] = dict.fromkeys(KEYS)
FIGURES_TIMEOUT = 2.0
"""Seconds within which a child must report its figures; otherwise status omits it."""
REQUESTS_TIMEOUT = 2.0
"""Seconds within which a worker must report its requests in flight."""
COUNT_TIMEOUT = 0.5
"""Seconds within which a child must report the number of open requests."""
END_TIMEOUT = 3.0
"""Seconds within which a child must end after its requests have ended, or after an abort."""


class Supervisor:
    """The proxy in several processes, which this process starts and drives."""

    def __init__(
        self, reactor: Any, *, sockets: SocketTable, write_line: Callable[[str], None], admin: AdminSource | None = None
    ) -> None:
        """`write_line` writes a line of a child to the log; `admin` is the source of the workers' Admin listeners."""
        self._reactor = reactor
        self._sockets = sockets
        self._drain_timeout = 0.0
        self._cut: Counter[str] = Counter()
        self._aborting: Deferred[None] = succeed(None)
        self._started_at = reactor.seconds()
        self._limits = SharedMemory.create()
        self._secret = os.urandom(32).hex()
        self._shared_limits = SharedLimits(reactor, lambda: self._limits)
        self.children = Children(reactor)
        self._closing = False
        self.children.on_lost(lambda child: self._limits.reclaim(child.column))
        self.children.on_lost(lambda child: self._close_limits())
        self.metrics = Metrics()
        self.children.on("counted", lambda child, message: self.metrics.add(message["changes"]))
        KeeperLinks(self.children)
        if admin is not None:
            AdminRelay(self.children, admin)
        self._slots = Slots(reactor, self.children, start=self._start_child, drain=self._drain_late)
        self._rollout = ConfigRollout(self._slots, sockets)
        self._health = HealthRelay(self.children, reactor)
        TunnelRelay(self.children, reactor)
        self._availability = AvailabilityRelay(self.children)
        self._endpoints = EndpointRelay(self.children, reactor)
        self._common_logs = CommonLogs(self.children, reactor, write_line)
        reactor.addSystemEventTrigger("after", "shutdown", self.children.end_all, END_TIMEOUT)

    # -- called by the lifecycle ------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Number of open requests, watches and tunnels, which the workers reported within the last second."""
        return sum(child.open for child in self.children if child.role is Role.WORKER)

    async def count_running(self) -> int:
        """Return the current number. For a worker that does not answer in time, its last report counts."""
        await gather_results(self.children.ping(child, timeout=COUNT_TIMEOUT) for child in self.children)
        return self.running

    async def collect_figures(self) -> dict[str, Any]:
        """Return the sums over all processes, and the list of processes, for JSON.

        Values of the leader take precedence over those of other processes."""
        leader = self.children.leader
        children = sorted(self.children, key=lambda child: child is not leader)
        asked = [child.channel.ask("figures", timeout=FIGURES_TIMEOUT) for child in children]
        answers: list[Figures] = []
        used: dict[int, Figures] = {}
        for child, answer in zip(children, await gather_results(asked), strict=True):
            if isinstance(answer, dict):
                child.open = answer.pop("open")
                used[child.pid] = answer.pop("process", {})
                if child.role is Role.KEEPER:
                    answer.pop("servers", None)  # the keeper's requests come from workers, which count them
                answers.append(answer)
        return {
            **summed(answers),
            **of_shared_limits(self._shared_limits.figures),
            "processes": process_list(
                self.children,
                self._slots,
                self._reactor.seconds(),
                self._started_at,
                used,
                self.metrics.loop_lag(),
            ),
        }

    async def collect_metrics(self) -> Metrics:
        """Return the metrics of all processes. For a process that does not answer in time, its last report counts."""
        await gather_results(
            child.channel.ask("count", timeout=FIGURES_TIMEOUT) for child in self.children if child.answered
        )
        return self.metrics

    async def collect_requests(self) -> dict[str, Any]:
        """Return the requests in flight of all workers, and the names of workers that do not answer."""
        workers = [child for child in self.children if child.role is Role.WORKER]
        asked = [child.channel.ask("requests", timeout=REQUESTS_TIMEOUT) for child in workers]
        answers = await gather_results(asked)
        missing = [child.name for child, answer in zip(workers, answers, strict=True) if not isinstance(answer, dict)]
        return merged([answer for answer in answers if isinstance(answer, dict)], missing)

    async def collect_checks(self) -> Sequence[Check]:
        """Return the checks of the caches in the keeper, if the configuration needs a keeper."""
        if not needs_keeper(self._rollout.newest):
            return ()
        keepers = self._slots.serving(Role.KEEPER)
        answers = await gather_results(keeper.channel.ask("checks", timeout=REQUESTS_TIMEOUT) for keeper in keepers)
        known = [answer["checks"] for answer in answers if isinstance(answer, dict)]
        if not known:
            cause = "the process with the caches does not answer"
            return [Check("keeper", cause, needed=has_aggregates(self._rollout.newest))]
        return [Check(*fields) for fields in known[-1]]

    async def start(self, config: model.Config, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """Start all processes with `config`, await `ready`, then accept. If it raises, nothing remains open."""
        new = await self._rollout.prepare(config)
        if ready is not None:
            try:
                await ready()
            except BaseException:
                await self._rollout.discard(new)
                raise
        await self._commit(new)

    async def apply(self, config: model.Config) -> None:
        """Apply a new configuration in all processes. If it raises, no process has changed."""
        await self._commit(await self._rollout.prepare(config))

    async def _commit(self, new: Generation) -> None:
        await self._rollout.commit(new)
        self._health.configured(new.config)
        self._availability.configured(new.config)
        self._endpoints.configured(new.config)
        self._shared_limits.configured(new.config)
        self._common_logs.reloaded()

    async def save(self) -> None:
        """Have the keeper save the state of aggregates, for a daemon that takes over."""
        await self._ask_all("save", self._slots.serving(Role.KEEPER))

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force and their listening descriptors, which this process keeps."""
        return self._sockets.all

    def restore_sockets(self) -> None:
        """Undo changes of the sockets by another daemon that shared them and has ended."""
        self._sockets.restore()

    def begin_shutdown(self) -> None:
        """Fail /readyz, and close keep-alive connections after their next response. All requests are still accepted."""
        self._slots.begin_shutdown()
        self.children.tell_all("begin_shutdown")

    async def drain(self, timeout: float) -> None:
        """Refuse new tunnels and followed logs, wait at most `timeout` seconds for open ones, then cut these."""
        self._drain_timeout = timeout
        until = self._reactor.seconds() + timeout
        await self._ask_all("drain", self._slots.serving(), seconds=timeout)
        await self._retired(until)

    async def close_listeners(self) -> None:
        """Close the listening sockets in all processes, so that another daemon can bind the addresses."""
        self._slots.finish()
        self._sockets.close()  # before the workers close theirs: the last one to close accepts queued connections
        await self._ask_all("stop_accepting", self._slots.serving(Role.WORKER))

    async def finish(self) -> None:
        """End watches cleanly and wait for short requests, each for a fixed time; then close everything."""
        self._cut.update(await self._finish(self._slots.serving(Role.WORKER)))
        self._cut.update(await self._finish(self._slots.serving(Role.KEEPER)))  # last, because the workers needed it
        retiring = list(self.children)
        self._cut.update(_cut(await self._ask_all("abort", retiring)))
        await gather_results(self._await_end(child) for child in retiring)
        await self._shared_limits.stop()

    async def retire(self, timeout: float, handed_over: Collection[str]) -> None:
        """End open requests, since another daemon now serves the addresses `handed_over` on the same sockets."""
        workers, keepers = self._slots.serving(Role.WORKER), self._slots.serving(Role.KEEPER)
        until = self._reactor.seconds() + timeout
        self._slots.finish()
        self._sockets.close(handed_over=handed_over)
        await gather_results(self._slots.retire(child, handed_over) for child in workers)
        await self._retired(until)
        await self._finish(keepers)
        await gather_results(self._await_end(child) for child in self.children)
        await self._shared_limits.stop()

    @property
    def cut(self) -> Mapping[str, int]:
        """The number of cut requests in all processes, by kind."""
        return self._cut + self._slots.cut

    def abort(self) -> None:
        """End everything at once. The children have `END_TIMEOUT` seconds, while the reactor stops."""
        self._slots.finish()
        self._aborting = Deferred.fromCoroutine(self._abort(list(self.children)))
        self._shared_limits.abort()
        self._sockets.close()

    async def wait_aborted(self) -> None:
        """Wait until the children have reported the requests that they cut."""
        await self._aborting

    def close(self) -> None:
        """Free the shared memory of limits once all children have ended. Only needed if this process continues."""
        self._closing = True
        self._close_limits()

    def _close_limits(self) -> None:
        if self._closing and not any(self.children):
            self._closing = False
            self._limits.close()

    async def _abort(self, children: Sequence[Child]) -> None:
        answers = await gather_results(child.channel.ask("abort", timeout=END_TIMEOUT) for child in children)
        self._cut.update(_cut(answer for answer in answers if isinstance(answer, dict)))

    async def _start_child(self, child: Child) -> str:
        """Send a new child its properties, and return its version."""
        logging = self._rollout.newest.logging
        fields = {
            "role": child.role,
            "name": child.name,
            "index": child.index,
            "column": child.column,
            "secret": self._secret,
            "level": logging.level,
            "format": logging.format,
        }
        descriptors = self._limits.descriptors
        answer = await self.children.start(child, list(descriptors.values()), descriptors=list(descriptors), **fields)
        return str(answer["version"])

    def _drain_late(self, child: Child) -> None:
        child.channel.tell("begin_shutdown")
        child.channel.tell("drain", seconds=self._drain_timeout)

    # -- the end ----------------------------------------------------------------------------------------------------

    async def _ask_all(self, kind: str, children: Iterable[Child], **fields: Any) -> list[dict[str, Any]]:
        """Send a request to `children` and return the answers. Ended children give no answer; errors are logged."""
        asked = list(children)
        work: list[Coroutine[Deferred[Any], Any, Any]] = [
            child.channel.ask(kind, timeout=None, **fields) for child in asked
        ]
        answers: list[dict[str, Any]] = []
        for child, answer in zip(asked, await gather_results(work), strict=True):
            if isinstance(answer, dict):
                answers.append(answer)
            elif not isinstance(answer, ProcessLost):
                log.error(
                    "a process failed",
                    event="process_command_failed",
                    process=child.name,
                    doing=kind,
                    cause=str(answer),
                    todo="see its log",
                )
        return answers

    async def _finish(self, children: Sequence[Child]) -> Counter[str]:
        """Let children finish; return the number of cut requests by kind."""
        cut = _cut(await self._ask_all("finish", children))
        await gather_results(self._await_end(child) for child in children)
        return cut

    async def _retired(self, until: float) -> None:
        """Wait for the end of retiring children until the time `until`."""
        for child in self.children:
            if child.retiring and (left := until - self._reactor.seconds()) > 0:
                with contextlib.suppress(TimeoutError):
                    await child.when_ended().addTimeout(left, self._reactor)

    async def _await_end(self, child: Child) -> None:
        """Wait until a child has ended, and kill it after `END_TIMEOUT` seconds."""
        try:
            await child.when_ended().addTimeout(END_TIMEOUT, self._reactor)
        except TimeoutError:
            why = {"cause": f"it had {END_TIMEOUT:g} s for it", "todo": "report this bug, unless somebody stopped it"}
            log.error(
                "a process did not end in time and is killed",
                event="process_killed",
                process=child.name,
                pid=child.pid,
                **why,
            )
            child.kill()


def _cut(answers: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Return the number of requests that children cut, by kind."""
    cut = Counter[str]()
    for answer in answers:
        cut.update(answer["cut"])
    return cut


class LogFilesOfChildren:
    """The log files of all processes (`dependencies.LogFiles`)."""

    def __init__(self, children: Children) -> None:
        self._children = children

    def reopen(self) -> Deferred[None]:
        return self._children.ask_all("reopen_logs", timeout=2 * REOPENED_WITHIN)

    def close(self) -> None:
        """Do nothing: each process closes its own log files."""


def process_list(
    children: Children,
    slots: Slots,
    now: float,
    started_at: float,
    used: Mapping[int, Figures],
    loop_lag: float | None = None,
) -> list[Figures]:
    """Return a JSON object for each process, including retiring ones; the first is the supervisor, this process.

    `started_at` is the supervisor's start, by the clock of `now`. `used` is the resource usage by pid of other
    processes that have answered in time (`answered`). `loop_lag` is the supervisor's.
    """
    supervisor = {
        "name": "supervisor",
        "pid": os.getpid(),
        "role": "supervisor",
        "uptimeSeconds": round(now - started_at, 1),
        "restarts": 0,
        "leader": False,
        "open": 0,
        "answered": True,
        **of_process(loop_lag),
    }
    others = [
        {
            "name": child.name,
            "pid": child.pid,
            "role": str(child.role),
            "uptimeSeconds": round(now - child.started_at, 1),
            "restarts": slots.restarts(child),
            "leader": child is children.leader,
            "open": child.open,
            "answered": child.pid in used,
            **_UNKNOWN,
            **used.get(child.pid, {}),
        }
        for child in sorted(children, key=lambda child: (child.role, child.index, child.started_at))
    ]
    return [supervisor, *others]
