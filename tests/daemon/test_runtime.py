"""Building a Runtime: what did not change is the same object, and what fails leaves nothing behind."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest

from mcproxy.config import model
from mcproxy.daemon.runtime import ProcessResources, Runtime, build
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.proxy.api_requests import APIRequestsInFlight
from mcproxy.proxy.pipeline import Pipeline
from mcproxy.proxy.sessions import Sessions
from mcproxy.upstream.credentials import CredentialError
from tests.proxy.harness import NAME, Log, Logs, certificate, cluster, config, listener
from tests.support.clock import Clock
from tests.upstream.fakes import endpoint_config, make_upstream_context

ACCESS = model.Logging(access=model.AccessLogConfig())


class Play:
    def __init__(self) -> None:
        clock = Clock()
        in_flight = APIRequestsInFlight(clock)
        sessions = Sessions(clock, in_flight.requests, lambda: 0.0)
        self.parts = ProcessResources(make_upstream_context(clock), in_flight, Logs(clock), Metrics(), sessions)

    @property
    def logs(self) -> list[Log]:
        return cast(Logs, self.parts.request_logs).access

    def build(self, configuration: model.Config, previous: Runtime | None = None) -> Runtime:
        return build(configuration, previous, self.parts)


@pytest.fixture
def play() -> Play:
    return Play()


def two(**fields: Any) -> model.Config:
    clusters = [cluster(endpoint_config("a")), cluster(endpoint_config("b"), name="west")]
    return config(clusters, **{"logging": ACCESS, **fields})


def test_what_did_not_change_is_the_same_object(play: Play) -> None:
    before = play.build(two())
    after = play.build(two(), before)
    assert dict(after.clusters) == dict(before.clusters)
    assert after.certificates["tls"] is before.certificates["tls"]
    assert after.access_log is before.access_log
    assert len(play.logs) == 1


def test_a_cluster_that_changed_is_a_new_one_beside_the_old(play: Play) -> None:
    before = play.build(two())
    east, west = before.config.clusters
    changed = dataclasses.replace(before.config, clusters=(dataclasses.replace(east, preserve_host=True), west))
    after = play.build(changed, before)
    assert after.clusters["west"] is before.clusters["west"]
    assert after.clusters["east"] is not before.clusters["east"]
    assert after.clusters["east"].endpoints == before.clusters["east"].endpoints
    assert not before.clusters["east"].config.preserve_host


def test_new_certificates_make_a_new_store(play: Play) -> None:
    before = play.build(two())
    other = dataclasses.replace(certificate("fresh.test"), name=NAME)
    after = play.build(dataclasses.replace(before.config, certificates=(other,)), before)
    assert after.certificates["tls"] is not before.certificates["tls"]


def test_a_plain_listener_has_none(play: Play) -> None:
    runtime = play.build(two(listeners=[listener("plain", tls=False)]))
    assert runtime.certificates["plain"] is None


def test_another_access_log_is_opened_and_the_old_one_closed_with_its_runtime(play: Play) -> None:
    before = play.build(two())
    after = play.build(two(logging=model.Logging(access=model.AccessLogConfig(format="combined"))), before)
    assert [log.closed for log in play.logs] == [0, 0]
    before.discard(keep=after)
    assert [log.closed for log in play.logs] == [1, 0]
    after.discard(keep=None)
    assert [log.closed for log in play.logs] == [1, 1]


def test_a_runtime_that_is_dropped_before_it_was_in_force_touches_nothing_that_is(play: Play) -> None:
    before = play.build(two())
    pools: list[Any] = [endpoint.pool for each in before.clusters.values() for endpoint in each.endpoints]
    changed = dataclasses.replace(before.config.clusters[0], preserve_host=True)
    dropped = play.build(dataclasses.replace(before.config, clusters=(changed, before.config.clusters[1])), before)
    dropped.discard(keep=before)
    assert not any(pool.closed for pool in pools)
    assert [log.closed for log in play.logs] == [0]
    before.discard(keep=None)
    assert all(pool.closed for pool in pools)


def test_a_bad_credential_fails_before_anything_is_opened(play: Play) -> None:
    bad = cluster(endpoint_config("a"), credentials=model.Credentials(token=model.Secret("a\nb")))
    with pytest.raises(CredentialError):
        play.build(config([bad], logging=ACCESS))
    assert play.logs == []


def test_a_server_is_only_on_its_listeners(play: Play) -> None:
    server = model.Server(name="s", listeners=("tls",), default=True, backend=model.ClusterBackend("east"))
    configuration = two(listeners=[listener("tls"), listener("plain", tls=False)])
    runtime = play.build(dataclasses.replace(configuration, servers=(server,)))
    tls, plain = runtime.pipelines["tls"], runtime.pipelines["plain"]
    assert isinstance(tls, Pipeline)
    assert isinstance(plain, Pipeline)
    assert tls.routes.find(None, b"x").name == "s"
    with pytest.raises(Exception, match="no server here"):
        plain.routes.find(None, b"x")
