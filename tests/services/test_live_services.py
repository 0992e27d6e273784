"""Which clusters are written to, over reloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from mcproxy.config import model
from mcproxy.daemon.lazy_parts import needs_services
from mcproxy.daemon.processes.keeper_links import needs_keeper
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.services.live_services import LiveServices
from tests.services.fake_members import FakeMembers
from tests.support.clock import Clock

EXPORT = model.ServiceExport(name="web", namespace="demo", service="web", from_clusters=("west",), to=("east",))


class Controller:
    """A controller that sees objects with our label in every cluster, whoever has made them."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.leases: Any = {}
        self.left: dict[str, set[str]] = {"east": {"demo"}, "west": {"demo"}}
        self.settled: Any = None

    def on_prune(self, notify: Any) -> None:
        self.settled = notify

    def leftovers(self) -> dict[str, set[str]]:
        return self.left

    def update(self, exports: Any, clusters: dict[str, Any], leases: Any) -> None:
        self.written = set(clusters)
        self.leases = leases


class Caches:
    """The caches of members, as far as services use them."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.reflectors = FakeMembers(self.clock, "east", "west")

    @property
    def now(self) -> float:
        return self.clock.seconds()

    def use(self, *_: Any) -> None:
        pass


def test_only_a_cluster_that_was_written_to_is_cleaned_up_after_a_reload() -> None:
    """Whoever puts our label on objects in a source cluster has no Lease made there and nothing deleted."""
    controller = Controller()
    caches = Caches()
    services = LiveServices(cast(Any, caches), EndpointTable(), lambda _: cast(Any, controller))
    clusters: Any = {name: object() for name in ("east", "west")}
    config = model.Config(
        listeners=(),
        clusters=tuple(model.ClusterConfig(name=name, endpoints=()) for name in clusters),
        service_exports=(EXPORT,),
    )
    for _ in range(2):
        services.activate(config, clusters)
        assert controller.written == {"east"}
    other = replace(EXPORT, to=("west",), from_clusters=("east",))
    services.activate(replace(config, service_exports=(other,)), clusters)
    assert controller.written == {"east", "west"}
    services.activate(replace(config, service_exports=()), clusters)
    assert controller.written == {"east", "west"}


class Daemon:
    """One life of a daemon with this folder of state."""

    def __init__(self, state_dir: Path | None) -> None:
        self.state_dir = None if state_dir is None else str(state_dir)
        self.controller = Controller()
        self.controller.left = {}
        self.caches = Caches()
        self.made = False
        self.services = LiveServices(cast(Any, self.caches), EndpointTable(), self._make)

    def _make(self, _: Any) -> Any:
        self.made = True
        return self.controller

    def follow(self, *exports: model.ServiceExport, clusters: tuple[str, ...] = ("east", "west")) -> None:
        config = model.Config(
            listeners=(),
            clusters=tuple(model.ClusterConfig(name=name, endpoints=()) for name in clusters),
            service_exports=exports,
            daemon=replace(model.Config().daemon, state_dir=self.state_dir),
        )
        self.services.activate(config, cast(Any, {name: object() for name in clusters}))

    def show(self, *clusters: str) -> None:
        """Let the caches follow these clusters, which have nothing."""
        self.caches.reflectors.serve(*clusters)
        for cluster in clusters:
            for kind in (FollowedKind.SLICES, FollowedKind.SERVICES):
                self.caches.reflectors.list(cluster, kind)
        self.caches.clock.advance(1)


MOVED = replace(EXPORT, lease=model.LeaseName(namespace="mcproxy", name="writers"))


def test_what_was_written_before_a_restart_is_looked_at_until_nothing_is_left(tmp_path: Path) -> None:
    Daemon(tmp_path).follow(MOVED)
    daemon = Daemon(tmp_path)
    daemon.follow()  # the export has left the file meanwhile, as the last one
    assert daemon.controller.written == {"east"}
    assert daemon.controller.leases["east"] == MOVED.lease
    daemon.controller.settled()
    assert daemon.controller.written == {"east"}  # nothing is known of it yet
    daemon.show("east")
    daemon.controller.left = {"east": {"demo"}}
    daemon.controller.settled()
    assert daemon.controller.written == {"east"}
    daemon.controller.left = {}
    daemon.controller.settled()
    assert daemon.controller.written == set()
    after = Daemon(tmp_path)
    after.follow()
    assert not after.made


def test_a_cluster_that_is_not_in_the_file_is_remembered_until_it_is_back(tmp_path: Path) -> None:
    Daemon(tmp_path).follow(EXPORT)
    Daemon(tmp_path).follow(replace(EXPORT, to=("west",), from_clusters=("west",)), clusters=("west",))
    daemon = Daemon(tmp_path)
    daemon.follow(clusters=("west",))
    daemon.follow()
    assert "east" in daemon.controller.written


def test_without_a_folder_of_state_only_what_the_file_names_is_looked_at() -> None:
    Daemon(None).follow(EXPORT)
    daemon = Daemon(None)
    daemon.follow()
    assert not daemon.made


def test_a_file_that_is_damaged_is_put_aside(tmp_path: Path) -> None:
    Daemon(tmp_path).follow(EXPORT)
    file = tmp_path / "exports.state"
    file.write_bytes(file.read_bytes()[:-1])
    daemon = Daemon(tmp_path)
    daemon.follow()
    assert not daemon.made
    assert (tmp_path / "exports.state.broken").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_without_services_needs_their_caches_while_something_may_be_left(tmp_path: Path, workers: int) -> None:
    config = model.Config(daemon=replace(model.Config().daemon, state_dir=str(tmp_path), workers=workers))
    assert not needs_services(config)
    Daemon(tmp_path).follow(EXPORT)
    assert needs_services(config)
    assert needs_keeper(config)
    assert not needs_services(model.Config())
