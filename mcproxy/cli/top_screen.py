"""One screen of `mcproxy top`: lines of text, from a status document and its rates. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.cli.status_sections import short_name
from mcproxy.cli.terminal import Cell, Column, Terminal, clean, duration, number, size, width_of
from mcproxy.observe.problems import BY, LATE, NEARLY_FULL, problems

# -- tables of the largest senders, for `mcproxy top` and `mcproxy status --top` --------------------------------------

MEASURES = {"requests": "requests", "bytes": "bytes", "cpu": "cpuSeconds", "refused": "refused"}
"""The measures by which senders are ranked: the words of options and keys, and the keys of the document."""
TITLES = {"users": "USER", "clients": "CLIENT", "resources": "RESOURCE", "userAgents": "USER AGENT"}


def sender_lines(
    senders: Mapping[str, Any], measure: str, most: int, terminal: Terminal, wanted: str = ""
) -> list[str]:
    """Return a table of each kind with `most` rows at most, sorted by `measure`, the greatest first.

    `wanted`: only names that contain this text, in any letter case.
    """
    seconds = senders.get("windowSeconds")
    if seconds is None:
        return ["the daemon does not tell who sends most: it is of another version"]
    total = senders.get("total") or {}
    lines = [
        f"the last {duration(seconds)}, by {measure}: {number(total.get('requests'))} requests, "
        f"{size(total.get('bytes'))}, {duration(total.get('cpuSeconds'))} of processor time, "
        f"{number(total.get('refused'))} refused"
    ]
    for kind, title in TITLES.items():
        rows = list(_sender_rows(senders.get(kind) or (), total, MEASURES[measure], wanted))[:most]
        if rows:
            lines += ["", *terminal.table(_sender_columns(title), rows)]
    return lines


def _sender_columns(title: str) -> list[Column]:
    return [
        Column(title=title, gives_way=True),
        Column(title="REQUESTS", right=True),
        Column(title="SHARE", right=True),
        Column(title="BYTES", right=True),
        Column(title="CPU (EST.)", right=True),
        Column(title="REFUSED", right=True),
    ]


def _sender_rows(
    entries: Sequence[Mapping[str, Any]], total: Mapping[str, Any], key: str, wanted: str
) -> Iterator[list[Cell | str]]:
    for each in sorted(entries, key=lambda one: (-one[key], one["name"])):
        if wanted.lower() not in each["name"].lower() or not each[key]:
            continue
        every = total.get(key) or 0
        yield [
            each["name"],
            number(each["requests"]),
            f"{each[key] / every:.0%}" if every else "-",
            size(each["bytes"]),
            duration(each["cpuSeconds"]),
            Cell(number(each["refused"]), "warn" if each["refused"] else ""),
        ]


Entry = Mapping[str, Any]
Row = list[Cell | str]

SORTS = ("requests", "errors", "refused", "p99", "in flight", "name")
"""The orders of rows, most first; the key `s` goes to the next."""
_KEYS = {
    "requests": "requestsPerSecond",
    "errors": "errorsPerSecond",
    "refused": "refusedPerSecond",
    "p99": "p99Seconds",
    "in flight": "inFlight",
}
_STATES = {"out": "bad", "impaired": "warn", "unchecked": "warn", "disabled": "dim", "ready": "good"}
_SHOWN_PROBLEMS = 3
_SENDERS = 10  # of a kind
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
class View:
    """The choices of the user."""

    sort: str = SORTS[0]
    scroll: int = 0
    """The number of lines of the body above the screen."""
    paused: bool = False
    interval: float = 2.0
    """Seconds between two samples."""
    senders: bool = False
    """The largest senders are shown."""
    measure: str = "requests"
    """The order of senders, one of `sender_tables.MEASURES`."""
    wanted: str = ""
    """Only rows with this text are shown."""
    typing: bool = False
    """Typed characters become `wanted`."""
    helps: bool = False
    failure: str = ""
    """Why there are no new figures; "" while there are."""


def screen(status: Entry, rates: Entry, view: View, terminal: Terminal, height: int) -> list[str]:
    """Return at most `height` lines; `view.scroll` is reduced if there are fewer."""
    head, body = _head(status, rates, view, terminal), _body(rates, view, terminal)
    foot = _foot(view, terminal)
    if height < len(head) + 4:  # a very small terminal: the most important lines
        head = head[: max(1, height - 4)]
    room = max(0, height - len(head) - 1)
    view.scroll = max(0, min(view.scroll, len(body) - room))
    shown = body[view.scroll : view.scroll + room]
    shown += [""] * (room - len(shown))
    return [*head, *shown, foot][: max(1, height)]


def plain(status: Entry, rates: Entry, sort: str, terminal: Terminal) -> list[str]:
    """Return all lines of a sample, for a file or a pipe."""
    return [*_head(status, rates, View(sort=sort), terminal), *body_of(rates, sort, terminal)]


def _body(rates: Entry, view: View, terminal: Terminal) -> list[str]:
    if view.helps:
        width = max(len(key) for key, _ in _KEYS_OF_SCREEN)
        return ["", *(terminal.cut(f"{key:{width}}  {text}", terminal.width) for key, text in _KEYS_OF_SCREEN)]
    if view.senders:
        found = sender_lines(rates["senders"], view.measure, _SENDERS, terminal, view.wanted)
        return ["", *(terminal.cut(line, terminal.width) if not index else line for index, line in enumerate(found))]
    return body_of(rates, view.sort, terminal, view.wanted)


def body_of(rates: Entry, sort: str, terminal: Terminal, wanted: str = "") -> list[str]:
    """Return the tables, each with an empty line before it; only rows that contain the text `wanted`."""
    lines: list[str] = []
    for table in (_servers, _endpoints, _refusals, _limits, _aggregates, _processes, _ingresses):
        columns, rows = table(rates, sort, terminal)
        rows = [row for row in rows if wanted.lower() in " ".join(map(_text, row)).lower()]
        if rows:
            lines += ["", *terminal.table(columns, rows)]
    return lines


def _text(cell: Cell | str) -> str:
    return cell.text if isinstance(cell, Cell) else cell


# -- head and foot -----------------------------------------------------------------------------------------------------


def _head(status: Entry, rates: Entry, view: View, terminal: Terminal) -> list[str]:
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


def _foot(view: View, terminal: Terminal) -> str:
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


# -- tables ------------------------------------------------------------------------------------------------------------


def _sorted(entries: Sequence[Entry], sort: str, name: Callable[[Entry], str]) -> list[Entry]:
    """Sort by the user's choice, the greatest first; tables without that column by name."""
    key = _KEYS.get(sort)
    return sorted(entries, key=lambda each: (-(each.get(key) or 0) if key else 0, name(each)))


def _servers(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="SERVER", gives_way=True),
        Column(title="REQ/S", right=True),
        Column(title="ERR/S", right=True),
        Column(title="REFUSED/S", right=True),
        Column(title="P99", right=True),
        Column(title="IN FLIGHT", right=True),
        Column(title="SINCE START", right=True, wide=True),
    ]
    rows: list[Row] = []
    for each in _sorted(rates["servers"], sort, lambda one: str(one["name"])):
        errors = each["errorsPerSecond"]
        row: Row = [each["name"], number(each["requestsPerSecond"]), Cell(number(errors), "bad" if errors else "")]
        row += [_refused(each), duration(each["p99Seconds"])]
        rows.append([*row, number(each["inFlight"]), number(each["requestsTotal"])])
    return columns, rows


def _refused(each: Entry) -> Cell:
    refused = each["refusedPerSecond"]
    return Cell(number(refused), "warn" if refused else "")


def _refusals(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="REFUSED", gives_way=True),
        Column(title="BY", gives_way=True),
        Column(title="REQ/S", right=True),
        Column(title="SINCE START", right=True, wide=True),
    ]
    rows: list[Row] = [
        [each["code"], BY.get(each["by"], each["by"]), number(each["requestsPerSecond"]), number(each["requestsTotal"])]
        for each in rates["refusals"]
        if each["requestsPerSecond"]
    ]
    return columns, rows


def _endpoints(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="CLUSTER", gives_way=True),
        Column(title="ENDPOINT", gives_way=True),
        Column(title="STATE"),
        Column(title="REQ/S", right=True),
        Column(title="MEAN", right=True, wide=True),
        Column(title="P99", right=True),
        Column(title="IN FLIGHT", right=True),
        Column(title="CONNS", right=True, wide=True),
        Column(title="CHECK", right=True, wide=True),
    ]
    rows: list[Row] = []
    for each in _sorted(rates["endpoints"], sort, lambda one: f"{one['cluster']} {one['name']}"):
        row: Row = [each["cluster"], short_name(each["name"]), Cell(each["state"], _STATES[each["state"]])]
        row += [number(each["requestsPerSecond"]), duration(each["meanSeconds"]), duration(each["p99Seconds"])]
        row += [number(each["inFlight"])]
        rows.append([*row, number(each["connections"]), duration(each["checkSeconds"])])
    return columns, rows


def _ingresses(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="INGRESS", gives_way=True),
        Column(title="RULE", gives_way=True),
        Column(title="SERVICE", gives_way=True),
        Column(title="READY", gives_way=True),
        Column(title="REQ/S", right=True),
        Column(title="ERR/S", right=True),
        Column(title="SINCE START", right=True, wide=True),
    ]
    rows: list[Row] = []
    for each in _sorted(rates["ingresses"], sort, lambda one: f"{one['ingress']} {one['rule']} {one['service']}"):
        errors = each["errorsPerSecond"]
        row: Row = [each["ingress"], each["rule"], each["service"], Cell(each["endpoints"], _STATES[each["state"]])]
        row += [number(each["requestsPerSecond"]), Cell(number(errors), "bad" if errors else "")]
        rows.append([*row, number(each["requestsTotal"])])
    return columns, rows


def _limits(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="LIMIT", gives_way=True),
        Column(title="USE"),
        Column(title="", right=True),
        Column(title="IN USE", right=True),
        Column(title="WAITING", right=True),
        Column(title="REFUSED/S", right=True),
    ]
    rows: list[Row] = []
    for each in rates["flowControls"]:
        use, refused = each["use"], each["refusedPerSecond"]
        style = "warn" if use is not None and use >= NEARLY_FULL else ""
        row: Row = [each["name"], Cell(terminal.bar(use), style), Cell("-" if use is None else f"{use:.0%}", style)]
        row += [number(each["inUse"]), Cell(number(each["waiting"]), "warn" if each["waiting"] else "")]
        rows.append([*row, Cell(number(refused), "bad" if refused else "")])
    return columns, rows


def _aggregates(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="AGGREGATE", gives_way=True),
        Column(title="CACHES", gives_way=True),
        Column(title="OBJECTS", right=True),
        Column(title="SIZE", right=True, wide=True),
        Column(title="WATCHERS", right=True),
        Column(title="QUEUED", right=True, wide=True),
    ]
    rows: list[Row] = []
    for each in rates["aggregates"]:
        states = each["states"]
        bad = any(states.get(state) for state in ("stale", "unavailable"))
        text = ", ".join(f"{count} {state}" for state, count in states.items())
        row: Row = [each["name"], Cell(text, "bad" if bad else ""), number(each["objects"]), size(each["bytes"])]
        rows.append([*row, number(each["watchers"]), size(each["queuedBytes"])])
    return columns, rows


def _processes(rates: Entry, sort: str, terminal: Terminal) -> tuple[list[Column], list[Row]]:
    columns = [
        Column(title="PROCESS"),
        Column(title="PID", right=True),
        Column(title="CPU", right=True),
        Column(title="MEMORY", right=True),
        Column(title="OPEN", right=True),
        Column(title="FDS", right=True, wide=True),
        Column(title="LAG", right=True),
        Column(title="", wide=True),
    ]
    rows: list[Row] = []
    for each in rates["processes"]:
        cpu, lag = each["cpu"], each["loopLagSeconds"]
        busy = cpu is not None and cpu > NEARLY_FULL
        row: Row = [each["name"], str(each["pid"]), Cell("-" if cpu is None else f"{cpu:.0%}", "warn" if busy else "")]
        row += [size(each["residentBytes"]), number(each["open"]), number(each["descriptors"])]
        row += [Cell(duration(lag), "warn" if (lag or 0.0) > LATE else "")]
        leads = each["leader"] and len(rates["processes"]) > 1
        rows.append([*row, ("leader" if leads else "") if each["answered"] else Cell("does not answer", "bad")])
    return columns, rows
