"""Control traffic over HTTP/2, to the simulated cluster: what shares a connection, what does not, and what faults do.

Which connection carried a request is in the cluster's audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.http.connection_pool import Use
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, request_head
from mcproxy.upstream.control_stream import BodyTooLarge, ControlStream
from mcproxy.upstream.endpoint import Endpoint
from tests.aggregate.reflector.harness import Site, cluster_config, config_map, options
from tests.consistency.relay import Connection, Relays
from tests.http.h1.harness import Answer
from tests.simulated_cluster.control_client import ControlClient, header_values
from tests.simulated_cluster.process import SimulatedClusterProcess

WATCH = "/api/v1/services?watch=true&resourceVersion=0&timeoutSeconds=300"
LIST = "/api/v1/services?limit=1"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
RARELY = model.HealthCheck(interval=3600.0)
HTTP_1_1_REQUIRED = 13
ADMIN = model.Secret("admin-test-token")
SPEC = b'{"user":"x","nonResourceAttributes":{"path":"/","verb":"get"}}'
TOKEN = b"Authorization: Bearer admin-test-token\r\n"


@pytest.fixture(scope="module")
def process() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", options=options("--http2")) as process:
        yield process


class Stage:
    """A cluster of the proxy, and what the simulated one has seen of it."""

    def __init__(self, site: Site, process: SimulatedClusterProcess) -> None:
        self.site = site
        self.process = process
        self.simulated = ControlClient(process.control_url)
        self.mark = self.simulated.mark()
        self.opened: list[ControlStream] = []

    def cluster(self, **fields: Any) -> Cluster:
        cluster = Cluster.build(cluster_config(self.process, **{"health_check": RARELY, **fields}), self.site.shared)
        self.site.clusters.append(cluster)
        return cluster

    def seen(self, path: str = "") -> list[dict[str, Any]]:
        return self.simulated.audit(self.mark, path=path)

    def connections(self, path: str = "") -> list[int]:
        """The connections of the requests to a path, in the order of these."""
        return [record["connection"] for record in self.seen(path)]

    async def stream(self, cluster: Cluster, path: str = WATCH, use: Use = Use.LASTING, **more: Any) -> ControlStream:
        """Open a stream that is closed with the test."""
        control = cluster.control
        opened = await control.stream(cluster.endpoints[0], path, head_timeout=60.0, use=use, **more)
        self.opened.append(opened)
        return opened

    def streams(self) -> list[int]:
        """How many streams each open connection has."""
        return [count for count in self.simulated.http2_stats()["streams"] if count]


@pytest.fixture
def stage(reactor: Any, nothing_left_open: None, process: SimulatedClusterProcess) -> Iterator[Stage]:
    site = Site(reactor)
    stage = Stage(site, process)
    yield stage
    for opened in stage.opened:
        opened.close()
    stage.simulated.clear_faults()
    stage.simulated.http2(max_concurrent_streams=250)
    site.close()


async def ask(cluster: Cluster, path: str = "/version", method: str = "GET", **more: Any) -> Any:
    return await cluster.control.request(cluster.endpoints[0], method, path, **{"timeout": 60.0, **more})


# -- what shares a connection ---------------------------------------------------------------------------------------


async def test_reviews_discovery_and_health_checks_share_a_connection_with_requests_and_watches_one(
    stage: Stage,
) -> None:
    # A check that is late opens a connection of its own.
    cluster = stage.cluster(health_check=model.HealthCheck(interval=0.05, timeout=60.0))
    review = b'{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":%s}' % SPEC
    headers = (("content-type", "application/json"),)
    assert (await ask(cluster)).status == 200
    cluster.start()
    for _ in range(3):
        assert (await ask(cluster, REVIEWS, "POST", headers=headers, body=review)).status == 201
        assert (await ask(cluster, "/apis")).status == 200
    await stage.site.until(lambda: len(stage.connections("/readyz")) > 3)
    for _ in range(20):
        await stage.stream(cluster)
    assert {record["protocol"] for record in stage.seen()} == {"HTTP/2.0"}
    shared, followed = set(stage.connections("/version")), set(stage.connections("/api/v1/services"))
    assert len(shared) == len(followed) == 1
    assert shared == set(stage.connections("/readyz")) == set(stage.connections("/apis"))
    assert shared != followed
    (cluster_pool,) = cluster.endpoints[0].pools
    connections, requests = cluster_pool.counts()["HTTP/2.0"]
    assert connections == 2
    assert requests in (20, 21), "a check may be running"


async def test_a_request_of_a_client_and_one_of_the_proxy_share_a_connection_and_no_header(stage: Stage) -> None:
    cluster = stage.cluster(identity=model.UpstreamIdentity.IMPERSONATE, credentials=model.Credentials(token=ADMIN))
    endpoint = cluster.endpoints[0]
    await ask(cluster)
    for _ in range(3):
        answer = Answer()
        client = endpoint.pool.take()
        assert client is not None
        fields = (b"Impersonate-User: alice\r\nImpersonate-Group: system:authenticated\r\n", TOKEN)
        client.send_head(request_head("GET"), b"/api", endpoint.host_header, fields, answer, 0.0)
        await ask(cluster)
    await stage.site.until(lambda: len(stage.seen("/api")) == 3)
    assert len(set(stage.connections())) == 1
    clients, own = stage.seen("/api"), stage.seen("/version")
    assert {record["user"] for record in clients} == {"alice"}
    assert {record["user"] for record in own} == {"admin"}
    assert not any(name.lower().startswith("impersonate") for record in own for name, _ in record["headers"])
    assert [header_values(record, "authorization") for record in own] == [["Bearer admin-test-token"]] * 4


async def test_connections_of_passthrough_carry_no_control_traffic(stage: Stage) -> None:
    cluster = stage.cluster(identity=model.UpstreamIdentity.PASSTHROUGH)
    endpoint = cluster.endpoints[0]
    client = await endpoint.open()
    client.send_head(request_head("GET"), b"/version", endpoint.host_header, (), Answer(), 0.0)
    await ask(cluster)
    await stage.site.until(lambda: len(stage.seen("/version")) == 2)
    by_user = {record["user"]: record["connection"] for record in stage.seen("/version")}
    assert set(by_user) == {"system:anonymous", "admin"}
    assert len(set(by_user.values())) == 2


async def test_a_probe_goes_beside_its_watch(stage: Stage) -> None:
    cluster = stage.cluster()
    watch = await stage.stream(cluster)
    await ask(cluster)
    for _ in range(3):
        (await stage.stream(cluster, LIST, Use.SHORT, beside=watch)).close()
    other, *beside = stage.connections()[1:]
    assert set(beside) == {stage.connections()[0]} != {other}
    watch.close()
    (await stage.stream(cluster, LIST, Use.SHORT, beside=watch)).close()
    assert stage.connections()[-1] == other, "beside a stream that has ended"


async def test_a_probe_and_its_watch_stall_together_and_nothing_else_does(stage: Stage) -> None:
    with Relays() as relays:
        relay = relays.relay(stage.process.ports[0])
        endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=relay.port)
        cluster = stage.cluster(endpoints=(endpoint,))
        await ask(cluster)
        watch = await stage.stream(cluster)

        def thaw(found: list[Connection]) -> None:
            for each in found:
                each.thaw()

        def hold(found: list[Connection]) -> int:
            found[-1].hold(60)
            return len(found)

        assert relay.act(hold) == 2
        probe = Deferred.fromCoroutine(stage.stream(cluster, LIST, Use.SHORT, beside=watch))
        await ask(cluster)
        await stage.site.wait(0.3)
        assert not probe.called
        relay.act(thaw)
        (await probe).close()
        watch.close()
        cluster.stop()


async def test_a_list_says_that_its_connection_is_apart_so_that_no_watch_stays_there(stage: Stage) -> None:
    """By that a WatchList moves to the connection of watches; and no other use, and no list over HTTP/1.1, does."""
    cluster = stage.cluster()
    assert [(await stage.stream(cluster, WATCH, use)).apart for use in Use] == [use is Use.BULK for use in Use]
    carried = dict(zip(Use, stage.connections("/api/v1/services"), strict=True))
    others = {connection for use, connection in carried.items() if use is not Use.BULK}
    assert carried[Use.BULK] not in others


@pytest.mark.slow
async def test_a_list_has_a_connection_of_its_own_and_delays_no_watch(stage: Stage) -> None:
    stage.simulated.create([config_map(f"large-{n}", payload="x" * 900_000) for n in range(20)])
    with Relays() as relays:
        relay = relays.relay(stage.process.ports[0])
        relay.opening = lambda connection: connection.drip(1 << 15, 0.01, ("down",))  # about 3 MB/s for each connection
        endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=relay.port)
        cluster = stage.cluster(endpoints=(endpoint,))
        watch = await stage.stream(cluster, WATCH)
        large = await stage.stream(cluster, "/api/v1/configmaps", Use.BULK)
        received = 0
        events = 0
        reading = Deferred.fromCoroutine(watch.read())
        while piece := await large.read():
            if received // 2_000_000 != (received + len(piece)) // 2_000_000:
                stage.simulated.create([service(f"s{received}")])
                await reading
                events += 1
                reading = Deferred.fromCoroutine(watch.read())
            received += len(piece)
        assert received > 18_000_000
        assert events > 5, "none came while the list went on"
        assert stage.connections("/api/v1/services")[0] != stage.connections("/api/v1/configmaps")[0]
        reading.addErrback(lambda _: None)
        watch.close()
        cluster.stop()


def service(name: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}


# -- the end of streams ---------------------------------------------------------------------------------------------


async def test_a_stream_that_is_closed_or_cancelled_ends_alone(stage: Stage) -> None:
    cluster = stage.cluster()
    kept, closed = await stage.stream(cluster), await stage.stream(cluster)
    stage.simulated.fault("blackHole", paths=["/healthz"])
    waiting = Deferred.fromCoroutine(stage.stream(cluster, "/healthz"))
    await stage.site.until(lambda: stage.streams() == [3])
    closed.close()
    waiting.addErrback(lambda _: None)
    waiting.cancel()
    await stage.site.until(lambda: stage.streams() == [1])
    await stage.stream(cluster)
    stage.simulated.create([service("event-after-a-reset")])
    while b"event-after-a-reset" not in await kept.read():
        pass
    assert len(set(stage.connections())) == 1
    assert stage.simulated.http2_stats()["protocolErrors"] == []


async def test_an_answer_that_is_too_long_ends_its_stream_alone(stage: Stage) -> None:
    stage.simulated.create([config_map(f"long-{n}", payload="x" * 900_000) for n in range(3)])
    cluster = stage.cluster()
    with pytest.raises(ControlError, match="more than 100000 bytes"):
        await ask(cluster, "/api/v1/configmaps", max_body=100_000)
    with pytest.raises(BodyTooLarge):
        await (await stage.stream(cluster, "/api/v1/configmaps", Use.SHORT)).read_all(100_000)
    assert (await ask(cluster)).status == 200
    assert len(set(stage.connections())) == 1


async def test_a_slow_reader_holds_up_its_own_stream_alone(stage: Stage) -> None:
    stage.simulated.create([config_map(f"slow-{n}", payload="x" * 900_000) for n in range(10)])
    cluster = stage.cluster()
    large = await stage.stream(cluster, "/api/v1/configmaps")
    await stage.site.wait(0.3)
    for _ in range(5):
        (await stage.stream(cluster, LIST, Use.SHORT, beside=large)).close()
    kept = large._size
    assert kept < 5 * 1024 * 1024, "the window of the stream was opened although nobody reads"
    total = 0
    while piece := await large.read():
        total += len(piece)
    assert total > 9_000_000
    assert len(set(stage.connections())) == 1


# -- what the peer refuses ------------------------------------------------------------------------------------------


async def test_goaway_lets_the_watch_go_on_and_sends_probes_elsewhere(stage: Stage) -> None:
    cluster = stage.cluster()
    watch = await stage.stream(cluster)
    stage.simulated.goaway()
    await stage.site.until(lambda: watch.sibling() is None)
    (await stage.stream(cluster, LIST, Use.SHORT, beside=watch)).close()
    second = await stage.stream(cluster)
    first, probe, other = stage.connections("/api/v1/services")
    assert first not in (probe, other)
    stage.simulated.create([service("event-behind-goaway")])
    while b"event-behind-goaway" not in await watch.read():
        pass
    watch.close()
    second.close()


async def test_what_goaway_names_unprocessed_is_sent_again_a_review_too(stage: Stage) -> None:
    cluster = stage.cluster()
    await ask(cluster)
    stage.simulated.fault("goaway", paths=[REVIEWS], unprocessed=True, count=1)
    assert (await ask(cluster, REVIEWS, "POST", body=b"{}")).status in (201, 400, 415, 422)
    assert len(stage.seen(REVIEWS)) == 1
    assert len(set(stage.connections())) == 2


@pytest.mark.parametrize("times", [1, 4])
async def test_a_stream_that_was_refused_is_sent_again(stage: Stage, times: int) -> None:
    cluster = stage.cluster()
    stage.simulated.fault("refuseStream", paths=[REVIEWS], count=times)
    assert (await ask(cluster, REVIEWS, "POST", body=b"{}")).status in (201, 400, 415, 422)


async def test_one_that_is_always_refused_is_an_error(stage: Stage) -> None:
    cluster = stage.cluster()
    stage.simulated.fault("refuseStream", paths=["/version"])
    with pytest.raises(ControlError, match="east-0 refuses the request on /version: the stream was refused"):
        await ask(cluster)
    assert stage.simulated.http2_stats()["refused"] < 20


@pytest.mark.parametrize("use", Use)
async def test_what_the_peer_takes_over_http1_alone_goes_so(stage: Stage, use: Use) -> None:
    cluster = stage.cluster()
    stage.simulated.fault("refuseStream", paths=["/api/v1/services"], errorCode=HTTP_1_1_REQUIRED)
    answer = await stage.stream(cluster, WATCH, use)
    assert answer.status == 200
    assert not answer.apart
    assert [record["protocol"] for record in stage.seen("/api/v1/services")] == ["HTTP/1.1"]
    answer.close()


async def test_a_peer_that_takes_one_stream_gets_a_connection_for_each_watch(stage: Stage) -> None:
    stage.simulated.http2(max_concurrent_streams=1)
    cluster = stage.cluster()
    watches = [await stage.stream(cluster) for _ in range(3)]
    (await stage.stream(cluster, LIST, Use.SHORT, beside=watches[0])).close()
    connections = stage.connections("/api/v1/services")
    assert len(set(connections[-4:])) == 4


async def test_a_peer_that_takes_none_is_an_error(stage: Stage) -> None:
    stage.simulated.http2(max_concurrent_streams=0)
    before = stage.simulated.http2_stats()["connectionsSeen"]
    cluster = stage.cluster()
    with pytest.raises(ControlError, match=r"refuses|no answer"):
        await ask(cluster, timeout=2.0)
    assert stage.simulated.http2_stats()["connectionsSeen"] - before < 12


async def test_full_connections_of_clients_hold_up_no_control_traffic(stage: Stage) -> None:
    stage.simulated.http2(max_concurrent_streams=1)
    cluster = stage.cluster(connections=model.Connections(max_connections=1))
    endpoint = cluster.endpoints[0]
    client = await endpoint.open(lasting=True)
    client.send_head(request_head("GET"), WATCH.encode(), endpoint.host_header, (), Answer(), 0.0)
    await stage.site.until(lambda: stage.streams() == [1])
    assert (await ask(cluster)).status == 200
    watch = await stage.stream(cluster)
    assert watch.status == 200
    watch.close()
    client.cancel()


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_read_over_a_kept_connection_that_ends_is_sent_again(stage: Stage, method: str) -> None:
    cluster = stage.cluster()
    await ask(cluster)
    stage.simulated.fault("blackHole", paths=["/api"], count=1)
    asking = Deferred.fromCoroutine(ask(cluster, "/api", method, body=b"" if method == "GET" else b"{}"))
    await stage.site.until(lambda: stage.streams() == [1])
    stage.simulated.reset_connections(0)
    if method == "GET":
        assert (await asking).status == 200
    else:
        with pytest.raises(ControlError, match="broke off"):
            await asking


# -- connections that are renewed -----------------------------------------------------------------------------------


async def test_a_reload_that_changes_nothing_keeps_the_connections_and_another_authority_does_not(stage: Stage) -> None:
    cluster = stage.cluster()
    cluster.start()
    await ask(cluster)
    same = Cluster.build(replace(cluster.config, flow_controls=("x",)), stage.site.shared, cluster)
    same.start()
    cluster.stop(same)
    await ask(same)
    other = replace(same.config.tls, server_name="localhost")
    changed = Cluster.build(replace(same.config, tls=other), stage.site.shared, same)
    changed.start()
    same.stop(changed)
    stage.site.clusters.append(changed)
    await ask(changed)
    first, second, third = stage.connections("/version")
    assert first == second != third


async def test_a_renewed_certificate_needs_new_connections_and_a_watch_keeps_its_own(stage: Stage) -> None:
    cluster = stage.cluster()
    watch = await stage.stream(cluster)
    cluster.endpoints[0].renew_own_connections()
    other = await stage.stream(cluster)
    assert len(set(stage.connections())) == 2
    stage.simulated.create([service("event-behind-a-renewal")])
    while b"event-behind-a-renewal" not in await watch.read():
        pass
    watch.close()
    other.close()


# -- health checks --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_frozen_connection_is_not_a_frozen_endpoint(stage: Stage) -> None:
    check = model.HealthCheck(interval=0.2, timeout=12.0, unhealthy_after=1)
    cluster = stage.cluster(health_check=check)
    endpoint = cluster.endpoints[0]
    cluster.start()
    await stage.site.until(lambda: endpoint.ready and len(stage.connections("/readyz")) > 2)
    (frozen,) = set(stage.connections())
    changes: list[Endpoint] = []
    endpoint.subscribe(lambda each: changes.append(each) if not each.ready else None)
    stage.simulated.fault("silentConnection", paths=["/readyz"], count=1)
    await stage.site.until(lambda: stage.connections("/readyz")[-2:].count(frozen) == 0)
    await ask(cluster, "/version")
    assert stage.connections("/version")[-1] != frozen, "the frozen connection gets requests"
    await stage.site.until(lambda: len(stage.connections("/readyz")) > 8)
    assert not changes, endpoint.state_message
    assert len({each for each in stage.connections("/readyz") if each != frozen}) == 1


async def test_an_endpoint_that_takes_no_new_connection_goes_out_although_an_old_one_answers(stage: Stage) -> None:
    with Relays() as relays:
        relay = relays.relay(stage.process.ports[0])
        address = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=relay.port)
        check = model.HealthCheck(interval=0.1, timeout=10.0, unhealthy_after=1)
        cluster = stage.cluster(endpoints=(address,), health_check=check)
        endpoint = cluster.endpoints[0]
        cluster.start()
        await stage.site.until(lambda: endpoint.ready)
        relay.refusing = True
        await stage.site.wait(0.5)
        assert endpoint.ready
        endpoint.request_check()  # as when a request finds that out
        await stage.site.until(lambda: not endpoint.ready)
        relay.refusing = False
        await stage.site.until(lambda: endpoint.ready)
        cluster.stop()


async def test_many_requests_at_once_open_one_connection(stage: Stage) -> None:
    cluster = stage.cluster()
    answers = await gatherResults([Deferred.fromCoroutine(ask(cluster)) for _ in range(50)])
    assert {answer.status for answer in answers} == {200}
    assert len(set(stage.connections())) == 1
    await deferLater(stage.site.reactor, 0.0)
