"""Makes the status document and the metrics of the whole daemon, in the supervisor or in the single process.

This module gets the sums of the figures of all processes, and adds values from the configuration. So processes report
only live state.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.config.model import Config
from mcproxy.daemon.dependencies import DaemonService
from mcproxy.daemon.status import Figures, rfc3339
from mcproxy.daemon.status.certificate_status import Expiry, expiries_of, fingerprint_of, of_certificates
from mcproxy.daemon.status.ingress_status import RuleCounts, counted_of_rules, with_rules
from mcproxy.daemon.status.rates import History, RecentSamples, SampleDifference
from mcproxy.daemon.status.server_status import with_limits, with_names
from mcproxy.daemon.status.tunnel_status import with_conditions
from mcproxy.net.wall_time import wall_clock
from mcproxy.observe.metrics.breakdown import Sums
from mcproxy.observe.metrics.families import ACCESS_LOG_LOST, AUDIT_EVENTS, AUDIT_EVENTS_LOST, FINE_BOUNDS, Family
from mcproxy.observe.senders import shortened

if TYPE_CHECKING:
    from mcproxy.daemon.reload import ReloadResult
    from mcproxy.observe.metrics.metrics import Metrics


SINGLE = "single"
"""The role of the process of a single-process daemon."""


class DaemonStatus:
    """The status of a daemon. `start` is called when the daemon serves."""

    def __init__(
        self, reactor: Any, service: DaemonService, state: Callable[[], dict[str, Any]], config: Callable[[], Config]
    ) -> None:
        """`state` returns the members of the document about the daemon itself, `config` the configuration in force."""
        self._reactor = reactor
        self._service = service
        self._state = state
        self._config = config
        self._document = StatusDocument(wall_clock(reactor))
        self._history = History(reactor, lambda: service.metrics.totals(), FINE_BOUNDS)
        self._recent = RecentSamples(reactor, lambda: service.metrics.totals(), lambda: service.metrics.breakdown())

    def start(self) -> None:
        """Start sampling rates."""
        self._history.start()
        self._recent.start()

    def stop(self) -> None:
        self._history.stop()
        self._recent.stop()

    async def collect(self) -> dict[str, Any]:
        """Return the status document (`daemon.status`)."""
        counting = Deferred.fromCoroutine(self._service.collect_metrics())  # both query all processes, concurrently
        figures = await self._service.collect_figures()
        metrics = await counting
        state, config = self._state(), self._config()  # read after the figures, whose collection updates the counts
        if "processes" not in figures:
            used = figures.pop("process", {})
            figures["processes"] = [only_process(used, state["uptimeSeconds"], state["open"])]
        return {
            **state,
            **self._document.of_configuration(config),
            **self._document.complete(config, figures, Counted.of(metrics, self._recent.now())),
            "totals": {key: value for key, value in metrics.totals().items() if key != "refusals"}
            | {"durationBounds": FINE_BOUNDS},
            "history": self._history.figures(),
        }

    async def metrics_text(self, openmetrics: bool) -> list[bytes]:
        """Return the text of the metrics, in pieces."""
        from mcproxy.observe.metrics.exposition import metrics_text

        metrics = await self._service.collect_metrics()
        return await metrics_text(self._reactor, metrics, await self.collect(), openmetrics=openmetrics)


class StatusDocument:
    """Makes the document. Values computed from a configuration are cached while it is in force."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` returns the time of day, in seconds since 1970."""
        self._wall = wall
        self._started_at = wall()
        self._config: model.Config | None = None
        self._hash = ""
        self._expiries: list[Expiry] = []
        self._valid_until = 0.0  # time at which another certificate of a CA bundle becomes the next to expire

    def of_configuration(self, config: model.Config) -> Figures:
        """Return the keys of the document about the configuration in force and the start of the daemon."""
        self._use(config)
        return {"configHash": self._hash, "startedAt": rfc3339(self._started_at)}

    def complete(self, config: model.Config, figures: Mapping[str, Any], counted: Counted) -> Figures:
        """Return the lists of the document, made from the figures and counts of all processes."""
        self._use(config)
        found = dict(figures)
        return {
            **found,
            "servers": with_names(config.servers, found.get("servers", ()), counted.change),
            "clusters": [_with_totals(cluster, counted) for cluster in found.get("clusters", ())],
            "tunnels": with_conditions(found.get("tunnels", ())),
            "aggregates": found.get("aggregates", []),
            "apiServices": found.get("apiServices", []),
            "ingresses": with_rules(config.ingresses, found.get("ingresses", ()), counted.rules),
            "ingressServices": found.get("ingressServices", []),
            "exports": found.get("exports", []),
            "exportTargets": found.get("exportTargets", []),
            "exportProblems": found.get("exportProblems", []),
            "logs": counted.logs,
            "refusals": counted.change.refusals(),
            "senders": shortened(found.get("senders", {})),
            "flowControls": with_limits(config.flow_controls, found.get("flowControls", ())),
            "certificates": of_certificates(self._expiries, self._wall()),
        }

    def _use(self, config: model.Config) -> None:
        now = self._wall()
        if config is not self._config:
            self._config, self._hash = config, fingerprint_of(config)
        elif now < self._valid_until:
            return
        self._expiries = expiries_of(config, now)
        self._valid_until = min((each.not_after for each in self._expiries if each.not_after > now), default=now + 3600)


def _of_logs(metrics: Metrics) -> Figures:
    def total(family: Family) -> int:
        return sum(int(numbers[0]) for numbers in metrics.counts.of(family).values())

    return {
        "access": {"lost": total(ACCESS_LOG_LOST)},
        "audit": {"written": total(AUDIT_EVENTS), "lost": total(AUDIT_EVENTS_LOST)},
    }


def _with_totals(cluster: Mapping[str, Any], counted: Counted) -> Figures:
    """Return the figures of a cluster, with its counts and those of its endpoints.

    `requestSeconds` is the total duration of the requests of `requestsTotal`.
    """
    name, change = cluster["name"], counted.change
    totals = change.now.clusters.get(name, Sums())
    endpoints = []
    for endpoint in cluster.get("endpoints", ()):
        sums = change.now.endpoints.get((name, endpoint["name"]), Sums())
        endpoints.append(
            {
                **endpoint,
                "requestsTotal": sums.requests,
                "requestSeconds": round(sums.seconds, 6),
                **change.of_endpoint(name, endpoint["name"]),
            }
        )
    return {
        **cluster,
        "requestsTotal": totals.requests,
        "errorsTotal": totals.errors,
        "refusedTotal": totals.refused,
        **change.of_cluster(name),
        "endpoints": endpoints,
    }


def of_reload(result: ReloadResult | None) -> Figures | None:
    """Return the value of the key `lastReload`; None before the first reload."""
    if result is None:
        return None
    return {
        "ok": result.ok,
        "at": rfc3339(result.at),
        "seconds": round(result.seconds, 3),
        "errors": list(result.errors),
        "warnings": list(result.warnings),
        "changes": [str(change) for change in result.changes] if result.ok else [],
    }


def only_process(used: Mapping[str, Any], uptime: float, running: int) -> Figures:
    """Return the entry of the only process of a daemon; `used` is its resource usage."""
    return {
        "name": "mcproxy",
        "pid": os.getpid(),
        "role": SINGLE,
        "leader": True,
        "restarts": 0,
        "uptimeSeconds": uptime,
        "open": running,
        **used,
    }


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts in the document, of all processes since the start."""

    change: SampleDifference
    """Senders since the start, and in the last minute."""
    logs: Figures
    """The lost lines of request logs."""
    rules: RuleCounts
    """The counts of ingresses."""

    @classmethod
    def of(cls, metrics: Metrics, change: SampleDifference) -> Counted:
        """Return the counts of `metrics`."""
        return cls(change, _of_logs(metrics), counted_of_rules(metrics.counts))
