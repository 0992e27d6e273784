"""Computes the rates for `mcproxy top` from the difference of two status documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcproxy.observe.ingress_rules import ShownRule, rules_of
from mcproxy.observe.metrics.breakdown import quantile
from mcproxy.observe.tables.tunnels import tunnel_rows

Document = Mapping[str, Any]
Entry = dict[str, Any]


def rates_of(status: Document, before: Document | None, seconds: float) -> Entry:
    """Return the rates between two documents that are `seconds` apart, as a JSON object.

    Without a previous document, or with one of another daemon (after a restart), rates are None: unknown.
    """
    if before is not None and (before["pid"] != status["pid"] or before["startedAt"] != status["startedAt"]):
        before = None
    if seconds <= 0:
        before = None
    of = _Rates(status, before, seconds)
    return {
        "seconds": round(seconds, 3) if before is not None else None,
        "requestsPerSecond": of.total("requests"),
        "errorsPerSecond": of.total("errors"),
        "refusedPerSecond": of.total("refused"),
        "bytesPerSecond": of.total("bytes"),
        "p50Seconds": of.quantile(0.5),
        "p99Seconds": of.quantile(0.99),
        "inFlight": status["open"],
        "servers": of.servers(),
        "clusters": of.clusters(),
        "endpoints": of.endpoints(),
        "tunnels": of.tunnels(),
        "ingresses": of.ingresses(),
        "flowControls": of.flow_controls(),
        "aggregates": of.aggregates(),
        "processes": of.processes(),
        "refusals": of.refusals(),
        "senders": status.get("senders") or {},
    }


class _Rates:
    def __init__(self, status: Document, before: Document | None, seconds: float) -> None:
        self._status = status
        self._before = before
        self._seconds = seconds

    def total(self, key: str) -> float | None:
        return self._rate(self._status["totals"], None if self._before is None else self._before["totals"], key)

    def quantile(self, part: float) -> float | None:
        if self._before is None:
            return None
        totals, earlier = self._status["totals"], self._before["totals"]
        ended = [max(0, new - old) for new, old in zip(totals["durations"], earlier["durations"], strict=True)]
        found = quantile(totals["durationBounds"], ended, part)
        return None if found is None else round(found, 6)

    def servers(self) -> list[Entry]:
        return [
            {"name": each["name"], **self._rates(each, old), **_kept(each, "p99Seconds", "inFlight", "requestsTotal")}
            for each, old in self._pairs("servers")
        ]

    def clusters(self) -> list[Entry]:
        return [
            {
                "name": each["name"],
                **self._rates(each, old),
                **_kept(each, "p99Seconds"),
                "inFlight": sum(endpoint["inFlight"] for endpoint in each["endpoints"]),
                "ready": sum(endpoint["ready"] for endpoint in each["endpoints"]),
                "endpoints": len(each["endpoints"]),
            }
            for each, old in self._pairs("clusters")
        ]

    def endpoints(self) -> list[Entry]:
        found = []
        for cluster, old_cluster in self._pairs("clusters"):
            known = {} if old_cluster is None else {each["url"]: each for each in old_cluster["endpoints"]}
            for each in cluster["endpoints"]:
                old = known.get(each["url"])
                rate = self._rate(each, old, "requestsTotal")
                spent = self._rate(each, old, "requestSeconds")
                found.append(
                    {
                        "cluster": cluster["name"],
                        **_kept(each, "name", "state", "since", "cause"),
                        "requestsPerSecond": rate,
                        **_kept(each, "p99Seconds"),
                        "meanSeconds": spent / rate if rate and spent is not None else None,
                        **_kept(each, "inFlight", "connections"),
                        "checkSeconds": each["latencySeconds"],
                    }
                )
        return found

    def tunnels(self) -> list[Entry]:
        """Return the tunnels that are accepted, and the hubs that are dialled, as they are now."""
        keys = ("name", "by", "peer", "connected", "since", "cause", "rttSeconds", "connections")
        return [_kept(each, *keys) for each in tunnel_rows(self._status)]

    def ingresses(self) -> list[Entry]:
        """Return the rules of ingresses, with a separate entry for each service of a rule."""
        earlier = {} if self._before is None else {_rule_of(each): each for each in rules_of(self._before)}
        found = []
        for each in rules_of(self._status):
            old = earlier.get(_rule_of(each))
            found.append(
                {
                    "ingress": each.ingress,
                    "rule": each.rule,
                    "service": each.service,
                    "endpoints": each.words,
                    "state": "out" if each.empty else "impaired" if each.impaired else "ready",
                    "requestsPerSecond": self._grown(each.requests, None if old is None else old.requests),
                    "errorsPerSecond": self._grown(each.errors, None if old is None else old.errors),
                    "requestsTotal": each.requests,
                }
            )
        return found

    def flow_controls(self) -> list[Entry]:
        return [
            {
                "name": each["name"],
                "use": each["use"],
                "inUse": each["inUse"] + each["inUseLongRunning"],
                "waiting": each["waiting"],
                "refusedPerSecond": self._rate(each, old, "refusedTotal"),
            }
            for each, old in self._pairs("flowControls")
        ]

    def refusals(self) -> list[Entry]:
        """Return the refusals of the last minute by origin, as in the document."""
        found = self._status.get("refusals") or {}
        seconds = found.get("seconds") or 0.0
        return [
            {
                "code": each["code"],
                "by": each["by"],
                "requestsPerSecond": round(each["requests"] / seconds, 4) if seconds else None,
                "requestsTotal": each["requestsTotal"],
            }
            for each in found.get("kinds") or ()
        ]

    def aggregates(self) -> list[Entry]:
        return [
            {
                "name": each["name"],
                "states": dict(each["reflectorCounts"]),
                **_kept(each, "objects", "bytes", "watchers", "queuedBytes"),
            }
            for each in self._status["aggregates"]
        ]

    def processes(self) -> list[Entry]:
        known = {} if self._before is None else {each["pid"]: each for each in self._before["processes"]}
        return [
            {
                **_kept(each, "name", "pid"),
                "cpu": self._rate(each, known.get(each["pid"]), "cpuSeconds"),
                **_kept(each, "residentBytes", "descriptors", "open", "loopLagSeconds", "restarts", "leader"),
                "answered": each.get("answered", True),
            }
            for each in self._status["processes"]
        ]

    def _pairs(self, section: str) -> list[tuple[Document, Document | None]]:
        known = {} if self._before is None else {each["name"]: each for each in self._before[section]}
        return [(each, known.get(each["name"])) for each in self._status[section]]

    def _rates(self, now: Document, before: Document | None) -> Entry:
        kinds = ("requests", "errors", "refused")
        return {f"{kind}PerSecond": self._rate(now, before, f"{kind}Total") for kind in kinds}

    def _rate(self, now: Document, before: Document | None, key: str) -> float | None:
        """Return the increase of a total per second; None if unknown, 0 if the total has fallen."""
        return self._grown(now.get(key), None if before is None else before.get(key))

    def _grown(self, now: float | None, before: float | None) -> float | None:
        if self._before is None or now is None or before is None:
            return None
        return round(max(0.0, (now - before) / self._seconds), 4)


def _kept(entry: Document, *keys: str) -> Entry:
    return {key: entry.get(key) for key in keys}


def _rule_of(each: ShownRule) -> tuple[str, str, str]:
    return each.ingress, each.rule, each.service
