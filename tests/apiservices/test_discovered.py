"""Roles that are made of a discovery document, and the bindings of an API server."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from mcproxy.apiservices import role_objects, role_template
from mcproxy.apiservices.role_objects import RefusedError, Template

GROUP = "garden.example.com"
ALL = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
RESOURCES: list[dict[str, Any]] = [
    {"name": "plants", "namespaced": True, "verbs": ALL},
    {"name": "plants/status", "namespaced": True, "verbs": ["get", "patch", "update"]},
    {"name": "plants/scale", "namespaced": True, "verbs": ["get", "patch", "update"]},
    {"name": "plants/talk", "namespaced": True, "verbs": ["get", "create"]},
    {"name": "gardens", "namespaced": False, "verbs": ["get", "list", "create"]},
    {"name": "gardens/talk", "namespaced": False, "verbs": ["get"]},
]


def document(resources: Any = RESOURCES, group_version: str = f"{GROUP}/v1") -> dict[str, Any]:
    return {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}


def grants(resources: Any = RESOURCES) -> dict[str, dict[str, set[str]]]:
    """Return verbs by resource by role."""
    parts, _ = role_template.discovered_roles(document(resources), GROUP, "v1")
    found: dict[str, dict[str, set[str]]] = {}
    for part in parts:
        if part.content is None:
            continue
        granted = found.setdefault(part.content["metadata"]["name"].rpartition(":")[2], {})
        for rule in part.content["rules"]:
            assert rule["apiGroups"] == [GROUP]
            for resource in rule["resources"]:
                granted.setdefault(resource, set()).update(rule["verbs"])
    return found


def test_view_reads_edit_writes_in_namespaces_and_what_is_in_none_is_aggregated_to_nobody() -> None:
    writes = {"create", "delete", "deletecollection", "patch", "update"}
    assert grants() == {
        "view": {
            "plants": {"get", "list", "watch"},
            "plants/status": {"get"},
            "plants/scale": {"get"},
            "gardens": {"get", "list"},
        },
        "edit": {"plants": writes, "plants/scale": {"patch", "update"}, "plants/talk": {"get", "create"}},
        "admin": {"gardens": {"create"}, "gardens/talk": {"get"}},
        "controller": {"plants/status": {"patch", "update"}},
    }


def test_labels_add_roles_to_those_of_the_cluster() -> None:
    parts, left_out = role_template.discovered_roles(document(), GROUP, "v1")
    assert left_out == ()
    labels = {
        part.content["metadata"]["name"]: part.content["metadata"].get("labels") for part in parts if part.content
    }
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    assert labels == {
        f"v1.{GROUP}:view": {f"{prefix}{role}": "true" for role in ("view", "edit", "admin")},
        f"v1.{GROUP}:edit": {f"{prefix}{role}": "true" for role in ("edit", "admin")},
        f"v1.{GROUP}:admin": None,
        f"v1.{GROUP}:controller": None,
    }


def test_metrics_have_a_role_to_read_alone() -> None:
    metrics = [{"name": name, "namespaced": name == "pods", "verbs": ["get", "list"]} for name in ("nodes", "pods")]
    assert grants(metrics) == {"view": {"nodes": {"get", "list"}, "pods": {"get", "list"}}}


def test_what_is_no_resource_is_left_out_in_words() -> None:
    odd = [{"name": "a\n- b", "verbs": ["get"]}, {"name": "*", "verbs": ["get"]}, 1, {"name": "b"}]
    parts, left_out = role_template.discovered_roles(document([*odd, *RESOURCES[:1]]), GROUP, "v1")
    assert len(left_out) == 4
    assert left_out[0] == r'its discovery has a resource "a\n- b", which is none'
    assert len(parts) == 2
    assert grants([{"name": "plants", "verbs": ["get", "*", "escalate", 1]}]) == {"view": {"plants": {"get"}}}


def test_an_api_without_resources_says_so() -> None:
    parts, _ = role_template.discovered_roles(document([]), GROUP, "v1")
    assert "no resources" in Template("title", parts).text


@pytest.mark.parametrize(
    "content",
    [{}, document(group_version="other.example.com/v1"), document({"a": 1}), document([RESOURCES[0]] * 1001)],
)
def test_another_document_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="its discovery"):
        role_template.discovered_roles(content, GROUP, "v1")


def test_no_roles_are_made_for_a_group_of_kubernetes_itself() -> None:
    with pytest.raises(RefusedError, match="one of Kubernetes itself"):
        role_template.discovered_roles(document(group_version="apps/v1"), "apps", "v1")


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("https://metrics-server.kube-system.svc:443", "system:serviceaccount:kube-system:metrics-server"),
        ("https://a.b.svc.cluster.local/x", "system:serviceaccount:b:a"),
        ("https://10.0.0.1:8443", None),
        ("https://apis.example.com", None),
        ("https://[::1]:8443", None),
    ],
)
def test_the_account_of_a_service_is_known_by_custom(url: str, user: str | None) -> None:
    assert role_objects.account_of(url) == user


def test_bindings_are_examples_while_the_user_is_not_known() -> None:
    assert list(yaml.safe_load_all(Template("t", role_objects.bindings("v1.a", None, "")).text)) == []
    delegator, reader, informers, following = yaml.safe_load_all(
        Template("t", role_objects.bindings("v1.a", "jane", "so")).text
    )
    assert delegator["roleRef"]["name"] == "system:auth-delegator"
    assert delegator["subjects"] == [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}]
    assert reader["metadata"]["namespace"] == "kube-system"
    assert following["roleRef"]["name"] == informers["metadata"]["name"] == "v1.a:informers"
    # What a real one lists when it starts (golden/aggregator, startup-requests).
    assert {name for rule in informers["rules"] for name in rule["resources"]} == {
        *("namespaces", "flowschemas", "prioritylevelconfigurations"),
        *("mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
        *("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
        *("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    }
    assert all(rule["verbs"] == ["list", "watch"] for rule in informers["rules"])
