"""Which clusters are written to, over reloads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from mcproxy.config import model
from mcproxy.services.endpoint_table import EndpointTable
from mcproxy.services.live_services import LiveServices
from tests.services.fake_members import FakeMembers
from tests.support.clock import Clock

EXPORT = model.ServiceExport(name="web", namespace="demo", service="web", from_clusters=("west",), to=("east",))


class Controller:
    """A controller that sees objects with our label in every cluster, whoever has made them."""

    def __init__(self) -> None:
        self.written: set[str] = set()

    def on_settled(self, notify: Any) -> None:
        pass

    def leftovers(self) -> dict[str, set[str]]:
        return {"east": {"demo"}, "west": {"demo"}}

    def update(self, exports: Any, clusters: dict[str, Any]) -> None:
        self.written = set(clusters)


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
        clusters=tuple(model.Cluster(name=name, endpoints=()) for name in clusters),
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
