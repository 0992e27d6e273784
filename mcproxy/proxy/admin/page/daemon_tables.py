"""Certificates, processes, the last reload. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcproxy.observe.problems import EXPIRES_SOON, LATE
from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.cluster_tables import when
from mcproxy.proxy.admin.page.limits import facts
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, WARN, Column, Entry, Table, key_of, mark, numbers

Status = dict[str, Any]

_LINES = 100
_USES = {
    "server": "shown to clients",
    "client": "shown to clusters",
    "ca": "verifies clients",
    "cluster": "verifies clusters",
}


def certificates(status: Status) -> Table:
    """Return the table of certificates, that first which expires next."""
    columns = (
        Column("Certificate", key_of("name")),
        Column("Use", lambda each: _USES.get(str(each.get("kind")), each.get("kind"))),
        Column("Subject", _subject, cell=_subject_cell),
        Column("Expires", key_of("notAfter"), when),
        Column("Days left", key_of("daysLeft"), _days, is_number=True),
        Column("File", key_of("file")),
    )
    every = status.get("certificates") or ()
    return Table("certificates", "Certificates", columns, every, _expiry, order=_left)


def _left(each: Entry) -> tuple[bool, float]:
    return each.get("daysLeft") is None, each.get("daysLeft") or 0.0


def _expiry(each: Entry) -> int:
    days = each.get("daysLeft")
    return 0 if days is None or days >= EXPIRES_SOON else 2 if days < 0 else 1


def _subject(each: Entry) -> str:
    return f"{each.get('subject')} {', '.join(each.get('names') or ())}"


def _subject_cell(each: Entry) -> Markup:
    return join(breakable(each.get("subject")), " ", tag("small", breakable(", ".join(each.get("names") or ()))))


def _days(days: float) -> Content:
    kind = BAD if days < 0 else WARN if days < EXPIRES_SOON else GOOD
    return mark(kind, "expired" if days < 0 else markup.count(int(days)))


def processes(status: Status) -> Table:
    """Return the table of processes."""
    columns = (
        Column("Process", _process),
        Column("PID", key_of("pid"), str, is_number=True),
        numbers("Up", "uptimeSeconds", markup.duration),
        numbers("In flight", "open"),
        numbers("Memory", "residentBytes", markup.size),
        numbers("CPU time", "cpuSeconds", markup.seconds),
        numbers("Descriptors", "descriptors"),
        numbers("Loop lag", "loopLagSeconds", markup.seconds),
        numbers("Replaced", "restarts"),
    )
    return Table("processes", "Processes", columns, status.get("processes") or (), _trouble)


def _process(each: Entry) -> str:
    return f"{each['name']}{' (checks health)' if each.get('leader') and each.get('role') == 'worker' else ''}"


def _trouble(each: Entry) -> int:
    return 2 if each.get("answered") is False else int((each.get("loopLagSeconds") or 0.0) >= LATE)


def reload(status: Status) -> Markup:
    """Return the configuration in force, and what the last reload did."""
    last = status.get("lastReload")
    shown: list[tuple[str, Content]] = [
        ("File", breakable(status.get("file"))),
        ("Hash", status.get("configHash") or markup.UNKNOWN),
    ]
    if not last:
        return join(facts(shown), tag("p", "There was none since the start.", class_="none"))
    outcome = mark(GOOD, "the file is in force") if last.get("ok") else mark(BAD, "refused, nothing has changed")
    shown += [
        ("Outcome", outcome),
        ("At", when(last.get("at"))),
        ("Took", markup.seconds(last.get("seconds"))),
    ]
    lists = [_lines(title, last.get(key)) for title, key in (("Errors", "errors"), ("Warnings", "warnings"))]
    return join(facts(shown), *lists, _lines("Changes", last.get("changes")))


def _lines(title: str, lines: Sequence[str] | None) -> Markup:
    if not lines:
        return EMPTY
    shown = [tag("li", breakable(line)) for line in lines[:_LINES]]
    if len(lines) > _LINES:
        shown.append(tag("li", f"and {len(lines) - _LINES} more: mcproxy status"))
    return join(tag("h3", title), tag("ul", *shown, class_="lines"))
