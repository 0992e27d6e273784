"""The views of the page, and the sections of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.observe.problems import StatusProblem
from mcproxy.observe.senders import KINDS, MEASURES
from mcproxy.observe.tables.daemon import CERTIFICATES, FLOW_CONTROLS, PROCESSES, REVIEWERS
from mcproxy.observe.tables.services import (
    AGGREGATES,
    API_SERVICES,
    CACHES,
    EXPORT_PROBLEMS,
    EXPORTS,
    IMPORTERS,
    INGRESS_SERVICES,
    INGRESSES,
    SERVICE_ENDPOINTS,
)
from mcproxy.observe.tables.table import At, Column, Entry, Table, entries_of
from mcproxy.observe.tables.traffic import CLUSTERS, ENDPOINTS, LISTENERS, REFUSALS, SERVERS, endpoint_counts, senders
from mcproxy.observe.tables.tunnels import TUNNELS, tunnel_rows
from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, SIZE, WARN, PageTable, mark, when
from mcproxy.proxy.admin.page.query import Query

_WIDTH, _HEIGHT = 360, 72

# Charts as inline SVG: one line over the last minutes, with axes, and its newest and highest value as text. Pure.

Values = Sequence[float | None]


def charts(history: dict[str, Any]) -> Markup:
    """Return the charts of the key `history`."""
    step = float(history.get("stepSeconds") or 0.0)
    drawn = [
        _chart("Requests per second", history.get("requestsPerSecond") or (), markup.number, step),
        _chart("Errors (5xx) per second", history.get("errorsPerSecond") or (), markup.number, step),
        _chart("Refused per second", history.get("refusedPerSecond") or (), markup.number, step),
        _chart("Response bytes per second", history.get("bytesPerSecond") or (), markup.size, step, 1024),
        _chart("Duration, 99th percentile", history.get("p99Seconds") or (), markup.seconds, step),
    ]
    return tag("div", *drawn, class_="charts")


def _chart(title: str, values: Values, shown: Callable[[float | None], str], step: float, unit: int = 1000) -> Markup:
    known = [value for value in values if value is not None]
    if not known:
        drawing = tag("p", "no figures yet", class_="none")
        return tag("figure", tag("figcaption", title), drawing)
    newest, highest = shown(values[-1]), shown(max(known))
    span = markup.duration(step * len(values))
    words = f"{title}: {newest} now, at most {highest} in the last {span}"
    top = above(max(known), unit)
    drawing = tag(
        "svg",
        tag("title", words),
        tag("path", d=f"M0 {_HEIGHT / 2:.0f}H{_WIDTH}", class_="grid"),
        *(tag("path", d=area, class_="area") for area in _areas(values, top)),
        *(tag("path", d=line, class_="line") for line in _lines(values, top)),
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )
    caption = tag(
        "figcaption",
        title,
        tag("span", join(tag("b", newest), " now, ", highest, " at most"), class_="values"),
    )
    upright = tag("div", *(tag("span", shown(part * top)) for part in (1.0, 0.5, 0.0)), class_="upright")
    level = tag("div", tag("span", f"{span} ago"), tag("span", "now"), class_="level")
    return tag("figure", caption, tag("div", upright, drawing, level, class_="plot"))


def above(value: float, unit: int = 1000) -> float:
    """Return the end of an axis for a maximum value: 1, 2 or 5 times a power of ten of a unit (1000, or 1024)."""
    if value <= 0:
        return 1.0
    power = float(unit) ** math.floor(math.log(value, unit))
    value = value / power
    for digits in range(-3, 4):
        for factor in (1, 2, 5):
            if factor * 10.0**digits >= value * (1 - 1e-9):
                return factor * 10.0**digits * power
    return value * power


def _points(values: Values, top: float) -> list[list[tuple[float, float]]]:
    """Return the points of each continuous segment; the line is interrupted where values are unknown."""
    across = _WIDTH / max(1, len(values) - 1)
    stretches: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append((index * across, _HEIGHT - _HEIGHT * max(0.0, value) / top))
    return [stretch for stretch in stretches if stretch]


def _lines(values: Values, top: float) -> list[str]:
    return [
        _path(points) if len(points) > 1 else _path([*points, (points[0][0] + 1, points[0][1])])
        for points in _points(values, top)
    ]


def _areas(values: Values, top: float) -> list[str]:
    stretches = _points(values, top)
    return [f"{_path(each)}L{each[-1][0]:.1f} {_HEIGHT}L{each[0][0]:.1f} {_HEIGHT}Z" for each in stretches]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


Status = dict[str, Any]

_FIRST_PROBLEMS = 8
"""Maximum number of problems in the overview; the others are in a separate view."""
_FEW = 10
"""Maximum rows of a table in the overview."""
_FEWEST = 5
_DAY = 86400
_LINES = 100


@dataclass(frozen=True, slots=True)
class Made:
    """The input for rendering sections."""

    status: Status
    problems: list[StatusProblem]
    query: Query


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    title: str
    content: Callable[[Made], Markup]
    more: str = ""
    """The view that shows the section completely."""


@dataclass(frozen=True, slots=True)
class PageView:
    name: str
    title: str
    sections: tuple[Section, ...]
    is_there: Callable[[Status], bool] = lambda status: True
    """Whether there is anything to show."""


def _rows(table: Table, made: Made, size: int = SIZE, at: At = At.PAGE) -> Markup:
    return PageTable(table, made.status, at).render(made.query, size)


def _section(table: Table, title: str = "", size: int = SIZE, at: At = At.PAGE, more: str = "") -> Section:
    """Return the section of a table; its default title is the table's label."""
    return Section(table.key, title or table.label, lambda made: _rows(table, made, size, at), more)


def _has(*keys: str) -> Callable[[Status], bool]:
    return lambda status: any(status.get(key) for key in keys)


def _attention(made: Made) -> Markup:
    if not made.problems:
        return tag("p", "Nothing.", class_="none")
    lines = [
        tag("li", tag("a", mark(BAD if each.broken else WARN, breakable(each.words)), href=_link(each.section)))
        for each in made.problems[:_FIRST_PROBLEMS]
    ]
    if len(made.problems) > _FIRST_PROBLEMS:
        more = f"and {len(made.problems) - _FIRST_PROBLEMS} more"
        lines.append(tag("li", tag("a", more, href=Query(view="problems").link())))
    return tag("ul", *lines, class_="problems")


def _link(section: str) -> str:
    """Return the address of the section with the details of a problem."""
    view = _VIEW_OF.get(section, "")
    return f"{Query(view=view).link()}#{section}" if view else f"#{section}"


def _kind(problem: Entry) -> str:
    return "clients are affected" if problem["severe"] else "broken" if problem["broken"] else "warning"


_PROBLEMS = Table(
    "attention",
    "Needs attention",
    (
        Column("Problem", "words"),
        Column("Kind", _kind, state=lambda each: "bad" if each["broken"] else "warn"),
    ),
    entries_of("problems"),
    ordered=True,
)


def _problems(made: Made) -> Markup:
    found = {"problems": [problem._asdict() for problem in made.problems]}
    return PageTable(_PROBLEMS, found, link=lambda each: _link(each["section"])).render(made.query)


def _summary(made: Made) -> Markup:
    """Return the most important figures."""
    status = made.status
    every = status.get("clusters") or ()
    counts = [endpoint_counts(each) for each in every]
    history = status.get("history") or {}
    expiries = [each["daysLeft"] for each in status.get("certificates") or () if each.get("daysLeft") is not None]

    def newest(key: str, form: Callable[[float | None], str]) -> str:
        values = history.get(key) or (None,)
        return form(values[-1])

    ready = sum(bool(ready) for ready, _, _ in counts)
    shown: list[tuple[str, Content]] = [
        ("Requests/s", newest("requestsPerSecond", markup.number)),
        ("Errors/s", newest("errorsPerSecond", markup.number)),
        ("Refused/s", newest("refusedPerSecond", markup.number)),
        ("p99", newest("p99Seconds", markup.seconds)),
        ("In flight", markup.count(status.get("open"))),
        ("Clusters ready", f"{markup.count(ready)} of {markup.count(len(counts))}"),
        ("Endpoints ready", f"{sum(each[0] for each in counts)} of {sum(each[1] for each in counts)}"),
        ("Next certificate ends", _expiry(expiries)),
    ]
    if rows := tunnel_rows(status):
        shown.append(("Tunnels connected", f"{sum(bool(each.get('connected')) for each in rows)} of {len(rows)}"))
    return facts(shown)


def _expiry(days: list[float]) -> str:
    if not days:
        return markup.UNKNOWN
    return f"in {markup.duration(min(days) * _DAY)}" if min(days) > 0 else "has ended"


def _rates(made: Made) -> Markup:
    history = made.status.get("history")
    return charts(history) if history else EMPTY


# -- sections that are more than a table --

_MEASURES = {"requests": "requests", "bytes": "bytes", "cpuSeconds": "processor time", "refused": "refused requests"}
_LIMIT = "How to limit one of them: mcproxy docs admin#who-sends-most."


def _senders(made: Made, size: int) -> Markup:
    """Return a table for each kind of sender, ranked by the value that the reader has chosen."""
    status, query = made.status, made.query
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
    tables = [senders(kind, measure) for kind in KINDS]
    return join(
        tag("p", words, class_="note"),
        tag("nav", tag("ul", tag("li", "By:"), *choice), class_="pager", aria_label="What senders are ranked by"),
        tag("div", *(tag("div", tag("h3", each.label), _rows(each, made, size)) for each in tables), class_="side"),
    )


def _flow_controls(made: Made) -> Markup:
    """Return limits and their use, and how limits over several replicas are counted."""
    rows, state = _rows(FLOW_CONTROLS, made), made.status.get("sharedState")
    if not state:
        return rows
    reached = mark(WARN, "away, each replica has an equal part") if state.get("away") else mark(GOOD, "reached")
    return join(rows, facts([("Shared state", reached), ("Replicas", markup.count(state.get("replicas")))]))


def _reviews(made: Made) -> Markup:
    """Return the reviewers of tokens and rights, and their caches."""
    status = made.status
    caches, found = status.get("caches") or {}, status.get("reviews") or {}
    shown: list[tuple[str, Content]] = [(f"Cached {key}", markup.count(value)) for key, value in caches.items()]
    shown += [("Reviews running", markup.count(found.get("running")))]
    shown += [("Reviews waiting", markup.count(found.get("waiting")))]
    return join(facts(shown), _rows(REVIEWERS, made))


def facts(shown: list[tuple[str, Content]]) -> Markup:
    """Return names and their values."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in shown))


def _reload(made: Made) -> Markup:
    """Return the configuration in force, and the result of the last reload."""
    status = made.status
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
    lists = [_list(title, last.get(key)) for title, key in (("Errors", "errors"), ("Warnings", "warnings"))]
    return join(facts(shown), *lists, _list("Changes", last.get("changes")))


def _list(title: str, lines: Sequence[str] | None) -> Markup:
    if not lines:
        return EMPTY
    shown = [tag("li", breakable(line)) for line in lines[:_LINES]]
    if len(lines) > _LINES:
        shown.append(tag("li", f"and {len(lines) - _LINES} more: mcproxy status"))
    return join(tag("h3", title), tag("ul", *shown, class_="lines"))


VIEWS = (
    PageView(
        "",
        "Overview",
        (
            Section("attention", "Needs attention", _attention),
            Section("summary", "Now", _summary),
            Section("rates", "Rates of the last quarter of an hour", _rates),
            _section(CLUSTERS, size=_FEW, at=At.OVERVIEW, more="clusters"),
            Section("senders", "Who sends most", lambda made: _senders(made, _FEWEST), "traffic"),
        ),
    ),
    PageView("clusters", "Clusters", (_section(CLUSTERS),), _has("clusters")),
    PageView("endpoints", "Endpoints", (_section(ENDPOINTS),), _has("clusters")),
    PageView("tunnels", "Tunnels", (_section(TUNNELS),), _has("tunnels")),
    PageView("servers", "Servers", (_section(SERVERS), _section(LISTENERS))),
    PageView(
        "traffic",
        "Traffic",
        (
            _section(REFUSALS, "Who is refused"),
            Section("senders", "Who sends most", lambda made: _senders(made, _FEW)),
        ),
    ),
    PageView(
        "limits",
        "Limits",
        (
            Section("flow-controls", "Flow controls", _flow_controls),
            Section("reviews", "Reviews and caches", _reviews),
        ),
    ),
    PageView("api-services", "API services", (_section(API_SERVICES),), _has("apiServices")),
    PageView(
        "ingresses",
        "Ingresses",
        (_section(INGRESSES, "Rules"), _section(INGRESS_SERVICES, "Services")),
        _has("ingresses"),
    ),
    PageView(
        "exports",
        "Exports",
        (_section(EXPORTS), _section(IMPORTERS), _section(EXPORT_PROBLEMS)),
        _has("exports", "exportTargets"),
    ),
    PageView("aggregates", "Aggregates", (_section(AGGREGATES), _section(CACHES)), _has("aggregates")),
    PageView("services", "Services", (_section(SERVICE_ENDPOINTS), _section(CACHES)), _has("serviceCaches")),
    PageView("certificates", "Certificates", (_section(CERTIFICATES),), _has("certificates")),
    PageView("daemon", "Daemon", (_section(PROCESSES), Section("reload", "Last reload", _reload))),
    PageView("problems", "Problems", (Section(_PROBLEMS.key, _PROBLEMS.label, _problems),), lambda status: False),
)
"""The views in the order of the navigation; the last one is linked from the overview."""

_VIEW_OF = {section.key: view.name for view in reversed(VIEWS[1:]) for section in view.sections}


def chosen(query: Query) -> PageView:
    """Return the requested view, or the first view if the name is unknown."""
    return next((view for view in VIEWS if view.name == query.view), VIEWS[0])


def linked(made: Made, section: Section) -> Markup:
    """Return a section's content; if it is incomplete, add a link to the complete view."""
    content = section.content(made)
    if not section.more:
        return content
    return join(content, tag("p", tag("a", "All of it", href=Query(view=section.more).link()), class_="note"))
