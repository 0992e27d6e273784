"""Lists exported services and their problems for the status document: those with most problems first, bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.log_once import LogOnce
from mcproxy.services.api_types import SERVICES, SLICES
from mcproxy.services.exports.export_types import ExportProblem
from mcproxy.services.exports.object_keys import ServiceKey

if TYPE_CHECKING:
    from mcproxy.services.controller.cluster_views import ClusterViews
    from mcproxy.services.controller.writable_cluster import WritableCluster
    from mcproxy.services.exports.desired_state import DesiredState
    from mcproxy.services.exports.export_types import Exports

log = Logger(__name__)

_MOST_FIGURES = 1000
"""Maximum of listed services and of listed problems; the totals count all."""


def figures(
    state: DesiredState,
    exports: Exports | None,
    views: ClusterViews,
    targets: Mapping[str, WritableCluster],
    identity: str,
) -> dict[str, Any]:
    """Return ``exports`` (services), ``exportProblems``, ``exportTargets`` (clusters that are written to)."""
    problems = state.problems()
    troubled: dict[ServiceKey, int] = {}
    for problem in problems:
        troubled[problem.key] = troubled.get(problem.key, 0) + 1
    keys = sorted({*state, *(exports or ())}, key=lambda key: (-troubled.get(key, 0), key))
    return {
        "exports": [_service(key, state, exports, views, troubled.get(key, 0)) for key in keys[:_MOST_FIGURES]],
        "exportsTotal": len(keys),
        "exportProblems": [
            {
                "namespace": each.key.namespace,
                "service": each.key.service,
                "cluster": each.cluster,
                "export": each.export,
                "reason": each.kind.value,
                "message": each.message,
            }
            for each in problems[:_MOST_FIGURES]
        ],
        "exportProblemsTotal": len(problems),
        "exportTargets": [_target(name, target, identity) for name, target in sorted(targets.items())],
    }


def _service(
    key: ServiceKey, state: DesiredState, exports: Exports | None, views: ClusterViews, problems: int
) -> dict[str, Any]:
    part = state.part(key)
    entries = exports.of(key) if exports is not None else ()
    found = {cluster for entry in entries for cluster in entry.from_clusters}
    if exports is not None and exports.discovery.enabled:
        found.update(cluster for cluster in exports.discovery.clusters if views.exports(cluster, key))
    sources = sorted(found)
    slices = [place for place in part.objects if place.resource == SLICES]
    stale = [cluster for cluster in sources if not views.is_followed(cluster, key.namespace)]
    return {
        "namespace": key.namespace,
        "service": key.service,
        "sources": sources,
        "stale": stale,
        "staleSince": {
            cluster: datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for cluster in stale
            if (since := views.away_since(cluster, key.namespace)) is not None
        },
        "staleCauses": {cluster: views.cause(cluster, key.namespace) for cluster in stale},
        "importers": sorted({place.cluster for place in part.objects if place.resource == SERVICES}),
        "slices": len(slices),
        "kept": len(part.kept),
        "problems": problems,
    }


def _target(name: str, target: WritableCluster, identity: str) -> dict[str, Any]:
    elector, writer = target.elector, target.writer
    return {
        "cluster": name,
        "leads": elector.leads,
        "identity": identity,
        "holder": elector.election.holder,
        "transitions": elector.election.transitions,
        "pending": len(writer.queue) + writer.queue.busy,
        "refusedObjects": len(target.foreign) + len(writer.problems),
        "refusals": [
            {"object": f"{place.resource} {place.namespace}/{place.name}", "cause": cause}
            for place, cause in islice(chain(target.foreign.items(), writer.problems.items()), 20)
        ],
        "cause": elector.cause or writer.cause,
    }


# -- the log of problems --------------------------------------------------------------------------------------
#
# One log line for each problem of an exported service, when the problem begins. No I/O.


_MOST_LINES = 30
_LINES_PERIOD = 60.0
"""Seconds in which at most `_MOST_LINES` lines are logged: writers of a source cluster can cause many problems."""


class ProblemLog:
    """Logs the new problems of each service, and remembers them."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logged: dict[ServiceKey, frozenset[tuple[str, str, str]]] = {}
        self._once = LogOnce(_LINES_PERIOD, burst=_MOST_LINES)

    def take(self, key: ServiceKey, problems: Sequence[ExportProblem]) -> None:
        """Set the current problems of a service, and log the new ones."""
        before = self._logged.get(key, frozenset())
        now = frozenset((each.kind, each.cluster, each.export) for each in problems)
        if now:
            self._logged[key] = now
        else:
            self._logged.pop(key, None)
        for each in problems:
            if (each.kind, each.cluster, each.export) not in before:
                self.tell(each)

    def tell(self, problem: ExportProblem) -> None:
        """Log a new problem, within the limit."""
        if self._once.allows(now=self._now()):
            log.warn(
                "a service is not exported as configured",
                event="export_problem",
                service=f"{problem.key.namespace}/{problem.key.service}",
                cluster=problem.cluster,
                export=problem.export,
                reason=problem.kind.value,
                cause=problem.message,
            )
