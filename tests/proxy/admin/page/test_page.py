"""The status page, as HTML that is read back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.model import ADMIN_PATHS
from mcproxy.proxy.admin.page import page
from mcproxy.proxy.admin.page.markup import breakable
from mcproxy.proxy.admin.page.query import parse
from mcproxy.proxy.admin.page.views import VIEWS
from tests.proxy.admin.page.documents import good, in_flight, with_clusters, with_endpoints
from tests.proxy.admin.page.test_markup import Reader

NOW = "2026-11-22T12:00:00Z"
EVIL = "</title></script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;"


VIEWS_OF_STATUS = tuple(view.name for view in VIEWS)


def rendered(status: dict[str, Any], served: tuple[str, ...] = ADMIN_PATHS, query: str = "") -> str:
    return "".join(page.render(status, served, NOW, parse(query.encode())))


def every_view(status: dict[str, Any], served: tuple[str, ...] = ADMIN_PATHS) -> str:
    """All views of a document, one behind the other."""
    return "".join(rendered(status, served, f"view={view}") for view in VIEWS_OF_STATUS)


def rows(html: str) -> list[str]:
    """The names of the rows of all tables."""
    found = re.findall(r'<th scope="row"[^>]*>(.*?)</th>', html)
    return [re.sub(r"<[^>]*>", "", each) for each in found]


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


def test_tunnels_are_a_view_of_their_own() -> None:
    status = good()
    read = Reader(rendered(status, query="view=tunnels"))
    for shown in ("site-a", "an edge", "192.0.2.7", "ab904243", "21.3 ms", "to-centre", "https://hub-1.example:6443"):
        assert shown in read.data, shown
    assert "view=tunnels" in rendered(status)
    assert "view=tunnels" not in rendered({**status, "tunnels": []})
    assert "2 of 2" in Reader(rendered(status)).data
    status["tunnels"][1]["hubs"][0] |= {"connected": False, "cause": "no answer"}
    assert "no hub is connected" in rendered(status)
    assert "not connected" in rendered(status, query="view=tunnels")


def test_it_is_all_there() -> None:
    read = Reader(every_view(good()))
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
        "87 ms",
        "12.5",
        "the server's authorizer",
        "system:serviceaccount:ci:runner",
        "kubectl/v1.34",
    ):
        assert shown in read.data, shown
    read = Reader(rendered(good()))
    names = [name for name, _ in read.tags]
    assert (names.count("h1"), names.count("main"), names.count("header")) == (1, 1, 1)
    assert names.count("section") == 5


def test_texts_of_others_never_become_markup() -> None:
    status = good()
    attacked = replaced(status, EVIL)

    def tags(status: dict[str, Any]) -> list[tuple[str, list[str]]]:
        return [each for each in structure(every_view(status)) if each[0] != "wbr"]

    assert tags(attacked) == tags(replaced(status, "x"))
    assert "<script>alert" not in every_view(attacked)


def test_what_a_reader_asks_for_never_becomes_markup() -> None:
    evil = urlencode({"view": "clusters", "q": EVIL, "by": EVIL, "clusters.sort": EVIL, EVIL + ".sort": EVIL})
    html = rendered(good(), query=evil)
    assert "<script>alert" not in html
    assert [name for name, _ in Reader(html).tags].count("script") == 1
    assert "<img" not in html


def test_nothing_is_fetched_from_elsewhere_and_nothing_is_inline() -> None:
    for name, attributes in Reader(every_view(with_endpoints(40, out=2))).tags:
        for key, value in attributes:
            assert not key.startswith("on"), (name, key)
            assert key not in ("style", "src", "action"), (name, key)
            assert key != "href" or re.match(r"[/#?]", value or ""), value


@pytest.mark.parametrize("view", VIEWS_OF_STATUS)
def test_every_table_has_headers_and_a_name(view: str) -> None:
    tags = Reader(rendered(good(), query=f"view={view}")).tags
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
    status["ingressServices"][0]["ready"] = 0
    status["flowControls"][0]["use"] = 1.0
    status["processes"][0] |= {"restarts": 2, "uptimeSeconds": 60.0}
    status["refusals"] |= {"requests": 100, "refused": 30}
    tags = Reader(rendered(status, query="view=problems")).tags
    links = {str(dict(attributes)["href"]) for name, attributes in tags if name == "a"}
    reached = {tuple(link.split("#")) for link in links if "#" in link and link != "#main"}
    sections = {section for _, section in reached}
    expected = {"reload", "listeners", "clusters", "aggregates", "certificates", "processes", "refusals", "ingresses"}
    assert expected <= sections
    for query, section in reached:
        html = rendered(status, query=query.removeprefix("?"))
        assert f'<section id="{section}"' in html or section == "daemon", (query, section)


def test_problems_are_searched_and_sorted_by_their_words_not_by_their_links() -> None:
    status = with_endpoints(3, out=1)
    status["listeners"][0]["accepting"] = False
    status["certificates"][0]["daysLeft"] = 2
    shown = rows(rendered(status, query="view=problems&attention.sort=problem"))
    assert len(shown) > 2
    assert shown == sorted(shown, key=str.lower)
    assert len(rows(rendered(status, query="view=problems&q=certificate"))) == 1
    assert rows(rendered(status, query="view=problems&q=href")) == []


def test_rules_of_ingresses_show_what_is_out() -> None:
    status = good()
    status["ingressServices"][0]["outEndpoints"] = [{"endpoint": "10.0.0.1:80", "cause": "it did not answer in time"}]
    html = rendered(status, query="view=ingresses")
    assert "shop.example.com/cart" in re.sub("<wbr>", "", html)
    assert "east 3 (1 out)" in html
    assert "10.0.0.1:80 (it did not answer in time)" in re.sub("<wbr>", "", html)


def test_it_links_only_to_what_is_served() -> None:
    html = rendered(good(), ("/", "/metrics"))
    links = {str(dict(attributes)["href"]) for name, attributes in Reader(html).tags if name == "a"}
    assert {link.partition("?")[0] for link in links if link.startswith("/")} == {"/", "/metrics"}


def test_many_clusters_are_pages_of_which_those_with_problems_come_first() -> None:
    status = with_clusters(120)
    html = rendered(status, query="view=clusters")
    shown = rows(html)
    assert len(shown) == 20
    assert "1 to 20 of 120" in html
    assert [name[-3:] for name in shown[:3]] == ["001", "002", "018"]
    endpoints = rendered(status, query="view=endpoints")
    assert "1 to 20 of 360" in endpoints
    assert rows(endpoints)[0].startswith("prod-us-east-2-payments-001-control-plane-1")
    assert endpoints.count("it refused the connection") >= 7
    second = rows(rendered(status, query="view=clusters&clusters.page=2"))
    assert not set(second) & set(shown)
    last = rows(rendered(status, query="view=clusters&clusters.page=99999"))
    assert set(last) & set(rows(rendered(status, query="view=clusters&clusters.page=6")))


def test_a_table_is_sorted_and_searched_by_its_address() -> None:
    status = with_clusters(120)
    shown = rows(rendered(status, query="view=clusters&clusters.sort=-requests-s"))
    assert [name[-3:] for name in shown[:3]] == ["119", "118", "117"]
    shown = rows(rendered(status, query="view=clusters&clusters.sort=requests-s"))
    assert shown[0].endswith("000")
    shown = rows(rendered(status, query="view=clusters&q=PAYMENTS-01"))
    assert len(shown) == 10
    assert all("payments-01" in name for name in shown)
    shown = rows(rendered(status, query="view=clusters&only=problems"))
    assert len(shown) == 11
    assert len(rows(rendered(status, query="view=endpoints&only=problems"))) == 7
    assert "Nothing is found." in rendered(status, query="view=clusters&q=nowhere")
    assert rows(rendered(status, query="view=clusters&clusters.sort=nothing"))  # of another version


def test_certificates_are_sorted_by_their_end() -> None:
    status = with_clusters(120)
    html = rendered(status, query="view=certificates")
    days = [int(each) for each in re.findall(r"&nbsp;(\d+)</span></td>", html)]
    assert days == sorted(days)
    assert days[0] == 1


@pytest.mark.parametrize("view", VIEWS_OF_STATUS)
def test_only_what_has_changed_is_sent_again(view: str) -> None:
    status = with_clusters(120)
    whole = rendered(status, query=f"view={view}")
    have = ",".join(f"{key}:{code}" for key, code in re.findall(r'<section id="([\w-]+)" data-hash="(\w+)"', whole))
    assert have
    again = rendered(status, query=f"view={view}&have={have}")
    assert len(again) < 2000
    assert rows(again) == []
    status["open"] += 1
    for each in (status["clusters"], status["servers"], status["processes"]):
        each[0]["name"] += "-new"
    changed = rendered(status, query=f"view={view}&have={have}")
    assert "<style>" not in changed
    assert len(changed) < len(whole)


def test_the_page_of_many_clusters_is_bounded() -> None:
    few, many = with_clusters(20), with_clusters(500)
    for view in VIEWS_OF_STATUS:
        sizes = [len(rendered(status, query=f"view={view}")) for status in (few, many)]
        assert sizes[1] < 1.5 * sizes[0] + 4000, view
        assert sizes[1] < 100_000, view


def test_who_sends_most_is_ranked_by_what_the_reader_chooses() -> None:
    users = ("jane", "system:serviceaccount:ci:runner")

    def first(query: str) -> str:
        return next(name for name in rows(rendered(good(), query=query)) if name in users)

    assert first("view=traffic") == "jane"
    assert first("view=traffic&by=cpuSeconds") == "system:serviceaccount:ci:runner"
    assert first("view=traffic&by=refused") == "system:serviceaccount:ci:runner"


def test_requests_in_flight_are_a_page_with_the_same_navigation() -> None:
    html = "".join(page.render_requests(in_flight(300), ADMIN_PATHS, NOW, parse(b"")))
    assert len(rows(html)) == 20
    assert "1 to 20 of 300" in html
    assert 'href="/?view=clusters"' in html
    assert "300 in flight" in html
    newest = "".join(page.render_requests(in_flight(300), ADMIN_PATHS, NOW, parse(b"requests.sort=age&q=payments-007")))
    assert len(rows(newest)) == 1
    evil = replaced(in_flight(2), EVIL)
    assert "<script>alert" not in "".join(page.render_requests(evil, ADMIN_PATHS, NOW, parse(b"")))
    alone = "".join(page.render_requests(in_flight(1), ("/debug/requests",), NOW, parse(b"")))
    assert 'href="/?view=clusters"' not in alone


@given(st.binary(max_size=300))
def test_no_query_breaks_it(query: bytes) -> None:
    assert "".join(page.render(good(), ADMIN_PATHS, NOW, parse(query))).endswith(("</html>\n", "</main>"))


def test_lines_end_within_no_word() -> None:
    shown = breakable("https://10.1.0.11:6443/api_v1 payments-001.example.com:6443")
    assert shown.replace("<wbr>", "|") == "https://|10.1.0.11:6443/|api_|v1 payments-001.|example.|com:6443"
    assert breakable("max 12,500,a,7 b") == "max 12,500,<wbr>a,7 b"


def keys(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all keys but names."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if isinstance(key, str) and key != "name":
            yield (*path, key)
        yield from keys(item, (*path, key))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["missing", "null"])
def test_it_is_made_whatever_a_process_of_another_version_does_not_tell(how: str) -> None:
    whole = every_view(good())
    for path in keys(good()):
        status = good()
        found: Any = status
        for step in path[:-1]:
            found = found[step]
        if how == "missing":
            del found[path[-1]]
        else:
            found[path[-1]] = None
        html = every_view(status)
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
    assert 'href="?view=certificates#certificates"' in html


def test_disabled_endpoints_need_no_attention_and_many_are_cut() -> None:
    status = with_endpoints(200, out=199)
    assert "and 191 more" in Reader(rendered(status)).data
    assert "1 to 20 of 199" in Reader(rendered(status, query="view=problems")).data
    for each in status["clusters"][0]["endpoints"]:
        each |= {"state": "disabled", "ready": False}
    assert "All is well" in Reader(rendered(status)).data
