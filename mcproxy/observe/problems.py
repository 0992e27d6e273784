"""Finds the problems in a status document, for `mcproxy status`, `mcproxy top` and the status page. Pure.

A missing or null key is no problem, because a process of another version can report less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from mcproxy.kube.numbers import plain_number
from mcproxy.observe.ingress_rules import rules_of
from mcproxy.observe.senders import REFUSED

EXPIRES_SOON = 30
"""Number of days before the expiry of a certificate at which warnings begin, as in `mcproxy check`."""
NEARLY_FULL = 0.9
"""The used fraction of a limit above which there is a warning."""
LATE = 0.5
"""Seconds of an event loop iteration above which there is a warning."""
REFUSED_SHARE = 0.1
"""The fraction of refused requests (401, 403, 429) in the last minute above which there is a warning."""
_FEW = 20  # number of refused requests below which there is no warning
_KINDS = 3  # limit of the named kinds of refusals
_STARTED = 60.0  # seconds after which the current windows exclude a process's start
_RECENT = 3600.0  # seconds for which the end of a process is shown
_RIGHTS = 3  # limit of the named missing rights
_REFUSED = frozenset(map(str, REFUSED))

_TUNNEL = "tunnel:"  # the beginning of the URL of an endpoint behind a tunnel

Status = Mapping[str, Any]


class StatusProblem(NamedTuple):
    """A problem: a line of text, and the link to the details on the status page."""

    broken: bool
    """Whether something fails now; otherwise it is a warning of a future failure or a limitation."""
    severe: bool
    """Whether clients are already affected."""
    words: str
    section: str


def problems(status: Status) -> list[StatusProblem]:
    """Return the problems, first those that affect clients."""
    found = [*_of_daemon(status), *_of_listeners(status), *_of_clusters(status), *_of_aggregates(status)]
    found += [
        *_of_tunnels(status),
        *_of_api_services(status),
        *_of_ingresses(status),
        *_of_services(status),
        *_of_exports(status),
    ]
    found += [*_of_certificates(status), *_of_limits(status), *_of_refusals(status)]
    found += [*_of_logs(status), *_of_processes(status)]
    return sorted(found, key=lambda problem: (not problem.severe, not problem.broken))


def _severe(words: str, section: str) -> StatusProblem:
    return StatusProblem(True, True, words, section)


def _broken(words: str, section: str) -> StatusProblem:
    return StatusProblem(True, False, words, section)


def _warning(words: str, section: str) -> StatusProblem:
    return StatusProblem(False, False, words, section)


def _of_daemon(status: Status) -> Iterator[StatusProblem]:
    state, within = status.get("state"), status.get("stopsWithin")
    if state not in (None, "serving"):
        yield _severe(f"mcproxy is {state}" + (f", for {within:.0f} s at most" if within else ""), "daemon")
    last = status.get("lastReload")
    if last and not last.get("ok"):
        errors = last.get("errors") or ["see the log"]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        yield _broken(
            f"the last reload was refused; the previous configuration stays in force: {errors[0]}{more}", "reload"
        )
    shared = status.get("sharedState")
    if shared and shared.get("away"):
        yield _warning("Redis cannot be reached: each replica has an equal part of the shared limits", "flow-controls")


def _of_listeners(status: Status) -> Iterator[StatusProblem]:
    for each in status.get("listeners") or ():
        name = f"listener {each['name']}"
        if each.get("accepting") is False and status.get("state") == "serving":
            yield _severe(f"{name} ({each.get('bind')}) does not accept", "listeners")
        most = (each.get("limits") or {}).get("connections") or 0
        number = sum(count or 0 for count in (each.get("connections") or {}).values())
        if most and number >= NEARLY_FULL * most:
            yield _warning(f"{name} has {number} of at most {most} connections", "listeners")


def _of_clusters(status: Status) -> Iterator[StatusProblem]:
    for each in status.get("clusters") or ():
        name = f"cluster {each['name']}"
        enabled = [one for one in each.get("endpoints") or () if one.get("state") not in (None, "disabled")]
        out = [one for one in enabled if one["state"] == "out"]
        if out and len(out) == len(enabled):
            cause = next((one["cause"] for one in out if one.get("cause")), "")
            yield _severe(f"{name} has no endpoint that is ready" + (f": {cause}" if cause else ""), "clusters")
        else:
            for one in out:
                yield _broken(f"{name}: endpoint {one['name']} is out: {one.get('cause')}", "clusters")
        if (each.get("credentials") or {}).get("ready") is False:
            yield _severe(f"{name}: the proxy has no credential for it, see the log", "clusters")
        elif (each.get("credentials") or {}).get("refused"):
            yield _severe(f"{name} does not accept the proxy's own credential (401), see the log", "clusters")
        if missing := each.get("rightsMissing"):
            more = f" and {len(missing) - _RIGHTS} more" if len(missing) > _RIGHTS else ""
            yield _warning(f"{name} does not grant the proxy: {', '.join(missing[:_RIGHTS])}{more}", "clusters")


def _of_tunnels(status: Status) -> Iterator[StatusProblem]:
    """Yield a problem for each hub of an edge, and for tunnels of a hub that no endpoint's problem names."""
    shown = {
        str(one.get("url")).removeprefix(_TUNNEL).partition("/")[0]
        for each in status.get("clusters") or ()
        for one in each.get("endpoints") or ()
        if one.get("state") == "out" and str(one.get("url")).startswith(_TUNNEL)
    }
    for each in status.get("tunnels") or ():
        name = f"tunnel {each['name']}"
        if each.get("role") == "hub":
            if each.get("connected") is False and each["name"] not in shown:
                yield _warning(f"{name} is not connected: {each.get('cause')}", "tunnels")  # no endpoint is out
            continue
        hubs = each.get("hubs") or ()
        away = [hub for hub in hubs if hub.get("connected") is False]
        of = f"{name} of listener {each.get('listener')}"
        if away and len(away) == len(hubs):
            yield _severe(f"{of}: no hub is connected; {away[0].get('url')}: {away[0].get('cause')}", "tunnels")
        else:
            for hub in away:
                yield _broken(f"{of}: hub {hub.get('url')} is not connected: {hub.get('cause')}", "tunnels")


def _of_aggregates(status: Status) -> Iterator[StatusProblem]:
    for each in status.get("aggregates") or ():
        counts = each.get("reflectorCounts") or {}
        for state, problem, meaning in (
            ("unavailable", _severe, "have no objects: they were never listed"),
            ("stale", _broken, "are served from their last known state"),
        ):
            number = counts.get(state)
            if not number:
                continue
            of = next((one for one in each.get("reflectors") or () if one.get("state") == state), None)
            where = "" if of is None else f"; {of.get('resource')} of {of.get('cluster')}: {of.get('cause')}"
            total = sum(count or 0 for count in counts.values())
            yield problem(f"aggregate {each['name']}: {number} of {total} caches {meaning}{where}", "aggregates")
        if left_out := each.get("leftOut"):
            first = left_out[0]
            what = f"{first.get('resource')} of {first.get('cluster')} is left out: {first.get('cause')}"
            more = f" (and {len(left_out) - 1} more)" if len(left_out) > 1 else ""
            yield _warning(f"aggregate {each['name']}: {what}{more}", "aggregates")


def _of_api_services(status: Status) -> Iterator[StatusProblem]:
    """Yield a problem for each API service, but only one for all of a cluster without an endpoint, the common cause."""
    services = status.get("apiServices") or ()
    together: dict[str, list[str]] = {}
    for each in services:
        if each.get("available") == "False" and each.get("reason") == "MissingEndpoints":
            together.setdefault(each.get("cluster"), []).append(each["name"])
    for each in services:
        names = together.get(each.get("cluster"), [])
        if len(names) > 1 and each["name"] in names:
            if each["name"] == names[0]:
                what = f"{len(names)} API services ({names[0]} and others) of cluster {each.get('cluster')}"
                what += f" are unavailable, their requests get 503: {each.get('message')}"
                yield _severe(what, "api-services")
            continue
        name = f"API service {each['name']} ({each.get('cluster')})"
        if each.get("available") == "False":
            yield _severe(f"{name} is unavailable, its requests get 503: {each.get('message')}", "api-services")


def _of_ingresses(status: Status) -> Iterator[StatusProblem]:
    """Yield a problem for each service without a ready endpoint, once for all its rules."""
    seen: set[str] = set()
    for each in rules_of(status):
        if each.service in seen:
            continue
        seen.add(each.service)
        if each.empty:
            why = f": {each.cause}" if each.cause else f" ({each.words})"
            yield _severe(f"service {each.service} of ingress {each.ingress} has no ready endpoint{why}", "ingresses")
        elif any(cluster.out for cluster in each.clusters):
            yield _warning(f"service {each.service} of ingress {each.ingress}: {each.words}", "ingresses")


def _of_services(status: Status) -> Iterator[StatusProblem]:
    for each in status.get("serviceEndpoints") or ():
        if stale := each.get("stale"):
            which = f"{stale} of {each.get('backends')} backends in cluster {each.get('cluster')}"
            yield _broken(f"ingresses: {which} are served by their last known endpoints", "services")


_MOST_EXPORTS = 5  # limit of the exported services with a separate line


def _of_exports(status: Status) -> Iterator[StatusProblem]:
    """Yield a problem for each cluster that is not writable or refuses objects, and for the first services."""
    for each in status.get("exportTargets") or ():
        name = each.get("cluster")
        if each.get("cause"):
            yield _broken(f"exported services are not written to cluster {name}: {each['cause']}", "importers")
        elif each.get("refusedObjects"):
            first: Status = next(iter(each.get("refusals") or ()), {})
            count = each["refusedObjects"]
            what = f"{count} object{'' if count == 1 else 's'} of exported services cannot be written to cluster {name}"
            yield _broken(f"{what}; {first.get('object')}: {first.get('cause')}", "importers")
    for each in status.get("clusterIds") or ():
        if each.get("problem"):
            yield _warning(
                f"cluster {each.get('cluster')} does not have the id that it claims: {each['problem']}", "importers"
            )
    wrong = status.get("exportProblems") or ()
    for each in wrong[:_MOST_EXPORTS]:
        what = f"service {each.get('namespace')}/{each.get('service')} of cluster {each.get('cluster')}"
        yield _warning(f"{what} is not exported as configured: {each.get('message')}", "exports")
    if len(wrong) > _MOST_EXPORTS:
        yield _warning(f"{len(wrong) - _MOST_EXPORTS} more problems of exported services", "exports")
    stale: dict[str, str] = {}
    for each in status.get("exports") or ():
        for name in each.get("stale") or ():
            stale[name] = (each.get("staleCauses") or {}).get(name) or stale.get(name, "")
    for name, cause in sorted(stale.items()):
        what = f"cluster {name} is not watched, so services that others import from it stay as they are"
        yield _warning(f"{what}{cause and ': '}{cause}", "exports")


def _of_certificates(status: Status) -> Iterator[StatusProblem]:
    """Yield a problem for each file, once for all its uses, and for each entry with unusable files."""
    for each in status.get("certificateFiles") or ():
        what = (
            f"the certificate files of {each.get('entry')} cannot be used; the former ones stay in use until a restart"
        )
        yield _broken(f"{what}: {each.get('cause')}", "certificates")
    files: dict[tuple[Any, Any], list[Status]] = {}
    for each in status.get("certificates") or ():
        if each.get("daysLeft") is not None and each["daysLeft"] < EXPIRES_SOON:
            files.setdefault((each.get("file"), each.get("subject")), []).append(each)
    for (file, _), uses in files.items():
        days, end = uses[0]["daysLeft"], uses[0].get("notAfter")
        what = f"the certificate in {file} ({', '.join(dict.fromkeys(_use(one) for one in uses))})"
        if days <= 0:
            yield _severe(f"{what} has expired, on {end}", "certificates")
        else:
            yield _warning(f"{what} expires {_in_days(int(days))}, on {end}", "certificates")


def _in_days(days: int) -> str:
    return "within a day" if days == 0 else "in 1 day" if days == 1 else f"in {days} days"


def _use(certificate: Status) -> str:
    return f"{certificate.get('kind')} {certificate['name']}"


def _of_limits(status: Status) -> Iterator[StatusProblem]:
    for each in status.get("flowControls") or ():
        use, waiting, limit = each.get("use"), each.get("waiting") or 0, each.get("limit") or {}
        refuses_all = any(limit.get(key) == 0 for key in ("max", "burst"))  # configured on purpose
        name = f"flow control {each['name']}"
        full = use is not None and use >= NEARLY_FULL and not refuses_all
        if full:
            yield _warning(
                f"{name} is at {use:.0%} of its limit" + (f", {waiting} requests wait" if waiting else ""),
                "flow-controls",
            )
        elif waiting:
            yield _warning(f"{name}: {waiting} requests wait", "flow-controls")


BY = {
    "authentication": "the authenticators",
    "dispatch": "dispatch, since no policy matches",
    "policy": "a rule of a dispatch policy",
    "impersonation": "the check of impersonation",
    "authorizer": "the server's authorizer",
    "flow_control": "a flow control",
    "cluster": "the cluster",
    "proxy": "the proxy, for another reason",
}
"""The text for the refusing part, by the label `by` of `mcproxy_requests_refused_total`."""


def _of_refusals(status: Status) -> Iterator[StatusProblem]:
    found = status.get("refusals") or {}
    requests, refused = found.get("requests") or 0, found.get("refused") or 0
    if refused < _FEW or refused < REFUSED_SHARE * requests:
        return
    kinds = [each for each in found.get("kinds") or () if each.get("code") in _REFUSED and each.get("requests")]
    words = ", ".join(
        f"{each['requests']} with {each['code']} by {BY.get(str(each.get('by')), each.get('by'))}"
        for each in kinds[:_KINDS]
    )
    yield _warning(
        f"{refused / max(1, requests):.0%} of the requests of the last minute were refused: {words}", "refusals"
    )


def _of_logs(status: Status) -> Iterator[StatusProblem]:
    logs = status.get("logs") or {}
    if lost := (logs.get("audit") or {}).get("lost"):
        yield _warning(f"{lost} events of the audit log were lost since the start, see the log", "daemon")
    if lost := (logs.get("access") or {}).get("lost"):
        yield _warning(f"{lost} lines of the access log were lost since the start, see the log", "daemon")


def _of_processes(status: Status) -> Iterator[StatusProblem]:
    for each in status.get("processes") or ():
        name = f"process {each['name']}"
        if each.get("answered") is False:
            yield _severe(f"{name} (pid {each.get('pid')}) does not answer, its figures are missing", "processes")
        up = each.get("uptimeSeconds") or 0.0
        if each.get("restarts") and up < _RECENT:
            times = "" if each["restarts"] == 1 else f", {each['restarts']} times since the start"
            yield _warning(f"{name} was replaced {up / 60:.0f} minutes ago{times}, see the log", "processes")
        lag = each.get("loopLagSeconds")
        if lag is not None and lag >= LATE and up > _STARTED:
            words = (
                f"{name} stood still for {plain_number(lag, 2)} s in the last minute: it has too little processor time"
            )
            yield _warning(words, "processes")
