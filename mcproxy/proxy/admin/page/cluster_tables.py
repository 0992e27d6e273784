"""Clusters and their endpoints. Pure.

A key that is missing or null is shown as a dash: a process of another version, or one that has just started, may not
know it.
"""

from __future__ import annotations

from typing import Any

from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import Content, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, PLAIN, WARN, Column, Entry, Table, key_of, mark, numbers

Status = dict[str, Any]

_ENDPOINT_STATES = {"ready": GOOD, "unchecked": PLAIN, "out": BAD, "disabled": PLAIN}

RATES = (
    numbers("Requests/s", "requestsPerSecond", markup.number),
    numbers("Errors/s", "errorsPerSecond", markup.number),
    numbers("Refused/s", "refusedPerSecond", markup.number),
    numbers("p50", "p50Seconds", markup.seconds),
    numbers("p99", "p99Seconds", markup.seconds),
)
"""Of the last minute."""
TOTALS = (
    numbers("Requests", "requestsTotal"),
    numbers("Errors (5xx)", "errorsTotal"),
    numbers("Refused", "refusedTotal"),
)
"""Since the start."""


def clusters_in_brief(status: Status) -> Table:
    """Return the table of all clusters with what matters most."""
    columns = (
        Column("Cluster", key_of("name")),
        Column("Endpoints", _part_ready, cell=_ready),
        Column("In flight", lambda each: total_of(each.get("requests")), markup.count, is_number=True),
        *RATES,
    )
    return Table("clusters", "Clusters", columns, status.get("clusters") or (), _severity)


def clusters(status: Status) -> Table:
    """Return the table of all clusters."""
    columns = (
        *clusters_in_brief(status).columns,
        *TOTALS,
        Column("Credential", lambda each: (each.get("credentials") or {}).get("kind"), cell=_credential),
        Column("Connections", lambda each: total_of(each.get("connections")), markup.count, is_number=True),
        Column("Missing rights", lambda each: "; ".join(each.get("rightsMissing") or ()), cell=_rights),
    )
    return Table("clusters", "Clusters", columns, status.get("clusters") or (), _severity)


def endpoints(status: Status) -> Table:
    """Return the table of the endpoints of all clusters."""
    every = [
        {**each, "cluster": cluster["name"]}
        for cluster in status.get("clusters") or ()
        for each in cluster.get("endpoints") or ()
    ]
    requests, _, _, *latencies = RATES
    columns = (
        Column("Endpoint", lambda each: f"{each.get('name')} {each.get('url')}", cell=_name),
        Column("Cluster", key_of("cluster")),
        Column("State", key_of("state"), cell=_state),
        Column("Since", key_of("since"), when),
        numbers("In flight", "inFlight"),
        requests,
        *latencies,
        numbers("Requests", "requestsTotal"),
        numbers("Connections", "connections"),
        numbers("Check", "latencySeconds", markup.seconds),
        Column("Cause", key_of("cause")),
    )
    return Table("endpoints", "Endpoints", columns, every, lambda each: 2 if each.get("state") == "out" else 0)


def total_of(numbers: dict[str, int | None] | None) -> int:
    """Return the sum of numbers by key."""
    return sum(number or 0 for number in (numbers or {}).values())


def when(instant: Any) -> Content:
    """Return a time."""
    return tag("time", markup.instant(instant), datetime=instant) if instant else markup.UNKNOWN


def counts_of(each: Entry) -> tuple[int, int, int]:
    """Return how many endpoints of a cluster are ready, enabled and disabled."""
    every = each.get("endpoints") or ()
    disabled = sum(one.get("state") == "disabled" for one in every)
    return sum(bool(one.get("ready")) for one in every), len(every) - disabled, disabled


def _severity(each: Entry) -> int:
    ready, enabled, _ = counts_of(each)
    credentials = each.get("credentials") or {}
    if (enabled and not ready) or credentials.get("ready") is False or credentials.get("refused"):
        return 2
    return 1 if ready < enabled or each.get("rightsMissing") else 0


def _part_ready(each: Entry) -> float:
    ready, enabled, _ = counts_of(each)
    return ready / enabled if enabled else 1.0


def _ready(each: Entry) -> Markup:
    ready, enabled, disabled = counts_of(each)
    if not each.get("endpoints"):
        return mark(PLAIN, "none")
    words = f"{ready} of {enabled} ready" + (f", {disabled} disabled" if disabled else "")
    return mark(GOOD if ready == enabled else WARN if ready else BAD, words)


def _credential(each: Entry) -> Content:
    credentials = each.get("credentials") or {}
    kind = credentials.get("kind")
    words = f"{kind}, {credentials.get('identity')}" if kind else markup.UNKNOWN
    if credentials.get("ready") is False:
        return mark(BAD, f"{words}: not there")
    return mark(BAD, f"{words}: refused (401)") if credentials.get("refused") else words


def _rights(each: Entry) -> Content:
    missing = each.get("rightsMissing")
    if missing is None:
        return markup.UNKNOWN
    if not missing:
        return "none"
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return mark(WARN, breakable(f"{missing[0]}{more}"))


def _name(each: Entry) -> Content:
    name, url = each.get("name"), each.get("url")
    return breakable(name) if name == url else join(breakable(name), " ", tag("small", breakable(url)))


def _state(each: Entry) -> Markup:
    state = str(each.get("state") or "unchecked")
    return mark(_ENDPOINT_STATES.get(state, PLAIN), state)
