"""Watches of many clients over few connections: each gets every event, in order.

The same with 10,000 watches, and what one costs: `python -m tests.e2e.watch_figures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.http2_site import HTTP2Site
from tests.e2e.watch_figures import measure


@pytest.fixture
def site(tmp_path: Path) -> Iterator[HTTP2Site]:
    site = HTTP2Site(tmp_path)
    try:
        yield site.start()
    finally:
        site.stop()


def test_300_watches_of_20_clients_share_few_connections(site: HTTP2Site) -> None:
    found = measure(site, watches=300, clients=20, events=30)
    assert found.failures == []
    assert (found.watches, found.complete) == (300, 300)
    assert found.client_connections == 20
    assert found.upstream_connections in (3, 4)  # at most 100 watches on each; lists may have their own
    assert site.daemon.lines("bug") == []
