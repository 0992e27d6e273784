"""A cluster over reloads: what is kept, what is made anew, and what is ended."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.protocol import Protocol

from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectFailed
from mcproxy.net.http_connect import HTTPProxy
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.exec_process import PluginResult
from mcproxy.upstream.tls import ClientCertificate
from tests.support.clock import Clock
from tests.upstream.fakes import FakeConnector, cluster_config, endpoint_config, make_upstream_context
from tests.upstream.test_exec_credential import answer, pem_pair

A, B, C = (endpoint_config(name, f"10.0.0.{number}") for number, name in enumerate("abc", 1))


class Bench:
    """A started cluster whose endpoints are all ready, and reloads of it."""

    def __init__(self, *endpoints: model.EndpointConfig, **fields: Any) -> None:
        self.clock = Clock()
        self.net = FakeConnector(self.clock)
        self.shared = make_upstream_context(self.clock, connect=self.net)
        self.net.behaviour = lambda attempt: attempt.answer(200)
        self.old = Cluster.build(cluster_config(*(endpoints or (A, B)), **fields), self.shared)
        self.old.start()
        self.clock.advance(0.1)

    def reload(self, **changes: Any) -> Cluster:
        """Do what a reload does, with these fields changed."""
        new = Cluster.build(replace(self.old.config, **changes), self.shared, self.old)
        new.start()
        self.old.stop(successor=new)
        return new


def pool(cluster: Cluster, index: int = 0) -> Any:
    return cluster.endpoints[index].pool


def test_requests_are_taken_before_the_first_check() -> None:
    cluster = Cluster.build(cluster_config(A), make_upstream_context())
    assert cluster.pick() is cluster.endpoints[0]


def test_an_unchanged_configuration_keeps_the_very_cluster_going() -> None:
    bench = Bench()
    new = bench.reload()
    assert new is bench.old
    assert not pool(new).closed
    checks = len(bench.net.attempts)
    bench.clock.advance(6.0)
    assert len(bench.net.attempts) == checks + 2


def test_building_changes_nothing_of_the_previous_cluster() -> None:
    bench = Bench()
    timers = len(bench.clock.getDelayedCalls())
    Cluster.build(replace(bench.old.config, endpoints=(B, C)), bench.shared, bench.old)
    assert len(bench.clock.getDelayedCalls()) == timers
    assert not pool(bench.old).closed
    assert [bench.old.pick(), bench.old.pick()] == list(bench.old.endpoints)


def test_endpoints_that_stay_keep_pool_health_and_turn() -> None:
    bench = Bench(A, B)
    bench.old.pick()
    a, b = bench.old.endpoints
    new = bench.reload(endpoints=(C, A, B))
    assert new.endpoints[1:] == (a, b)
    assert new.pick() is b
    assert a.ready
    assert not pool(new, 1).closed


def test_an_endpoint_that_goes_is_closed_and_no_longer_checked() -> None:
    bench = Bench(A, B)
    gone = bench.old.endpoints[1]
    bench.reload(endpoints=(A,))
    closed: Any = gone.pool
    assert closed.closed
    assert gone.check_soon is None
    checks = len(bench.net.attempts)
    bench.clock.advance(0.1)
    bench.clock.advance(6.0)
    assert {attempt.host for attempt in bench.net.attempts[checks:]} == {A.host}


def test_a_kept_endpoint_listens_to_the_new_checks_only() -> None:
    bench = Bench(A)
    new = bench.reload(health_check=model.HealthCheck(path="/livez", unhealthy_after=1))
    endpoint = new.endpoints[0]
    bench.clock.advance(0.1)
    assert b"GET /livez " in bench.net.attempts[-1].sent
    bench.clock.advance(2.0)
    checks = len(bench.net.attempts)
    endpoint.record_connect_failure(ConnectFailed("refused"))
    assert not endpoint.ready  # the new threshold
    bench.clock.advance(0)
    assert len(bench.net.attempts) == checks + 1


def test_a_renamed_endpoint_keeps_its_connections() -> None:
    bench = Bench(A)
    before = bench.old.endpoints[0]
    new = bench.reload(endpoints=(replace(A, name="first"),))
    assert new.endpoints == (before,)
    assert new.endpoints[0].name == "first"


def test_two_endpoints_with_one_url_stay_two() -> None:
    bench = Bench(A, replace(A, name="again"))
    new = bench.reload(preserve_host=True)
    assert len(set(new.endpoints)) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"tls": model.ClusterTLS(server_name="other")},
        {"tls": model.ClusterTLS(ca=model.PEMFile("ca", b"other"))},
        {"identity": model.UpstreamIdentity.PASSTHROUGH},
        {"connections": model.Connections(max_idle=1)},
        {"proxy": model.HTTPProxy(url="http://a:1", host="a", port=1)},
        {"credentials": model.Credentials(certificate=model.PEMFile("c", b"C"), key=model.PEMFile("k", b"K"))},
    ],
)
def test_what_connections_depend_on_makes_new_ones(changes: dict[str, Any]) -> None:
    bench = Bench()
    old_pools = [pool(bench.old), pool(bench.old, 1)]
    new = bench.reload(**changes)
    assert not set(new.endpoints) & set(bench.old.endpoints)
    assert all(each.closed for each in old_pools)
    assert not pool(new).closed


def test_a_new_token_in_the_file_keeps_the_connections() -> None:
    bench = Bench(credentials=model.Credentials(token=model.Secret("one")))
    new = bench.reload(credentials=model.Credentials(token=model.Secret("two")))
    assert new.endpoints == bench.old.endpoints
    assert new.credentials.authorization() == b"Bearer two"
    assert bench.old.credentials.authorization() == b"Bearer one"


def test_the_credential_of_a_plugin_survives_a_reload_that_does_not_concern_it() -> None:
    bench = Bench(credentials=model.Credentials(exec=model.ExecPlugin(command="x")))
    plugins: Any = bench.shared.plugins
    plugins.runs[-1].callback(PluginResult(0, answer({"token": "t"}), ""))
    new = bench.reload(endpoints=(B,))
    assert new.credentials is bench.old.credentials
    assert new.credentials.authorization() == b"Bearer t"
    assert len(plugins.runs) == 1
    Deferred.fromCoroutine(new.credentials.refresh())
    assert len(plugins.runs) == 2


def test_a_plugin_with_cluster_info_runs_again_when_that_changes() -> None:
    curious = model.ExecPlugin(command="x", provide_cluster_info=True)
    bench = Bench(credentials=model.Credentials(exec=curious))
    new = bench.reload(endpoints=(B,))
    assert new.credentials is not bench.old.credentials
    assert not set(new.endpoints) & set(bench.old.endpoints)


def test_a_plugin_with_cluster_info_runs_again_when_the_http_proxy_changes() -> None:
    curious = model.ExecPlugin(command="x", provide_cluster_info=True)
    bench = Bench(credentials=model.Credentials(exec=curious))
    assert bench.reload(proxy=http_proxy("pw")).credentials is not bench.old.credentials


def rotate(bench: Bench) -> None:
    """Have the exec plugin of the cluster give another certificate."""
    chain, key = pem_pair()
    Deferred.fromCoroutine(bench.old.credentials.refresh())
    plugins: Any = bench.shared.plugins
    plugins.runs[-1].callback(PluginResult(0, answer({"clientCertificateData": chain, "clientKeyData": key}), ""))


def test_a_new_client_certificate_is_used_by_the_next_request_and_ends_no_connection_in_use() -> None:
    bench = Bench(A, credentials=model.Credentials(exec=model.ExecPlugin(command="x")))
    before = pool(bench.old)
    rotate(bench)
    assert pool(bench.old) is not before
    assert before.closed  # which leaves connections in use alone


def test_a_new_client_certificate_does_not_concern_passthrough() -> None:
    passthrough = model.UpstreamIdentity.PASSTHROUGH
    bench = Bench(A, credentials=model.Credentials(exec=model.ExecPlugin(command="x")), identity=passthrough)
    before = pool(bench.old)
    rotate(bench)
    assert pool(bench.old) is before


def test_a_stopped_cluster_no_longer_follows_its_certificate() -> None:
    bench = Bench(A, credentials=model.Credentials(exec=model.ExecPlugin(command="x")))
    bench.old.stop()
    before = pool(bench.old)
    rotate(bench)
    assert pool(bench.old) is before


def test_stop_closes_the_pools_and_leaves_no_timer() -> None:
    bench = Bench(A, B)
    bench.old.stop()
    assert pool(bench.old).closed
    assert pool(bench.old, 1).closed
    assert not bench.clock.getDelayedCalls()


def test_the_message_names_every_endpoint_and_why() -> None:
    bench = Bench(A, B)
    bench.old.endpoints[0].record_check("answered 500 on /readyz")
    for endpoint in bench.old.endpoints:
        for _ in range(3):
            endpoint.record_connect_failure(ConnectFailed(f"{endpoint.config.host}:6443 refused the connection"))
    assert bench.old.pick() is None
    assert bench.old.unavailable_message() == (
        'no endpoint of cluster "east" is ready: a: 10.0.0.1:6443 refused the connection (out for 0 s); '
        "b: 10.0.0.2:6443 refused the connection (out for 0 s)"
    )


def test_a_token_that_cannot_be_sent_is_refused_when_the_cluster_is_built() -> None:
    broken = model.Credentials(token=model.Secret("s3\ncret"))
    with pytest.raises(CredentialError) as caught:
        Cluster.build(cluster_config(A, credentials=broken), make_upstream_context())
    assert not re.search("s3|cret\\b", caught.value.cause)


def test_no_secret_shows_in_any_repr() -> None:
    secret = model.Credentials(token=model.Secret("s3cret"))
    cluster = Cluster.build(cluster_config(A, credentials=secret), make_upstream_context())
    parts = [cluster, cluster.config, cluster.credentials, cluster.control, *cluster.endpoints, vars(cluster)]
    assert "s3cret" not in "".join(repr(part) for part in parts)


def test_the_message_says_of_a_ready_endpoint_why_the_connection_failed() -> None:
    bench = Bench(A, B)
    for endpoint in bench.old.endpoints:
        endpoint.record_check(None)
    bench.old.endpoints[0].record_connect_failure(ConnectFailed("10.0.0.1:6443 refused the connection"))
    assert bench.old.unavailable_message() == (
        'no endpoint of cluster "east" is ready: a: 10.0.0.1:6443 refused the connection; b: the connection failed'
    )


FRONT = model.FrontProxy(model.PEMFile("f.crt", b"FRONT"), model.PEMFile("f.key", b"FRONT KEY"))
OWN = model.Credentials(certificate=model.PEMFile("c", b"OWN"), key=model.PEMFile("k", b"OWN KEY"))


class Contexts:
    """Tells which certificate a connection would have shown."""

    def get(self, ca: bytes | None, certificate: ClientCertificate | None, *, verify: bool) -> Any:
        return None if certificate is None else certificate.chain


@pytest.mark.parametrize(
    ("identity", "data"),
    [
        (model.UpstreamIdentity.PROXY, b"OWN"),
        (model.UpstreamIdentity.IMPERSONATE, b"OWN"),
        (model.UpstreamIdentity.PASSTHROUGH, None),
        (model.UpstreamIdentity.REQUEST_HEADER, b"FRONT"),
    ],
)
def test_certificate_of_requests_depends_on_identity_and_control_traffic_has_the_own(
    identity: model.UpstreamIdentity, data: bytes | None
) -> None:
    clock = Clock()
    net = FakeConnector(clock)
    config = cluster_config(endpoint_config(scheme="https"), identity=identity, credentials=OWN, front_proxy=FRONT)
    endpoint = Cluster(config, make_upstream_context(clock, connect=net, contexts=Contexts())).endpoints[0]
    endpoint.connect(Protocol())
    endpoint.connect_control(Protocol())
    assert [attempt.tls.context for attempt in net.attempts] == [data, b"OWN"]


def _credentials(path: str, content: bytes) -> model.Credentials:
    return model.Credentials(certificate=model.PEMFile(path, content), key=model.PEMFile(f"{path}.key", content))


@pytest.mark.parametrize(("path", "kept"), [("c", True), ("another", False)])
def test_an_endpoint_whose_certificate_was_renewed_in_its_files_is_as_ready_as_before(path: str, kept: bool) -> None:
    bench = Bench(credentials=_credentials("c", b"OLD"))
    assert all(endpoint.ready for endpoint in bench.old.endpoints)
    bench.net.behaviour = lambda attempt: None  # no check is answered
    new = bench.reload(credentials=_credentials(path, b"NEW"))
    assert [endpoint.ready for endpoint in new.endpoints] == [kept, kept]
    assert all(endpoint not in bench.old.endpoints for endpoint in new.endpoints)
    assert pool(bench.old).closed


def http_proxy(password: str, host: str = "a") -> model.HTTPProxy:
    secret = model.Secret(password)
    return model.HTTPProxy(url=f"http://{host}:1", host=host, port=1, user="edge", password=secret)


@pytest.mark.parametrize(("host", "kept"), [("a", True), ("another", False)])
def test_a_new_password_for_the_http_proxy_makes_new_connections_to_what_is_as_ready_as_before(
    host: str, kept: bool
) -> None:
    bench = Bench(proxy=http_proxy("old"))
    assert bench.net.attempts[-1].proxy == HTTPProxy("a", 1, b"Basic " + base64.b64encode(b"edge:old"))
    bench.net.behaviour = lambda attempt: None  # no check is answered
    new = bench.reload(proxy=http_proxy("new", host))
    assert [endpoint.ready for endpoint in new.endpoints] == [kept, kept]
    assert pool(bench.old).closed
    new.endpoints[0].connect(Protocol())
    assert bench.net.attempts[-1].proxy == HTTPProxy(host, 1, b"Basic " + base64.b64encode(b"edge:new"))


def test_processes_share_no_health_of_an_endpoint_behind_another_http_proxy() -> None:
    setups = set()
    for proxy in (None, http_proxy("old"), http_proxy("new"), http_proxy("old", "b")):
        shared = make_upstream_context(health=cast(Any, SimpleNamespace(checks=False)))
        setups.add(Cluster(cluster_config(A, proxy=proxy), shared).endpoints[0].setup)
    assert len(setups) == 4


def test_an_endpoint_that_is_out_is_tried_with_a_renewed_certificate() -> None:
    bench = Bench(credentials=_credentials("c", b"OLD"))
    bench.net.behaviour = lambda attempt: attempt.answer(500)
    bench.clock.pump([5.0] * 4)
    assert bench.old.balancer.pick(()) is None
    new = bench.reload(credentials=_credentials("c", b"NEW"))
    assert new.balancer.pick(()) is not None


def test_another_front_proxy_certificate_makes_new_connections_where_it_is_shown() -> None:
    other = model.FrontProxy(model.PEMFile("f.crt", b"NEW"), model.PEMFile("f.key", b"NEW KEY"))
    shows = Bench(identity=model.UpstreamIdentity.REQUEST_HEADER, front_proxy=FRONT)
    assert not set(shows.reload(front_proxy=other).endpoints) & set(shows.old.endpoints)
    shows_not = Bench(identity=model.UpstreamIdentity.PASSTHROUGH, front_proxy=FRONT)
    assert shows_not.reload(front_proxy=other).endpoints == shows_not.old.endpoints


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoints": (replace(A, weight=3), replace(B, disabled=True))},
        {"endpoints": (replace(A, name="first"), replace(B, name="second"))},
        {"impersonate_extras": ("scopes",)},
        {"flow_controls": ("bulk",)},
        {"labels": (("region", "eu"),)},
        {"preserve_host": True},
        {"health_check": model.HealthCheck(interval=1.0)},
    ],
)
def test_what_connections_do_not_depend_on_keeps_them(changes: dict[str, Any]) -> None:
    bench = Bench()
    new = bench.reload(**changes)
    assert new.endpoints == bench.old.endpoints
    assert not pool(new).closed
    assert not pool(new, 1).closed


def test_a_plugin_with_cluster_info_does_not_run_again_for_a_name_or_weight() -> None:
    curious = model.ExecPlugin(command="x", provide_cluster_info=True)
    bench = Bench(credentials=model.Credentials(exec=curious))
    new = bench.reload(endpoints=(replace(A, name="first", weight=2, disabled=True), B))
    assert new.credentials is bench.old.credentials
    assert new.endpoints == bench.old.endpoints


def test_a_disabled_endpoint_gets_no_requests_is_checked_on_and_comes_back_only_if_healthy() -> None:
    bench = Bench(A, B)
    a, b = bench.old.endpoints
    off = bench.reload(endpoints=(replace(A, disabled=True), B))
    assert {off.pick() for _ in range(4)} == {b}
    assert bench.old.pick() is b  # for requests that began before the reload, too
    assert not pool(off).closed
    bench.net.behaviour = lambda attempt: attempt.answer(500 if attempt.host == A.host else 200)
    for _ in range(4):
        bench.clock.advance(6.0)
    assert off.unavailable_message() == 'no endpoint of cluster "east" is ready: a: disabled; b: the connection failed'
    bench.old = off
    on = bench.reload(endpoints=(A, B))
    assert {on.pick() for _ in range(4)} == {b}
    bench.net.behaviour = lambda attempt: attempt.answer(200)
    bench.clock.advance(0.1)
    bench.clock.advance(6.0)
    assert {on.pick() for _ in range(4)} == {a, b}


def test_a_removed_endpoint_gets_no_request_that_began_before() -> None:
    bench = Bench(A, B)
    a, b = bench.old.endpoints
    ended: list[str] = []
    waiting: Any = b.open()
    waiting.addErrback(lambda failure: ended.append(failure.value.cause))
    bench.reload(endpoints=(A,))
    assert ended == ["removed from the configuration"]
    assert {bench.old.pick() for _ in range(4)} == {a}
    bench.old.stop()
    assert bench.old.pick() is None
    assert bench.old.unavailable_message() == (
        'no endpoint of cluster "east" is ready: a: removed from the configuration; b: removed from the configuration'
    )


def test_an_api_server_that_stays_over_new_connections_still_takes_who_began_before() -> None:
    bench = Bench(A, B)
    before = bench.old.endpoints
    waiting = before[0].open()
    bench.reload(connections=model.Connections(max_idle=1), endpoints=(A, replace(B, disabled=True)))
    assert not waiting.called
    assert {bench.old.pick() for _ in range(4)} == {before[0]}  # the other is disabled now


def test_a_subset_is_by_name_or_url_in_the_asked_order() -> None:
    cluster = Cluster(cluster_config(A, B, C), make_upstream_context())
    a, b, c = cluster.endpoints
    assert cluster.subset(["c", A.url, "c"]) == (c, a)
    assert cluster.subset([]) == (a, b, c)
    with pytest.raises(LookupError, match='cluster "east" has no endpoint "d"'):
        cluster.subset(["a", "d"])


def test_a_subset_uses_the_names_of_its_own_configuration() -> None:
    bench = Bench(A, B)
    renamed = replace(bench.old.config, endpoints=(replace(A, name="b"), replace(B, name="a")))
    new = Cluster.build(renamed, bench.shared, bench.old)  # not started yet
    assert new.subset(["b"]) == (bench.old.endpoints[0],)
    assert bench.old.subset(["b"]) == (bench.old.endpoints[1],)


def test_the_message_for_a_policy_names_its_endpoints_only() -> None:
    cluster = Cluster(cluster_config(A, replace(B, disabled=True), C), make_upstream_context())
    assert cluster.unavailable_message(cluster.subset(["b", "c"])) == (
        'no endpoint of cluster "east" is ready: b: disabled; c: not checked yet'
    )
