"""Plans of requests to API services: the group-version's owner serves them, whatever a policy's backend is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mcproxy.config import model
from mcproxy.dispatch.plan import Dispatch
from mcproxy.dispatch.request_limits import UNLIMITED, RequestLimits
from tests.dispatch.builders import ALICE, policy, resource_request, rule

METRICS = model.APIService(group="metrics.k8s.io", version="v1", cluster="metrics", authority="east")
OWN = model.APIService(group="own.example.com", version="v1", cluster="east", authority="east")
REQUEST = resource_request("list", "nodes", "metrics.k8s.io")


class Cluster:
    def __init__(self, name: str) -> None:
        self.name = name
        self.config = SimpleNamespace(flow_controls=(f"of-{name}",))
        self.balancer = f"balancer of {name}"

    def subset(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple(f"{self.name}/{name}" for name in names or ("all",))


class Limits:
    @staticmethod
    def limits_for(names: Any, cluster: str) -> RequestLimits:
        controls: Any = [SimpleNamespace(name=name, key=str) for name in names]
        return RequestLimits(controls, cluster)

    @staticmethod
    def per(_name: str) -> model.Per:
        return model.Per.ALL


def plan(service: model.APIService | None, *policies: model.Policy) -> Any:
    config = model.Server(
        name="s",
        listeners=("l",),
        backend=model.ClusterBackend("east"),
        dispatch=policies or None,
        api_services=(METRICS, OWN),
    )
    clusters: Any = {name: Cluster(name) for name in ("east", "west", "metrics")}
    flow_controls: Any = Limits()
    dispatch = Dispatch(config, clusters, flow_controls)
    if service is None:
        return dispatch.plan(ALICE, REQUEST, "east")
    found = dispatch.plan_of_service(ALICE, REQUEST, service)
    assert dispatch.plan_of_service(ALICE, REQUEST, service) is found
    return found


def made(service: model.APIService | None, *policies: model.Policy) -> Any:
    found = plan(service, *policies)
    assert found is not None
    return found


def limits(found: Any) -> tuple[tuple[str, ...], str]:
    return tuple(control.name for control, _ in found.limits._controls), found.limits._cluster_name


def endpoints(found: Any) -> list[Any]:
    return list(found.balancer.endpoints)


def test_without_policies_it_is_the_owners() -> None:
    found = made(METRICS)
    assert (found.cluster.name, found.authority, found.balancer) == ("metrics", "east", "balancer of metrics")
    assert limits(found) == (("of-metrics",), "metrics")
    assert made(None).authority == "east"


def test_the_backend_of_a_policy_moves_it_nowhere() -> None:
    to_west = policy("west", rule(), backend=model.ClusterBackend("west"), endpoints=("a",))
    for service in (METRICS, OWN):
        found = made(service, to_west)
        assert found.cluster.name == service.cluster
        assert endpoints(found) == [f"{service.cluster}/all"]
    assert made(None, to_west).cluster.name == "west"


def test_endpoints_of_a_policy_count_where_they_are_the_owners() -> None:
    of_backend = policy("p", rule(), endpoints=("a",))
    assert endpoints(made(METRICS, of_backend)) == ["metrics/all"]
    assert endpoints(made(OWN, of_backend)) == ["east/a"]
    of_owner = policy("p", rule(), endpoints=("a",), backend=model.ClusterBackend("metrics"))
    assert endpoints(made(METRICS, of_owner)) == ["metrics/a"]


def test_limits_and_rejections_of_a_policy_hold() -> None:
    limited = policy("p", rule(), flow_control="slow", reject=model.Reject(403, "no"), access_log=False)
    found = made(METRICS, limited)
    assert limits(found) == (("slow", "of-metrics"), "metrics")
    assert (found.reject, found.access_log, found.policy) == (model.Reject(403, "no"), False, "p")
    assert found.cluster_limits is not UNLIMITED


def test_rules_match_with_the_owners_cluster() -> None:
    assert plan(METRICS, policy("p", rule(clusters=("east",)))) is None
    assert made(METRICS, policy("p", rule(clusters=("metrics",)))).cluster.name == "metrics"
