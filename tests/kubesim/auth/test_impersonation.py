"""Whom a caller may impersonate in a simulated cluster: the modes of KEP-5284, then the verb `impersonate`.

What is right is k8s.io/apiserver `pkg/endpoints/filters/impersonation/mode.go`; the messages of the plain cases are
recorded (tests/golden/impersonation, replayed by tests/kubesim/golden).
"""

from __future__ import annotations

from typing import Any

import pytest

from kubesim.apimachinery.status import StatusError
from kubesim.apimachinery.user import User
from kubesim.auth.impersonation import RequestedUser, impersonated
from kubesim.auth.rbac import Attributes
from kubesim.cluster import ClusterOptions, SimulatedCluster

GROUP, AUTHENTICATION = "rbac.authorization.k8s.io", "authentication.k8s.io"
LIST_PODS = Attributes("list", resource="pods", namespace="demo")
DEPUTY = User("deputy", groups=("system:authenticated",))
AGENT = User(
    "system:serviceaccount:kube-system:agent", extra={"authentication.kubernetes.io/node-name": ("n1",), "a": ("b",)}
)
ACCOUNT, NODE = "system:serviceaccount:demo:builder", "system:node:n1"


def rule(verb: str, *resources: str, group: str = AUTHENTICATION, names: tuple[str, ...] = ()) -> dict[str, Any]:
    made: dict[str, Any] = {"verbs": [verb], "apiGroups": [group], "resources": list(resources)}
    return {**made, "resourceNames": list(names)} if names else made


def mode(name: str, *resources: str, on: str = "pods") -> list[dict[str, Any]]:
    return [rule(f"impersonate-on:{name}:list", on, group=""), rule(f"impersonate:{name}", *resources)]


def cluster_with(*rules: dict[str, Any], constrained: bool = True) -> SimulatedCluster:
    cluster = SimulatedCluster("east", options=ClusterOptions(constrained_impersonation=constrained))
    cluster.store.put((GROUP, "clusterroles"), {"metadata": {"name": "r"}, "rules": list(rules)})
    subjects = [{"kind": "User", "apiGroup": GROUP, "name": name} for name in (DEPUTY.name, AGENT.name)]
    binding = {"subjects": subjects, "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "r"}}
    cluster.store.put((GROUP, "clusterrolebindings"), {"metadata": {"name": "b"}, **binding})
    return cluster


def ask(cluster: SimulatedCluster, *headers: tuple[str, str], caller: User = DEPUTY) -> User:
    requested = RequestedUser.of([(f"Impersonate-{name}", value) for name, value in headers])
    assert requested is not None
    return impersonated(cluster, caller, LIST_PODS, requested)


def refused(cluster: SimulatedCluster, *headers: tuple[str, str], caller: User = DEPUTY) -> str:
    with pytest.raises(StatusError) as caught:
        ask(cluster, *headers, caller=caller)
    assert caught.value.code == 403
    return caught.value.message


USER_INFO = mode("user-info", "users", "groups", "uids", "userextras/example.com/a")
LEGACY = [rule("impersonate", "users", "groups", "serviceaccounts", group=""), rule("impersonate", "uids")]


def test_a_user_with_groups_uid_and_extra() -> None:
    headers = (("User", "bob"), ("Group", "dev"), ("Uid", "u"), ("Extra-Example.com%2Fa", "x"))
    found = ask(cluster_with(*USER_INFO), *headers)
    assert (found.name, found.groups, found.uid) == ("bob", ("dev", "system:authenticated"), "u")
    assert found.extra == {"example.com/a": ("x",)}


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ((("Group", "system:masters"),), "impersonating the system:masters group is not allowed"),
        ((("Group", ""),), "impersonating the empty string group is not allowed"),
        ((("Extra-Scopes", "x"),), 'must be a domain-prefixed path (such as "acme.io/foo")'),
        ((("Extra-Example.com%2Fa", ""),), "impersonating the empty string value in extra is not allowed"),
        ((("Extra-Example.com%2Fb", "x"),), 'resource "userextras/example.com/b"'),
    ],
)
def test_what_no_right_of_the_mode_allows(headers: tuple[tuple[str, str], ...], says: str) -> None:
    message = refused(cluster_with(*USER_INFO), ("User", "bob"), *headers)
    assert " cannot impersonate:user-info resource " in message
    assert says in message


def test_system_masters_by_the_verb_impersonate() -> None:
    found = ask(cluster_with(*USER_INFO, *LEGACY), ("User", "bob"), ("Group", "system:masters"))
    assert "system:masters" in found.groups


def test_many_groups_are_asked_for_at_once() -> None:
    groups = [("Group", f"g{number}") for number in range(4)]
    on, users = rule("impersonate-on:user-info:list", "pods", group=""), rule("impersonate:user-info", "users")
    star = cluster_with(on, users, rule("impersonate:user-info", "groups", names=("*",)))
    assert len(ask(star, ("User", "bob"), *groups).groups) == 5
    assert 'groups.authentication.k8s.io "g0"' in refused(star, ("User", "bob"), *groups[:3])
    each = cluster_with(on, users, rule("impersonate:user-info", "groups", names=("g0", "g1", "g2", "g3")))
    assert len(ask(each, ("User", "bob"), *groups).groups) == 5


def test_a_service_account_by_its_name_alone() -> None:
    cluster = cluster_with(*mode("serviceaccount", "serviceaccounts"), *USER_INFO)
    expected = ("system:serviceaccounts", "system:serviceaccounts:demo", "system:authenticated")
    assert ask(cluster, ("User", ACCOUNT)).groups == expected
    for more in (("Group", "system:serviceaccounts"), ("Uid", "u"), ("Extra-Example.com%2Fa", "x")):
        assert "cannot impersonate resource" in refused(cluster, ("User", ACCOUNT), more)


def test_a_node_by_its_name_alone() -> None:
    cluster = cluster_with(*mode("arbitrary-node", "nodes"), *USER_INFO)
    assert ask(cluster, ("User", NODE)).groups == ("system:nodes", "system:authenticated")
    assert "cannot impersonate resource" in refused(cluster, ("User", NODE), ("Group", "system:nodes"))
    # not a name of a node: a user as others
    assert ask(cluster, ("User", "system:node:N_1")).groups == ("system:authenticated",)


def test_the_node_that_an_agent_is_on() -> None:
    cluster = cluster_with(*mode("associated-node", "nodes"))
    assert ask(cluster, ("User", NODE), caller=AGENT).groups == ("system:nodes", "system:authenticated")
    assert "impersonate-on:arbitrary-node:list" in refused(cluster, ("User", "system:node:n2"), caller=AGENT)
    assert "impersonate-on:arbitrary-node:list" in refused(cluster, ("User", NODE))
    by_name = cluster_with(
        mode("associated-node", "nodes")[0], rule("impersonate:associated-node", "nodes", names=("n1",))
    )
    assert 'nodes.authentication.k8s.io "*"' in refused(by_name, ("User", NODE), caller=AGENT)


def test_the_verb_impersonate_makes_no_node_a_member_of_its_group() -> None:
    assert ask(cluster_with(*LEGACY), ("User", NODE)).groups == ("system:authenticated",)


def test_a_mode_is_tried_although_some_of_the_old_rights_are_there() -> None:
    """The right to `impersonate` users was enough for the groups to be refused by the old rules."""
    cluster = cluster_with(*USER_INFO, rule("impersonate", "users", group=""))
    assert ask(cluster, ("User", "bob"), ("Group", "dev")).name == "bob"


def test_another_resource_is_refused_and_older_clusters_know_no_modes() -> None:
    assert "impersonate-on:user-info:list" in refused(
        cluster_with(*mode("user-info", "users", on="nodes")), ("User", "b")
    )
    assert 'resource "users"' in refused(cluster_with(*USER_INFO, constrained=False), ("User", "bob"))
