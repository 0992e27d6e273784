"""Which server, and which cluster of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from mcproxy.config import model
from mcproxy.kube.status import StatusError
from mcproxy.proxy.routes import AggregateBackend, Routes, VirtualServer
from tests.proxy.builders import NOT_ASKED, impersonation, virtual_server

EAST: Any = "the cluster east"
WEST: Any = "the cluster west"


def server(name: str, *names: str, default: bool = False) -> tuple[model.Server, VirtualServer]:
    config = model.Server(
        name=name, listeners=("l",), server_names=names, default=default, backend=model.ClusterBackend("east")
    )
    return config, live(config, {"east": EAST})


def live(config: model.Server, clusters: dict[str, Any]) -> VirtualServer:
    return virtual_server(config, clusters)


def refused(routes: Routes, name: str | None, host: bytes) -> tuple[int, str]:
    with pytest.raises(StatusError) as caught:
        routes.find(name, host)
    return caught.value.code, caught.value.reason


class TestServer:
    ROUTES = Routes([server("one", "one.test"), server("two", "two.test", "*.two.test")])
    DEFAULT = Routes([server("one", "one.test"), server("rest", default=True)])

    @pytest.mark.parametrize(
        ("name", "host", "found"),
        [
            ("one.test", b"one.test", "one"),
            ("one.test", b"one.test:6443", "one"),
            ("one.test", b"10.0.0.1", "one"),
            ("one.test", b"", "one"),
            ("one.test", b"nobody.test", "one"),
            ("a.two.test", b"two.test", "two"),
            (None, b"two.test:80", "two"),
            (None, b"b.two.test", "two"),
            ("nobody.test", b"one.test", "one"),
        ],
    )
    def test_sni_decides_else_host(self, name: str | None, host: bytes, found: str) -> None:
        assert self.ROUTES.find(name, host).name == found

    @pytest.mark.parametrize(
        ("name", "host"), [(None, b"x.test"), ("x.test", b"y.test"), (None, b""), (None, b"[::1]:1")]
    )
    def test_else_the_default_else_404(self, name: str | None, host: bytes) -> None:
        assert self.DEFAULT.find(name, host).name == "rest"
        assert refused(self.ROUTES, name, host) == (404, "NotFound")

    def test_two_names_of_different_servers_are_misdirected(self) -> None:
        assert refused(self.ROUTES, "one.test", b"two.test") == (421, "MisdirectedRequest")

    def test_an_ipv6_address_as_host(self) -> None:
        assert Routes([server("six", "::1")]).find(None, b"[::1]:6443").name == "six"


class TestCluster:
    MANY = live(
        model.Server(name="many", listeners=("l",), backend=model.ClustersBackend(("east", "west"))),
        {"east": EAST, "west": WEST, "other": "not of this server"},
    )

    def test_a_server_of_one_cluster_passes_every_target_on(self) -> None:
        single = server("one")[1]
        for target in (b"/", b"*", b"/clusters/west/api?x", b"/a%2Fb"):
            assert single.destination(target) == (EAST, target, None)

    @pytest.mark.parametrize(
        ("target", "cluster", "below"),
        [
            (b"/clusters/east/api/v1/pods?a=b%2F", EAST, b"/api/v1/pods?a=b%2F"),
            (b"/clusters/west/", WEST, b"/"),
            (b"/clusters/west", WEST, b"/"),
            (b"/clusters/west?watch=1", WEST, b"/?watch=1"),
            (b"/clusters/east//api", EAST, b"//api"),
            (b"/clusters/east/clusters/west/x", EAST, b"/clusters/west/x"),
            (b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/east/proxy/api/v1", EAST, b"/api/v1"),
            (b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/west/proxy?a", WEST, b"/?a"),
            (b"/apis/cluster.karmada.io/v1alpha1/clusters/west/proxy/", WEST, b"/"),
        ],
    )
    def test_the_path_names_it(self, target: bytes, cluster: Any, below: bytes) -> None:
        assert self.MANY.destination(target) == (cluster, below, None)

    @pytest.mark.parametrize(
        "target",
        [
            b"/",
            b"*",
            b"/api/v1/pods",
            b"/clusters",
            b"/clusters/",
            b"/clusters/other/api",
            b"/clusters/EAST/api",
            b"/clusters/%65ast/api",
            b"/clusters/east%2Fapi",
            b"/clusters/../east",
            b"//clusters/east",
            b"/clusters//east",
            b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/east",
            b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/east/status",
            b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/east/proxyx/api",
            b"/apis/aggregated.kubeadmiral.io/v1alpha1/aggregations/other/proxy/api",
            b"/apis/cluster.karmada.io/v1alpha1/clusters/absent/proxy/api",
            b"/apis/cluster.karmada.io/v1/clusters/east/proxy/api",
        ],
    )
    def test_all_else_is_404(self, target: bytes) -> None:
        with pytest.raises(StatusError) as caught:
            self.MANY.destination(target)
        assert (caught.value.code, caught.value.reason) == (404, "NotFound")

    def test_an_absent_name_has_the_message_of_kubernetes(self) -> None:
        with pytest.raises(StatusError) as caught:
            self.MANY.destination(b"/clusters/absent/api")
        assert caught.value.message == 'clusters "absent" not found'
        assert caught.value.details == {"name": "absent", "kind": "clusters"}


class TestAPIServices:
    METRICS: Any = "the API server of metrics"
    CLUSTERS: ClassVar[dict[str, Any]] = {"east": EAST, "west": WEST, "metrics": METRICS}
    SERVICE = model.APIService(group="metrics.k8s.io", version="v1beta1", cluster="metrics", authority="east")
    OWN_PATH = model.APIService(group="cluster.karmada.io", version="v1alpha1", cluster="metrics")
    BESIDE_ONE = live(
        model.Server(name="one", listeners=("l",), backend=model.ClusterBackend("east"), api_services=(SERVICE,)),
        CLUSTERS,
    )

    @staticmethod
    def beside_aggregate(*services: model.APIService) -> VirtualServer:
        backend = model.AggregateBackendConfig("fleet", ("east", "west"))
        config = model.Server(name="fleet", listeners=("l",), backend=backend, api_services=services)
        aggregate = AggregateBackend(
            backend,
            TestAPIServices.CLUSTERS,
            handler=NOT_ASKED,
            clock=NOT_ASKED,
            read_authorizer=None,
            read_impersonation=impersonation(),
        )
        made: dict[str, Any] = {
            name: SimpleNamespace(name=name, config=SimpleNamespace(identity=None)) for name in ("east", "west")
        }
        aggregate.clusters = made
        return virtual_server(config, TestAPIServices.CLUSTERS, aggregate=aggregate)

    @pytest.mark.parametrize("rest", [b"", b"/", b"/nodes?watch=1", b"/namespaces/a/pods/b/exec", b"?timeout=32s"])
    def test_a_group_version_goes_to_its_owner_before_the_backend(self, rest: bytes) -> None:
        target = b"/apis/metrics.k8s.io/v1beta1" + rest
        found = (self.METRICS, target, self.SERVICE)
        assert self.BESIDE_ONE.destination(target) == found
        assert self.beside_aggregate(self.SERVICE).destination(target) == found

    def test_all_else_is_the_backends(self) -> None:
        fleet = self.beside_aggregate(self.SERVICE)
        for target in (b"/apis/metrics.k8s.io/v1/nodes", b"/apis/metrics.k8s.io", b"/api/v1/nodes", b"/apis"):
            assert self.BESIDE_ONE.destination(target) == (EAST, target, None)
            assert fleet.destination(target) == (None, target, None)

    def test_a_members_own_api_is_as_it_is(self) -> None:
        below = b"/apis/metrics.k8s.io/v1beta1/nodes"
        assert self.beside_aggregate(self.SERVICE).destination(b"/clusters/east" + below) == (EAST, below, None)

    def test_paths_of_other_systems_for_the_whole_aggregate_have_it_too(self) -> None:
        below = b"/apis/metrics.k8s.io/v1beta1/nodes"
        prefix = b"/apis/search.karmada.io/v1alpha1/proxying/karmada/proxy"
        assert self.beside_aggregate(self.SERVICE).destination(prefix + below) == (self.METRICS, below, self.SERVICE)

    def test_its_cluster_is_not_reached_by_name(self) -> None:
        with pytest.raises(StatusError) as caught:
            self.beside_aggregate(self.SERVICE).destination(b"/clusters/metrics/api")
        assert caught.value.code == 404
        assert self.BESIDE_ONE.destination(b"/clusters/metrics/api")[0] is EAST

    def test_a_registered_group_version_is_no_path_of_another_system(self) -> None:
        target = b"/apis/cluster.karmada.io/v1alpha1/clusters/east/proxy/api"
        found = self.beside_aggregate(self.OWN_PATH).destination(target)
        assert found == (self.METRICS, target, self.OWN_PATH)
