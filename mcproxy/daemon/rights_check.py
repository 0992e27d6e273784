"""Checks the proxy's own rights in each cluster, at the start and after each reload, and logs the missing ones.

`mcproxy rbac` prints the same rights for the configuration (`identity.required_rights`). The checks run in the
background, for a few clusters at a time, and never delay a start or a reload. A cluster that cannot answer is checked
again later. A missing right is logged once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.config import model
from mcproxy.daemon.runtime import Runtime
from mcproxy.identity.required_rights import Right, has_own_reviews, required_rights, rights_by_cluster
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.identity.self_access_review import missing_rights
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.health_sharing import HealthExchange

log = Logger(__name__)

_AT_ONCE = 4  # clusters that are checked at the same time
_FIRST_DELAY = 1.0  # seconds after the start or reload, for the first health checks
_RETRY_DELAY = 15.0  # seconds until a cluster without a result is checked again
_MOST_LINES = 10  # limit of log lines about a cluster, one per right; services need some 30 rights
_FRESH = 60.0  # seconds within which a reload does not recheck an unchanged cluster without missing rights

#: A remedy. `mcproxy rbac` omits this right, because every authenticated user has it by default.
_BASIC_USER = "bind the ClusterRole system:basic-user to the proxy's user, as clusters do by default"


@dataclass(slots=True)
class _ClusterRights:
    """The state of the check of one cluster."""

    cluster: Cluster
    rights: tuple[Right, ...]
    in_modes: Callable[[], tuple[Right, ...]]
    """Returns the rights that constrained impersonation (KEP-5284) needs instead of the usual ones."""
    missing: tuple[Right, ...] = ()
    checked_at: float | None = None  # time at which answers for all `rights` were complete
    refused: bool = False  # whether the cluster refused the last review

    def is_fresh(self, now: float) -> bool:
        return self.checked_at is not None and not self.missing and now - self.checked_at < _FRESH


class RightsCheckOfLeader:
    """The checks of a daemon of several processes, which only the leader makes."""

    def __init__(self, reactor: Any, exchange: HealthExchange) -> None:
        self._check = RightsCheck(reactor)
        self._exchange = exchange
        self._runtime: Runtime | None = None
        exchange.on_role(self._role_changed)

    def start(self, runtime: Runtime) -> None:
        """Start the checks as `RightsCheck.start`, at once or when this process becomes the leader."""
        self._runtime = runtime
        self._role_changed()

    def stop(self) -> None:
        """Cancel the checks that run."""
        self._runtime = None
        self._check.stop()

    def missing(self, cluster: str) -> tuple[str, ...] | None:
        """Return the value of `RightsCheck.missing`; None in all processes except the leader."""
        return self._check.missing(cluster) if self._exchange.leads else None

    def _role_changed(self) -> None:
        if self._runtime is not None and self._exchange.leads:
            self._check.start(self._runtime)
        else:
            self._check.stop()


class RightsCheck:
    """The checks of one process."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._clusters: dict[str, _ClusterRights] = {}
        self._running: list[Deferred[None]] = []

    def start(self, runtime: Runtime) -> None:
        """Check all clusters of `runtime`, and cancel checks that still run for an earlier one."""
        self.stop()
        before, self._clusters = self._clusters, dict(_rights_by_cluster(runtime.config, runtime.clusters))
        now = self._reactor.seconds()
        queue = []
        for name, state in self._clusters.items():
            last = before.get(name)
            if last is not None:
                possible = set(state.rights)
                if not possible.issuperset(last.missing):
                    possible.update(state.in_modes())
                state.missing = tuple(right for right in last.missing if right in possible)
                if last.cluster is state.cluster and last.rights == state.rights and last.is_fresh(now):
                    state.checked_at = last.checked_at
                    continue
            queue.append(state)
        clusters = iter(queue)
        for _ in range(min(_AT_ONCE, len(queue))):
            self._run_in_background(self._check_all(clusters))

    def stop(self) -> None:
        """Cancel the checks that run."""
        running, self._running = self._running, []
        for deferred in running:
            deferred.cancel()

    def missing(self, cluster: str) -> tuple[str, ...] | None:
        """Return the texts of the rights that a cluster does not grant; None until it has answered."""
        state = self._clusters.get(cluster)
        if state is None or state.checked_at is None:
            return None
        return tuple(map(describe_right, state.missing))

    def _run_in_background(self, work: Any) -> None:
        deferred = Deferred.fromCoroutine(work)
        self._running.append(deferred)
        run = self._running

        def failed(failure: Failure) -> None:
            # A cancelled request can raise any exception, so only the list shows the cancellation.
            if self._running is run:
                log.failure("checking the proxy's rights failed", event="internal_error", failure=failure)

        deferred.addErrback(failed)

    async def _check_all(self, clusters: Iterator[_ClusterRights]) -> None:
        """Check all clusters, then repeat those without a result until each has one."""
        run = self._running  # `stop` replaces this list
        await deferLater(self._reactor, _FIRST_DELAY)
        while again := [state for state in clusters if self._running is run and not await self._check(state)]:
            # A cancelled request fails as if the cluster were unreachable. The replaced list shows the cancellation.
            if self._running is not run:
                return
            await deferLater(self._reactor, _RETRY_DELAY)
            clusters = iter(again)

    async def _check(self, state: _ClusterRights) -> bool:
        """Query one cluster about all rights; return False to query it again later."""
        name = state.cluster.name
        try:
            missing, modes = await missing_rights(state.cluster, state.rights, state.in_modes, self._reactor)
        except UnavailableError as error:
            if error.kind == "403" and not state.refused:  # a starting API server refuses all requests for a moment
                state.refused = True
                return False
            if error.kind in ("401", "403", "answer"):
                log.warn(
                    "the rights of the proxy in a cluster cannot be checked",
                    event="rights_check_failed",
                    cluster=name,
                    cause=error.cause,
                    todo=_BASIC_USER if error.kind == "403" else error.todo,
                )
                return True
            return False  # the cluster is unreachable; the health checks log this
        option = " --constrained" if modes else ""
        for words, purpose in _lines([right for right in missing if right not in state.missing]):
            log.warn(
                "the proxy lacks a right in a cluster",
                event="right_missing",
                cluster=name,
                right=words,
                purpose=purpose,
                todo=f"grant it what `mcproxy rbac --cluster {name}{option}` prints, then reload",
                log_subject=("right", name, words),
                log_state="missing",
            )
        if state.missing and not missing:
            log.info("the proxy has all rights that it needs in a cluster", event="rights_complete", cluster=name)
        state.missing = missing
        state.checked_at = self._reactor.seconds()
        return True


def _lines(rights: Sequence[Right]) -> Iterator[tuple[str, str]]:
    """Yield the texts of log lines for missing rights, with their purpose.

    There is one line for each right or, if there are many, for each purpose."""
    if len(rights) <= _MOST_LINES:
        yield from ((describe_right(right), right.why) for right in rights)
        return
    purposes: dict[str, list[str]] = {}
    for right in rights:
        purposes.setdefault(right.why, []).append(describe_right(right))
    for purpose, words in purposes.items():
        yield ", ".join(words), purpose


def describe_right(right: Right) -> str:
    """Return a right in terms of RBAC: `impersonate users`, `create tokenreviews.authentication.k8s.io`."""
    if right.path:
        return f"{right.verb} {right.path}"
    resource, slash, subresource = right.resource.partition("/")
    named = f" {right.name}" if right.name else ""
    where = f" in namespace {right.namespace}" if right.namespace else ""
    return f"{right.verb} {resource}{f'.{right.group}' if right.group else ''}{slash}{subresource}{named}{where}"


def _rights_by_cluster(config: model.Config, clusters: Mapping[str, Cluster]) -> Iterator[tuple[str, _ClusterRights]]:
    """Yield the clusters to which the proxy authenticates, with the rights that it needs there.

    An API server that only extends another cluster's API is not checked, because it serves no reviews.
    """
    wanted = rights_by_cluster(config)
    for cluster in config.clusters:
        if not has_own_reviews(config, cluster):
            continue
        if cluster.credentials != model.Credentials() and (rights := wanted[cluster.name]):
            in_modes = partial(required_rights, config, cluster, constrained=True)
            yield cluster.name, _ClusterRights(clusters[cluster.name], rights, in_modes)
