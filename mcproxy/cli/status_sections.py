"""The sections of `mcproxy status`: a status document as tables. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from mcproxy.cli.terminal import Cell, Column, Terminal, duration, number, size
from mcproxy.observe.ingress_rules import rules_of
from mcproxy.observe.problems import BY, EXPIRES_SOON, LATE, NEARLY_FULL

Document = Mapping[str, Any]
Row = Sequence[Cell | str]

_DAY = 86400.0
_SHOWN = 12  # caches of an aggregate that are listed one by one
_LIMIT_WORDS = {
    "max": "max {}",
    "maxLongRunning": "long-running {}",
    "qps": "{:g}/s",
    "burst": "burst {}",
    "queue": "queue {}",
}
_STYLES = {
    "ready": "good",
    "out": "bad",
    "unchecked": "warn",
    "disabled": "dim",
    "synced": "good",
    "syncing": "warn",
    "stale": "bad",
    "unavailable": "bad",
    "True": "good",
    "False": "bad",
    "Unknown": "warn",
}


class Table(NamedTuple):
    """Columns and rows, ready to be laid out."""

    columns: Sequence[Column]
    rows: Sequence[Row]


class Section(NamedTuple):
    """A section: the function that makes its table from the document, the time of day, and `wide`."""

    name: str
    make: Callable[[Document, float, bool], Table]


def lines_of(section: Section, status: Document, now: float, terminal: Terminal, *, wide: bool) -> list[str]:
    """Return the lines of a section, its title first; none if it has nothing to show."""
    table = section.make(status, now, wide)
    if not table.rows:
        return []
    return [terminal.styled(section.name.upper(), "title"), *terminal.table(table.columns, table.rows)]


def seconds_of(text: str) -> float:
    """Return a time of the document in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


# -- the sections ------------------------------------------------------------------------------------------------------


def _listeners(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="NAME", gives_way=True),
        Column(title="ADDRESS", gives_way=True),
        Column(title="SERVES"),
        Column(title="STATE"),
        Column(title="CONNECTIONS", right=True),
        Column(title="LIMIT", right=True),
        Column(title="IN FLIGHT", right=True),
    ]
    if wide:
        columns += [
            Column(title="HTTP/1.1", right=True, wide=True),
            Column(title="HTTP/2", right=True, wide=True),
            Column(title="HANDSHAKES", right=True, wide=True),
            Column(title="FLOODS", right=True, wide=True),
        ]
    rows = []
    for each in status.get("listeners", ()):
        connections, requests = each["connections"], each["requests"]
        state = Cell("accepting", "good") if each["accepting"] else Cell("closing", "warn")
        most = each.get("limits", {}).get("connections") or 0
        total = sum(connections.values())
        row: list[Cell | str] = [each["name"], each["address"] or each["bind"], each["serves"], state]
        row += [_full(str(total), total / most if most else None), str(most or "-"), str(sum(requests.values()))]
        if wide:
            row += [str(connections.get("HTTP/1.1", 0)), str(connections.get("HTTP/2.0", 0)), str(each["handshakes"])]
            row += [str(sum(each["protection"].values()))]
        rows.append(row)
    return Table(columns, rows)


def _servers(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="NAME", gives_way=True),
        Column(title="BACKEND", gives_way=True),
        Column(title="IN FLIGHT", right=True),
        Column(title="REQUESTS", right=True),
        Column(title="ERRORS", right=True),
        Column(title="REFUSED", right=True),
        Column(title="REQ/S", right=True, wide=True),
        Column(title="P99", right=True, wide=True),
        Column(title="SERVER NAMES", gives_way=True, wide=True),
    ]
    if wide:
        columns.append(Column(title="LISTENERS", gives_way=True, wide=True))
    rows = []
    for each in status.get("servers", ()):
        errors = each["errorsTotal"]
        names = [*each["serverNames"], *(["(default)"] if each["default"] else ())]
        row: list[Cell | str] = [each["name"], _backend(each["backend"]), str(each["inFlight"])]
        row += [str(each["requestsTotal"]), Cell(str(errors), "warn" if errors else "")]
        row += [str(each.get("refusedTotal", 0)), number(each.get("requestsPerSecond"))]
        row += [duration(each.get("p99Seconds")), ", ".join(names)]
        rows.append([*row, ", ".join(each["listeners"])] if wide else row)
    return Table(columns, rows)


def _endpoints(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="CLUSTER", gives_way=True),
        Column(title="ENDPOINT", gives_way=True),
        Column(title="STATE"),
        Column(title="FOR", right=True),
        Column(title="IN FLIGHT", right=True),
        Column(title="CONNECTIONS", right=True),
        Column(title="CHECK", right=True),
        Column(title="CAUSE", gives_way=True),
    ]
    if wide:
        columns[6:6] = [Column(title="IDLE", right=True, wide=True), Column(title="WAITING", right=True, wide=True)]
        columns += [
            Column(title="CREDENTIAL", wide=True),
            Column(title="IDENTITY", wide=True),
            Column(title="URL", wide=True),
        ]
    rows = []
    for cluster in status.get("clusters", ()):
        for each in cluster["endpoints"]:
            state = each["state"]
            row: list[Cell | str] = [cluster["name"], short_name(each["name"]), Cell(state, _STYLES[state])]
            row += [
                duration(max(0.0, now - seconds_of(each["since"]))),
                str(each["inFlight"]),
                str(each["connections"]),
            ]
            if wide:
                row += [str(each["idle"]), str(each["waiting"])]
            row += [duration(each["latencySeconds"]), Cell(each["cause"], "bad" if state == "out" else "warn")]
            if wide:
                row += [cluster["credentials"]["kind"], cluster["credentials"]["identity"], each["url"]]
            rows.append(row)
    return Table(columns, rows)


def _aggregates(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="NAME", gives_way=True),
        Column(title="CACHES", right=True),
        Column(title="STATES", gives_way=True),
        Column(title="OBJECTS", right=True),
        Column(title="SIZE", right=True),
        Column(title="WATCHERS", right=True),
        Column(title="QUEUED", right=True),
    ]
    rows = []
    for each in status.get("aggregates", ()):
        counts = each["reflectorCounts"]
        worst = next((state for state in ("unavailable", "stale", "syncing") if counts.get(state)), "synced")
        states = ", ".join(f"{count} {state}" for state, count in counts.items())
        row: list[Cell | str] = [each["name"], str(sum(counts.values())), Cell(states or "-", _STYLES[worst])]
        row += [number(each["objects"]), size(each["bytes"]), str(each["watchers"]), size(each["queuedBytes"])]
        rows.append(row)
    return Table(columns, rows)


def _services(status: Document, now: float, wide: bool) -> Table:
    """The endpoints of ingresses, by cluster; why a backend has none if `wide`."""
    columns = [
        Column(title="CLUSTER", gives_way=True),
        Column(title="BACKENDS", right=True),
        Column(title="READY", right=True),
        Column(title="TERMINATING", right=True),
        Column(title="STALE", right=True),
        Column(title="UNKNOWN", right=True),
        Column(title="PROBLEMS", right=True),
        Column(title="CAUSE", gives_way=True),
    ]
    rows: list[Row] = []
    for each in status.get("serviceEndpoints", ()):
        causes = [one["cause"] for one in each["problemBackends"]] or [""]
        row: list[Cell | str] = [each["cluster"], str(each["backends"]), number(each["ready"])]
        row += [number(each["terminating"]), Cell(str(each["stale"]), "warn" if each["stale"] else "")]
        row += [Cell(str(each["unknown"]), "bad" if each["unknown"] else "")]
        row += [Cell(str(each["problems"]), "warn" if each["problems"] else ""), Cell(causes[0], "warn")]
        rows.append(row)
        rows += [[*[""] * (len(columns) - 1), Cell(cause, "warn")] for cause in causes[1:] if wide]
    return Table(columns, rows)


def _api_services(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="NAME", gives_way=True),
        Column(title="CLUSTER", gives_way=True),
        Column(title="SERVERS", gives_way=True, wide=True),
        Column(title="AVAILABLE"),
        Column(title="FOR", right=True),
        Column(title="REASON"),
        Column(title="CAUSE", gives_way=True),
    ]
    rows = []
    for each in status.get("apiServices", ()):
        state = each["available"]
        style = _STYLES[state]
        row: list[Cell | str] = [each["name"], each["cluster"], ", ".join(each["usedBy"]), Cell(state, style)]
        row += [duration(max(0.0, now - seconds_of(each["since"]))), each["reason"]]
        row += [Cell("" if state == "True" else each["message"], style)]
        rows.append(row)
    return Table(columns, rows)


def _ingresses(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="INGRESS", gives_way=True),
        Column(title="RULE", gives_way=True),
        Column(title="SERVICE", gives_way=True),
        Column(title="READY", gives_way=True),
        Column(title="REQUESTS", right=True),
        Column(title="ERRORS", right=True),
        Column(title="CAUSE", gives_way=True, wide=True, end=True),
    ]
    rows = []
    for each in rules_of(status):
        style = "bad" if each.empty else "warn" if each.impaired else "good"
        row: list[Cell | str] = [each.ingress, each.rule, each.service, Cell(each.words, style)]
        row += [str(each.requests), Cell(str(each.errors), "warn" if each.errors else ""), each.cause]
        rows.append(row)
    return Table(columns, rows)


def _exports(status: Document, now: float, wide: bool) -> Table:
    """All exported services if `wide`; else those that differ from the file, and the others in one line."""
    columns = [
        Column(title="SERVICE", gives_way=True),
        Column(title="FROM", gives_way=True),
        Column(title="IMPORTERS", right=True),
        Column(title="SLICES", right=True),
        Column(title="STATE"),
        Column(title="CAUSE", gives_way=True, end=True),
    ]
    rows: list[Row] = []
    causes: dict[tuple[str, str], str] = {}
    for problem in status.get("exportProblems", ()):
        of = (problem["namespace"], problem["service"])
        causes.setdefault(of, f"{problem['cluster']}: {problem['message']}")
    for each in status.get("exports", ()):
        state, style = ("stale", "warn") if each["stale"] else ("exported", "good")
        if each["problems"]:
            state, style = f"{each['problems']} problems" if each["problems"] > 1 else "problem", "bad"
        cause = causes.get((each["namespace"], each["service"]), "")
        if not cause and each["stale"]:
            why = {name: (each.get("staleCauses") or {}).get(name) or "not followed" for name in each["stale"]}
            since = {
                name: f" for {duration(max(0.0, now - seconds_of(date)))}"
                for name, date in (each.get("staleSince") or {}).items()
            }
            texts = (f"{name}{since.get(name, '')}: {text}" for name, text in why.items())
            cause = f"imports stay as they are; {'; '.join(texts)}"
        row: list[Cell | str] = [f"{each['namespace']}/{each['service']}", ", ".join(each["sources"])]
        row += [str(len(each["importers"])), str(each["slices"]), Cell(state, style), cause]
        rows.append(row)
    return Table(columns, rows)


def _importers(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="CLUSTER", gives_way=True),
        Column(title="WRITTEN BY", gives_way=True),
        Column(title="WAITING", right=True),
        Column(title="REFUSED", right=True),
        Column(title="CAUSE", gives_way=True, end=True),
    ]
    rows = []
    for each in status.get("exportTargets", ()):
        who = Cell("this daemon", "good") if each["leads"] else Cell(each["holder"] or "nobody", "")
        row: list[Cell | str] = [each["cluster"], who, str(each["pending"])]
        row += [Cell(str(each["refusedObjects"]), "warn" if each["refusedObjects"] else "")]
        cause = each["cause"] or next((f"{one['object']}: {one['cause']}" for one in each["refusals"]), "")
        rows.append([*row, cause])
    return Table(columns, rows)


def _caches(status: Document, now: float, wide: bool) -> Table:
    """All caches if `wide`; else those that are not in sync with their member."""
    columns = [
        Column(title="AGGREGATE", gives_way=True, wide=True),
        Column(title="CLUSTER", gives_way=True),
        Column(title="RESOURCE", gives_way=True),
        Column(title="NAMESPACE", gives_way=True, wide=True),
        Column(title="STATE"),
        Column(title="OBJECTS", right=True),
        Column(title="SIZE", right=True),
        Column(title="LAG", right=True),
        Column(title="EVENT", right=True),
        Column(title="CAUSE", gives_way=True),
    ]
    rows: list[Row] = []
    for aggregate in (*status.get("aggregates", ()), *_of_services(status)):
        shown = [each for each in aggregate["reflectors"] if wide or each["state"] != "synced"]
        for each in shown if wide else shown[:_SHOWN]:
            row: list[Cell | str] = [aggregate["name"], each["cluster"], each["resource"], each["namespace"] or "-"]
            row += [Cell(each["state"], _STYLES[each["state"]]), number(each["objects"]), size(each["bytes"])]
            row += [duration(each["lagSeconds"]), duration(each["lastEventSeconds"]), Cell(each["cause"], "bad")]
            rows.append(row)
        if not wide and len(shown) > _SHOWN:
            rows.append([aggregate["name"], f"and {len(shown) - _SHOWN} more", *[""] * (len(columns) - 2)])
    return Table(columns, rows)


def _of_services(status: Document) -> list[Mapping[str, Any]]:
    found = status.get("serviceCaches")
    return [] if not found else [{"name": "(services)", **found}]


def _limits(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="NAME", gives_way=True),
        Column(title="TYPE", wide=True),
        Column(title="LIMIT", gives_way=True),
        Column(title="PER"),
        Column(title="IN USE", right=True),
        Column(title="USE", right=True),
        Column(title="WAITING", right=True),
        Column(title="REFUSED", right=True),
    ]
    rows = []
    for each in status.get("flowControls", ()):
        use, refused = each["use"], each["refusedTotal"]
        in_use = str(each["inUse"])
        if each["inUseLongRunning"]:
            in_use += f" + {each['inUseLongRunning']} long"
        per = each["per"] + (", shared" if each["shared"] else "")
        row: list[Cell | str] = [each["name"], each["schema"], _limit(each["limit"]), per]
        row += ["-" if each["schema"] == "TokenBucket" else in_use, _full("-" if use is None else f"{use:.0%}", use)]
        row += [str(each["waiting"]), Cell(str(refused), "warn" if refused else "")]
        rows.append(row)
    return Table(columns, rows)


def _reviews(status: Document, now: float, wide: bool) -> Table:
    """The clusters that review tokens and access."""
    columns = [
        Column(title="OF"),
        Column(title="NAME", gives_way=True),
        Column(title="WAITING", right=True),
        Column(title="RUNNING", right=True),
        Column(title="CACHED", right=True),
    ]
    rows: list[Row] = []
    for each in status.get("reviews", {}).get("reviewers", ()):
        waiting = each["waiting"]
        row: list[Cell | str] = [each["kind"], each["name"], Cell(str(waiting), "warn" if waiting else "")]
        rows.append([*row, str(each["running"]), number(each["cached"])])
    return Table(columns, rows)


def _refusals(status: Document, now: float, wide: bool) -> Table:
    """Refused requests by code and origin (4xx). Without `wide` only what was refused in the last minute."""
    columns = [
        Column(title="CODE"),
        Column(title="BY", gives_way=True),
        Column(title="LAST MINUTE", right=True),
        Column(title="SHARE", right=True),
        Column(title="SINCE START", right=True),
    ]
    found = status.get("refusals") or {}
    every = found.get("requests") or 0
    rows: list[Row] = [
        [
            each["code"],
            BY.get(each["by"], each["by"]),
            number(each["requests"]),
            f"{each['requests'] / every:.0%}" if every else "-",
            number(each["requestsTotal"]),
        ]
        for each in found.get("kinds") or ()
        if wide or each["requests"]
    ]
    return Table(columns, rows)


def _certificates(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="KIND"),
        Column(title="NAME", gives_way=True),
        Column(title="EXPIRES IN", right=True),
        Column(title="AT"),
        Column(title="SUBJECT", gives_way=True, wide=True),
        Column(title="FILE", gives_way=True, wide=True, end=True),
    ]
    if wide:
        columns.append(Column(title="NAMES IN IT", gives_way=True, wide=True))
    rows = []
    for each in sorted(status.get("certificates", ()), key=lambda one: one["daysLeft"]):
        left = each["daysLeft"]
        style = "bad" if left <= 0 else "warn" if left < EXPIRES_SOON else ""
        text = "expired" if left <= 0 else duration(left * _DAY)
        row: list[Cell | str] = [each["kind"], each["name"], Cell(text, style), each["notAfter"]]
        row += [each["subject"], each["file"]]
        rows.append([*row, ", ".join(each["names"]) or "-"] if wide else row)
    return Table(columns, rows)


def _processes(status: Document, now: float, wide: bool) -> Table:
    columns = [
        Column(title="NAME"),
        Column(title="PID", right=True),
        Column(title="FOR", right=True),
        Column(title="OPEN", right=True),
        Column(title="MEMORY", right=True),
        Column(title="CPU TIME", right=True),
        Column(title="DESCRIPTORS", right=True, wide=True),
        Column(title="LAG", right=True),
        Column(title="RESTARTS", right=True, wide=True),
        Column(title="", wide=True),
    ]
    rows = []
    several = len(status.get("processes", ())) > 1
    for each in status.get("processes", ()):
        lag, restarts, descriptors = each["loopLagSeconds"], each["restarts"], each["descriptors"]
        notes = [*(["leader"] if each["leader"] and several else ())]
        silent = not each.get("answered", True)
        row: list[Cell | str] = [each["name"], str(each["pid"]), duration(each["uptimeSeconds"]), str(each["open"])]
        row += [size(each["residentBytes"]), duration(each["cpuSeconds"])]
        row += [
            "-" if descriptors is None else str(descriptors),
            Cell(duration(lag), "warn" if (lag or 0.0) > LATE else ""),
        ]
        row += [Cell(str(restarts), "warn" if restarts else "")]
        row += [Cell("does not answer", "bad") if silent else ", ".join(notes)]
        rows.append(row)
    return Table(columns, rows)


SECTIONS = tuple(
    Section(name, make)
    for name, make in (
        ("endpoints", _endpoints),
        ("servers", _servers),
        ("listeners", _listeners),
        ("refusals", _refusals),
        ("limits", _limits),
        ("apiservices", _api_services),
        ("ingresses", _ingresses),
        ("exports", _exports),
        ("importers", _importers),
        ("aggregates", _aggregates),
        ("services", _services),
        ("caches", _caches),
        ("reviews", _reviews),
        ("certificates", _certificates),
        ("processes", _processes),
    )
)
"""In the order in which they are printed."""


def short_name(name: str) -> str:
    """Return the name of an endpoint; one without a name has the host of its URL."""
    return name.removeprefix("https://")


def _backend(backend: Mapping[str, Any]) -> str:
    if "cluster" in backend:
        return f"cluster {backend['cluster']}"
    if "aggregate" in backend:
        return f"aggregate {backend['aggregate']}"
    return f"clusters {', '.join(backend['clusters'])}"


def _limit(limit: Mapping[str, Any]) -> str:
    """Return a limit in the form of the file."""
    parts = [form.format(limit[key]) for key, form in _LIMIT_WORDS.items() if limit.get(key) is not None]
    return ", ".join(parts) or "none"


def _full(text: str, part: float | None) -> Cell:
    return Cell(text, "warn" if part is not None and part >= NEARLY_FULL else "")
