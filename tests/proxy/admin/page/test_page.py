"""The status page, as HTML that is read back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.config.model import ADMIN_PATHS
from mcproxy.proxy.admin.page import page
from tests.proxy.admin.page.documents import good, with_endpoints
from tests.proxy.admin.page.test_markup import Reader

NOW = "2026-11-22T12:00:00Z"
EVIL = "</title></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


def rendered(status: dict[str, Any], served: tuple[str, ...] = ADMIN_PATHS) -> str:
    return "".join(page.render(status, served, NOW))


def replaced(value: Any, by: str) -> Any:
    """The same document with each of its texts replaced, but for words that choose a form."""
    if isinstance(value, dict):
        return {key: item if key in _CHOOSING else replaced(item, by) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, by) for item in value]
    return by if isinstance(value, str) else value


_CHOOSING = ("state", "kind", "role")


def structure(html: str) -> list[tuple[str, list[str]]]:
    return [(name, [key for key, _ in attributes]) for name, attributes in Reader(html).tags]


def test_it_is_all_there() -> None:
    read = Reader(rendered(good()))
    for shown in (
        "All is well",
        "1 of 1 ready",
        "12,834,012",
        "9,876,543",
        "reached",
        "184 MiB",
        "312",
        "58.4 MiB",
        "50 %",
        "300",
        "bulk added",
    ):
        assert shown in read.data
    names = [name for name, _ in read.tags]
    assert (names.count("h1"), names.count("main"), names.count("header"), names.count("nav")) == (1, 1, 1, 1)
    assert names.count("section") == 12


def test_texts_of_others_never_become_markup() -> None:
    status = good()
    attacked = replaced(status, EVIL)
    assert structure(rendered(attacked)) == structure(rendered(replaced(status, "x")))
    assert "<script>alert" not in rendered(attacked)


def test_nothing_is_fetched_from_elsewhere_and_nothing_is_inline() -> None:
    for name, attributes in Reader(rendered(with_endpoints(40, out=2))).tags:
        for key, value in attributes:
            assert not key.startswith("on"), (name, key)
            assert key not in ("style", "src", "action"), (name, key)
            assert key != "href" or re.match(r"[/#]", value or ""), value


def test_every_table_has_headers_and_a_name() -> None:
    tags = Reader(rendered(good())).tags
    assert all(dict(attributes).get("aria-label") for name, attributes in tags if name == "table")
    assert all(dict(attributes).get("scope") for name, attributes in tags if name == "th")
    labelled = [dict(attributes)["aria-labelledby"] for name, attributes in tags if name == "section"]
    identifiers = [dict(attributes).get("id") for _, attributes in tags]
    assert set(labelled) <= set(identifiers)
    known = [each for each in identifiers if each is not None]
    assert len(known) == len(set(known))


def test_each_problem_links_to_where_there_is_more_of_it() -> None:
    status = with_endpoints(30, out=2)
    status["logs"] = {"audit": {"lost": 3}}
    status["lastReload"]["ok"] = False
    status["listeners"][0]["accepting"] = False
    status["aggregates"][0]["reflectorCounts"] = {"stale": 1}
    status["certificates"][0]["daysLeft"] = 2
    status["flowControls"][0]["use"] = 1.0
    status["processes"][0] |= {"restarts": 2, "uptimeSeconds": 60.0}
    tags = Reader(rendered(status)).tags
    links = {str(dict(attributes)["href"]) for name, attributes in tags if name == "a"}
    sections = {link[1:] for link in links if link.startswith("#")} - {"main"}
    assert {"daemon", "reload", "listeners", "clusters", "aggregates", "certificates", "processes"} <= sections
    assert sections <= {dict(attributes).get("id") for _, attributes in tags}


def test_it_links_only_to_what_is_served() -> None:
    html = rendered(good(), ("/", "/metrics"))
    links = {dict(attributes)["href"] for name, attributes in Reader(html).tags if name == "a"}
    assert {link for link in links if link and link.startswith("/")} == {"/", "/metrics"}


def test_many_endpoints_are_folded_but_for_those_that_are_out() -> None:
    html = rendered(with_endpoints(200, out=3))
    before, _, folded = html.partition('<details id="endpoints-others">')
    assert before.count("it refused the connection") >= 3
    assert "197 other endpoints" in folded
    assert html.count('<th scope="row"') > 200
    assert "more endpoints are in the status as JSON" not in html
    assert "more endpoints are in the status as JSON" in rendered(with_endpoints(600))


def keys(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all keys but names."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(key, str) and key != "name":
            yield (*path, key)
        yield from keys(item, (*path, key))


@pytest.mark.parametrize("how", ["missing", "null"])
def test_it_is_made_whatever_a_process_of_another_version_does_not_tell(how: str) -> None:
    whole = rendered(good())
    for path in keys(good()):
        status = good()
        found: Any = status
        for step in path[:-1]:
            found = found[step]
        if how == "missing":
            del found[path[-1]]
        else:
            found[path[-1]] = None
        html = rendered(status)
        assert html.endswith("</html>\n"), path
        assert ">None<" not in html, path
        assert len(html) > len(whole) / 2, path


def test_an_empty_document_is_a_page() -> None:
    assert "All is well" in rendered({})


def test_problems_are_above_all_those_that_clients_notice_in_red() -> None:
    status = good()
    status["clusters"][0]["endpoints"][0] |= {"ready": False, "state": "out", "cause": EVIL}
    status["certificates"][0]["daysLeft"] = 12.3
    read = Reader(rendered(status))
    assert "Clients are affected" in read.data
    assert "has no endpoint that is ready" in "".join(read.data)
    status["clusters"][0]["endpoints"][0] |= {"ready": True, "state": "ready"}
    html = rendered(status)
    assert "Needs attention" in Reader(html).data
    assert 'href="#certificates"' in html


def test_disabled_endpoints_need_no_attention_and_many_are_cut() -> None:
    status = with_endpoints(200, out=199)
    assert "and 149 more" in Reader(rendered(status)).data
    for each in status["clusters"][0]["endpoints"]:
        each |= {"state": "disabled", "ready": False}
    assert "All is well" in Reader(rendered(status)).data
