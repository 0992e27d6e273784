"""The figures of live parts: endpoints as they are checked, limits as they are used, caches as they are filled."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.view.aggregate_views import LeftOutResource
from mcproxy.config import model
from mcproxy.config.model import Per
from mcproxy.daemon.runtime import make_upstream_context
from mcproxy.daemon.status import cache_status
from mcproxy.daemon.status.cache_status import of_aggregates
from mcproxy.daemon.status.cluster_status import credential_kind, of_clusters
from mcproxy.daemon.status.server_status import of_flow_controls, of_reviews
from mcproxy.dispatch.flow_control_set import FlowControls
from mcproxy.http.deadlines import Deadlines
from mcproxy.identity.singleflight import ReviewLoad
from mcproxy.kube.resource import GroupVersionResource
from mcproxy.net.connect_errors import ConnectionRefused
from mcproxy.upstream.cluster import Cluster
from tests.aggregate.cache.objects import PODS, cached
from tests.dispatch.flow_controls import admit, bucket, exempt, held, inflight
from tests.dispatch.permits import at_once
from tests.support.clock import Clock
from tests.upstream.fakes import FakeConnector, FakeRunner, cluster_config, endpoint_config

LEFT_OUT = LeftOutResource(GroupVersionResource("x.io", "v2", "widgets"), "west", "it has v1")
WALL = 1_790_000_000.0


class Bench:
    """A cluster with two endpoints, on a clock."""

    def __init__(self, **fields: Any) -> None:
        self.clock = Clock()
        self.net = FakeConnector(self.clock)
        shared = make_upstream_context(self.clock, Deadlines(self.clock), lambda endpoint: None)
        shared = replace(shared, connect=self.net, plugins=cast(Any, FakeRunner()))
        check = model.HealthCheck(interval=5.0, timeout=3.0, unhealthy_after=1)
        endpoints = (endpoint_config(), endpoint_config(name="b", host="10.0.0.2", disabled=True))
        self.cluster = Cluster(cluster_config(*endpoints, health_check=check, **fields), shared)
        self.cluster.start()
        self.clock.advance(0)

    def figures(self, missing: Any = None) -> Any:
        (found,) = of_clusters({"east": self.cluster}, lambda name: missing, WALL, self.clock.seconds())
        json.dumps(found)
        return found


class TestClusters:
    def test_an_endpoint_is_unchecked_then_ready_then_out(self) -> None:
        bench = Bench()
        first, second = bench.figures()["endpoints"]
        assert (first["ready"], first["state"], first["latencySeconds"]) == (False, "unchecked", None)
        assert (second["ready"], second["state"]) == (False, "disabled")
        bench.clock.advance(0.25)
        bench.net.attempts[0].answer(200)
        bench.clock.advance(1)
        first, _ = bench.figures()["endpoints"]
        assert (first["ready"], first["state"], first["cause"], first["latencySeconds"]) == (True, "ready", "", 0.25)
        assert first["since"] == "2026-09-21T14:13:19Z"  # a second ago
        bench.net.behaviour = lambda attempt: attempt.done.errback(ConnectionRefused("it refused the connection"))
        bench.clock.advance(5)
        first, _ = bench.figures()["endpoints"]
        assert (first["state"], first["cause"], first["latencySeconds"]) == ("out", "it refused the connection", None)

    def test_requests_and_connections(self) -> None:
        bench = Bench()
        bench.cluster.endpoints[0].in_flight = 3
        found = bench.figures(("list pods",))
        assert (found["name"], found["rightsMissing"]) == ("east", ["list pods"])
        # The health check that is under way.
        assert found["connections"] == found["requests"] == {"HTTP/1.1": 1, "HTTP/2.0": 0}
        first, _ = found["endpoints"]
        assert (first["inFlight"], first["waiting"], first["connections"], first["idle"]) == (3, 0, 1, 0)
        opening = bench.cluster.endpoints[0].open()
        assert bench.figures()["endpoints"][0]["waiting"] == 1
        opening.addErrback(lambda _: None)
        opening.cancel()

    def test_credentials(self) -> None:
        credentials = Bench().figures()["credentials"]
        assert (credentials["identity"], credentials["ready"], credentials["expiresAt"]) == ("Proxy", True, None)
        bench = Bench()
        bench.cluster.credentials.note_refusal(bench.clock.seconds())
        bench.clock.advance(59)
        assert bench.figures()["credentials"]["refused"] is True
        bench.clock.advance(1)
        assert bench.figures()["credentials"]["refused"] is False
        bench = Bench(credentials=model.Credentials(exec=model.ExecPlugin(command="/bin/plugin")))
        status = SimpleNamespace(expires=WALL, certificate=None, header=b"Bearer secret")
        cast(Any, bench.cluster.credentials)._status = status
        found = bench.figures()
        assert found["credentials"]["expiresAt"] == "2026-09-21T14:13:20Z"
        assert "secret" not in json.dumps(found)

    @pytest.mark.parametrize(
        ("credentials", "kind"),
        [
            (model.Credentials(), "none"),
            (model.Credentials(token=model.Secret("x")), "token"),
            (model.Credentials(token_file="/x"), "tokenFile"),
            (model.Credentials(certificate=model.PEMFile("/c", b""), key=model.PEMFile("/k", b"")), "certificate"),
            (model.Credentials(exec=model.ExecPlugin(command="x")), "exec"),
            (model.Credentials(basic=("me", model.Secret("x"))), "basic"),
        ],
    )
    def test_kinds_of_credentials(self, credentials: model.Credentials, kind: str) -> None:
        assert credential_kind(credentials) == kind


class TestLimits:
    def test_what_is_in_use_waits_and_was_refused(self) -> None:
        clock = Clock()
        flows = FlowControls.build([inflight(max=1), bucket(qps=1.0, burst=4), exempt()], clock)
        limits = flows.limits_for(["interactive"], "east")
        permit = held(at_once(limits.acquire("alice", False)))
        long = held(at_once(limits.acquire("alice", True)))
        with pytest.raises(Exception, match="too many requests"):
            at_once(limits.acquire("bob", False))
        at_once(flows.limits_for(["bulk"], "east").acquire("alice", False))
        assert of_flow_controls(flows) == [
            {
                "name": "interactive",
                "inUse": 1,
                "inUseLongRunning": 1,
                "waiting": 0,
                "refusedTotal": 1,
                "tokens": None,
            },
            {"name": "bulk", "inUse": 0, "inUseLongRunning": 0, "waiting": 0, "refusedTotal": 0, "tokens": 3.0},
        ]
        permit.release()
        long.release()
        clock.advance(0.5)
        found = of_flow_controls(flows)
        assert (found[0]["inUse"], found[0]["inUseLongRunning"], found[1]["tokens"]) == (0, 0, 3.5)

    def test_buckets_of_users_have_no_common_level(self) -> None:
        flows = FlowControls.build([bucket(per=Per.USER), bucket("replicas", shared=True)], Clock())
        assert [each["tokens"] for each in of_flow_controls(flows)] == [None, None]
        assert at_once(admit(bucket()).acquire("alice", False)) is not None


def cache(clock: Clock, *, version: int = 10, count: int = 2, member: str = "east") -> Store:
    store = Store(clock, member, PODS)
    if count:
        replacement = store.replace()
        for number in range(count):
            replacement.add(cached(f"n{number}", 1))
        replacement.commit(version)
    return store


def shown(clock: Clock, *stores: Store) -> Any:
    live = SimpleNamespace(stores=stores, watchers=3, queued_bytes=70, left_out=[LEFT_OUT])
    owner = SimpleNamespace(live={"fleet": live}, now=clock.seconds())
    (found,) = of_aggregates(cast(Any, owner))
    json.dumps(found)
    return found


class TestAggregates:
    def test_each_cache_with_its_state_the_worst_first(self) -> None:
        clock = Clock()
        clock.advance(100)
        good, stale = cache(clock), cache(clock, member="west")
        new, never = cache(clock, count=0), cache(clock, count=0)
        clock.advance(30)
        stale.unavailable("connection refused")
        never.unavailable("no route to host")
        found = shown(clock, good, stale, new, never)
        assert [(each["cluster"], each["state"], each["cause"]) for each in found["reflectors"]] == [
            ("east", "unavailable", "no route to host"),
            ("east", "syncing", ""),
            ("west", "stale", "connection refused"),
            ("east", "synced", ""),
        ]
        left_out = {"resource": "widgets.x.io", "version": "v2", "cluster": "west", "cause": "it has v1"}
        assert found["leftOut"] == [left_out]
        assert found["reflectorCounts"] == {"unavailable": 1, "syncing": 1, "stale": 1, "synced": 1}
        last = found["reflectors"][-1]
        assert (last["resource"], last["version"], last["namespace"]) == ("pods", "v1", "")
        assert (last["objects"], last["bytes"], last["lists"]) == (2, good.size, 1)
        assert (last["lagSeconds"], last["lastEventSeconds"]) == (30.0, None)
        assert (found["objects"], found["bytes"]) == (4, 2 * good.size)
        assert (found["watchers"], found["queuedBytes"]) == (3, 70)
        good.progress(11)
        assert shown(clock, good)["reflectors"][0]["lagSeconds"] == 0.0

    def test_no_more_are_listed_than_fit_but_all_are_counted(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cache_status, "MAX_REFLECTORS", 3)
        monkeypatch.setattr(cache_status, "_LEAST", 1)
        clock = Clock()
        clock.advance(1)
        stores = [cache(clock, member=f"c{number}") for number in range(5)]
        stores[4].unavailable("away")
        found = shown(clock, *stores)
        assert [each["cluster"] for each in found["reflectors"]] == ["c4", "c0", "c1"]
        assert (found["reflectorCounts"], found["objects"]) == ({"stale": 1, "synced": 4}, 10)


def test_reviews_of_one_name_are_one_entry_and_caches_are_by_kind() -> None:
    found = of_reviews(
        [
            ("tokens", "corp", ReviewLoad(waiting=1, running=2, cached=30, places=256, largest_share=2)),
            ("access", "east", ReviewLoad(waiting=0, running=1, cached=5)),
            ("access", "east", ReviewLoad(waiting=4, running=0, cached=6)),
        ]
    )
    assert found["caches"] == {"tokens": 30, "decisions": 11}
    assert found["reviews"] == {
        "waiting": 5,
        "running": 3,
        "reviewers": [
            {
                "kind": "tokens",
                "name": "corp",
                "waiting": 1,
                "running": 2,
                "cached": 30,
                "places": 256,
                "largestShare": 2,
            },
            {
                "kind": "access",
                "name": "east",
                "waiting": 4,
                "running": 1,
                "cached": 11,
                "places": 0,
                "largestShare": 0,
            },
        ],
    }
