"""What a member refuses, and how the reflector goes on: without WatchList, from the first page, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.aggregate.reflector import member_calls
from mcproxy.aggregate.reflector import reflector as module
from mcproxy.aggregate.reflector.member_calls import MemberError, MemberUnreachable
from tests.aggregate.reflector.fake_member import FakeMember
from tests.aggregate.reflector.fake_server import FakeServer, end, event, follow, item, page, plain, refuse, stream
from tests.aggregate.reflector.harness import Site, names
from tests.support.logged import captured_logs


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture
def server(reactor: Any, site: Site) -> Iterator[FakeServer]:
    server = FakeServer(reactor)
    yield server
    server.close()


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is not tried again within a test."""
    monkeypatch.setattr(member_calls, "_FIRST_DELAY", 600.0)


def status(code: int) -> bytes:
    return plain(b'{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"message":"no"}' % code, code)


def kinds(server: FakeServer) -> list[str]:
    """What the server was asked for, in order."""
    return [
        ("watch-list" if "sendInitialEvents" in query else "watch")
        if "watch=true" in query
        else ("page" if "continue=" in query else "list")
        for query in server.asked
    ]


# -- WatchList ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [400, 405, 406, 415, 422])
async def test_a_watch_list_that_is_refused_is_not_asked_for_again(site: Site, server: FakeServer, code: int) -> None:
    """400 is of API servers that do not know the parameters' values, 422 of those that have the feature turned off."""
    server.watch = lambda target: status(code) if "sendInitial" in target else stream()
    server.list = lambda target: plain(page(item("a")))
    store = follow(site, server)
    assert await store.when_synced(60)
    await site.until(lambda: len(server.asked) == 3)
    assert kinds(server) == ["watch-list", "list", "watch"]
    assert store.unavailable_since is None
    assert names(store) == ["a"]


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("code", [401, 403, 404, 410, 429, 500, 503])
async def test_an_answer_that_says_nothing_of_watch_lists_is_a_failure(
    site: Site, server: FakeServer, code: int
) -> None:
    server.watch = lambda target: status(code)
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert kinds(server) == ["watch-list"]
    assert ("does not serve configmaps" if code == 404 else str(code)) in store.unavailable_cause
    assert store.refused == (code in (401, 403))
    assert not store.synced


# -- pages ----------------------------------------------------------------------------------------------------------


def first_page(*objects: str) -> bytes:
    return plain(page(*(item(name) for name in objects), **{"continue": "more"}))


async def test_a_token_that_expires_begins_the_list_anew_and_nothing_of_the_first_one_stays(
    site: Site, server: FakeServer
) -> None:
    expired = [True, True]

    def listed(target: str) -> bytes:
        if "continue=more" not in target:
            return first_page("a" if expired else "b")
        return status(410) if expired and expired.pop() else plain(page(item("z")))

    server.watch = lambda target: refuse(target) if "sendInitial" in target else stream()
    server.list = listed
    store = follow(site, server)
    assert await store.when_synced(60)
    assert kinds(server)[:7] == ["watch-list", "list", "page", "list", "page", "list", "page"]
    assert names(store) == ["b", "z"]
    assert store.unavailable_since is None


@pytest.mark.usefixtures("once")
async def test_a_list_whose_token_always_expires_is_a_failure(site: Site, server: FakeServer) -> None:
    server.watch = refuse
    server.list = lambda target: status(410) if "continue=" in target else first_page("a")
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert kinds(server) == ["watch-list", *["list", "page"] * 3]
    assert "continue token expires" in store.unavailable_cause
    assert not store.refused
    assert not store.synced


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("code", [403, 410, 500])
async def test_a_first_page_that_is_refused_is_a_failure(site: Site, server: FakeServer, code: int) -> None:
    server.watch = refuse
    server.list = lambda target: status(code)
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert kinds(server) == ["watch-list", "list"]
    assert f"{code}" in store.unavailable_cause
    assert store.refused == (code == 403)


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("code", [401, 403, 404, 500])
async def test_a_further_page_that_is_refused_is_a_failure(site: Site, server: FakeServer, code: int) -> None:
    """The right may go while a list is read: what came before is no list."""
    server.watch = refuse
    server.list = lambda target: status(code) if "continue=" in target else first_page("a")
    store = follow(site, server)
    await site.until(lambda: store.unavailable_since is not None)
    assert kinds(server) == ["watch-list", "list", "page"]
    assert ("does not serve configmaps" if code == 404 else str(code)) in store.unavailable_cause
    assert store.refused == (code in (401, 403))
    assert len(store) == 0


# -- relists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("watch_list", [True, False])
async def test_after_a_relist_the_ends_of_watches_are_resumed(
    site: Site, server: FakeServer, watch_list: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One 410 is one relist, not one at each end of a watch from then on."""
    monkeypatch.setattr(module, "_STEADY", 0.0)
    ended = [0]

    def watched(target: str) -> bytes:
        if "sendInitial" in target:
            return stream(event("ADDED", item("a")), end(), ended=True) if watch_list else refuse(target)
        ended[0] += 1
        if ended[0] == 1:
            return status(410)
        return stream(ended=True) if ended[0] < 6 else stream()

    server.watch = watched
    server.list = lambda target: plain(page(item("a")))
    store = follow(site, server)
    await site.until(lambda: ended[0] == 6)
    listed = ["watch-list"] if watch_list else ["list"]
    assert kinds(server) == [*(["watch-list"] if not watch_list else []), *listed, "watch", *listed, *["watch"] * 5]
    assert store.unavailable_since is None


# -- log lines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize(
    ("code", "failures", "todo"),
    [
        (401, 1, "give cluster east valid credentials"),
        (403, 1, "grant the proxy what `mcproxy rbac --cluster east` prints"),
        (429, 3, "see the log of the cluster's API server; it is tried again"),
        (500, 3, "see the log of the cluster's API server; it is tried again"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do_and_its_end_is_one(
    code: int, failures: int, todo: str, more: int
) -> None:
    """What an operator has to mend is said at once, what may pass only when it has lasted."""
    member = FakeMember()
    member.statuses = [code] * (failures - 1)
    with captured_logs() as logs:
        reflector, store = member.follow()
        member.advance(10)
        assert [event["event"] for event in logs] == []
        reflector.stop()
    member.statuses = [code] * (failures + more)
    with captured_logs() as logs:
        reflector, store = member.follow()
        member.advance(30)
        assert store.synced
        reflector.stop()
    assert [event["event"] for event in logs] == ["reflector_out", "reflector_ready"]
    assert (logs[0]["cluster"], logs[0]["todo"]) == ("east", todo)
    assert str(code) in logs[0]["cause"]


def test_a_resource_that_is_not_served_says_so_in_the_log() -> None:
    member = FakeMember()
    reflector, _ = member.follow()
    member.advance(0.1)
    with captured_logs() as logs:
        reflector.collection.log_failure(MemberError("the cluster does not serve pods", status=404), 3)
        reflector.collection.log_failure(MemberUnreachable("connection refused"), 3)
    reflector.stop()
    [event] = logs
    assert event["todo"] == "none if the definition was deleted; else see that the API service runs"
