"""A store that begins with what was saved of it: what cannot be read is listed, what is released is not waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.reflector.member import Member
from mcproxy.aggregate.reflector.reflectors import Reflectors, StoreOptions
from tests.aggregate.reflector.fake_server import FakeServer, end, event, follow, item, stream
from tests.aggregate.reflector.harness import Site, names


class Saved:
    """Nothing was saved of a member; what was saved of a store is read when `reading` fires."""

    def __init__(self) -> None:
        self.reading: Deferred[str] = Deferred()

    def restore_member(self, member: Member) -> None:
        pass

    async def restore_store(self, store: Store, options: StoreOptions) -> str:
        return await self.reading


@pytest.fixture
def saved() -> Saved:
    return Saved()


@pytest.fixture
def site(reactor: Any, nothing_left_open: None, saved: Saved) -> Iterator[Site]:
    site = Site(reactor)
    site.reflectors = Reflectors(site.shared, saved=saved)
    yield site
    site.close()


@pytest.fixture
def server(reactor: Any, site: Site) -> Iterator[FakeServer]:
    server = FakeServer(reactor)
    server.watch = lambda target: stream(event("ADDED", item("a")), end())
    yield server
    server.close()


async def test_what_was_saved_and_cannot_be_read_is_listed(
    site: Site, server: FakeServer, saved: Saved, bugs: list[str]
) -> None:
    store = follow(site, server)
    assert server.asked == []
    saved.reading.errback(OSError("damaged"))
    assert await store.when_synced(60)
    assert names(store) == ["a"]
    (bug,) = bugs
    assert "reading a saved cache failed" in bug
    assert "damaged" in bug


async def test_a_store_that_is_released_while_it_is_read_is_no_failure(
    site: Site, server: FakeServer, saved: Saved, bugs: list[str]
) -> None:
    store = follow(site, server)
    site.reflectors.release(store)
    await site.until(lambda: saved.reading.called)
    await site.wait(0)
    assert bugs == []
    assert server.asked == []
