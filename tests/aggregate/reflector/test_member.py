"""A member: its requests, which cluster it is, and whether it can be reached."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from mcproxy.aggregate.reflector.member_calls import MemberError, MemberUnreachable
from mcproxy.upstream.control import ControlError
from tests.aggregate.reflector.harness import SHORT_CHECK, Site, cluster_config, options
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

VERSION = "/version"


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    site = Site(reactor)
    yield site
    site.close()


@pytest.fixture(scope="module")
def shared_east() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options("--endpoints", "2")) as process:
        yield process


@pytest.fixture
def east(shared_east: SimulatedClusterProcess) -> Iterator[SimulatedClusterProcess]:
    yield shared_east
    control = ControlClient(shared_east.control_url)
    control.clear_faults()
    for index in range(2):
        control.resume_endpoint(index)
        control.start_endpoint(index)


async def test_a_request_goes_to_an_endpoint_with_the_proxys_credential(
    site: Site, east: SimulatedClusterProcess
) -> None:
    member = site.member(east)
    mark = ControlClient(east.control_url).mark()
    answer = await member.get(VERSION, max_body=10_000)
    assert (answer.status, b"gitVersion" in answer.body) == (200, True)
    [record] = ControlClient(east.control_url).audit(mark, path=VERSION)
    assert record["user"] == "admin"


async def test_a_body_over_the_bound_is_an_error(site: Site, east: SimulatedClusterProcess) -> None:
    with pytest.raises(MemberError, match="more than 10 bytes"):
        await site.member(east).get(VERSION, max_body=10)


async def test_the_next_endpoint_is_tried_and_none_is_unreachable(site: Site, east: SimulatedClusterProcess) -> None:
    control = ControlClient(east.control_url)
    member = site.member(east)
    seen: list[float | None] = []
    member.subscribe(lambda: seen.append(member.unavailable_since))
    await site.until(lambda: all(endpoint.ready for endpoint in member.cluster.endpoints))
    control.stop_endpoint(0)
    for _ in range(2):
        assert (await member.get(VERSION, max_body=10_000)).status == 200
    control.stop_endpoint(1)
    with pytest.raises(MemberUnreachable):
        await member.get(VERSION, max_body=10_000)
    assert member.unavailable_since is not None
    assert member.unavailable_cause
    waiting = member.sleep(3600)
    control.start_endpoint(1)
    await waiting  # it is woken when a check succeeds
    assert not member.unavailable_since
    assert [since is None for since in seen] == [False, True]


@pytest.mark.slow
async def test_streams_of_an_endpoint_that_goes_out_end_at_once(site: Site, east: SimulatedClusterProcess) -> None:
    control = ControlClient(east.control_url)
    member = site.member(east, health_check=SHORT_CHECK)
    await site.until(lambda: all(endpoint.ready for endpoint in member.cluster.endpoints))
    watch = "/api/v1/configmaps?watch=true"
    streams = [await member.open(watch) for _ in range(2)]
    control.hang_endpoint(0)
    reading = [Deferred.fromCoroutine(read_on(stream)) for stream in streams]
    await site.until(lambda: any(deferred.called for deferred in reading))
    [ended] = [deferred for deferred in reading if deferred.called]
    cause = await ended
    assert cause.startswith("east-0: ")
    assert member.unavailable_since is None
    epoch = member.epoch
    assert (await member.get(VERSION, max_body=10_000)).status == 200
    control.hang_endpoint(1)
    await site.until(lambda: member.unavailable_since is not None)
    assert "no endpoint of cluster" in member.unavailable_cause
    assert " s)" not in member.unavailable_cause, "it is kept, so it does not say for how long"
    assert member.epoch > epoch
    for stream in streams:
        stream.close()


async def read_on(stream: Any) -> str:
    """Read to the end; return the cause if it is an error."""
    try:
        while await stream.read():
            pass
    except ControlError as error:
        return error.cause
    return ""


async def test_a_request_that_waits_ends_when_its_endpoint_goes_out(site: Site) -> None:
    with SimulatedClusterProcess("east", options=options()) as east:
        member = site.member(east, health_check=SHORT_CHECK)
        await site.until(lambda: member.cluster.endpoints[0].ready)
        os.kill(east.pid, signal.SIGSTOP)
        try:
            with pytest.raises(MemberError, match=r"no connection to east-0 within 1 s|no answer"):
                await member.get(VERSION, max_body=10_000)
            assert member.unavailable_since is not None
        finally:
            os.kill(east.pid, signal.SIGCONT)
        await site.until(lambda: member.unavailable_since is None)


async def test_a_reload_ends_streams_on_endpoints_that_the_cluster_has_no_more(
    site: Site, east: SimulatedClusterProcess
) -> None:
    config = cluster_config(east)
    member = site.member(east)
    first = member.cluster
    await site.until(lambda: all(endpoint.ready for endpoint in first.endpoints))  # a stream for each
    streams = [await member.open("/api/v1/configmaps?watch=true") for _ in range(2)]
    reading = [Deferred.fromCoroutine(read_on(stream)) for stream in streams]
    woken = member.sleep(3600)
    second = site.cluster(replace(config, endpoints=config.endpoints[1:]), first)
    member.use(second)
    first.stop(second)
    assert sum(deferred.called for deferred in reading) == 1
    await woken
    third = site.cluster(replace(config, credentials=cluster_config(east, user="mcproxy").credentials), second)
    member.use(third)
    second.stop(third)
    assert all(deferred.called for deferred in reading), "a stream goes on with the credential of before"


async def test_the_uid_is_that_of_kube_system(site: Site, east: SimulatedClusterProcess) -> None:
    control = ControlClient(east.control_url)
    member = site.member(east)
    mark = control.mark()
    uid = await member.identify()
    assert len(uid) == 36
    assert await member.identify() == uid
    assert len(control.audit(mark, path="/api/v1/namespaces/kube-system")) == 1
    member.epoch += 1
    await member.identify()
    assert len(control.audit(mark, path="/api/v1/namespaces/kube-system")) == 2
    control.fault("status", paths=["/api/v1/namespaces"], code=403)
    member.epoch += 1
    assert await member.identify() == uid  # the right was taken away: no other cluster
    control.clear_faults()
    control.fault("status", paths=["/api/v1/namespaces"], code=500)
    member.epoch += 1
    with pytest.raises(MemberError):
        await member.identify()


async def test_another_cluster_behind_the_name_has_another_uid(site: Site, east: SimulatedClusterProcess) -> None:
    with SimulatedClusterProcess("west", options=options()) as west:
        member = site.member(east)
        uid = await member.identify()
        first = member.cluster
        second = site.cluster(cluster_config(west, name="east"), first)
        member.use(second)
        first.stop(second)
        changed: list[str] = []
        member.subscribe(lambda: changed.append(member.uid))
        assert await member.identify() not in (uid, "")
        assert changed == [member.uid]


async def test_a_hostile_identity_is_no_uid(site: Site, east: SimulatedClusterProcess) -> None:
    control = ControlClient(east.control_url)
    for body in ('{"metadata":{"uid":"../../x"}}', '{"metadata":{"uid":7}}', "[" * 50_000, "nonsense"):
        control.fault("status", paths=["/api/v1/namespaces"], code=200, text=body)
        assert await site.member(east).identify() == ""
        control.clear_faults()
