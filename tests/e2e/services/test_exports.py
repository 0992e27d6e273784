"""Exported services over simulated clusters: replicas that fight, clusters that are killed, stopped and black-holed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.services.environment import Clusters, export_of, service_of, wait_until

EXPORT = export_of("web", ["west"], ["east", "north"])
NAMES = ("west", "east", "north")
IMPORTED = "imported-west-web-1"


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    with Clusters(tmp_path, NAMES) as found:
        found.create("west", service_of("web"))
        found.put_slice("west", "web", ["10.1.0.1"])
        yield found


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def imported(clusters: Clusters, *names: str, addresses: list[str]) -> None:
    """Wait until clusters have all of it: the Service and the EndpointSlice are written at the same time."""
    for name in names:
        shows = partial(_has, clusters, name, addresses)
        wait_until(f"{addresses} in {name}", shows)


def _has(clusters: Clusters, name: str, addresses: list[str]) -> bool:
    return (clusters.addresses(name, IMPORTED), clusters.names(name, "services")) == (addresses, ["derived-web"])


def written(clusters: Clusters, name: str, since: int) -> set[tuple[str, str, str]]:
    """Return method, object and addresses of all writes, each once: one whose answer comes too late is repeated."""
    found: set[tuple[str, str, str]] = set()
    for each in clusters.writes(name, since):
        sent = json.loads(each["body"])
        addresses = (address for one in sent.get("endpoints") or () for address in one["addresses"])
        found.add((each["method"], urlsplit(each["path"]).path.rpartition("/")[2], " ".join(addresses)))
    return found


@pytest.mark.slow
def test_endpoints_go_to_the_importing_clusters_and_follow_their_source(clusters: Clusters, stack: ExitStack) -> None:
    daemon = stack.enter_context(clusters.daemon("a", [EXPORT]))
    imported(clusters, "east", "north", addresses=["10.1.0.1"])
    clusters.put_slice("west", "web", ["10.1.0.1", "10.1.0.2"])
    imported(clusters, "east", "north", addresses=["10.1.0.1", "10.1.0.2"])
    mark = clusters.control("east").mark()
    assert daemon.reload_quickly()["ok"]
    daemon.signal(signal.SIGTERM)
    assert daemon.end() == 0
    assert clusters.holder("east") == clusters.holder("north") == ""
    stack.enter_context(clusters.daemon("b", [EXPORT]))
    wait_until("the next one leads", lambda: clusters.holder("east") != "")
    clusters.put_slice("west", "web", ["10.1.0.3"])
    imported(clusters, "east", addresses=["10.1.0.3"])
    assert written(clusters, "east", mark) == {("PATCH", IMPORTED, "10.1.0.3")}
    assert not clusters.writes("west")
    assert clusters.send("west", "DELETE", "/api/v1/namespaces/demo/services/web")[0] == 200
    wait_until("nothing is left", lambda: not clusters.names("east", "services"))
    wait_until("nothing is left", lambda: not clusters.names("east", "endpointslices"))


@pytest.mark.slow
def test_an_export_that_leaves_the_file_takes_its_imports_with_it(clusters: Clusters, stack: ExitStack) -> None:
    daemon = stack.enter_context(clusters.daemon("a", [EXPORT]))
    imported(clusters, "east", "north", addresses=["10.1.0.1"])
    daemon.file.write_text(clusters.config(daemon.directory, [export_of("web", ["west"], ["east"])]))
    assert daemon.reload_quickly()["ok"]
    wait_until("north has none", lambda: clusters.addresses("north", IMPORTED) is None)
    wait_until("north has none", lambda: not clusters.names("north", "services"))
    assert clusters.addresses("east", IMPORTED) == ["10.1.0.1"]


@pytest.mark.slow
def test_a_source_that_is_killed_keeps_its_imports_over_a_restart_too(clusters: Clusters, stack: ExitStack) -> None:
    first = stack.enter_context(clusters.daemon("a", [EXPORT]))
    imported(clusters, "east", addresses=["10.1.0.1"])
    marks = {name: clusters.control(name).mark() for name in ("east", "north")}
    clusters.control("west").stop_endpoint()
    first.signal(signal.SIGKILL)
    first.end()
    second = stack.enter_context(clusters.daemon("b", [EXPORT]))
    wait_until("another one leads", lambda: bool(second.lines("lease_acquired", "cluster=east")))
    assert clusters.addresses("east", IMPORTED) == ["10.1.0.1"]
    assert not clusters.writes("east", marks["east"])
    clusters.control("west").start_endpoint()
    clusters.put_slice("west", "web", ["10.1.0.9"])
    imported(clusters, "east", addresses=["10.1.0.9"])


@pytest.mark.slow
def test_of_two_replicas_one_writes_and_the_other_when_it_stands_still(clusters: Clusters, stack: ExitStack) -> None:
    first = stack.enter_context(clusters.daemon("a", [EXPORT]))
    imported(clusters, "east", "north", addresses=["10.1.0.1"])
    second = stack.enter_context(clusters.daemon("b", [EXPORT]))
    before = clusters.holder("east")
    first.signal(signal.SIGSTOP)
    clusters.put_slice("west", "web", ["10.1.0.2"])
    wait_until("the other one has the lease", lambda: clusters.holder("east") not in ("", before))
    imported(clusters, "east", addresses=["10.1.0.2"])
    mark = clusters.control("east").mark()
    first.signal(signal.SIGCONT)
    first.wait_for("lease_lost", "cluster=east")
    clusters.put_slice("west", "web", ["10.1.0.3"])
    imported(clusters, "east", "north", addresses=["10.1.0.3"])
    assert written(clusters, "east", mark) == {("PATCH", IMPORTED, "10.1.0.3")}
    assert not second.lines("lease_lost")


@pytest.mark.slow
def test_an_importing_cluster_that_is_black_holed_holds_up_no_other_one(clusters: Clusters, stack: ExitStack) -> None:
    daemon = stack.enter_context(clusters.daemon("a", [EXPORT]))
    imported(clusters, "east", "north", addresses=["10.1.0.1"])
    clusters.control("east").hang_endpoint()
    clusters.put_slice("west", "web", ["10.1.0.2"])
    imported(clusters, "north", addresses=["10.1.0.2"])
    daemon.wait_for("lease_lost", "cluster=east")
    clusters.control("east").resume_endpoint()
    imported(clusters, "east", addresses=["10.1.0.2"])


@pytest.mark.slow
def test_with_workers_the_keeper_writes_and_its_successor_when_it_is_killed(
    clusters: Clusters, stack: ExitStack
) -> None:
    daemon = stack.enter_context(clusters.daemon("a", [EXPORT], workers="2"))
    imported(clusters, "east", "north", addresses=["10.1.0.1"])
    before = clusters.holder("east")
    assert all("process=keeper" in line for line in daemon.lines("lease_acquired"))
    keepers = daemon.command_answer({"command": "status"})["processes"]
    os.kill(next(each["pid"] for each in keepers if each["name"] == "keeper"), signal.SIGKILL)
    clusters.put_slice("west", "web", ["10.1.0.2"])
    wait_until("another keeper has the lease", lambda: clusters.holder("east") not in ("", before))
    imported(clusters, "east", "north", addresses=["10.1.0.2"])
