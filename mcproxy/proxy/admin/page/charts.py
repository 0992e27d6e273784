"""Small charts as inline SVG: one line over the last minutes, with its newest and its highest value in words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mcproxy.proxy.admin.page import formats
from mcproxy.proxy.admin.page.markup import Markup, join, tag

_WIDTH, _HEIGHT = 360, 72
_TOP = 4  # above the highest point

Values = Sequence[float | None]


def charts(history: dict[str, Any]) -> Markup:
    """Return the charts of the key `history`."""
    step = float(history.get("stepSeconds") or 0.0)
    drawn = [
        _chart("Requests per second", history.get("requestsPerSecond") or (), formats.number, step),
        _chart("Errors (5xx) per second", history.get("errorsPerSecond") or (), formats.number, step),
        _chart("Response bytes per second", history.get("bytesPerSecond") or (), formats.size, step),
        _chart("Duration, 99th percentile", history.get("p99Seconds") or (), formats.seconds, step),
    ]
    return tag("div", *drawn, class_="charts")


def _chart(title: str, values: Values, shown: Callable[[float | None], str], step: float) -> Markup:
    known = [value for value in values if value is not None]
    if not known:
        drawing = tag("p", "no figures yet", class_="none")
        return tag("figure", tag("figcaption", title), drawing)
    newest, highest = shown(values[-1]), shown(max(known))
    words = f"{title}: {newest} now, at most {highest} in the last {formats.duration(step * len(values))}"
    drawing = tag(
        "svg",
        tag("title", words),
        *(tag("path", d=area, class_="area") for area in _areas(values)),
        *(tag("path", d=line, class_="line") for line in _lines(values)),
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
    return tag("figure", caption, drawing)


def _points(values: Values) -> list[list[tuple[float, float]]]:
    """Return the points of each unbroken stretch: where nothing is known the line is interrupted."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    across = _WIDTH / max(1, len(values) - 1)
    stretches: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            stretches.append([])
        else:
            stretches[-1].append((index * across, _HEIGHT - (_HEIGHT - _TOP) * max(0.0, value) / top))
    return [stretch for stretch in stretches if stretch]


def _lines(values: Values) -> list[str]:
    return [
        _path(points) if len(points) > 1 else _path([*points, (points[0][0] + 1, points[0][1])])
        for points in _points(values)
    ]


def _areas(values: Values) -> list[str]:
    return [
        f"{_path(points)}L{points[-1][0]:.1f} {_HEIGHT}L{points[0][0]:.1f} {_HEIGHT}Z" for points in _points(values)
    ]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
