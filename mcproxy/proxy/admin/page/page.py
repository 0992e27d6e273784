"""The whole page: its frame, what needs attention, charts and sections. Pure, but for reading style and script.

It works without script, by its link to itself. With it, the sections that have changed are replaced every few seconds
by those of the same page, which is asked for again: there is one way to render a value, and it escapes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.resources import files
from typing import Any

from mcproxy.observe.problems import Problem, problems
from mcproxy.proxy.admin.browsers import page_policy
from mcproxy.proxy.admin.page import formats
from mcproxy.proxy.admin.page.charts import charts
from mcproxy.proxy.admin.page.markup import EMPTY, Markup, join, tag
from mcproxy.proxy.admin.page.sections import sections
from mcproxy.proxy.admin.page.tables import BAD, GOOD, WARN, mark

_MOST_PROBLEMS = 50
_FILES = files(__package__)
_STYLE = _FILES.joinpath("style.css").read_text("utf-8")
_SCRIPT = _FILES.joinpath("script.js").read_text("utf-8")

POLICY = page_policy(_STYLE, _SCRIPT)
"""The Content-Security-Policy of the page, as a header line."""

_TITLES = {
    "/status": "Status as JSON",
    "/metrics": "Metrics",
    "/debug/requests": "Requests in flight",
    "/config": "Configuration",
    "/readyz": "Readiness",
}


def render(status: dict[str, Any], served: Collection[str], now: str) -> Iterator[str]:
    """Yield the page of a status document of the time `now` (RFC 3339), in pieces of some milliseconds each.

    It links to those of the paths `served` that are views of the same.
    """
    found = problems(status)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"mcproxy: {_outcome(found)[1].lower()}"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="robots", content="noindex"),
        tag("style", Markup(_STYLE)),
    )
    yield f'<!DOCTYPE html>\n<html lang="en">{head}<body>'
    yield tag("a", "Skip to the state", href="#main", class_="skip")
    yield _banner(status, served, now, found)
    yield '<main id="main" tabindex="-1">'
    yield _attention(found)
    yield _rates(status)
    yield from sections(status)
    yield "</main>"
    yield tag("footer", tag("p", "Figures are of all processes since the start of each. Times are UTC."))
    yield f"{tag('script', Markup(_SCRIPT))}</body></html>\n"


def _banner(status: dict[str, Any], served: Collection[str], now: str, found: list[Problem]) -> Markup:
    kind, words = _outcome(found)
    facts = (
        ("Version", status.get("version")),
        ("State", status.get("state")),
        ("Up", formats.duration(status.get("uptimeSeconds"))),
        ("In flight", formats.count(status.get("open"))),
        ("As of", tag("time", formats.instant(now), datetime=now, id="as-of")),
    )
    links = [
        tag("li", tag("a", name, href=f"{path}?verbose" if path == "/readyz" else path))
        for path, name in _TITLES.items()
        if path in served
    ]
    return tag(
        "header",
        tag("div", tag("h1", "mcproxy"), mark(kind, words), class_="title", id="outcome"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts), id="facts"),
        tag(
            "nav",
            tag("ul", *links, tag("li", tag("a", "Refresh", href="/", id="refresh"))),
            aria_label="Other views",
        ),
        tag("p", role="status", id="live"),
        id="daemon",
    )


def _outcome(found: list[Problem]) -> tuple[str, str]:
    if not found:
        return GOOD, "All is well"
    if any(problem.severe for problem in found):
        return BAD, "Clients are affected"
    return WARN, "Needs attention"


def _attention(found: list[Problem]) -> Markup:
    if not found:
        content = tag("p", "Nothing.", class_="none")
    else:
        lines = [
            tag("li", tag("a", mark(BAD if each.severe else WARN, each.words), href=f"#{each.section}"))
            for each in found[:_MOST_PROBLEMS]
        ]
        if len(found) > _MOST_PROBLEMS:
            lines.append(tag("li", tag("a", f"and {len(found) - _MOST_PROBLEMS} more", href="/status")))
        content = tag("ul", *lines, class_="problems")
    title = tag("h2", "Needs attention", id="attention-title")
    return tag("section", title, content, id="attention", aria_labelledby="attention-title")


def _rates(status: dict[str, Any]) -> Markup:
    history = status.get("history")
    if not history:
        return EMPTY
    samples = len(history.get("requestsPerSecond") or ())
    span = formats.duration(samples * float(history.get("stepSeconds") or 0))
    title = tag("h2", f"Rates of the last {span}" if samples else "Rates", id="rates-title")
    return tag("section", join(title, charts(history)), id="rates", aria_labelledby="rates-title")
