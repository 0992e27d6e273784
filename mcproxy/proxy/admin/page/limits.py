"""Flow controls, reviews, API services, and the caches of aggregates. Pure."""

from __future__ import annotations

from typing import Any

from mcproxy.observe.problems import NEARLY_FULL
from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, PLAIN, WARN, Column, Entry, Table, key_of, mark, numbers
from mcproxy.proxy.admin.page.query import Query

Status = dict[str, Any]

_REFLECTOR_STATES = {"synced": GOOD, "syncing": PLAIN, "stale": WARN, "unavailable": BAD}


def flow_controls(status: Status, query: Query) -> Markup:
    """Return limits and their use."""
    columns = (
        Column("Flow control", key_of("name")),
        Column("Limit", _limit),
        Column("Use", key_of("use"), cell=_use),
        numbers("In use", "inUse"),
        numbers("Waiting", "waiting"),
        numbers("Refused", "refusedTotal"),
    )
    table = Table("flow-controls", "Flow controls", columns, status.get("flowControls") or (), _fullness)
    return join(table.render(query), _shared(status.get("sharedState")))


def _fullness(each: Entry) -> int:
    return 1 if each.get("waiting") or (each.get("use") or 0) >= NEARLY_FULL else 0


def _shared(state: Status | None) -> Markup:
    """Return how limits over replicas are counted; nothing where none is shared."""
    if not state:
        return EMPTY
    reached = mark(WARN, "away, each replica has an equal part") if state.get("away") else mark(GOOD, "reached")
    return facts([("Shared state", reached), ("Replicas", markup.count(state.get("replicas")))])


def _limit(each: Entry) -> str:
    limit = each.get("limit") or {}
    words = ", ".join(f"{key} {markup.number(value)}" for key, value in limit.items() if value is not None)
    where = "" if each.get("per") in (None, "All") else f" per {each['per']}"
    return f"{each.get('schema') or ''}{words and f': {words}'}{where}{', shared' if each.get('shared') else ''}"


def _use(each: Entry) -> Content:
    use = each.get("use")
    if use is None:
        return markup.UNKNOWN
    label = f"use of {each['name']}"
    meter = tag("meter", markup.share(use), min=0, max=1, low=0.7, high=0.9, optimum=0, value=use, aria_label=label)
    return join(meter, " ", markup.share(use))


def reviews(status: Status, query: Query) -> Markup:
    """Return who is asked about tokens and rights, and what is cached of it."""
    caches, found = status.get("caches") or {}, status.get("reviews") or {}
    shown: list[tuple[str, Content]] = [(f"Cached {key}", markup.count(value)) for key, value in caches.items()]
    shown += [("Reviews running", markup.count(found.get("running")))]
    shown += [("Reviews waiting", markup.count(found.get("waiting")))]
    columns = (
        Column("Reviewer", lambda each: each.get("name") or each.get("cluster")),
        Column("Reviews", key_of("kind")),
        numbers("Running", "running"),
        numbers("Waiting", "waiting"),
        numbers("Cached", "cached"),
    )
    every = found.get("reviewers") or ()
    table = Table("reviewers", "Reviewers", columns, every, lambda each: int(bool(each.get("waiting"))))
    return join(facts(shown), table.render(query))


def facts(shown: list[tuple[str, Content]]) -> Markup:
    """Return names and their values."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in shown))


# -- API services ------------------------------------------------------------------------------------------------------


def api_services(status: Status) -> Table:
    """Return the table of API services."""
    columns = (
        Column("API service", key_of("name")),
        Column("Cluster", key_of("cluster")),
        Column("Servers", lambda each: ", ".join(each.get("usedBy") or ())),
        Column("Available", key_of("available"), cell=_available),
        Column("Since", key_of("since")),
        Column("Reason", key_of("reason")),
        Column("Cause", lambda each: "" if each.get("available") == "True" else str(each.get("message") or "")),
    )
    return Table("api-services", "API services", columns, status.get("apiServices") or (), _unavailable)


def _available(each: Entry) -> Markup:
    known = str(each.get("available"))
    return mark({"True": GOOD, "False": BAD}.get(known, WARN), known)


def _unavailable(each: Entry) -> int:
    return {"False": 2, "True": 0}.get(str(each.get("available")), 1)


# -- aggregates --------------------------------------------------------------------------------------------------------


def aggregates(status: Status) -> Table:
    """Return the table of aggregates."""
    columns = (
        Column("Aggregate", key_of("name")),
        Column("Caches", lambda each: -_worst(each), cell=_counts),
        numbers("Objects", "objects"),
        numbers("Size", "bytes", markup.size),
        numbers("Watchers", "watchers"),
        numbers("Queued", "queuedBytes", markup.size),
    )
    return Table("aggregates", "Aggregates", columns, status.get("aggregates") or (), _worst)


def service_endpoints(status: Status) -> Table:
    """Return the table of the endpoints of ingresses, by cluster."""
    columns = (
        Column("Cluster", key_of("cluster")),
        numbers("Backends", "backends"),
        numbers("Ready", "ready"),
        numbers("Terminating", "terminating"),
        numbers("Last known", "stale"),
        numbers("Not known", "unknown"),
        Column("Cause", lambda each: "; ".join(str(one.get("cause")) for one in each.get("problemBackends") or ())),
    )
    title = "Endpoints of ingresses"
    return Table("services", title, columns, status.get("serviceEndpoints") or (), _trouble)


def _trouble(each: Entry) -> int:
    return 2 if each.get("unknown") else 1 if each.get("stale") or each.get("problems") else 0


def caches(status: Status) -> Table:
    """Return the table of the caches of all aggregates, and of services."""
    services = {"name": "(services)", **(status.get("serviceCaches") or {})}
    every = [
        {**each, "aggregate": aggregate["name"]}
        for aggregate in (*(status.get("aggregates") or ()), services)
        for each in aggregate.get("reflectors") or ()
    ]
    columns = (
        Column("Resource", lambda each: f"{each.get('resource')}{_namespace(each)}"),
        Column("Cluster", key_of("cluster")),
        Column("Aggregate", key_of("aggregate")),
        Column("State", key_of("state"), cell=_state),
        numbers("Objects", "objects"),
        numbers("Size", "bytes", markup.size),
        numbers("Heard of", "lagSeconds", _ago),
        numbers("Last event", "lastEventSeconds", _ago),
        Column("Cause", key_of("cause")),
    )
    return Table("caches", "Caches", columns, every, _severity)


def _namespace(each: Entry) -> str:
    return f" in {each['namespace']}" if each.get("namespace") else ""


def _severity(each: Entry) -> int:
    return {"unavailable": 2, "stale": 1}.get(str(each.get("state")), 0)


def _worst(each: Entry) -> int:
    counts = each.get("reflectorCounts") or {}
    return 2 if counts.get("unavailable") else 1 if counts.get("stale") else 0


def _state(each: Entry) -> Markup:
    return mark(_REFLECTOR_STATES.get(str(each.get("state")), PLAIN), each.get("state"))


def _counts(each: Entry) -> Markup:
    counts = each.get("reflectorCounts")
    if not counts:
        return mark(PLAIN, "none")
    return join(*(join(mark(_REFLECTOR_STATES.get(state, PLAIN), f"{n} {state}"), " ") for state, n in counts.items()))


def _ago(value: float) -> str:
    return f"{markup.duration(value)} ago"
