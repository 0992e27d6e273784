"""What of the status document needs an operator's attention, worst first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from mcproxy.proxy.admin.page import formats

EXPIRES_SOON = 30
"""Days before the end of a certificate from which on it is a problem."""
_NEARLY = 0.9  # of a limit
_SLOW_LOOP = 0.25  # seconds
_MOST = 50

Status = dict[str, Any]


class Problem(NamedTuple):
    """One line, and where on the page there is more of it."""

    severe: bool
    """Whether clients notice it already."""
    words: str
    section: str


def problems(status: Status) -> list[Problem]:
    """Return the problems, at most some dozens."""
    found = [*_daemon(status), *_listeners(status), *_clusters(status), *_aggregates(status)]
    found += [*_certificates(status), *_flow_controls(status), *_processes(status)]
    found.sort(key=lambda problem: not problem.severe)
    if len(found) > _MOST:
        found[_MOST:] = [Problem(False, f"and {len(found) - _MOST} more", "clusters")]
    return found


def _daemon(status: Status) -> Iterator[Problem]:
    if status.get("state") not in (None, "serving"):
        yield Problem(True, f"mcproxy is {status['state']}", "daemon")
    last = status.get("lastReload")
    if last and not last.get("ok"):
        yield Problem(False, "the last reload was refused: the configuration before it is in force", "reload")
    for process in status.get("missing") or ():
        yield Problem(False, f"process {process} does not answer: its figures are missing here", "processes")


def _listeners(status: Status) -> Iterator[Problem]:
    for listener in status.get("listeners") or ():
        if not listener.get("accepting", True) and status.get("state") == "serving":
            yield Problem(True, f"listener {listener['name']} ({listener.get('bind')}) does not accept", "listeners")


def _clusters(status: Status) -> Iterator[Problem]:
    for cluster in status.get("clusters") or ():
        endpoints = [each for each in cluster.get("endpoints") or () if each.get("state") != "disabled"]
        out = [each for each in endpoints if not each.get("ready")]
        if endpoints and len(out) == len(endpoints):
            cause = next((each["cause"] for each in out if each.get("cause")), "")
            yield Problem(True, f"cluster {cluster['name']}: no endpoint is ready{cause and f' ({cause})'}", "clusters")
        else:
            for each in out:
                cause = each.get("cause") or "not checked yet"
                yield Problem(False, f"cluster {cluster['name']}: endpoint {each['name']} is out ({cause})", "clusters")
        if (cluster.get("credentials") or {}).get("ready") is False:
            yield Problem(True, f"cluster {cluster['name']}: the proxy has no credential for it", "clusters")
        if missing := cluster.get("rightsMissing"):
            yield Problem(False, f"cluster {cluster['name']} does not grant the proxy {missing[0]}", "clusters")


def _aggregates(status: Status) -> Iterator[Problem]:
    for aggregate in status.get("aggregates") or ():
        counts = aggregate.get("reflectorCounts") or {}
        name = aggregate["name"]
        if number := counts.get("unavailable"):
            yield Problem(
                True, f"aggregate {name}: {number} caches have no objects, their cluster is away", "aggregates"
            )
        if number := counts.get("stale"):
            yield Problem(
                False, f"aggregate {name}: {number} caches are served from their last known state", "aggregates"
            )


def _certificates(status: Status) -> Iterator[Problem]:
    for each in status.get("certificates") or ():
        days = each.get("daysLeft")
        if days is None or days >= EXPIRES_SOON:
            continue
        what = f"certificate {each['name']} ({each.get('kind')})"
        if days < 0:
            yield Problem(True, f"{what} has expired, on {formats.instant(each.get('notAfter'))}", "certificates")
        else:
            yield Problem(days < 3, f"{what} expires in {formats.number(days)} days", "certificates")


def _flow_controls(status: Status) -> Iterator[Problem]:
    for each in status.get("flowControls") or ():
        waiting, use = each.get("waiting") or 0, each.get("use")
        if waiting:
            yield Problem(False, f"flow control {each['name']}: {waiting} requests wait", "flow-controls")
        elif use is not None and use >= _NEARLY:
            yield Problem(False, f"flow control {each['name']} is used to {formats.share(use)}", "flow-controls")


def _processes(status: Status) -> Iterator[Problem]:
    for each in status.get("processes") or ():
        if each.get("restarts"):
            yield Problem(False, f"process {each['name']} was replaced {each['restarts']} times", "processes")
        lag = each.get("loopLagSeconds")
        if lag is not None and lag >= _SLOW_LOOP:
            yield Problem(False, f"process {each['name']} stood still for {formats.seconds(lag)}", "processes")
