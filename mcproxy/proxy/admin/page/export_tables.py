"""The tables of exported services. Pure."""

from __future__ import annotations

from typing import Any

from mcproxy.proxy.admin.page.markup import Markup
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, WARN, Column, Entry, Table, key_of, mark, numbers

Status = dict[str, Any]


def services(status: Status) -> Table:
    """Return the table of all exported services."""
    columns = (
        Column("Service", lambda each: f"{each.get('namespace')}/{each.get('service')}"),
        Column("From", lambda each: ", ".join(each.get("sources") or ())),
        Column("Imported by", lambda each: ", ".join(each.get("importers") or ())),
        numbers("Slices", "slices"),
        numbers("Problems", "problems"),
        Column("State", _state, cell=_state_cell),
    )
    return Table("exports", "Exported services", columns, status.get("exports") or (), _severity)


def clusters(status: Status) -> Table:
    """Return the table of the clusters that are written to."""
    columns = (
        Column("Cluster", key_of("cluster")),
        Column("Written by", lambda each: "this daemon" if each.get("leads") else each.get("holder") or "nobody"),
        numbers("Waiting", "pending"),
        numbers("Refused", "refusedObjects"),
        Column("Cause", _cause),
    )
    return Table("importers", "Importing clusters", columns, status.get("exportTargets") or (), _attention)


def problems(status: Status) -> Table:
    """Return the table of what is wrong."""
    columns = (
        Column("Service", lambda each: f"{each.get('namespace')}/{each.get('service')}"),
        Column("Cluster", key_of("cluster")),
        Column("Reason", key_of("reason")),
        Column("Cause", key_of("message")),
    )
    return Table("export-problems", "Problems", columns, status.get("exportProblems") or (), lambda each: 1)


def _state(each: Entry) -> str:
    if each.get("problems"):
        return "problem"
    stale = each.get("stale") or ()
    causes = each.get("staleCauses") or {}
    words = [f"{name} ({causes[name]})" if causes.get(name) else str(name) for name in stale]
    return f"stale: {', '.join(words)}" if stale else "exported"


def _severity(each: Entry) -> int:
    return 2 if each.get("problems") else int(bool(each.get("stale")))


def _state_cell(each: Entry) -> Markup:
    return mark((GOOD, WARN, BAD)[_severity(each)], _state(each))


def _cause(each: Entry) -> str:
    if each.get("cause"):
        return str(each["cause"])
    return "; ".join(f"{one.get('object')}: {one.get('cause')}" for one in each.get("refusals") or ())


def _attention(each: Entry) -> int:
    return 2 if each.get("cause") else int(bool(each.get("refusedObjects")))
