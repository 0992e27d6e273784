"""The views of the page, and the sections of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.observe.problems import StatusProblem
from mcproxy.proxy.admin.page import (
    cluster_tables,
    daemon_tables,
    export_tables,
    ingress_tables,
    limits,
    markup,
    traffic_tables,
)
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, WARN, Column, Entry, Table, mark
from mcproxy.proxy.admin.page.query import Query

_WIDTH, _HEIGHT = 360, 72

# Charts as inline SVG: one line over the last minutes, with axes, and its newest and highest value in words. Pure.

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
    """Return the end of an axis for a greatest value: 1, 2 or 5 times a power of ten of a unit (1000, or 1024)."""
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
    """Return the points of each unbroken stretch: where nothing is known the line is interrupted."""
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
"""Problems of the overview; the others are in a separate view."""
_FEW = 10
"""Rows of a table of the overview."""
_FEWEST = 5
_DAY = 86400


@dataclass(frozen=True, slots=True)
class Made:
    """What sections are made of."""

    status: Status
    problems: list[StatusProblem]
    query: Query


@dataclass(frozen=True, slots=True)
class Section:
    key: str
    title: str
    content: Callable[[Made], Markup]
    more: str = ""
    """The view that has all of it."""


@dataclass(frozen=True, slots=True)
class View:
    name: str
    title: str
    sections: tuple[Section, ...]
    is_there: Callable[[Status], bool] = lambda status: True
    """Whether there is anything to show."""


def _rows(make: Callable[[Status], Table]) -> Callable[[Made], Markup]:
    return lambda made: make(made.status).render(made.query)


def _few(make: Callable[[Status], Table]) -> Callable[[Made], Markup]:
    return lambda made: make(made.status).render(made.query, _FEW)


def _attention(made: Made) -> Markup:
    if not made.problems:
        return tag("p", "Nothing.", class_="none")
    lines = [tag("li", _problem(each)) for each in made.problems[:_FIRST_PROBLEMS]]
    if len(made.problems) > _FIRST_PROBLEMS:
        more = f"and {len(made.problems) - _FIRST_PROBLEMS} more"
        lines.append(tag("li", tag("a", more, href=Query(view="problems").link())))
    return tag("ul", *lines, class_="problems")


def _problem(each: StatusProblem) -> Markup:
    view = _VIEW_OF.get(each.section, "")
    href = f"{Query(view=view).link()}#{each.section}" if view else f"#{each.section}"
    return tag("a", mark(BAD if each.broken else WARN, breakable(each.words)), href=href)


def _problems(made: Made) -> Markup:
    entries: list[Entry] = [{"problem": each, "words": each.words, "kind": _kind(each)} for each in made.problems]
    columns = (
        Column("Problem", lambda each: each["words"], cell=lambda each: _problem(each["problem"])),
        Column("Kind", lambda each: each["kind"]),
    )
    severity = {"clients are affected": 2, "broken": 2, "warning": 1}
    return Table("attention", "Problems", columns, entries, lambda each: severity[each["kind"]]).render(made.query)


def _kind(each: StatusProblem) -> str:
    return "clients are affected" if each.severe else "broken" if each.broken else "warning"


def _summary(made: Made) -> Markup:
    """Return the figures that matter most."""
    status = made.status
    every = status.get("clusters") or ()
    counts = [cluster_tables.counts_of(each) for each in every]
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
    return limits.facts(shown)


def _expiry(days: list[float]) -> str:
    if not days:
        return markup.UNKNOWN
    return f"in {markup.duration(min(days) * _DAY)}" if min(days) > 0 else "has ended"


def _rates(made: Made) -> Markup:
    history = made.status.get("history")
    return charts(history) if history else EMPTY


VIEWS = (
    View(
        "",
        "Overview",
        (
            Section("attention", "Needs attention", _attention),
            Section("summary", "Now", _summary),
            Section("rates", "Rates of the last quarter of an hour", _rates),
            Section("clusters", "Clusters", _few(cluster_tables.clusters_in_brief), "clusters"),
            Section(
                "senders",
                "Who sends most",
                lambda made: traffic_tables.senders(made.status, made.query, _FEWEST),
                "traffic",
            ),
        ),
    ),
    View(
        "clusters",
        "Clusters",
        (Section("clusters", "Clusters", _rows(cluster_tables.clusters)),),
        lambda status: bool(status.get("clusters")),
    ),
    View(
        "endpoints",
        "Endpoints",
        (Section("endpoints", "Endpoints", _rows(cluster_tables.endpoints)),),
        lambda status: bool(status.get("clusters")),
    ),
    View(
        "servers",
        "Servers",
        (
            Section("servers", "Servers", _rows(traffic_tables.servers)),
            Section("listeners", "Listeners", _rows(traffic_tables.listeners)),
        ),
    ),
    View(
        "traffic",
        "Traffic",
        (
            Section("refusals", "Who is refused", _rows(traffic_tables.refusals)),
            Section("senders", "Who sends most", lambda made: traffic_tables.senders(made.status, made.query, _FEW)),
        ),
    ),
    View(
        "limits",
        "Limits",
        (
            Section("flow-controls", "Flow controls", lambda made: limits.flow_controls(made.status, made.query)),
            Section("reviews", "Reviews and caches", lambda made: limits.reviews(made.status, made.query)),
        ),
    ),
    View(
        "api-services",
        "API services",
        (Section("api-services", "API services", _rows(limits.api_services)),),
        lambda status: bool(status.get("apiServices")),
    ),
    View(
        "ingresses",
        "Ingresses",
        (
            Section("ingresses", "Rules", _rows(ingress_tables.rules)),
            Section("ingress-services", "Services", _rows(ingress_tables.services)),
        ),
        lambda status: bool(status.get("ingresses")),
    ),
    View(
        "exports",
        "Exports",
        (
            Section("exports", "Services", _rows(export_tables.services)),
            Section("importers", "Importing clusters", _rows(export_tables.clusters)),
            Section("export-problems", "Problems", _rows(export_tables.problems)),
        ),
        lambda status: bool(status.get("exports") or status.get("exportTargets")),
    ),
    View(
        "aggregates",
        "Aggregates",
        (
            Section("aggregates", "Aggregates", _rows(limits.aggregates)),
            Section("caches", "Caches", _rows(limits.caches)),
        ),
        lambda status: bool(status.get("aggregates")),
    ),
    View(
        "services",
        "Services",
        (
            Section("services", "Endpoints of ingresses", _rows(limits.service_endpoints)),
            Section("caches", "Caches", _rows(limits.caches)),
        ),
        lambda status: bool(status.get("serviceCaches")),
    ),
    View(
        "certificates",
        "Certificates",
        (Section("certificates", "Certificates", _rows(daemon_tables.certificates)),),
        lambda status: bool(status.get("certificates")),
    ),
    View(
        "daemon",
        "Daemon",
        (
            Section("processes", "Processes", _rows(daemon_tables.processes)),
            Section("reload", "Last reload", lambda made: daemon_tables.reload(made.status)),
        ),
    ),
    View("problems", "Problems", (Section("attention", "Needs attention", _problems),), lambda status: False),
)
"""In the order of the navigation; the last one is reached from the overview."""

_VIEW_OF = {section.key: view.name for view in reversed(VIEWS[1:]) for section in view.sections}


def chosen(query: Query) -> View:
    """Return the view that a request asks for; the first one if there is no such."""
    return next((view for view in VIEWS if view.name == query.view), VIEWS[0])


def linked(made: Made, section: Section) -> Markup:
    """Return a section's content, with a link to all of it where it has only some."""
    content = section.content(made)
    if not section.more:
        return content
    return join(content, tag("p", tag("a", "All of it", href=Query(view=section.more).link()), class_="note"))
