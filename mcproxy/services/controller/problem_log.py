"""One log line for each problem of an exported service when it begins, however often it is worked out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twisted.logger import Logger

from mcproxy.log_once import LogOnce
from mcproxy.services.exports.export_types import Problem
from mcproxy.services.exports.object_keys import ServiceKey

log = Logger(__name__)

_LINES = 30
_SECONDS = 60.0
"""How many lines there are in that time: who writes to a source cluster can cause as many problems as it likes."""


class ProblemLog:
    """What was said, by service."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._said: dict[ServiceKey, frozenset[tuple[str, str, str]]] = {}
        self._once = LogOnce(_SECONDS, burst=_LINES)

    def take(self, key: ServiceKey, problems: Sequence[Problem]) -> None:
        """Take what is wrong with a service now."""
        before = self._said.get(key, frozenset())
        now = frozenset((each.kind, each.cluster, each.export) for each in problems)
        if now:
            self._said[key] = now
        else:
            self._said.pop(key, None)
        for each in problems:
            if (each.kind, each.cluster, each.export) not in before:
                self.tell(each)

    def tell(self, problem: Problem) -> None:
        """Log a problem that is new, unless there were too many."""
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
