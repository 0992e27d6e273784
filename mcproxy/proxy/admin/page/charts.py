"""Charts as inline SVG: one line over the last minutes, with axes, and its newest and highest value in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import Markup, join, tag

_WIDTH, _HEIGHT = 360, 72

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
