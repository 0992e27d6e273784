"""Renders the whole page: its frame, and the sections of a view. Pure, except that it reads style and script files.

The page works without script: views, table pages and sort orders are links, and the search is a form. The script
requests the page again every few seconds with the hashes of its sections. The answer has the sections that differ, and
the script replaces the rows that differ in them. There is only one way to render a value, and it escapes the value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from hashlib import blake2s
from importlib.resources import files
from typing import Any

from mcproxy.observe.problems import StatusProblem, problems
from mcproxy.observe.tables.table import Column, Entry, Form, Table, entries_of
from mcproxy.proxy.admin.browsers import page_policy
from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import EMPTY, Markup, breakable, join, tag
from mcproxy.proxy.admin.page.page_table import BAD, GOOD, PLAIN, WARN, PageTable, mark
from mcproxy.proxy.admin.page.query import Query
from mcproxy.proxy.admin.page.views import VIEWS, Made, Status, chosen, linked

# The requests in flight. Pure.


def _request(each: Entry) -> str:
    return f"{each.get('verb') or each.get('method') or ''} {each.get('path', '')}"


def _user(each: Entry) -> str | None:
    name, other = each.get("user"), each.get("impersonated")
    return f"{name} as {other}" if other else name


_IN_FLIGHT = Table(
    "requests",
    "Requests in flight",
    (
        Column("Request", _request),
        Column("Age", "ageSeconds", Form.TIME),
        Column("State", "state"),
        Column("User", _user),
        Column("Client", "client"),
        Column("Server", "server"),
        Column("Cluster", "cluster"),
        Column("Endpoint", "endpoint"),
        Column("Process", "process"),
        Column("Sent", "bytesOut", Form.SIZE),
    ),
    entries_of("requests"),
    ordered=True,
)
"""The oldest first."""


def _requests(document: dict[str, Any], query: Query) -> Markup:
    missing = document.get("missing")
    note = tag("p", "No answer from: ", breakable(", ".join(missing)), class_="note") if missing else EMPTY
    return join(PageTable(_IN_FLIGHT, document).render(query), note)


_FILES = files(__package__)
_STYLE = _FILES.joinpath("style.css").read_text("utf-8")
_SCRIPT = _FILES.joinpath("script.js").read_text("utf-8")

POLICY = page_policy(_STYLE, _SCRIPT)
"""The Content-Security-Policy of the page, as a header line."""
REQUESTS = "/debug/requests"

_TITLES = {
    "/status": "Status as JSON",
    "/metrics": "Metrics",
    "/config": "Configuration",
    "/readyz": "Readiness",
}


def render(status: Status, served: Collection[str], now: str, query: Query | None = None) -> Iterator[str]:
    """Yield the page of a status document at the time `now` (RFC 3339), in pieces that take some milliseconds each.

    The page links to the paths in `served` that are other views of the state.
    """
    query = query or Query()
    found = problems(status)
    view = chosen(query)
    kind, words = _outcome(found)
    facts = (
        ("Version", status.get("version")),
        ("Build", status.get("build")),
        ("State", status.get("state")),
        ("Up", markup.duration(status.get("uptimeSeconds"))),
        ("As of", _as_of(now)),
    )
    there = [each for each in VIEWS if each.is_there(status) or each is view]
    if query.known is None:
        yield _head(f"mcproxy: {words.lower()}")
    yield _banner(mark(kind, words), facts)
    if query.known is None:
        yield _navigation(
            [(each.title, Query(view=each.name).address("/"), each is view) for each in there],
            served,
            query.address("/"),
        )
        yield "" if view.name in ("", "problems") else _search(query, view.name)
    yield '<main id="main" tabindex="-1">'
    made = Made(status, found, query)
    for section in view.sections:
        title = tag("h2", section.title, id=f"{section.key}-title")
        yield _section(section.key, join(title, linked(made, section)), query)
    yield "</main>"
    if query.known is None:
        yield _foot(
            "Rates and percentiles of tables are those of the last minute. Figures are of all processes since "
            "the start of each. Times are UTC."
        )


def render_requests(document: dict[str, Any], served: Collection[str], now: str, query: Query) -> Iterator[str]:
    """Yield the page of the requests in flight; `document` is the result of `request_list.merged`."""
    words = f"{markup.count(document['total'])} in flight"
    if query.known is None:
        yield _head("mcproxy: requests in flight")
    yield _banner(mark(PLAIN, words), (("As of", _as_of(now)),))
    if query.known is None:
        views = [(each.title, Query(view=each.name).address("/"), False) for each in VIEWS[:-1]]
        yield _navigation(views if "/" in served else [], served, query.address(REQUESTS))
        yield _search(query, "")
    yield '<main id="main" tabindex="-1">'
    title = tag("h2", "Requests in flight", id="requests-title")
    yield _section("requests", join(title, _requests(document, query)), query)
    yield "</main>"
    if query.known is None:
        yield _foot("The oldest 1,000 of each process; what may be secret in a query is not shown. Times are UTC.")


def _section(key: str, content: Markup, query: Query) -> Markup:
    """Return a section; if the client already has it, return only a note that it is unchanged."""
    code = blake2s(content.encode(), digest_size=6).hexdigest()
    if query.known is not None and query.known.get(key) == code:
        return tag("section", id=key, data_hash=code, data_same=True)
    return tag("section", content, id=key, data_hash=code, aria_labelledby=f"{key}-title")


def _head(title: str) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", title),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="robots", content="noindex"),
        tag("style", Markup(_STYLE)),
    )
    skip = tag("a", "Skip to the state", href="#main", class_="skip")
    return f'<!DOCTYPE html>\n<html lang="en">{head}<body>{skip}'


def _foot(words: str) -> str:
    return f"{tag('footer', tag('p', words))}{tag('script', Markup(_SCRIPT))}</body></html>\n"


def _as_of(now: str) -> Markup:
    return tag("time", markup.instant(now), datetime=now, id="as-of")


def _banner(outcome: Markup, facts: Collection[tuple[str, object]]) -> Markup:
    return tag(
        "header",
        tag("div", tag("h1", "mcproxy"), outcome, class_="title", id="outcome"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts), id="facts"),
        tag("p", role="status", id="live"),
        id="daemon-state",
    )


def _navigation(views: list[tuple[str, str, bool]], served: Collection[str], here: str) -> Markup:
    links = [
        tag("li", tag("a", title, href=href, aria_current="page" if current else None))
        for title, href, current in views
    ]
    if REQUESTS in served:
        current = "page" if here.startswith(REQUESTS) else None
        links.append(tag("li", tag("a", "Requests in flight", href=REQUESTS, aria_current=current)))
    others = [
        tag("li", tag("a", name, href=f"{path}?verbose" if path == "/readyz" else path))
        for path, name in _TITLES.items()
        if path in served
    ]
    others.append(tag("li", tag("a", "Refresh", href=here, id="refresh")))
    return tag(
        "nav", tag("ul", *links, class_="views") if links else EMPTY, tag("ul", *others), aria_label="Views", id="views"
    )


def _search(query: Query, view: str) -> Markup:
    return tag(
        "form",
        tag("input", type="hidden", name="view", value=view) if view else EMPTY,
        tag(
            "label",
            "Search ",
            tag("input", type="search", name="q", value=query.search, maxlength=100, autocomplete="off"),
        ),
        tag(
            "label",
            tag("input", type="checkbox", name="only", value="problems", checked=query.only_problems),
            " only what needs attention",
        )
        if view
        else EMPTY,
        tag("button", "Search"),
        role="search",
        id="search",
    )


def _outcome(found: list[StatusProblem]) -> tuple[str, str]:
    if not found:
        return GOOD, "All is well"
    if any(problem.severe for problem in found):
        return BAD, "Clients are affected"
    return WARN, "Needs attention"
