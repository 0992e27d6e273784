"""Servers, listeners, who was refused and who sends most. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from mcproxy.observe.problems import BY
from mcproxy.observe.senders import KINDS, MEASURES, REFUSED
from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.cluster_tables import RATES, TOTALS, total_of
from mcproxy.proxy.admin.page.markup import Content, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, WARN, Column, Entry, Table, key_of, mark, numbers
from mcproxy.proxy.admin.page.query import Query

Status = dict[str, Any]

_REFUSED = frozenset(map(str, REFUSED))
_KINDS = {"users": "User", "clients": "Client", "resources": "Resource", "userAgents": "User agent"}
_MEASURES = {"requests": "requests", "bytes": "bytes", "cpuSeconds": "processor time", "refused": "refused requests"}
_LIMIT = "How to limit one of them: mcproxy docs admin#who-sends-most."


def servers(status: Status) -> Table:
    """Return the table of servers."""
    columns = (
        Column("Server", key_of("name")),
        Column("Names", lambda each: _list(each.get("serverNames") or (["default"] if each.get("default") else None))),
        Column("Listeners", lambda each: _list(each.get("listeners"))),
        Column("Backend", lambda each: _backend(each.get("backend"))),
        numbers("In flight", "inFlight"),
        *RATES,
        *TOTALS,
    )
    return Table("servers", "Servers", columns, status.get("servers") or ())


def listeners(status: Status) -> Table:
    """Return the table of listeners."""
    columns = (
        Column("Listener", key_of("name")),
        Column("Serves", key_of("serves")),
        Column("Address", key_of("bind")),
        Column("State", lambda each: bool(each.get("accepting")), cell=_accepting),
        Column("Connections", lambda each: total_of(each.get("connections")), is_number=True, cell=_connections),
        Column("In flight", lambda each: total_of(each.get("requests")), markup.count, is_number=True),
        numbers("Handshakes", "handshakes"),
        Column("Protection", lambda each: total_of(each.get("protection")), cell=_protection),
    )
    every = status.get("listeners") or ()
    return Table("listeners", "Listeners", columns, every, lambda each: 0 if each.get("accepting") else 2)


def _accepting(each: Entry) -> Markup:
    return mark(GOOD, "accepts") if each.get("accepting") else mark(BAD, "does not accept")


def _connections(each: Entry) -> str:
    number, limit = total_of(each.get("connections")), (each.get("limits") or {}).get("connections")
    return f"{markup.count(number)} of {markup.count(limit)}" if limit else markup.count(number)


def _protection(each: Entry) -> str:
    found = each.get("protection") or {}
    return ", ".join(f"{key} {markup.count(value)}" for key, value in found.items()) or markup.UNKNOWN


def _list(names: Iterable[str] | None) -> str | None:
    return ", ".join(names or ()) or None


def _backend(backend: Any) -> str | None:
    if not isinstance(backend, dict):
        return None if backend is None else str(backend)
    kind, value = next(iter(backend.items()), ("", ""))
    return f"{kind} {_list(value) if isinstance(value, list) else value}"


# -- who is refused ----------------------------------------------------------------------------------------------------


def refusals(status: Status) -> Table:
    """Return who was refused, and by whom: 4xx by kind."""
    found = status.get("refusals") or {}
    every = found.get("requests") or 0
    kinds = [
        {**each, "share": (each.get("requests") or 0) / every if every else None} for each in found.get("kinds") or ()
    ]
    columns = (
        Column("Code", key_of("code"), cell=_code),
        Column("Refused by", lambda each: BY.get(str(each.get("by")), each.get("by"))),
        numbers("Last minute", "requests"),
        numbers("Share", "share", markup.share),
        numbers("Since the start", "requestsTotal"),
    )
    return Table("refusals", "Refusals", columns, kinds, _worth_a_look, lambda each: -(each.get("requests") or 0))


def _worth_a_look(each: Entry) -> int:
    return int(each.get("code") in _REFUSED and bool(each.get("requests")))


def _code(each: Entry) -> Content:
    code = each.get("code")
    return mark(WARN, code) if _worth_a_look(each) else code or markup.UNKNOWN


# -- who sends most ----------------------------------------------------------------------------------------------------


def senders(status: Status, query: Query, size: int) -> Markup:
    """Return a table of each kind, those first that have most of what the reader has chosen."""
    found = status.get("senders") or {}
    measure = query.measure if query.measure in MEASURES else MEASURES[0]
    total = found.get("total") or {}
    choice = [
        tag("li", tag("a", words, href=query.link(measure=key), aria_current="true" if key == measure else None))
        for key, words in _MEASURES.items()
    ]
    words = (
        f"The last {markup.duration(found.get('windowSeconds'))}: {markup.count(total.get('requests'))} requests, "
        f"{markup.size(total.get('bytes'))}, {markup.seconds(total.get('cpuSeconds'))} of processor time "
        f"(estimated), {markup.count(total.get('refused'))} refused. {_LIMIT}"
    )
    return join(
        tag("p", words, class_="note"),
        tag("nav", tag("ul", tag("li", "By:"), *choice), class_="pager", aria_label="What senders are ranked by"),
        tag("div", *_tables(found, total, measure, query, size), class_="side"),
    )


def _tables(found: dict[str, Any], total: dict[str, Any], measure: str, query: Query, size: int) -> Iterator[Markup]:
    for kind in KINDS:
        table = _senders_of(kind, found.get(kind) or (), total.get(measure) or 0, measure)
        yield tag("div", tag("h3", f"{_KINDS[kind]}s"), table.render(query, size))


def _senders_of(kind: str, entries: Iterable[Entry], every: float, measure: str) -> Table:
    columns = (
        Column(_KINDS[kind], key_of("name"), breakable),
        numbers("Requests", "requests"),
        Column("Share", lambda each: each[measure] / every if every else None, markup.share, is_number=True),
        numbers("Bytes", "bytes", markup.size),
        numbers("CPU", "cpuSeconds", markup.seconds),
        numbers("Refused", "refused"),
    )
    shown = [{"name": "", **each} for each in entries if each.get(measure)]
    return Table(f"senders-{kind.lower()}", f"{_KINDS[kind]}s", columns, shown, _sends_refused, lambda e: -e[measure])


def _sends_refused(each: Entry) -> int:
    return 1 if each.get("refused") else 0
