"""A cluster that refuses, resets and leaves over HTTP/2, as the clients of the proxy see it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from tests.e2e.http2_clients import Client, open_client
from tests.e2e.http2_routes import HTTP2Routes
from tests.e2e.processes import wait_until

MAPS = "/api/v1/namespaces/demo/configmaps"
JSON = {"Content-Type": "application/json"}
WATCH = f"{MAPS}?watch=1&resourceVersion=0&fieldSelector=metadata.name%3Dfaults"


@pytest.fixture
def site(http2_routes: HTTP2Routes) -> Iterator[HTTP2Routes]:
    """The cluster has no faults, and the proxy no connection to it."""
    control = http2_routes.control
    control.http2(max_concurrent_streams=250, initial_window=1 << 18)
    control.reset_connections()
    wait_until("no connection is left", lambda: control.http2_stats()["connections"] == 0)
    yield http2_routes
    control.clear_faults()
    control.http2(max_concurrent_streams=250, initial_window=1 << 18)


def new_client(site: HTTP2Routes) -> Client:
    return open_client("httpx-2", site.base("2-2"), "admin-test-token", site.ca)


@pytest.fixture
def client(site: HTTP2Routes) -> Iterator[Client]:
    with closing(new_client(site)) as found:
        yield found


class Watch:
    """A watch that has begun, by a client of its own: httpx resets no stream, it only closes connections."""

    def __init__(self, site: HTTP2Routes, path: str) -> None:
        self._client = new_client(site)
        self._lines = self._client.lines(path)
        assert self.next() == "ADDED"

    def next(self) -> str:
        """The type of the next event."""
        return str(json.loads(next(self._lines))["type"])

    def close(self) -> None:
        self._lines.close()  # type: ignore[attr-defined]
        self._client.close()


@pytest.fixture
def watch(site: HTTP2Routes, client: Client) -> Iterator[Watch]:
    """One on the connection that the proxy has to the cluster."""
    metadata = {"name": "faults", "namespace": "demo"}
    site.control.create([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}])
    with closing(Watch(site, WATCH)) as found:
        yield found
    client.ask("DELETE", f"{MAPS}/faults")


def config_map(name: str, size: int = 1) -> bytes:
    content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "x" * size}}
    return json.dumps(content).encode()


def create_once(site: HTTP2Routes, client: Client, name: str) -> None:
    """Create an object and delete it; the cluster has got each request once."""
    mark = site.control.mark()
    assert client.ask("POST", MAPS, JSON, config_map(name)).status == 201
    assert client.ask("DELETE", f"{MAPS}/{name}").status == 200
    assert [record["method"] for record in site.control.audit(mark, path=MAPS)] == ["POST", "DELETE"]


def goes_on(client: Client, watch: Watch) -> bool:
    headers, body = {"Content-Type": "application/merge-patch+json"}, b'{"data": {"changed": "yes"}}'
    assert client.ask("PATCH", f"{MAPS}/faults", headers, body).status == 200
    return watch.next() == "MODIFIED"


def test_a_write_that_is_refused_is_sent_again(site: HTTP2Routes, client: Client) -> None:
    site.control.fault("refuseStream", methods="POST", count=1)
    create_once(site, client, "refused")


def test_a_write_above_a_goaways_last_stream_is_sent_again(site: HTTP2Routes, client: Client, watch: Watch) -> None:
    site.control.fault("goaway", methods="POST", unprocessed=True, count=1)
    create_once(site, client, "unprocessed")
    assert goes_on(client, watch)
    assert site.control.http2_stats()["connections"] == 2


def test_after_a_goaway_streams_end_there_and_new_ones_go_elsewhere(
    site: HTTP2Routes, client: Client, watch: Watch
) -> None:
    site.control.goaway()
    assert client.ask("GET", MAPS).status == 200
    assert goes_on(client, watch)
    wait_until("the old connection and one more", lambda: site.control.http2_stats()["connections"] == 2)
    watch.close()
    wait_until("the connection has gone", lambda: site.control.http2_stats()["connections"] == 1)


def test_a_response_that_is_reset_is_broken_and_no_other(site: HTTP2Routes, client: Client, watch: Watch) -> None:
    site.control.fault("resetStream", methods="GET", paths=f"{MAPS}?limit", bytes=300, count=1)
    with pytest.raises(httpx.RemoteProtocolError):
        client.ask("GET", f"{MAPS}?limit=5")
    assert goes_on(client, watch)
    assert client.ask("GET", f"{MAPS}?limit=5").status == 200
    assert site.control.http2_stats()["connections"] == 1


def test_the_limit_of_streams_is_kept_by_more_connections(site: HTTP2Routes) -> None:
    control = site.control
    control.http2(max_concurrent_streams=3)
    before = control.http2_stats()
    with contextlib.ExitStack() as opened:
        # Watches, so that all streams are there at the same time, however long it takes to open them.
        with ThreadPoolExecutor(12) as threads:
            for each in threads.map(lambda _: Watch(site, "/api/v1/nodes?watch=1&resourceVersion=0"), range(12)):
                opened.enter_context(closing(each))
        with closing(new_client(site)) as client:
            assert client.ask("GET", "/api/v1/namespaces/demo/pods?limit=1").status == 200
        after = control.http2_stats()
        assert sum(after["streams"]) >= 12
    assert after["overLimit"] == before["overLimit"]
    assert after["connectionsSeen"] - before["connectionsSeen"] >= 4
    assert after["protocolErrors"] == []


def test_watches_of_all_clients_share_a_connection(site: HTTP2Routes) -> None:
    others = site.control.stats()["watches"]  # over HTTP/1.1 the simulated cluster finds out with the next event
    with ThreadPoolExecutor(8) as threads:
        opened = list(threads.map(lambda _: Watch(site, "/api/v1/nodes?watch=1&resourceVersion=0"), range(8)))
    # A health check is a stream there, too, while it lasts.
    wait_until("eight streams on one connection", lambda: site.control.http2_stats()["streams"] == [8])
    for each in opened:
        each.close()
    wait_until("all streams have ended", lambda: sum(site.control.http2_stats()["streams"]) == 0)
    wait_until("all watches have ended", lambda: site.control.stats()["watches"] <= others)


def test_a_large_body_through_a_small_window(site: HTTP2Routes, client: Client) -> None:
    site.control.http2(initial_window=5000)
    assert client.ask("POST", MAPS, JSON, config_map("through", 300_000)).status == 201
    assert len(client.ask("DELETE", f"{MAPS}/through").body) > 100
    assert site.control.http2_stats()["protocolErrors"] == []
