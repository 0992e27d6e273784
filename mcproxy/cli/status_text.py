"""Formats the tables of a status document as text, for `mcproxy status` and `mcproxy top`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from mcproxy.cli.terminal import Cell, Terminal, TextColumn, duration, number, size
from mcproxy.observe.senders import KINDS
from mcproxy.observe.tables import table as tables
from mcproxy.observe.tables.daemon import CERTIFICATES, FLOW_CONTROLS, PROCESSES, REVIEWERS
from mcproxy.observe.tables.services import (
    AGGREGATES,
    API_SERVICES,
    CACHES,
    EXPORTS,
    IMPORTERS,
    INGRESSES,
    SERVICE_ENDPOINTS,
)
from mcproxy.observe.tables.table import At, Document, Entry, Form, Table
from mcproxy.observe.tables.traffic import ENDPOINTS, LISTENERS, REFUSALS, SERVERS, senders
from mcproxy.observe.tables.tunnels import TUNNELS

SECTIONS: Mapping[str, Table] = {
    "endpoints": ENDPOINTS,
    "tunnels": TUNNELS,
    "servers": SERVERS,
    "listeners": LISTENERS,
    "refusals": REFUSALS,
    "limits": FLOW_CONTROLS,
    "apiservices": API_SERVICES,
    "ingresses": INGRESSES,
    "exports": EXPORTS,
    "importers": IMPORTERS,
    "aggregates": AGGREGATES,
    "services": SERVICE_ENDPOINTS,
    "caches": CACHES,
    "reviews": REVIEWERS,
    "certificates": CERTIFICATES,
    "processes": PROCESSES,
}
"""The sections of `mcproxy status`, in the order in which they are printed."""
MEASURES = {"requests": "requests", "bytes": "bytes", "cpu": "cpuSeconds", "refused": "refused"}
"""The measures for ranking senders: their names for users, and the keys of the document."""

_DAY = 86400.0
_SHOWN = 12  # limit of rows without -o wide, for tables whose rows are limited


def seconds_of(text: str) -> float:
    """Return a time of the document in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def section_lines(name: str, status: Document, now: float, terminal: Terminal, *, wide: bool) -> list[str]:
    """Return the lines of a section, its title first; empty if the section is empty. `now` is the time of day."""
    table = SECTIONS[name]
    entries = list(table.entries(status))
    more = 0
    if table.in_brief is not None and not wide:
        entries = [each for each in entries if table.in_brief(each)]
        more = max(0, len(entries) - _SHOWN)
    lines = table_lines(
        table, entries[: len(entries) - more], At.STATUS | At.WIDE if wide else At.STATUS, terminal, now
    )
    if not lines:
        return []
    return [terminal.styled(name.upper(), "title"), *lines, *([f"and {more} more (-o wide has all)"] if more else ())]


def table_lines(
    table: Table, entries: Iterable[Entry], at: At, terminal: Terminal, now: float = 0.0, wanted: str = ""
) -> list[str]:
    """Return the lines of a table, empty without rows. `wanted`: only rows that contain this text, ignoring case."""
    columns = [column for column in table.columns if column.at & at]
    rows = [[_cell(column, each, at, terminal, now) for column in columns] for each in entries]
    if wanted:
        rows = [row for row in rows if wanted.lower() in " ".join(cell.text for cell in row).lower()]
    return terminal.table([_laid_out(column) for column in columns], rows) if rows else []


def sender_lines(status: Document, measure: str, most: int, terminal: Terminal, wanted: str = "") -> list[str]:
    """Return a table of each kind of sender with `most` rows at most, sorted by `measure`, the greatest first.

    `wanted`: only names that contain this text, ignoring case.
    """
    found = status.get("senders") or {}
    if found.get("windowSeconds") is None:
        return ["the daemon does not report who sends most: it has another version"]
    total = found.get("total") or {}
    lines = [
        f"the last {duration(found['windowSeconds'])}, by {measure}: {number(total.get('requests'))} requests, "
        f"{size(total.get('bytes'))}, {duration(total.get('cpuSeconds'))} of processor time, "
        f"{number(total.get('refused'))} refused"
    ]
    for kind in KINDS:
        table = senders(kind, MEASURES[measure])
        entries = [each for each in table.entries(status) if wanted.lower() in each["name"].lower()]
        shown = table_lines(table, entries[:most], At.STATUS, terminal)
        lines += ["", *shown] if shown else []
    return lines


def _laid_out(column: tables.Column) -> TextColumn:
    return TextColumn(
        title=column.short or column.title.upper(),
        right=column.is_number or column.form is Form.SINCE,
        gives_way=column.form is Form.TEXT and (column.ends or not column.yields),
        end=column.ends,
        wide=column.yields,
    )


def _cell(column: tables.Column, entry: Entry, at: At, terminal: Terminal, now: float) -> Cell:
    value = column.value(entry)
    state = column.state_of(entry) or (column.alarm if value else "")
    return Cell(
        "-" if value is None else _text(column.form, value, at, terminal, now), "dim" if state == "plain" else state
    )


def _text(form: Form, value: Any, at: At, terminal: Terminal, now: float) -> str:
    if form is Form.COUNT:
        return number(value) if at is At.TOP else str(value)
    if form is Form.SINCE:
        return duration(max(0.0, now - seconds_of(value)))
    if form is Form.USE and at is At.TOP:
        return f"{terminal.bar(value)} {value:4.0%}"
    return _FORMS.get(form, str)(value)


def _days(days: float) -> str:
    return "expired" if days <= 0 else duration(days * _DAY)


def _share(part: float) -> str:
    return f"{part:.0%}"


_FORMS: Mapping[Form, Callable[[Any], str]] = {
    Form.RATE: number,
    Form.SIZE: size,
    Form.TIME: duration,
    Form.SPAN: duration,
    Form.DAYS: _days,
    Form.SHARE: _share,
    Form.USE: _share,
}
