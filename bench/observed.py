"""Runs mcproxy for `bench observability`, with what no configuration can say.

usage: observed.py off|series run -c FILE

`off`: requests are not counted. `series`: the daemon begins as if it had served requests that make 10,000 series.
"""

from __future__ import annotations

import sys
from typing import Any

from mcproxy.cli.main import main
from mcproxy.observe.metrics import metrics
from mcproxy.observe.record import AccessRecord
from mcproxy.observe.recorders import Recorder, Recorders

CLUSTERS, RESOURCES, CODES = 10, 125, (200, 201, 404, 409)
VERBS = ("get", "list")
SERIES = CLUSTERS * RESOURCES * len(CODES) * len(VERBS)


def _uncounted(cls: type[Recorders], metrics: Recorder | None, access_log: Recorder | None) -> Recorders:
    return cls(access_log, None)


class _Filled(metrics.Metrics):
    """Metrics of a process that has served many clusters."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for cluster in range(CLUSTERS):
            for resource in range(RESOURCES):
                for verb in VERBS:
                    for code in CODES:
                        self.finished(_record(f"cluster-{cluster}", f"things{resource}.example.com", verb, code))
        self.flush()


def _record(cluster: str, resource: str, verb: str, code: int) -> AccessRecord:
    return AccessRecord(
        time=0.0, client="10.0.0.1", method="GET", uri="/", status=code, server="bench", cluster=cluster, endpoint="a",
        verb=verb, resource=resource, total=0.01, upstream=0.008, bytes_out=1000,
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "off":
        Recorders.of = classmethod(_uncounted)  # type: ignore[method-assign,assignment]
    else:
        import mcproxy.daemon.process_parts as parts

        metrics.Metrics = _Filled  # type: ignore[misc]
        parts.ProcessParts.__dataclass_fields__["metrics"].default_factory = _Filled
        make = parts.ProcessParts.__init__

        def init(self: parts.ProcessParts, **fields: Any) -> None:
            make(self, **{"metrics": _Filled(), **fields})

        parts.ProcessParts.__init__ = init  # type: ignore[method-assign]
    sys.exit(main(sys.argv[2:]))
