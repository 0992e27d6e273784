"""What of a status document needs somebody's attention: what is broken now, and what will be soon. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mcproxy.cli.terminal import duration

EXPIRES_SOON = 30.0
"""Days before the end of a certificate from which on it is a warning, as `mcproxy check` has it."""
NEARLY_FULL = 0.9
"""The part of a limit that is in use from which on it is a warning."""
LATE = 0.25
"""Seconds that an event loop may be late."""
_DAY = 86400.0

Document = Mapping[str, Any]


class Problem(NamedTuple):
    """One line. `broken`: it fails now; else it is a warning."""

    broken: bool
    text: str


def problems_of(status: Document) -> list[Problem]:
    """Return what is wrong, what is broken first."""
    found = [
        *_of_state(status),
        *_of_reload(status.get("lastReload")),
        *_of_clusters(status),
        *_of_aggregates(status),
        *_of_certificates(status),
        *_of_limits(status),
        *_of_processes(status),
    ]
    return sorted(found, key=lambda problem: not problem.broken)


def _of_state(status: Document) -> Iterator[Problem]:
    state = status.get("state")
    if state == "stopping":
        within = status.get("stopsWithin")
        yield Problem(True, "it is stopping" + ("" if within is None else f", within {duration(within)}"))
    elif state != "serving":
        yield Problem(True, f"it is {state}")
    for listener in status.get("listeners", ()):
        most = listener.get("limits", {}).get("connections") or 0
        number = sum(listener["connections"].values())
        if most and number >= NEARLY_FULL * most:
            yield Problem(False, f"listener {listener['name']} has {number} of at most {most} connections")


def _of_reload(reload: Mapping[str, Any] | None) -> Iterator[Problem]:
    if reload is not None and not reload["ok"]:
        errors = reload["errors"]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        yield Problem(True, f"the last reload was refused: {errors[0] if errors else 'see the log'}{more}")


def _of_clusters(status: Document) -> Iterator[Problem]:
    for cluster in status.get("clusters", ()):
        enabled = [each for each in cluster["endpoints"] if each["state"] != "disabled"]
        out = [each for each in enabled if each["state"] == "out"]
        if out and len(out) == len(enabled):
            yield Problem(True, f"cluster {cluster['name']} has no endpoint that is ready: {out[0]['cause']}")
        else:
            for each in out:
                yield Problem(True, f"endpoint {each['name']} of cluster {cluster['name']} is out: {each['cause']}")
        if not cluster["credentials"]["ready"]:
            yield Problem(True, f"the proxy has no credential for cluster {cluster['name']}; see the log")
        if missing := cluster["rightsMissing"]:
            what = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
            yield Problem(False, f"cluster {cluster['name']} does not grant the proxy: {what}")


def _of_aggregates(status: Document) -> Iterator[Problem]:
    for aggregate in status.get("aggregates", ()):
        counts = aggregate["reflectorCounts"]
        for state, meaning in (("unavailable", "never listed"), ("stale", "served as last seen")):
            if counts.get(state):
                of = next((each for each in aggregate["reflectors"] if each["state"] == state), None)
                where = "" if of is None else f"; {of['resource']} of {of['cluster']}: {of['cause']}"
                total = sum(counts.values())
                text = f"{counts[state]} of {total} caches of aggregate {aggregate['name']} are {state} ({meaning})"
                yield Problem(True, text + where)


def _of_certificates(status: Document) -> Iterator[Problem]:
    uses: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for each in status.get("certificates", ()):
        uses.setdefault((each["file"], each["subject"]), []).append(each)
    for found in uses.values():
        each, left = found[0], found[0]["daysLeft"]
        names = ", ".join(dict.fromkeys(f"{one['kind']} {one['name']}" for one in found))
        if left <= 0:
            ago = duration(-left * _DAY)
            yield Problem(True, f"the certificate in {each['file']} ({names}) expired {ago} ago, at {each['notAfter']}")
        elif left < EXPIRES_SOON:
            yield Problem(False, f"the certificate in {each['file']} ({names}) expires in {duration(left * _DAY)}")


def _of_limits(status: Document) -> Iterator[Problem]:
    for each in status.get("flowControls", ()):
        use, limit = each["use"], each["limit"]
        blocked = any(limit.get(key) == 0 for key in ("max", "burst"))  # on purpose: it refuses all
        if use is not None and use >= NEARLY_FULL and not blocked:
            waiting = f", {each['waiting']} wait" if each["waiting"] else ""
            yield Problem(False, f"flow control {each['name']} is at {use:.0%} of its limit{waiting}")
    shared = status.get("sharedState")
    if shared is not None and shared.get("away"):
        yield Problem(False, "the shared state (Redis) cannot be reached: each replica has an equal part of the limits")


def _of_processes(status: Document) -> Iterator[Problem]:
    for process in status.get("processes", ()):
        if not process.get("answered", True):
            yield Problem(True, f"process {process['name']} (pid {process['pid']}) does not answer")
        elif (process.get("loopLagSeconds") or 0.0) > LATE:
            late = duration(process["loopLagSeconds"])
            yield Problem(False, f"process {process['name']} was late by {late}: it has too little processor time")
