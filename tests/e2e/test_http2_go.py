"""Go's net/http, of which client-go and kube-apiserver are made, on both sides of the proxy over HTTP/2."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.http2_site import HTTP2Site
from tests.e2e.processes import wait_until

CLUSTERS = ("two", "one")
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HTTP2Site]:
    site = HTTP2Site(tmp_path_factory.mktemp("site"))
    try:
        yield site.start()
    finally:
        site.stop()


@pytest.fixture(autouse=True)
def nothing_is_left(site: HTTP2Site) -> Iterator[None]:
    """Whatever clients do, nothing is under way at the cluster when they have ended, and nothing was a bug."""
    yield
    wait_until("the cluster's requests end", lambda: site.cluster.stats()["inFlight"] == 0)
    assert site.daemon.lines("bug") == []


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_long_download_through_small_windows_is_no_flood(site: HTTP2Site, cluster: str) -> None:
    """Go gives its windows back by 4 KiB: some 8,000 WINDOW_UPDATEs in a second or two, all paid for by DATA."""
    windows = ("-stream-window", 16 << 10, "-connection-window", 64 << 10)
    found = site.run("download", *windows, "-bytes", 16 * MEGABYTE, cluster=cluster)
    assert found["protocol"] == "HTTP/2.0"
    assert found["connections"] == 1
    assert found["errors"] == {}


def test_downloads_at_the_same_time_share_a_small_window(site: HTTP2Site) -> None:
    found = site.run("download", "-connection-window", 64 << 10, "-bytes", 2 * MEGABYTE, "-count", 8)
    assert found["errors"] == {}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_upload_waits_for_100_and_keeps_its_trailers(site: HTTP2Site, cluster: str) -> None:
    found = site.run("upload", "-bytes", 8 * MEGABYTE, cluster=cluster)
    assert found["continued"]
    seen = found["seen"]
    assert (seen["bytes"], seen["sum"], seen["length"]) == (8 * MEGABYTE, found["sum"], -1)
    assert seen["trailer"] == str(found["sum"])
    assert found["trailer"] == str(8 * MEGABYTE)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_200_watches_and_lists_share_one_connection(site: HTTP2Site, cluster: str) -> None:
    events = site.cluster.stats()["events"] + 50
    arguments = ("-clients", 1, "-each", 200, "-events", events, "-lists")
    with site.client("watches", *arguments, cluster=cluster) as client:
        assert client.line()["failures"] == []
        for _ in range(10):
            site.cluster.emit(5)
            time.sleep(0.02)
        found = client.line()
    assert found["failures"] == []
    assert found["complete"] == 200
    assert found["connections"] == 1
    assert found["lists"] >= 2
    assert found["median"] < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_goaways_fail_no_request_and_end_no_watch(site: HTTP2Site, cluster: str) -> None:
    """Each fiftieth request of this listener is answered beside a GOAWAY, and there are reloads."""
    before = site.cluster.stats()
    watching = ("-clients", 1, "-each", 20, "-events", before["events"] + 10, "-lists")
    with (
        site.client("load", listener="leaving", cluster=cluster) as load,
        site.client("watches", *watching, listener="leaving", cluster=cluster) as watches,
    ):
        load.line()
        watches.line()
        for _ in range(2):
            time.sleep(0.4)
            assert site.daemon.reload().returncode == 0
        # Without a GOAWAY to either client once in a million runs.
        wait_until("lists", lambda: site.cluster.stats()["lists"] - before["lists"] > 700)
        wait_until("load", lambda: site.cluster.stats()["requests"] - before["requests"] > 2500)
        site.cluster.emit(10)
        watched = watches.line()
        found = load.finish()
    assert watched["failures"] == []
    assert (watched["complete"], watched["resumed"]) == (20, 0)
    assert watched["connections"] > 1
    assert found["failures"] == []
    assert found["done"] > 200
    assert found["connections"] > 3  # two clients, who begin with one each
    assert site.cluster.stats()["twice"] == 0


def test_what_was_refused_is_sent_again(site: HTTP2Site) -> None:
    """More POSTs begin than may, since SETTINGS were not read yet; Go repeats what REFUSED_STREAM says is safe to."""
    posted = site.cluster.stats()["posted"]
    found = site.run("burst", "-count", 60, listener="few")
    assert found["errors"]["recv_rststream_REFUSED_STREAM"] > 0
    stats = site.cluster.stats()
    assert (stats["posted"] - posted, stats["twice"]) == (found["posted"], 0)


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_requests_given_up_at_any_time_disturb_no_other(site: HTTP2Site, cluster: str) -> None:
    found = site.run("cancel", "-workers", 10, "-count", 30, cluster=cluster)
    assert found["cancelled"] > 50
    assert found["succeeded"] > 100
    assert "recv_goaway_ENHANCE_YOUR_CALM" not in found["errors"]
