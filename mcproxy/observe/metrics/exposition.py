"""The text of /metrics: Prometheus' text format, or OpenMetrics if the client accepts it.

Sources: https://prometheus.io/docs/instrumenting/exposition_formats/, https://prometheus.io/docs/specs/om/.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from mcproxy.observe.metrics.counts import Labels
from mcproxy.observe.metrics.families import AGGREGATOR_UNAVAILABLE, Family
from mcproxy.observe.metrics.gauges import gauges_of
from mcproxy.observe.metrics.metrics import Metrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

SLICE = 0.002
"""Seconds of work after which the reactor runs other work."""
_PIECE = 100  # series per piece, which take at most 1 ms
_KEPT = 4096  # limit of the label values whose escaped form is cached

Samples = Iterable[tuple[Labels, Iterable[float]]]
"""The series of a family: the values of the labels, and the numbers in the form of `counts`."""

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def content_type(accept: str) -> tuple[bool, str]:
    """Return whether OpenMetrics is requested, and the Content-Type of the response. `accept`: the header, or ""."""
    best: dict[bool, float] = {}
    for item in accept.lower().split(","):
        media, *parameters = (part.strip() for part in item.split(";"))
        openmetrics = media == "application/openmetrics-text"
        if not openmetrics and media not in ("text/plain", "text/*", "*/*"):
            continue
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        if openmetrics and given.get("version", "1.0.0") not in ("0.0.1", "1.0.0"):
            continue
        try:
            quality = float(given.get("q", "1"))
        except ValueError:
            quality = 0.0
        best[openmetrics] = max(best.get(openmetrics, 0.0), quality)
    wanted = best.get(True, 0.0)
    if wanted and wanted >= best.get(False, 0.0):
        return True, OPENMETRICS
    return False, TEXT


async def metrics_text(
    clock: IReactorTime, metrics: Metrics, status: Mapping[str, Any], *, openmetrics: bool = False
) -> list[bytes]:
    """Return the text, in pieces; the reactor runs other work every 2 ms.

    `status` is the status document (docs/architecture.md), from which the gauges are read.
    """
    metrics.flush()
    pieces: list[bytes] = []
    until = clock.seconds() + SLICE
    families = itertools.chain(
        ((family, metrics.counts.of(family).items()) for family in metrics.counts.families if not family.internal),
        gauges_of(status),
    )
    for piece in render(families, openmetrics=openmetrics):
        pieces.append(piece.encode())
        if clock.seconds() >= until:
            await deferLater(clock, 0)
            until = clock.seconds() + SLICE
    return pieces


def render(families: Iterable[tuple[Family, Samples]], *, openmetrics: bool = False) -> Iterator[str]:
    """Yield the text in pieces that take about a millisecond each, without families that have no series."""
    escape = lru_cache(_KEPT)(_escape)  # the same few values are in many series
    for family, samples in families:
        # A copy, because series can be added before the last piece is made.
        series = iter(samples if isinstance(samples, Iterator) else tuple(samples))
        head = _head(family, openmetrics)
        write = _histogram if family.kind == "histogram" else _value
        form = ",".join(f'{name}="%s"' for name in family.labels)
        while some := tuple(itertools.islice(series, _PIECE)):
            yield head + "".join(
                [write(family, form % tuple(map(escape, labels)), numbers) for labels, numbers in some]
            )
            head = ""
    if openmetrics:
        yield "# EOF\n"


def _head(family: Family, openmetrics: bool) -> str:
    name, kind = family.name, str(family.kind)
    if openmetrics and family is AGGREGATOR_UNAVAILABLE:
        kind = "unknown"  # without _total, its name would be that of a gauge's family, which OpenMetrics forbids
    elif openmetrics and kind == "counter":
        name = name.removesuffix("_total")
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _escape(value: str) -> str:
    return value.translate(_ESCAPES)


def _value(family: Family, labels: str, numbers: Iterable[float]) -> str:
    (number,) = numbers
    return f"{family.name}{{{labels}}} {number}\n" if labels else f"{family.name} {number}\n"


def _histogram(family: Family, labels: str, numbers: Iterable[float]) -> str:
    *buckets, total = numbers
    name, comma = family.name, "," if labels else ""
    count = 0
    lines = []
    for bound, number in zip((*family.bounds, "+Inf"), buckets, strict=True):
        count += int(number)
        lines.append(f'{name}_bucket{{{labels}{comma}le="{bound}"}} {count}\n')
    braces = f"{{{labels}}}" if labels else ""
    lines.append(f"{name}_sum{braces} {total}\n{name}_count{braces} {count}\n")
    return "".join(lines)
