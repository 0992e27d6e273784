"""Availability over several processes: the keeper tells, the supervisor keeps, the workers know."""

from __future__ import annotations

from typing import Any, cast

from mcproxy.apiservices.availability import Condition, Registration, Verdict, failure
from mcproxy.config import model
from mcproxy.daemon.processes.children import Role
from mcproxy.daemon.processes.keeper_links import keeper_config, needs_keeper
from mcproxy.daemon.processes.keeper_reports import AvailabilityRelay, KeeperAvailability, WorkerAvailability
from tests.daemon.processes.family import FakeChannel, FakeChildren
from tests.support.clock import Clock
from tests.upstream.fakes import cluster_config, make_upstream_context

ZOO = Registration("zoo.io", "v1", "east")
PASSED = Verdict("True", "Passed", "all checks passed")


def config(*services: model.APIService) -> model.Config:
    server = model.Server(
        name="web", listeners=(), backend=model.ClusterBackend("east"), api_services=services or (service(),)
    )
    return model.Config(clusters=(cluster_config(),), servers=(server,))


def service(group: str = "zoo.io") -> model.APIService:
    return model.APIService(group=group, version="v1", cluster="east")


class Site:
    """A supervisor, with a keeper and a worker that the test starts."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.children = FakeChildren()
        self.relay = AvailabilityRelay(cast(Any, self.children))
        self.shared = make_upstream_context(self.clock)

    def start(self, role: Role) -> tuple[Any, FakeChannel, Any]:
        child, channel = self.children.add(role)
        child.role, child.retiring = role, False
        kind = KeeperAvailability if role is Role.KEEPER else WorkerAvailability
        made = kind(self.shared, cast(Any, channel))
        self.children.started(child)
        return child, channel, made


def down(known: Any) -> Condition | None:
    found: Condition | None = known.refuses(ZOO)
    return found


def test_workers_know_what_the_keeper_has_told() -> None:
    site = Site()
    _, _, worker = site.start(Role.WORKER)
    _, _, keeper = site.start(Role.KEEPER)
    keeper.known.use({"web": [service()]})
    worker.activate(config(), {})
    keeper.known.take(ZOO, failure("east/a", "refused"))
    assert down(keeper.known) is not None
    assert down(worker.known) == down(keeper.known)
    site.clock.advance(5)
    keeper.known.take(ZOO, PASSED)
    assert worker.known.get(ZOO) == keeper.known.get(ZOO)
    assert down(worker.known) is None


def test_what_clients_of_a_worker_meet_is_told_to_the_keeper_which_probes() -> None:
    site = Site()
    _, _, keeper = site.start(Role.KEEPER)
    _, channel, worker = site.start(Role.WORKER)
    suspected: list[Registration] = []
    keeper.known.on_suspicion(suspected.append)
    for _ in range(100):
        worker.known.suspect(ZOO)
    assert suspected == [ZOO]
    assert channel.told == ["api_service_suspected"]
    site.clock.advance(1)
    worker.known.suspect(ZOO)
    assert suspected == [ZOO, ZOO]


def test_a_worker_and_a_keeper_that_start_later_know_it_before_their_configuration() -> None:
    site = Site()
    child, _, keeper = site.start(Role.KEEPER)
    keeper.known.take(ZOO, failure("east/a", "refused"))
    told = down(keeper.known)
    site.children.all.remove(child)
    site.clock.advance(60)
    _, _, worker = site.start(Role.WORKER)
    _, _, successor = site.start(Role.KEEPER)
    for each in (worker, successor):
        each.known.use({"web": [service()]})
        assert down(each.known) == told


def test_workers_keep_what_they_know_while_the_keeper_is_away_and_over_a_reload() -> None:
    site = Site()
    child, _, keeper = site.start(Role.KEEPER)
    _, _, worker = site.start(Role.WORKER)
    keeper.known.take(ZOO, failure("east/a", "refused"))
    site.children.all.remove(child)
    worker.activate(config(service(), service("other.io")), {})
    assert down(worker.known) is not None
    worker.activate(config(service("other.io")), {})
    assert down(worker.known) is None


def test_what_a_reload_removed_is_not_told_to_who_starts_later() -> None:
    site = Site()
    _, _, keeper = site.start(Role.KEEPER)
    keeper.known.take(ZOO, failure("east/a", "refused"))
    site.relay.configured(config(service("other.io")))
    _, channel, worker = site.start(Role.WORKER)
    assert down(worker.known) is None
    assert channel.peer.told == []


def test_a_keeper_that_only_ends_what_it_has_is_not_believed() -> None:
    site = Site()
    child, _, keeper = site.start(Role.KEEPER)
    _, _, worker = site.start(Role.WORKER)
    child.retiring = True
    keeper.known.take(ZOO, failure("east/a", "refused"))
    assert down(worker.known) is None


def test_a_worker_that_has_lost_the_supervisor_refuses_nothing() -> None:
    site = Site()
    _, _, keeper = site.start(Role.KEEPER)
    _, channel, worker = site.start(Role.WORKER)
    keeper.known.take(ZOO, failure("east/a", "refused"))
    channel.lose()
    assert down(worker.known) is None


def test_there_is_a_keeper_where_a_server_has_api_services() -> None:
    assert needs_keeper(config())
    assert keeper_config(config()).servers[0].api_services == (service(),)

    assert not needs_keeper(model.Config())
