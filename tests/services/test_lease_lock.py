"""The Lease in a simulated cluster: two replicas, each with its own connections; answers that are no Leases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.config.model import LEASE_NAME, LEASE_NAMESPACE, LeaseName
from mcproxy.services.leader_election import Election, LeaderElector
from mcproxy.services.lease import LeaseConflictError, LeaseLock, LeaseUnavailableError, Record
from tests.aggregate.reflector.harness import Site, cluster_config, options, send
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

PATH = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{LEASE_NAME}"
A = Record("a", 15, 0, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:00.000000Z")
B = Record("b", 15, 1, "2026-01-01T00:00:20.000000Z", "2026-01-01T00:00:20.000000Z")


@pytest.fixture(scope="module")
def process() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options("--http2")) as process:
        yield process


@pytest.fixture
def stage(reactor: Any, nothing_left_open: None, process: SimulatedClusterProcess) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    ControlClient(process.control_url).clear_faults()
    send(process, "DELETE", PATH)
    site.close()


def lease_of(
    site: Site,
    process: SimulatedClusterProcess,
    reactor: Any,
    where: LeaseName = LeaseName(),  # noqa: B008
) -> LeaseLock:
    cluster = site.cluster(cluster_config(process))
    return LeaseLock(lambda: cluster, reactor, where)


async def test_it_is_created_read_and_replaced_by_who_knows_its_version(
    stage: Site, process: SimulatedClusterProcess, reactor: Any
) -> None:
    lease = lease_of(stage, process, reactor)
    assert await lease.get(5) is None
    created = await lease.create(A, 5)
    assert (created.holder, created.duration) == ("a", 15)
    with pytest.raises(LeaseConflictError):
        await lease.create(B, 5)
    assert await lease.get(5) == created
    taken = await lease.update(created, B, 5)
    assert (taken.holder, taken.transitions, taken.uid) == ("b", 1, created.uid)
    with pytest.raises(LeaseConflictError):
        await lease.update(created, A, 5)


async def test_an_update_of_one_that_was_removed_creates_none(
    stage: Site, process: SimulatedClusterProcess, reactor: Any
) -> None:
    lease = lease_of(stage, process, reactor)
    created = await lease.create(A, 5)
    assert send(process, "DELETE", PATH)[0] == 200
    with pytest.raises(LeaseConflictError):
        await lease.update(created, B, 5)
    assert await lease.get(5) is None


@pytest.mark.parametrize(
    ("status", "cause"),
    [(403, "answered 403"), (500, "east-0 answered 500"), (429, "east-0 answered 429"), (418, "418")],
)
async def test_a_cluster_that_refuses_is_a_cause_with_a_remedy(
    stage: Site, process: SimulatedClusterProcess, reactor: Any, status: int, cause: str
) -> None:
    lease = lease_of(stage, process, reactor)
    ControlClient(process.control_url).fault("status", paths=[PATH], code=status)
    with pytest.raises(LeaseUnavailableError) as raised:
        await lease.get(5)
    assert cause in raised.value.cause
    assert raised.value.todo


async def test_a_cluster_that_hangs_is_waited_for_as_long_as_was_said(
    stage: Site, process: SimulatedClusterProcess, reactor: Any
) -> None:
    lease = lease_of(stage, process, reactor)
    ControlClient(process.control_url).fault("blackHole", paths=[PATH])
    with pytest.raises(LeaseUnavailableError, match=r"within 0\.3 s"):
        await lease.get(0.3)


async def test_one_of_two_replicas_leads_and_the_other_one_when_it_is_freed(
    stage: Site, process: SimulatedClusterProcess, reactor: Any
) -> None:
    electors = []
    for name in "ab":
        api = lease_of(stage, process, reactor)
        election = Election(name, reactor.seconds)
        electors.append(LeaderElector("east", api, election, reactor, lambda: 0.0, lambda leads: None))
    first, second = electors
    first.start()
    await stage.until(lambda: first.leads)
    second.start()
    await stage.until(lambda: second.election.holder == "a")
    assert not second.leads
    first.stop()
    await first.release()
    await stage.until(lambda: second.leads, 5)
    second.stop()
