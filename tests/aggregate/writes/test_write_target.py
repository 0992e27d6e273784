"""Writes to members that lack a resource, or have it in another version or as another kind: said in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcproxy.kube.resource import APIResource
from mcproxy.kube.status import StatusError
from tests.aggregate.writes.fleet import (
    CONFIG_MAPS,
    LABEL,
    LEASES,
    NODE_METRICS,
    Fleet,
    MemberAPI,
    forbids,
    rule,
    scoped,
    status,
)
from tests.support.fake_members import FakeDiscovery, FakeMember, as_member

PATH = "/apis/coordination.k8s.io/v1/namespaces/demo/leases"
OLD = replace(LEASES, gvr=LEASES.gvr._replace(version="v1beta1"))
WIDE = replace(LEASES, namespaced=False)
READ_ONLY = replace(LEASES, verbs=frozenset({"get", "list", "watch"}))
REFUSED = 'create rule {} of aggregate "fleet" (to: {}) leads to cluster {}{}, which cannot create '
REFUSED += "leases.coordination.k8s.io in version v1 as a namespaced Lease"


def lease(cluster: str = "", name: str = "a") -> dict[str, Any]:
    labels = {"labels": {LABEL: cluster}} if cluster else {}
    return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": name, **labels}}


def fleet_where_west_has(*resources: APIResource, **options: Any) -> Fleet:
    fleet = Fleet(**options)
    discovery_of(fleet, "west").set(CONFIG_MAPS, *resources)
    return fleet


def discovery_of(fleet: Fleet, name: str) -> FakeDiscovery:
    [found] = [member.discovery for member in fleet.found if member.name == name]
    return found


@pytest.mark.parametrize("has", [(), (OLD,), (WIDE,)], ids=["nothing", "another version", "another scope"])
@pytest.mark.parametrize("label", ["", "west", "east"])
def test_a_create_at_a_cluster_that_lacks_the_resource(has: tuple[APIResource, ...], label: str) -> None:
    fleet = fleet_where_west_has(*has, create=[rule("east", "other"), rule("west")])
    answer = fleet.asks("POST", PATH, lease(label))
    assert (answer.code, answer.message) == (405, REFUSED.format(2, "west", "west", ""))
    assert not fleet.writes_to("west")
    assert not answer.forwarded


def test_it_is_told_before_the_body_is_looked_at() -> None:
    answer = fleet_where_west_has(create=[rule("west")]).asks("POST", PATH, b'{"apiVersion":')
    assert (answer.code, answer.message) == (405, REFUSED.format(1, "west", "west", ""))


@pytest.mark.parametrize("has", [(), (OLD,), (WIDE,)])
def test_a_create_by_label_at_a_cluster_that_lacks_the_resource(has: tuple[APIResource, ...]) -> None:
    fleet = fleet_where_west_has(*has, create=[rule("Label")])
    answer = fleet.asks("POST", PATH, lease("west"))
    text = REFUSED.format(1, "Label", "west", f" (the label {LABEL} names it)")
    assert (answer.code, answer.message) == (405, text)
    assert fleet.asks("POST", PATH, lease("east")).code == 201
    assert fleet.asks("POST", PATH, lease("none")).code == 422


def test_an_apply_that_would_create_there() -> None:
    fleet = fleet_where_west_has(create=[rule("west")])
    kind = (b"Content-Type", b"application/apply-patch+yaml")
    answer = fleet.asks("PATCH", f"{PATH}/a?fieldManager=m", lease(), kind)
    assert (answer.code, answer.message) == (405, REFUSED.format(1, "west", "west", ""))


def test_a_primary_that_lacks_the_resource() -> None:
    fleet = Fleet(create=[rule("Primary")], primary="hub")
    hub = FakeMember("hub", FakeDiscovery(CONFIG_MAPS))
    fleet.clusters["hub"] = as_member(hub)
    answer = fleet.asks("POST", PATH, lease())
    assert (answer.code, answer.message) == (405, REFUSED.format(1, "Primary", "hub", ""))
    hub.discovery.coming = (CONFIG_MAPS, LEASES)
    fleet.members["hub"] = MemberAPI("hub", 7)
    assert fleet.asks("POST", PATH, lease()).served == ("hub",), "its definition has only just been made"


def test_a_cluster_outside_the_scope_that_lacks_the_resource() -> None:
    scope = [scoped(LEASES, clusters=("east",))]
    fleet = fleet_where_west_has(create=[rule("west")], scope=scope)
    assert fleet.asks("POST", PATH, lease()).code == 405
    discovery_of(fleet, "west").coming = (READ_ONLY,)
    assert fleet.asks("POST", PATH, lease()).code == 405
    discovery_of(fleet, "west").coming = (LEASES,)
    assert fleet.asks("POST", PATH, lease()).served == ("west",)


def test_a_cluster_that_cannot_say_what_it_has_answers_itself() -> None:
    scope = [scoped(LEASES, clusters=("east",))]
    fleet = fleet_where_west_has(create=[rule("west")], scope=scope)
    discovery_of(fleet, "west").fresh = False
    assert fleet.asks("POST", PATH, lease()).served == ("west",)


def test_what_is_not_cached() -> None:
    fleet = Fleet(create=[rule("west")])
    discovery_of(fleet, "west").set(CONFIG_MAPS)
    path = "/apis/metrics.k8s.io/v1beta1/nodes"
    answer = fleet.asks("POST", path, {"metadata": {"name": "n"}})
    assert answer.code == 405
    assert "cluster west, which cannot create nodes.metrics.k8s.io in version v1beta1" in answer.message
    creatable = replace(NODE_METRICS, verbs=NODE_METRICS.verbs | {"create"})
    discovery_of(fleet, "west").coming = (creatable,)
    assert fleet.asks("POST", path, {"metadata": {"name": "n"}}).served == ("west",)


# -- objects of a member that serves another version ----------------------------------------------------------------


def old_lease(fleet: Fleet) -> None:
    """West has the lease `a`, which it serves in v1beta1."""
    api = fleet.members["west"]
    found = {"kind": "Lease", "apiVersion": OLD.gvr.api_version, "metadata": {"name": "a", "resourceVersion": "5"}}
    path = f"{OLD.gvr.path('demo')}/a"
    api.rule = lambda method, target: (200, found) if (method, target.partition("?")[0]) == (b"GET", path) else None


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        ("PUT", f"{PATH}/a", "application/json"),
        ("PATCH", f"{PATH}/a", "application/merge-patch+json"),
        ("PATCH", f"{PATH}/a?fieldManager=m", "application/apply-patch+yaml"),
        ("DELETE", f"{PATH}/a", "application/json"),
        ("PUT", f"{PATH}/a/status", "application/json"),
    ],
)
def test_a_write_of_an_object_of_a_member_that_serves_another_version(method: str, path: str, kind: str) -> None:
    fleet = fleet_where_west_has(OLD, create=[rule("east")])
    old_lease(fleet)
    body: Any = b"" if method == "DELETE" else lease()
    answer = fleet.asks(method, path, body, (b"Content-Type", kind.encode()))
    assert answer.code == 405
    assert answer.message == (
        'leases.coordination.k8s.io "a" is in cluster west, which serves it in version v1beta1 and not in v1; '
        "use version v1beta1"
    )
    assert not fleet.writes_to("east")
    assert not fleet.writes_to("west")


def test_only_who_may_read_it_there_is_told() -> None:
    fleet = fleet_where_west_has(OLD)
    fleet.members["west"].rule = forbids()
    assert fleet.asks("DELETE", f"{PATH}/a").code == 404
    fleet.left_out = (("west", "policy"),)
    old_lease(fleet)
    assert fleet.asks("DELETE", f"{PATH}/a").code == 404


def test_an_object_of_another_name_is_not_found() -> None:
    fleet = fleet_where_west_has(OLD)
    fleet.members["west"].rule = lambda method, path: (404, status(404, "NotFound"))
    assert fleet.asks("DELETE", f"{PATH}/none").code == 404
    fleet.members["west"].rule = lambda method, path: StatusError(502, "no answer", details={})
    answer = fleet.asks("DELETE", f"{PATH}/none")
    assert answer.code == 503, "it may be there"
    assert 'whether cluster west has leases.coordination.k8s.io "none"' in answer.message
