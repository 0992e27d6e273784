"""The tables of ingresses. Pure."""

from __future__ import annotations

from typing import Any

from mcproxy.observe.ingress_rules import ShownRule, rules_of, service_of
from mcproxy.proxy.admin.page.markup import Markup
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, WARN, Column, Entry, Table, key_of, mark, numbers

Status = dict[str, Any]


def rules(status: Status) -> Table:
    """Return the table of all rules."""
    columns = (
        Column("Ingress", key_of("ingress")),
        Column("Rule", key_of("rule")),
        Column("Service", key_of("service")),
        Column("Ready endpoints", key_of("words"), cell=_ready),
        numbers("Requests", "requests"),
        numbers("Errors", "errors"),
    )
    entries = [
        {
            "ingress": each.ingress,
            "rule": each.rule,
            "service": each.service,
            "words": each.words,
            "severity": _severity(each),
            "requests": each.requests,
            "errors": each.errors,
        }
        for each in rules_of(status)
    ]
    return Table("ingresses", "Rules of ingresses", columns, entries, lambda each: int(each["severity"]))


def services(status: Status) -> Table:
    """Return the table of the services behind them, by cluster."""
    columns = (
        Column("Service", service_of),
        Column("Cluster", key_of("cluster")),
        Column("Via", key_of("via")),
        numbers("Ready", "ready"),
        numbers("Ending", "terminating"),
        Column("Out", lambda each: _out(each)),
        numbers("In flight", "inFlight"),
        Column("Known", lambda each: "stale" if each.get("stale") else "yes" if each.get("known") else "not yet"),
        Column("Cause", key_of("cause")),
    )
    return Table("ingress-services", "Services of ingresses", columns, status.get("ingressServices") or (), _attention)


def _severity(each: ShownRule) -> int:
    return 2 if each.empty else int(each.impaired)


def _ready(each: Entry) -> Markup:
    return mark((GOOD, WARN, BAD)[int(each["severity"])], str(each["words"]))


def _out(each: Entry) -> str:
    return ", ".join(f"{one.get('endpoint')} ({one.get('cause')})" for one in each.get("outEndpoints") or ())


def _attention(each: Entry) -> int:
    if not each.get("ready"):
        return 2
    return int(bool(each.get("outEndpoints") or each.get("stale") or not each.get("known")))
