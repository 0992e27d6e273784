"""What an API server publishes is taken within its own group, and refused in words beyond it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.apiservices import role_template
from mcproxy.apiservices.role_objects import RefusedError, Template

GROUP = "garden.example.com"
RBAC = "rbac.authorization.k8s.io"
RULE = {"apiGroups": [GROUP], "resources": ["plants", "plants/status"], "verbs": ["get", "list"]}


def role(name: str = "plants-view", *rules: Any, kind: str = "ClusterRole", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, **({} if kind.startswith("Cluster") else {"namespace": "garden"})}
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": metadata, "rules": list(rules or (RULE,)), **more}


def binding(to: str, *subjects: Any, kind: str = "ClusterRoleBinding", namespace: str = "") -> dict[str, Any]:
    account = {"kind": "ServiceAccount", "namespace": "garden", "name": "gardener"}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": "of-the-garden", **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole" if kind.startswith("Cluster") else "Role", "name": to},
        "subjects": list(subjects or (account,)),
    }


def taken(*objects: Any) -> tuple[list[Any], tuple[str, ...]]:
    parts, refused = role_template.published_roles(list(objects), GROUP)
    return [part.content for part in parts], refused


def test_what_is_within_the_group_is_taken_and_made_anew() -> None:
    odd = role()
    odd["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "…"}
    odd["metadata"]["labels"] = {f"{RBAC}/aggregate-to-view": "true"}
    odd["whatever"] = {"spec": 1}
    found, refused = taken(binding("plants-view", {"kind": "Group", "name": "botanists"}), odd)
    assert refused == ()
    assert found == [
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": "plants-view", "labels": {f"{RBAC}/aggregate-to-view": "true"}},
            "rules": [RULE],
        },
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "of-the-garden"},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "plants-view"},
            "subjects": [{"kind": "Group", "apiGroup": RBAC, "name": "botanists"}],
        },
    ]


def test_a_role_with_its_binding_in_a_namespace_is_taken() -> None:
    found, refused = taken(role("growers", kind="Role"), binding("growers", kind="RoleBinding", namespace="garden"))
    assert (len(found), refused) == (2, ())


def test_it_may_ask_about_users_with_its_own_service_account() -> None:
    reader = binding("extension-apiserver-authentication-reader", kind="RoleBinding", namespace="kube-system")
    found, refused = taken(binding("system:auth-delegator"), reader)
    assert (len(found), refused) == (2, ())
    parts, _ = role_template.published_roles([binding("system:auth-delegator")], GROUP)
    assert role_template.has_delegation(parts)
    assert not role_template.has_delegation(role_template.published_roles([role()], GROUP)[0])


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ({**RULE, "apiGroups": [""]}, 'rule 1 is about the group "", not "garden.example.com"'),
        ({**RULE, "apiGroups": [GROUP, "apps"]}, 'rule 1 is about the group "apps"'),
        ({**RULE, "apiGroups": ["*"]}, "rule 1 has * in apiGroups"),
        ({**RULE, "apiGroups": []}, "rule 1 has no apiGroups"),
        ({**RULE, "resources": ["*"]}, "rule 1 has * in resources"),
        ({**RULE, "resources": ["*/status"]}, 'rule 1 has a resource "*/status"'),
        ({**RULE, "verbs": ["*"]}, "rule 1 has * in verbs"),
        ({**RULE, "verbs": ["get", "escalate"]}, 'rule 1 has the verb "escalate"'),
        ({**RULE, "verbs": ["bind"]}, 'rule 1 has the verb "bind"'),
        ({**RULE, "verbs": ["impersonate"]}, 'rule 1 has the verb "impersonate"'),
        ({**RULE, "verbs": ["impersonate:user-info"]}, 'rule 1 has the verb "impersonate:user-info"'),
        ({**RULE, "verbs": ["get\n# "]}, r'rule 1 has a verb "get\n# "'),
        ({**RULE, "resourceNames": ["a b"]}, 'rule 1 has a resource name "a b"'),
        ({"nonResourceURLs": ["/metrics"], "verbs": ["get"]}, "rule 1 has nonResourceURLs"),
        ({**RULE, "apiGroups": GROUP}, "rule 1, apiGroups is no list"),
        ({**RULE, "resources": ["a"] * 501}, "rule 1, resources is no list of at most 500"),
        ("get", "rule 1 is none"),
    ],
)
def test_a_rule_that_is_wider_is_refused_in_words(rule: Any, why: str) -> None:
    found, (refused,) = taken(role("plants-view", rule), role("plants-edit"))
    assert refused.startswith(f'"ClusterRole" "plants-view": {why}')
    assert [each["metadata"]["name"] for each in found] == ["plants-edit"]


@pytest.mark.parametrize("name", ["cluster-admin", "view", "system:node", "mcproxy:east", "a\nb", "", "a/b"])
def test_a_name_of_the_clusters_own_is_refused(name: str) -> None:
    found, (refused,) = taken(role(name))
    assert found == []
    assert "name" in refused
    assert "\n" not in refused


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (role(aggregationRule={"clusterRoleSelectors": [{}]}), "aggregationRule"),
        ({**role(), "rules": []}, "it has no list of 1 to 200 rules"),
        ({**role(), "rules": [RULE] * 201}, "it has no list of 1 to 200 rules"),
        ({**role(), "apiVersion": f"{RBAC}/v1beta1"}, "only roles and bindings of rbac.authorization.k8s.io/v1"),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, "only roles and bindings"),
        ({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}, "mcproxy has the registration"),
        ({**role(kind="Role"), "metadata": {"name": "a"}}, "it has no valid namespace"),
        (binding("cluster-admin"), 'it binds ClusterRole "cluster-admin", which is none of the roles'),
        (binding("plants-view"), 'it binds ClusterRole "plants-view", which is none of the roles'),
        (binding("system:auth-delegator", kind="RoleBinding", namespace="garden"), "it binds Role"),
        (binding("extension-apiserver-authentication-reader", kind="RoleBinding", namespace="garden"), "it binds Role"),
        (binding("system:auth-delegator", {"kind": "Group", "name": "botanists"}), "only a service account"),
        ({**binding("system:auth-delegator"), "subjects": []}, "it has no list of 1 to 100 subjects"),
        ({**binding("system:auth-delegator"), "roleRef": None}, "it has no roleRef"),
    ],
)
def test_any_other_object_is_refused_in_words(content: Any, why: str) -> None:
    found, (refused,) = taken(content)
    assert found == []
    assert why in refused


def test_nobody_without_a_credential_gets_rights() -> None:
    for name in ("system:unauthenticated", "system:anonymous"):
        _, (refused,) = taken(role(), binding("plants-view", {"kind": "Group", "name": name}))
        assert f'it gives rights to "{name}", who has no credential' in refused


def test_a_binding_of_a_role_that_was_refused_is_refused_too() -> None:
    found, refused = taken(role("plants-view", {**RULE, "verbs": ["*"]}), binding("plants-view"))
    assert found == []
    assert len(refused) == 2


def test_what_is_there_twice_is_taken_once() -> None:
    found, refused = taken(role(), role("plants-view", {**RULE, "verbs": ["delete"]}))
    assert len(found) == 1
    assert refused == ('"ClusterRole" "plants-view": it is published twice',)


@pytest.mark.parametrize("group", ["", "apps", RBAC, "certificates.k8s.io"])
def test_no_roles_are_taken_for_a_group_of_kubernetes_itself(group: str) -> None:
    with pytest.raises(RefusedError, match="one of Kubernetes itself"):
        role_template.published_roles([role("a", {**RULE, "apiGroups": [group]})], group)


def test_lists_and_documents_of_json_and_yaml_are_read() -> None:
    whole = {"apiVersion": "v1", "kind": "List", "items": [role(), role("other")]}
    assert role_template.read_published(json.dumps(whole).encode()) == [role(), role("other")]
    assert role_template.read_published(json.dumps(role()).encode()) == [role()]
    text = yaml.safe_dump_all(json.loads(json.dumps([role(), whole])))  # no object is at two places: no aliases
    assert role_template.read_published(b"---\n" + text.encode() + b"---\n") == [role(), role(), role("other")]


@pytest.mark.parametrize("indent", [None, "\t"])
def test_json_that_is_no_yaml_is_read(indent: str | None) -> None:
    """A character beyond 16 bits is escaped as two, each of which YAML takes for one that is none."""
    noted = {**role(), "note": "\U0001f600"}
    assert role_template.read_published(json.dumps(noted, indent=indent).encode()) == [noted]


@pytest.mark.parametrize(
    "text", [b"<html>", b"", b"ok", b"[1]", b"{}", b'{"kind": 1}', b"\xff", b'{"a"', b"a: b: c", b'{"items": [1]}']
)
def test_what_is_no_object_is_none(text: bytes) -> None:
    assert not role_template.read_published(text)


def test_what_is_too_much_is_refused_in_linear_time() -> None:
    for text, why in (
        (b" " * (role_template.MAX_PUBLISHED + 1), "more than 256 KiB"),
        (b"a: " + b"[" * 5000, "nested more than 16 levels deep"),
        (b"- a\n" * 30_000, "more than 20000 keys"),
        (b"--- {kind: a}\n" * 101, "more than 100 documents"),
        (json.dumps({"kind": "List", "items": [role()] * 101}).encode(), "more than 100 objects"),
        (b"kind: &a b\nc: *a", "it has aliases"),
    ):
        with pytest.raises(RefusedError, match=why):
            role_template.read_published(text)
    assert role_template.read_published(b"{" * 5000) is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["*", GROUP, "get", RBAC]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fuzzed = st.fixed_dictionaries(
    {"kind": st.sampled_from(["ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "X"])},
    optional={
        "apiVersion": st.sampled_from([f"{RBAC}/v1", "v1"]) | values,
        "metadata": st.fixed_dictionaries({"name": st.text(max_size=6) | values}, optional={"namespace": values}),
        "rules": st.lists(
            st.fixed_dictionaries(
                {
                    "apiGroups": st.lists(st.sampled_from([GROUP, "", "*", "apps"]), max_size=2) | values,
                    "resources": st.lists(st.sampled_from(["plants", "*", "secrets"]), max_size=2) | values,
                    "verbs": st.lists(st.sampled_from(["get", "*", "bind"]), max_size=2) | values,
                },
                optional={"nonResourceURLs": values, "resourceNames": values},
            ),
            max_size=3,
        )
        | values,
        "roleRef": st.fixed_dictionaries({"kind": values, "name": values}) | values,
        "subjects": values,
    },
)


@given(st.lists(fuzzed, max_size=4))
def test_whatever_is_published_nothing_beyond_the_group_is_printed(objects: list[Any]) -> None:
    parts, refused = role_template.published_roles(objects, GROUP)
    assert len(parts) + len(refused) == len(objects)
    text = Template("title", parts, refused).text
    assert text.isascii()
    printed = [each for each in yaml.safe_load_all(text) if each is not None]
    assert printed == [part.content for part in parts]
    for each in printed:
        for rule in each.get("rules", ()):
            assert rule["apiGroups"] == [GROUP]
            assert not {"*", "bind", "escalate", "impersonate"}.intersection((*rule["verbs"], *rule["resources"]))
