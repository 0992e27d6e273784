"""Formats a screen of `mcproxy top` as lines of text, from a status document and its rates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.cli.status_text import sender_lines, table_lines
from mcproxy.cli.terminal import Terminal, clean, duration, number, size, width_of
from mcproxy.observe.problems import problems
from mcproxy.observe.tables.daemon import FLOW_CONTROLS, PROCESSES
from mcproxy.observe.tables.services import AGGREGATES, INGRESSES
from mcproxy.observe.tables.table import At, Table
from mcproxy.observe.tables.traffic import ENDPOINTS, REFUSALS, SERVERS
from mcproxy.observe.tables.tunnels import TUNNELS

Entry = Mapping[str, Any]

SORTS = ("requests", "errors", "refused", "p99", "in flight", "name")
"""The measures by which rows are sorted, in descending order; the key `s` selects the next one."""
_KEYS = {
    "requests": "requestsPerSecond",
    "errors": "errorsPerSecond",
    "refused": "refusedPerSecond",
    "p99": "p99Seconds",
    "in flight": "inFlight",
}
_TABLES = {
    "servers": SERVERS,
    "endpoints": ENDPOINTS,
    "tunnels": TUNNELS,
    "refusals": REFUSALS,
    "flowControls": FLOW_CONTROLS,
    "aggregates": AGGREGATES,
    "processes": PROCESSES,
    "ingresses": INGRESSES,
}
"""The tables by the key of their rates, in their order on the screen."""
_SHOWN_PROBLEMS = 3
_SENDERS = 10  # shown senders of each kind
_HELP = "? help  t {other}  s sort: {sort}  / filter  interval: {interval:g} s  space {pause}  q quit"
_KEYS_OF_SCREEN = (
    ("q", "quit"),
    ("t", "who sends most, and back: users, clients, resources, user agents of the last minutes"),
    ("s, S", "sort by the next column, or by the one before"),
    ("/", "filter: only rows with the text that is typed then; Enter keeps it, Esc ends it"),
    ("Esc", "all rows again"),
    ("arrows, j, k", "scroll by a line; page keys, Home and End by more"),
    ("space, p", "pause, go on"),
    ("+, -", "a longer or shorter interval"),
    ("r", "a sample now"),
    ("?", "this help, and back"),
    ("", ""),
    ("REFUSED", "requests with 401, 403 or 429; the table of refusals says by whom"),
    ("P99", "of the last minute: of 100 requests the second slowest took as long; MEAN is of the last interval"),
    ("CPU (EST.)", "the processes' time, divided by requests and bytes"),
)


@dataclass(slots=True)
class TopView:
    """The user's settings of the view."""

    sort: str = SORTS[0]
    scroll: int = 0
    """The number of body lines that are scrolled off at the top."""
    paused: bool = False
    interval: float = 2.0
    """Seconds between two samples."""
    senders: bool = False
    """Whether the largest senders are shown."""
    measure: str = "requests"
    """The order of senders, one of `status_text.MEASURES`."""
    wanted: str = ""
    """The filter: only rows with this text are shown."""
    typing: bool = False
    """Whether typed characters go to `wanted`."""
    helps: bool = False
    failure: str = ""
    """The reason why there are no new figures; "" while new figures arrive."""


def screen(status: Entry, rates: Entry, view: TopView, terminal: Terminal, height: int) -> list[str]:
    """Return at most `height` lines; `view.scroll` is reduced if there are fewer."""
    head, body = _head(status, rates, view, terminal), _body(status, rates, view, terminal)
    foot = _foot(view, terminal)
    if height < len(head) + 4:  # a very small terminal gets the most important lines
        head = head[: max(1, height - 4)]
    room = max(0, height - len(head) - 1)
    view.scroll = max(0, min(view.scroll, len(body) - room))
    shown = body[view.scroll : view.scroll + room]
    shown += [""] * (room - len(shown))
    return [*head, *shown, foot][: max(1, height)]


def plain(status: Entry, rates: Entry, sort: str, terminal: Terminal) -> list[str]:
    """Return all lines of a sample, for a file or a pipe."""
    return [*_head(status, rates, TopView(sort=sort), terminal), *_tables(status, rates, sort, terminal)]


def _body(status: Entry, rates: Entry, view: TopView, terminal: Terminal) -> list[str]:
    if view.helps:
        width = max(len(key) for key, _ in _KEYS_OF_SCREEN)
        return ["", *(terminal.cut(f"{key:{width}}  {text}", terminal.width) for key, text in _KEYS_OF_SCREEN)]
    if view.senders:
        found = sender_lines(status, view.measure, _SENDERS, terminal, view.wanted)
        return ["", *(terminal.cut(line, terminal.width) if not index else line for index, line in enumerate(found))]
    return _tables(status, rates, view.sort, terminal, view.wanted)


def _tables(status: Entry, rates: Entry, sort: str, terminal: Terminal, wanted: str = "") -> list[str]:
    """Return the tables, each after an empty line, with only the rows that contain the text `wanted`."""
    lines: list[str] = []
    for key, table in _TABLES.items():
        shown = table_lines(
            table, _sorted(table, _entries(table, status, rates[key]), sort), At.TOP, terminal, 0.0, wanted
        )
        lines += ["", *shown] if shown else []
    return lines


def _entries(table: Table, status: Entry, rates: Sequence[Entry]) -> list[Entry]:
    """Return the entries of the document, with the rates of the interval instead of those of the last minute."""
    found: list[Entry] = []
    for each, rate in zip(table.entries(status), rates, strict=True):
        if table.in_brief is None or table.in_brief(each):
            found.append({**rate, **each, **{key: value for key, value in rate.items() if key.endswith("PerSecond")}})
    return found


def _sorted(table: Table, entries: list[Entry], sort: str) -> list[Entry]:
    """Sort by the user's choice, the greatest first, then by name. Tables without rates keep their order."""
    key = _KEYS.get(sort, "")
    if not any(column.read == "requestsPerSecond" for column in table.columns):
        return entries
    return sorted(entries, key=lambda each: (-(each.get(key) or 0), str(table.columns[0].value(each))))


# -- head and foot -----------------------------------------------------------------------------------------------------


def _head(status: Entry, rates: Entry, view: TopView, terminal: Terminal) -> list[str]:
    clock = time.strftime("%H:%M:%S")
    up = duration(status["uptimeSeconds"])
    title = f"mcproxy {clean(status['version'])} {status['state']}, pid {status['pid']}, up {up}"
    errors, requests = rates["errorsPerSecond"], rates["requestsPerSecond"]
    refused = rates["refusedPerSecond"]
    share = f" ({errors / requests:.1%})" if errors and requests and not refused else ""
    second = f"refused {number(refused)}/s" if refused else f"p50 {duration(rates['p50Seconds'])}"
    load = (
        f"requests {number(requests)}/s  errors {number(errors)}/s{share}  sent {size(rates['bytesPerSecond'])}/s  "
        f"open {number(rates['inFlight'])}  {second}  p99 {duration(rates['p99Seconds'])}"
    )
    lines = [terminal.styled(_both_sides(title, clock, terminal), "bold"), terminal.cut(load, terminal.width)]
    history = status["history"]["requestsPerSecond"]
    if any(history):
        label = (
            f"  requests, {duration(len(history) * status['history']['stepSeconds'])}, at most {number(max(history))}/s"
        )
        chart = terminal.sparkline(history, max(10, min(len(history), (terminal.width or 80) - len(label))))
        lines.append(terminal.cut(chart + label, terminal.width))
    found = problems(status)
    for problem in found[:_SHOWN_PROBLEMS]:
        text = terminal.cut(clean(problem.words), terminal.width)
        lines.append(terminal.styled(text, "bad" if problem.broken else "warn"))
    if len(found) > _SHOWN_PROBLEMS:
        lines.append(f"and {len(found) - _SHOWN_PROBLEMS} more: mcproxy status")
    return lines


def _foot(view: TopView, terminal: Terminal) -> str:
    if view.failure:
        return terminal.styled(terminal.cut(clean(view.failure), terminal.width), "bad")
    if view.typing:
        return terminal.cut(f"filter: {clean(view.wanted)}_", terminal.width)
    text = _HELP.format(
        other="rates" if view.senders else "senders",
        sort=view.measure if view.senders else view.sort,
        pause="go on" if view.paused else "pause",
        interval=view.interval,
    )
    if view.wanted:
        text = f'only "{clean(view.wanted)}" (Esc: all)  {text}'
    return terminal.styled(terminal.cut(text, terminal.width), "dim")


def _both_sides(left: str, right: str, terminal: Terminal) -> str:
    if terminal.width is None:
        return f"{left}  {right}"
    room = terminal.width - len(right) - 2
    if room < 1:
        return terminal.cut(left, terminal.width)
    left = terminal.cut(left, room)
    return f"{left}{' ' * (room + 2 - width_of(left))}{right}"
