"""RBAC of a simulated cluster, from the Role and Binding objects in its store."""

from __future__ import annotations

from typing import Any

import pytest

from kubesim.apimachinery.status import StatusError
from kubesim.apimachinery.user import User
from kubesim.auth.rbac import Attributes, add_default_roles, check, decide
from kubesim.cluster import SimulatedCluster

GROUP = "rbac.authorization.k8s.io"
BOB = User("bob", groups=("ops", "system:authenticated"))


def put(cluster: SimulatedCluster, plural: str, name: str, namespace: str = "", **content: Any) -> None:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    cluster.store.put((GROUP, plural), {"metadata": metadata, **content})


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster("east")
    add_default_roles(made)
    rules = [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "*/log"]},
        {"verbs": ["*"], "apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["web"]},
        {"verbs": ["get"], "nonResourceURLs": ["/logs", "/metrics/*"]},
    ]
    put(made, "clusterroles", "reader", rules=rules)
    return made


def bind(cluster: SimulatedCluster, subject: dict[str, str], namespace: str = "") -> None:
    plural = "rolebindings" if namespace else "clusterrolebindings"
    role = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "reader"}
    put(cluster, plural, "binding", namespace, subjects=[subject], roleRef=role)


@pytest.mark.parametrize(
    ("wanted", "allowed"),
    [
        (Attributes("get", "", "pods", "", "demo", "x"), True),
        (Attributes("list", "", "pods", "", "demo"), False),
        (Attributes("get", "", "pods", "log", "demo", "x"), True),
        (Attributes("get", "", "pods", "exec", "demo", "x"), False),
        (Attributes("delete", "apps", "deployments", "", "demo", "web"), True),
        (Attributes("delete", "apps", "deployments", "", "demo", "api"), False),
        (Attributes("list", "apps", "deployments", "", "demo"), False),
        (Attributes("get", "apps", "pods", "", "demo", "x"), False),
        (Attributes("get", path="/metrics/cadvisor"), True),
        (Attributes("get", path="/metricsx"), False),
        (Attributes("post", path="/logs"), False),
        (Attributes("get", path="/version"), True),
    ],
)
def test_rules(cluster: SimulatedCluster, wanted: Attributes, allowed: bool) -> None:
    bind(cluster, {"kind": "User", "name": "bob"})
    assert decide(cluster, BOB, wanted).allowed is allowed


def test_a_role_binding_holds_in_its_namespace_only(cluster: SimulatedCluster) -> None:
    bind(cluster, {"kind": "Group", "name": "ops"}, "demo")
    decision = decide(cluster, BOB, Attributes("get", "", "pods", "", "demo", "x"))
    assert decision.reason == 'RBAC: allowed by RoleBinding "binding/demo" of ClusterRole "reader" to Group "ops"'
    assert not decide(cluster, BOB, Attributes("get", "", "pods", "", "prod", "x")).allowed


def test_a_service_account_is_a_subject_by_namespace_and_name(cluster: SimulatedCluster) -> None:
    bind(cluster, {"kind": "ServiceAccount", "name": "builder", "namespace": "demo"})
    account = User("system:serviceaccount:demo:builder")
    assert decide(cluster, account, Attributes("get", "", "pods", "", "x", "y")).allowed
    assert not decide(cluster, User("system:serviceaccount:x:builder"), Attributes("get", "", "pods")).allowed


def test_system_masters_are_allowed_everything(cluster: SimulatedCluster) -> None:
    assert decide(cluster, User("a", groups=("system:masters",)), Attributes("x", "y", "z")).allowed


def test_aggregated_roles_take_the_rules_of_the_roles_they_select(cluster: SimulatedCluster) -> None:
    selectors = [{"matchLabels": {"aggregate": "yes"}}]
    put(cluster, "clusterroles", "reader", rules=[], aggregationRule={"clusterRoleSelectors": selectors})
    part = {"name": "part", "labels": {"aggregate": "yes", "more": "1"}}
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]}]
    cluster.store.put((GROUP, "clusterroles"), {"metadata": part, "rules": rules})
    bind(cluster, {"kind": "User", "name": "bob"})
    assert decide(cluster, BOB, Attributes("get", "", "nodes", name="n")).allowed


@pytest.mark.parametrize(
    ("wanted", "message", "details"),
    [
        (
            Attributes("get", "", "pods", "exec", "demo", "x"),
            'pods "x" is forbidden: User "bob" cannot get resource "pods/exec" in API group "" in the namespace "demo"',
            {"name": "x", "kind": "pods"},
        ),
        (
            Attributes("list", "apps", "deployments"),
            'deployments.apps is forbidden: User "bob" cannot list resource "deployments" in API group "apps" '
            "at the cluster scope",
            {"group": "apps", "kind": "deployments"},
        ),
        (Attributes("get", path="/metrics"), 'forbidden: User "bob" cannot get path "/metrics"', {}),
    ],
)
def test_messages_of_refusals(
    cluster: SimulatedCluster, wanted: Attributes, message: str, details: dict[str, str]
) -> None:
    with pytest.raises(StatusError) as caught:
        check(cluster, BOB, wanted)
    assert (caught.value.message, caught.value.details) == (message, details)


def test_a_binding_to_a_missing_role_is_named_in_the_refusal(cluster: SimulatedCluster) -> None:
    bind(cluster, {"kind": "User", "name": "bob"})
    cluster.store.delete((GROUP, "clusterroles"), "", "reader")
    with pytest.raises(StatusError, match=r': RBAC: clusterrole.rbac.authorization.k8s.io "reader" not found$'):
        check(cluster, BOB, Attributes("get", "", "pods", "", "demo", "x"))
