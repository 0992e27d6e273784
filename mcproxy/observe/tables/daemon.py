"""The tables of limits, reviews, certificates and processes. Pure."""

from __future__ import annotations

from collections.abc import Callable

from mcproxy.observe.problems import EXPIRES_SOON, LATE, NEARLY_FULL
from mcproxy.observe.tables.table import (
    REFUSED_TOTAL,
    At,
    Column,
    Document,
    Entry,
    Form,
    State,
    Table,
    entries_of,
    warns_from,
)

# -- limits and reviews ------------------------------------------------------------------------------------------------

_LIMITS = {
    "max": "max {}",
    "maxLongRunning": "long-running {}",
    "qps": "{:g}/s",
    "burst": "burst {}",
    "queue": "queue {}",
}


def _limit(flow_control: Entry) -> str:
    limit = flow_control.get("limit") or {}
    return ", ".join(form.format(limit[key]) for key, form in _LIMITS.items() if limit.get(key) is not None) or "none"


def _places(key: str) -> Callable[[Entry], int | None]:
    """Return a function that returns the used slots of a flow control; None for a token bucket."""
    return lambda each: None if each.get("schema") == "TokenBucket" else each.get(key)


FLOW_CONTROLS = Table(
    "flow-controls",
    "Flow controls",
    (
        Column("Flow control", "name", at=At.ALL),
        Column("Type", "schema", yields=True),
        Column("Limit", _limit),
        Column("Per", lambda each: f"{each.get('per') or ''}{', shared' if each.get('shared') else ''}"),
        Column("Use", "use", Form.USE, At.ALL, state=warns_from("use", NEARLY_FULL)),
        Column("In use", _places("inUse"), Form.COUNT, At.ALL),
        Column("Long-running", _places("inUseLongRunning"), Form.COUNT, At.ALL, "LONG", yields=True),
        Column("Waiting", "waiting", Form.COUNT, At.ALL, state="warn"),
        Column("Refused/s", "refusedPerSecond", Form.RATE, At.TOP, alarm="bad"),
        REFUSED_TOTAL,
    ),
    entries_of("flowControls"),
)

REVIEWERS = Table(
    "reviewers",
    "Reviewers",
    (
        Column("Reviewer", lambda each: each.get("name") or each.get("cluster")),
        Column("Reviews", "kind"),
        Column("Waiting", "waiting", Form.COUNT, state="warn"),
        Column("Running", "running", Form.COUNT),
        Column("Cached", "cached", Form.COUNT),
    ),
    lambda document: (document.get("reviews") or {}).get("reviewers") or (),
)
"""The clusters and services that review tokens and access."""

# -- the daemon itself -------------------------------------------------------------------------------------------------


def _expiry(certificate: Entry) -> State:
    days = certificate.get("daysLeft")
    return "" if days is None else "bad" if days <= 0 else "warn" if days < EXPIRES_SOON else "good"


def _certificates(document: Document) -> list[Entry]:
    every = [{**each, "names": ", ".join(each.get("names") or ())} for each in document.get("certificates") or ()]
    return sorted(every, key=lambda each: (each.get("daysLeft") is None, each.get("daysLeft") or 0.0))


CERTIFICATES = Table(
    "certificates",
    "Certificates",
    (
        Column("Certificate", "name"),
        Column("Kind", "kind"),
        Column("Days left", "daysLeft", Form.DAYS, short="EXPIRES IN", state=_expiry),
        Column("Expires", "notAfter", Form.INSTANT, short="AT"),
        Column("Subject", "subject", detail="names", yields=True),
        Column("File", "file", yields=True, ends=True),
        Column("Names in it", "names", at=At.WIDE, yields=True),
    ),
    _certificates,
    ordered=True,
)
"""Certificates; the one that expires next comes first."""


def _note(process: Entry) -> str:
    if process.get("answered") is False:
        return "does not answer"
    return "leader" if process.get("leader") and process.get("role") == "worker" else ""


def _silent(process: Entry) -> State:
    return "bad" if process.get("answered") is False else ""


PROCESSES = Table(
    "processes",
    "Processes",
    (
        Column("Process", "name", at=At.ALL, detail="note"),
        Column("PID", "pid", Form.ID, At.ALL),
        Column("Up", "uptimeSeconds", Form.SPAN, short="FOR"),
        Column("CPU", "cpu", Form.SHARE, At.TOP, state=warns_from("cpu", NEARLY_FULL)),
        Column("In flight", "open", Form.COUNT, At.ALL),
        Column("Memory", "residentBytes", Form.SIZE, At.ALL),
        Column("CPU time", "cpuSeconds", Form.TIME),
        Column("Descriptors", "descriptors", Form.COUNT, At.ALL, "FDS", yields=True),
        Column("Lag", "loopLagSeconds", Form.TIME, At.ALL, state=warns_from("loopLagSeconds", LATE)),
        Column("Restarts", "restarts", Form.COUNT, alarm="warn", yields=True),
        Column("Note", "note", at=At.STATUS | At.TOP, yields=True, state=_silent),
    ),
    lambda document: [{**each, "note": _note(each)} for each in document.get("processes") or ()],
)
