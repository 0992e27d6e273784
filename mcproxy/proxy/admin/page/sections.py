"""The sections of the page, each from its part of the status document. Pure.

A key that is missing or null is shown as a dash: a process of another version, or one that has just started, may not
know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mcproxy.observe.problems import EXPIRES_SOON
from mcproxy.proxy.admin.page import formats
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, join, tag
from mcproxy.proxy.admin.page.tables import BAD, GOOD, PLAIN, WARN, Column, mark, shortened, table

Status = dict[str, Any]

_MOST = 200
"""Rows of a table: one is made in some milliseconds of the reactor's time. All of it is in the status as JSON."""
_OPEN_UP_TO = 25
"""Endpoints that are shown at once; of more only those that are out, and the others folded."""
_ENDPOINT_STATES = {"ready": GOOD, "unchecked": PLAIN, "out": BAD, "disabled": PLAIN}
_REFLECTOR_STATES = {"synced": GOOD, "syncing": PLAIN, "stale": WARN, "unavailable": BAD}


def sections(status: Status) -> Iterator[Markup]:
    """Yield all sections, in the order of the page, but those of things that the configuration has none of."""
    built: list[tuple[str, str, Callable[[Status], Markup], bool]] = [
        ("clusters", "Clusters", _clusters, bool(status.get("clusters"))),
        ("endpoints", "Endpoints", _endpoints, any(each.get("endpoints") for each in status.get("clusters") or ())),
        ("servers", "Servers", _servers, bool(status.get("servers"))),
        ("aggregates", "Aggregates", _aggregates, bool(status.get("aggregates"))),
        ("flow-controls", "Flow controls", _flow_controls, bool(status.get("flowControls"))),
        ("listeners", "Listeners", _listeners, bool(status.get("listeners"))),
        ("certificates", "Certificates", _certificates, bool(status.get("certificates"))),
        ("processes", "Processes", _processes, bool(status.get("processes"))),
        ("reviews", "Reviews and caches", _reviews, bool(status.get("reviews") or status.get("caches"))),
        ("reload", "Last reload", _reload, True),
    ]
    return (_section(key, title, build(status)) for key, title, build, shown in built if shown)


def _section(key: str, title: str, content: Markup) -> Markup:
    return tag("section", tag("h2", title, id=f"{key}-title"), content, id=key, aria_labelledby=f"{key}-title")


def _list(names: Iterable[str] | None) -> str:
    return ", ".join(names or ()) or formats.UNKNOWN


def _when(instant: str | None) -> Content:
    return tag("time", formats.instant(instant), datetime=instant) if instant else formats.UNKNOWN


def _sum(numbers: dict[str, int | None] | None) -> int:
    return sum(number or 0 for number in (numbers or {}).values())


def _clusters(status: Status) -> Markup:
    columns = (
        Column("Cluster"),
        Column("Endpoints"),
        Column("Credential"),
        Column("In flight", True),
        Column("Requests", True),
        Column("Errors (5xx)", True),
        Column("Connections", True),
        Column("Missing rights"),
    )
    rows = [
        (
            cluster["name"],
            _ready(cluster.get("endpoints") or ()),
            _credential(cluster.get("credentials") or {}),
            formats.count(_sum(cluster.get("requests"))),
            formats.count(cluster.get("requestsTotal")),
            formats.count(cluster.get("errorsTotal")),
            formats.count(_sum(cluster.get("connections"))),
            _rights(cluster.get("rightsMissing")),
        )
        for cluster in status["clusters"]
    ]
    return shortened(rows, _MOST, "clusters", "Clusters", columns)


def _ready(endpoints: Sequence[Status]) -> Markup:
    ready = sum(bool(each.get("ready")) for each in endpoints)
    disabled = sum(each.get("state") == "disabled" for each in endpoints)
    words = f"{ready} of {len(endpoints) - disabled} ready" + (f", {disabled} disabled" if disabled else "")
    if not endpoints:
        return mark(PLAIN, "none")
    return mark(GOOD if ready == len(endpoints) - disabled else WARN if ready else BAD, words)


def _credential(credentials: Status) -> Content:
    kind = credentials.get("kind")
    words = f"{kind}, {credentials.get('identity')}" if kind else formats.UNKNOWN
    return mark(BAD, f"{words}: not there") if credentials.get("ready") is False else words


def _rights(missing: Sequence[str] | None) -> Content:
    if missing is None:
        return formats.UNKNOWN
    return mark(WARN, "; ".join(missing)) if missing else "none"


def _endpoints(status: Status) -> Markup:
    every = [(cluster["name"], each) for cluster in status["clusters"] for each in cluster.get("endpoints") or ()]
    every.sort(key=lambda entry: bool(entry[1].get("ready")))
    columns = (
        Column("Endpoint"),
        Column("Cluster"),
        Column("State"),
        Column("Since"),
        Column("In flight", True),
        Column("Connections", True),
        Column("Check", True),
        Column("Cause"),
    )
    rows = [_endpoint(cluster, each) for cluster, each in every]
    if len(rows) <= _OPEN_UP_TO:
        return table("Endpoints", columns, rows)
    away = sum(not each.get("ready") for _, each in every)
    head = table("Endpoints that are not ready", columns, rows[: min(away, _MOST)]) if away else EMPTY
    rest = rows[min(away, _MOST) :]
    folded = tag(
        "details",
        tag("summary", f"{len(rest)} other endpoints", id="endpoints-others-summary"),
        shortened(rest, _MOST, "endpoints", "Other endpoints", columns),
        id="endpoints-others",
    )
    return join(head, folded)


def _endpoint(cluster: str, each: Status) -> Sequence[Content]:
    state = str(each.get("state") or "unchecked")
    name, url = each.get("name"), each.get("url")
    return (
        name if name == url else join(name, " ", tag("small", url)),
        cluster,
        mark(_ENDPOINT_STATES.get(state, PLAIN), state),
        _when(each.get("since")),
        formats.count(each.get("inFlight")),
        formats.count(each.get("connections")),
        formats.seconds(each.get("latencySeconds")),
        each.get("cause") or "",
    )


def _servers(status: Status) -> Markup:
    columns = (
        Column("Server"),
        Column("Names"),
        Column("Listeners"),
        Column("Backend"),
        Column("In flight", True),
        Column("Requests", True),
        Column("Errors (5xx)", True),
    )
    rows = [
        (
            each["name"],
            _list(each.get("serverNames") or (["default"] if each.get("default") else None)),
            _list(each.get("listeners")),
            _backend(each.get("backend")),
            formats.count(each.get("inFlight")),
            formats.count(each.get("requestsTotal")),
            formats.count(each.get("errorsTotal")),
        )
        for each in status["servers"]
    ]
    return shortened(rows, _MOST, "servers", "Servers", columns)


def _backend(backend: Content) -> str:
    if not isinstance(backend, dict):
        return formats.UNKNOWN if backend is None else str(backend)
    kind, value = next(iter(backend.items()), ("", ""))
    return f"{kind} {_list(value) if isinstance(value, list) else value}"


def _aggregates(status: Status) -> Markup:
    columns = (
        Column("Aggregate"),
        Column("Caches"),
        Column("Objects", True),
        Column("Size", True),
        Column("Watchers", True),
        Column("Queued", True),
    )
    rows = [
        (
            each["name"],
            _counts(each.get("reflectorCounts") or {}),
            formats.count(each.get("objects")),
            formats.size(each.get("bytes")),
            formats.count(each.get("watchers")),
            formats.size(each.get("queuedBytes")),
        )
        for each in status["aggregates"]
    ]
    return join(table("Aggregates", columns, rows), *(_reflectors(each) for each in status["aggregates"]))


def _counts(counts: dict[str, int]) -> Markup:
    if not counts:
        return mark(PLAIN, "none")
    return join(*(join(mark(_REFLECTOR_STATES.get(state, PLAIN), f"{n} {state}"), " ") for state, n in counts.items()))


def _reflectors(aggregate: Status) -> Markup:
    reflectors = aggregate.get("reflectors") or []
    if not reflectors:
        return EMPTY
    columns = (
        Column("Resource"),
        Column("Cluster"),
        Column("State"),
        Column("Objects", True),
        Column("Size", True),
        Column("Heard of", True),
        Column("Last event", True),
        Column("Cause"),
    )
    rows = [
        (
            join(each.get("resource"), f" in {each['namespace']}" if each.get("namespace") else ""),
            each.get("cluster"),
            mark(_REFLECTOR_STATES.get(str(each.get("state")), PLAIN), each.get("state")),
            formats.count(each.get("objects")),
            formats.size(each.get("bytes")),
            _ago(each.get("lagSeconds")),
            _ago(each.get("lastEventSeconds")),
            each.get("cause") or "",
        )
        for each in reflectors
    ]
    name = aggregate["name"]
    return tag(
        "details",
        tag("summary", f"Caches of {name}", id=f"reflectors-{name}-summary"),
        shortened(rows, _MOST, "caches", f"Caches of {name}", columns),
        id=f"reflectors-{name}",
    )


def _ago(value: float | None) -> str:
    return formats.UNKNOWN if value is None else f"{formats.duration(value)} ago"


def _flow_controls(status: Status) -> Markup:
    columns = (
        Column("Flow control"),
        Column("Limit"),
        Column("Use"),
        Column("In use", True),
        Column("Waiting", True),
        Column("Refused", True),
    )
    rows = [
        (
            each["name"],
            _limit(each),
            _use(each),
            formats.count(each.get("inUse")),
            formats.count(each.get("waiting")),
            formats.count(each.get("refusedTotal")),
        )
        for each in status["flowControls"]
    ]
    return join(shortened(rows, _MOST, "flow controls", "Flow controls", columns), _shared(status.get("sharedState")))


def _shared(state: Status | None) -> Markup:
    """Return how limits over replicas are counted; nothing where none is shared."""
    if not state:
        return EMPTY
    reached = mark(WARN, "away, each replica has an equal part") if state.get("away") else mark(GOOD, "reached")
    return _facts([("Shared state", reached), ("Replicas", formats.count(state.get("replicas")))])


def _limit(each: Status) -> str:
    limit = each.get("limit") or {}
    words = ", ".join(f"{key} {formats.number(value)}" for key, value in limit.items() if value is not None)
    where = "" if each.get("per") in (None, "All") else f" per {each['per']}"
    return f"{each.get('schema') or ''}{words and f': {words}'}{where}{', shared' if each.get('shared') else ''}"


def _use(each: Status) -> Content:
    use = each.get("use")
    if use is None:
        return formats.UNKNOWN
    label = f"use of {each['name']}"
    meter = tag("meter", formats.share(use), min=0, max=1, low=0.7, high=0.9, optimum=0, value=use, aria_label=label)
    return join(meter, " ", formats.share(use))


def _listeners(status: Status) -> Markup:
    columns = (
        Column("Listener"),
        Column("Serves"),
        Column("Address"),
        Column("State"),
        Column("Connections", True),
        Column("In flight", True),
        Column("Handshakes", True),
        Column("Protection"),
    )
    rows = [
        (
            each["name"],
            each.get("serves") or formats.UNKNOWN,
            each.get("bind"),
            mark(GOOD, "accepts") if each.get("accepting") else mark(BAD, "does not accept"),
            _of_limit(_sum(each.get("connections")), (each.get("limits") or {}).get("connections")),
            formats.count(_sum(each.get("requests"))),
            formats.count(each.get("handshakes")),
            ", ".join(f"{key} {formats.count(value)}" for key, value in (each.get("protection") or {}).items())
            or formats.UNKNOWN,
        )
        for each in status["listeners"]
    ]
    return shortened(rows, _MOST, "listeners", "Listeners", columns)


def _of_limit(value: int, limit: int | None) -> str:
    return f"{formats.count(value)} of {formats.count(limit)}" if limit else formats.count(value)


def _certificates(status: Status) -> Markup:
    columns = (
        Column("Certificate"),
        Column("Use"),
        Column("Subject"),
        Column("Expires"),
        Column("Days left", True),
        Column("File"),
    )
    known = sorted(status["certificates"], key=lambda each: (each.get("daysLeft") is None, each.get("daysLeft")))
    rows = [
        (
            each["name"],
            _USES.get(str(each.get("kind")), each.get("kind")),
            join(each.get("subject"), " ", tag("small", ", ".join(each.get("names") or ()))),
            _when(each.get("notAfter")),
            _days(each.get("daysLeft")),
            each.get("file"),
        )
        for each in known
    ]
    return shortened(rows, _MOST, "certificates", "Certificates", columns)


_USES = {
    "server": "shown to clients",
    "client": "shown to clusters",
    "ca": "verifies clients",
    "cluster": "verifies clusters",
}


def _days(days: float | None) -> Content:
    if days is None:
        return formats.UNKNOWN
    kind = BAD if days < 0 else WARN if days < EXPIRES_SOON else GOOD
    return mark(kind, "expired" if days < 0 else formats.count(int(days)))


def _processes(status: Status) -> Markup:
    columns = (
        Column("Process"),
        Column("PID", True),
        Column("Up"),
        Column("In flight", True),
        Column("Memory", True),
        Column("CPU", True),
        Column("Descriptors", True),
        Column("Loop lag", True),
        Column("Replaced", True),
    )
    rows = [
        (
            f"{each['name']}{' (checks health)' if each.get('leader') and each.get('role') == 'worker' else ''}",
            each.get("pid"),
            formats.duration(each.get("uptimeSeconds")),
            formats.count(each.get("open")),
            formats.size(each.get("residentBytes")),
            formats.seconds(each.get("cpuSeconds")),
            formats.count(each.get("descriptors")),
            formats.seconds(each.get("loopLagSeconds")),
            formats.count(each.get("restarts")),
        )
        for each in status["processes"]
    ]
    return shortened(rows, _MOST, "processes", "Processes", columns)


def _reviews(status: Status) -> Markup:
    caches, reviews = status.get("caches") or {}, status.get("reviews") or {}
    facts = [(f"Cached {key}", formats.count(value)) for key, value in caches.items()]
    facts += [("Reviews running", formats.count(reviews.get("running")))]
    facts += [("Reviews waiting", formats.count(reviews.get("waiting")))]
    columns = (
        Column("Reviewer"),
        Column("Reviews"),
        Column("Running", True),
        Column("Waiting", True),
        Column("Cached", True),
    )
    rows = [
        (
            each.get("name") or each.get("cluster"),
            each.get("kind"),
            formats.count(each.get("running")),
            formats.count(each.get("waiting")),
            formats.count(each.get("cached")),
        )
        for each in reviews.get("reviewers") or ()
    ]
    return join(_facts(facts), shortened(rows, _MOST, "reviewers", "Reviewers", columns) if rows else EMPTY)


def _facts(facts: Iterable[tuple[str, Content]]) -> Markup:
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts))


def _reload(status: Status) -> Markup:
    last = status.get("lastReload")
    facts: list[tuple[str, Content]] = [
        ("File", status.get("file")),
        ("Hash", status.get("configHash") or formats.UNKNOWN),
    ]
    if not last:
        return join(_facts(facts), tag("p", "There was none since the start.", class_="none"))
    outcome = mark(GOOD, "the file is in force") if last.get("ok") else mark(BAD, "refused, nothing has changed")
    facts += [
        ("Outcome", outcome),
        ("At", _when(last.get("at"))),
        ("Took", formats.seconds(last.get("seconds"))),
    ]
    lists = [_lines(title, last.get(key)) for title, key in (("Errors", "errors"), ("Warnings", "warnings"))]
    return join(_facts(facts), *lists, _lines("Changes", last.get("changes")))


def _lines(title: str, lines: Sequence[str] | None) -> Markup:
    if not lines:
        return EMPTY
    shown = [tag("li", line) for line in lines[:_MOST]]
    return join(tag("h3", title), tag("ul", *shown, class_="lines"))
