"""What `mcproxy rbac --constrained` prints of requests follows from the rules and policies of the file."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config import model
from mcproxy.identity.constrained_rights import _Requests, _within
from mcproxy.identity.required_rights import required_rights
from mcproxy.identity.right import Right

MODES = ("user-info", "serviceaccount", "arbitrary-node")
PODS = model.Rule(verbs=("get", "list"), api_groups=("",), resources=("pods", "pods/log"))
EVERYTHING = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
ALL_VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def rights(
    *rules: model.Rule, dispatch: tuple[model.Policy, ...] | None = None, backend: Any = None, **fields: Any
) -> tuple[Right, ...]:
    east = model.ClusterConfig(name="east", endpoints=(), **fields)
    authorization = (model.Authorization(name="r", rules=rules),) if rules else ()
    server = model.Server(
        name="s",
        listeners=(),
        backend=backend or model.ClusterBackend("east"),
        authorization="r" if rules else None,
        dispatch=dispatch,
    )
    config = model.Config(clusters=(east,), authorization=authorization, servers=(server,))
    return required_rights(config, east, constrained=True)


def requests(*found: Right) -> set[tuple[str, str, str, str, str]]:
    """Verb, group, resource or path, namespace and name, of the mode of users; the other modes have the same."""
    by_mode = [
        {
            (right.verb.rpartition(":")[2], right.group, right.resource or right.path, right.namespace, right.name)
            for right in found
            if right.verb.startswith(f"impersonate-on:{mode}:")
        }
        for mode in MODES
    ]
    assert by_mode[0] == by_mode[1] == by_mode[2]
    return by_mode[0]


def test_the_users() -> None:
    found = rights(PODS, impersonate_extras=("scopes", "example.com/origin"))
    named = [(right.verb, right.resource) for right in found if right.group == "authentication.k8s.io"]
    assert named == [
        *(("impersonate:user-info", what) for what in ("users", "groups", "uids", "userextras/example.com/origin")),
        ("impersonate:serviceaccount", "serviceaccounts"),
        ("impersonate:arbitrary-node", "nodes"),
    ]
    assert "impersonate" not in {right.verb for right in found}
    starred = rights(PODS, impersonate_extras=("*",))
    assert [right.resource for right in starred if right.verb == "impersonate:user-info"] == ["users", "groups", "*"]


def test_other_identities_need_none() -> None:
    for identity in set(model.UpstreamIdentity) - {model.UpstreamIdentity.IMPERSONATE}:
        assert not [right for right in rights(identity=identity) if right.verb.startswith("impersonate")]


def test_without_rules_all_requests_pass() -> None:
    found = requests(*rights())
    assert {verb for verb, *_ in found} == {*ALL_VERBS, "post", "put", "head", "options"}
    assert {(group, resource) for _, group, resource, *_ in found} == {("*", "*"), ("", "*")}


def test_rules() -> None:
    assert requests(*rights(PODS)) == {
        (verb, "", what, "", "") for verb in ("get", "list") for what in ("pods", "pods/log")
    }


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({"namespaces": ("a", "b"), "resource_names": ("web",)}, {("a", "web"), ("b", "web")}),
        ({"namespaces": ("team-*",), "resource_names": ("-web",)}, {("", "")}),
        ({"namespaces": ("a", ""), "resource_names": ("web", "w-*")}, {("", "")}),
    ],
)
def test_names_and_namespaces_are_those_that_rbac_can_list(
    rule: dict[str, Any], expected: set[tuple[str, str]]
) -> None:
    narrow = model.Rule(verbs=("get",), api_groups=("",), resources=("pods",), **rule)
    assert {(namespace, name) for *_, namespace, name in requests(*rights(narrow))} == expected


def test_what_a_rule_excludes_is_in_no_role() -> None:
    rule = model.Rule(verbs=("-delete", "-deletecollection"), api_groups=("-apps",), resources=("-secrets",))
    assert requests(*rights(rule)) == {(verb, "*", "*", "", "") for verb in ALL_VERBS if not verb.startswith("delete")}


def test_rules_of_other_clusters_and_policies_that_reject_give_nothing() -> None:
    other = model.Rule(verbs=("*",), api_groups=("*",), resources=("*",), clusters=("-east",))
    assert requests(*rights(other, PODS)) == requests(*rights(PODS))
    rejecting = model.Policy(name="no", rules=(EVERYTHING,), reject=model.Reject(code=403, message="no"))
    allowing = model.Policy(name="yes", rules=(PODS,))
    assert requests(*rights(dispatch=(rejecting, allowing))) == requests(*rights(PODS))
    elsewhere = model.Policy(name="w", rules=(EVERYTHING,), backend=model.ClusterBackend("west"))
    assert requests(*rights(dispatch=(elsewhere, allowing))) == requests(*rights(PODS))


def test_rules_and_policies_must_both_match() -> None:
    policy = model.Policy(
        name="p",
        rules=(
            model.Rule(
                verbs=("get", "watch"), api_groups=("*",), resources=("*/log", "nodes", "pods"), namespaces=("a",)
            ),
            model.Rule(verbs=("get",), non_resource_urls=("/api*", "/version")),
        ),
    )
    urls = model.Rule(verbs=("*",), non_resource_urls=("/apis/*", "/ver*"))
    assert requests(*rights(PODS, urls, dispatch=(policy,))) == {
        ("get", "", "pods", "a", ""),
        ("get", "", "pods/log", "a", ""),
        ("get", "", "/apis/*", "", ""),
        ("get", "", "/version", "", ""),
    }
    apart = model.Policy(
        name="p", rules=(model.Rule(verbs=("get",), api_groups=("",), resources=("pods",), namespaces=("b",)),)
    )
    in_a = model.Rule(verbs=("get",), api_groups=("",), resources=("pods",), namespaces=("a",))
    assert requests(*rights(in_a, dispatch=(apart,))) == set()


def test_what_others_cover_is_not_printed_twice() -> None:
    narrow = model.Rule(verbs=("get",), api_groups=("",), resources=("pods",), namespaces=("a",), resource_names=("x",))
    assert requests(*rights(narrow, PODS)) == requests(*rights(PODS))


def test_an_aggregate_looks_for_the_object_that_a_write_is_of() -> None:
    patch = model.Rule(verbs=("patch",), api_groups=("",), resources=("pods",))
    evict = model.Rule(verbs=("create",), api_groups=("",), resources=("pods/eviction",))
    backend = model.AggregateBackendConfig("fleet", ("east",), None)
    for rule, expected in ((patch, {"patch pods", "get pods"}), (evict, {"create pods/eviction", "get pods"})):
        assert {f"{verb} {what}" for verb, _, what, *_ in requests(*rights(rule, backend=backend))} == expected
        assert len(requests(*rights(rule))) == 1


def test_an_api_service_gets_its_own_group_version() -> None:
    service = model.APIService(group="metrics.k8s.io", version="v1beta1", cluster="east", authority="west")
    east, west = (model.ClusterConfig(name=name, endpoints=()) for name in ("east", "west"))
    server = model.Server(name="s", listeners=(), backend=model.ClusterBackend("west"), api_services=(service,))
    found = requests(*required_rights(model.Config(clusters=(east, west), servers=(server,)), east, constrained=True))
    assert {(group, what) for _, group, what, *_ in found} == {
        ("metrics.k8s.io", "*"),
        ("", "/apis/metrics.k8s.io/v1beta1"),
        ("", "/apis/metrics.k8s.io/v1beta1/*"),
    }


@pytest.mark.parametrize(
    ("item", "wide", "within"),
    [
        ("pods/log", "*/log", True),
        ("pods/catalog", "*/log", False),
        ("a/b/log", "*/log", False),
        ("*/log", "*/log", True),
        ("/apis/apps", "/apis/*", True),
        ("/apis", "/apis/*", False),
        ("pods", "pods", True),
        ("pods", "pod", False),
    ],
)
def test_what_is_within_a_pattern(item: str, wide: str, within: bool) -> None:
    assert _within(item, wide) is within


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        ({}, {}, True),
        ({"verbs": ("get", "list")}, {}, True),
        ({}, {"verbs": ("get", "list")}, False),
        ({"groups": ("*",)}, {}, True),
        ({"resources": ("*",)}, {"resources": ("pods", "nodes")}, True),
        ({"resources": ("pods",)}, {"resources": ("pods", "nodes")}, False),
        ({"groups": ("*",), "resources": ("nodes",)}, {}, False),
        ({"names": ("a",)}, {}, False),  # all names
        ({}, {"names": ("a",)}, True),
        ({"names": ("a", "b")}, {"names": ("a",)}, True),
        ({"names": ("b",)}, {"names": ("a",)}, False),
        ({"namespaces": ("a",)}, {"namespaces": ("a",), "names": ("x",)}, True),
        ({"namespaces": ("a",), "names": ("x",)}, {"namespaces": ("a",)}, False),
        ({"urls": ("*",)}, {"urls": ("/api",)}, True),
        ({"urls": ("/api", "/apis")}, {"urls": ("/api",)}, True),
        ({"urls": ("/api",)}, {"urls": ("/apis",)}, False),
        ({"urls": ("*",)}, {}, False),
        ({}, {"urls": ("/api",)}, False),
    ],
)
def test_which_requests_others_cover(one: dict[str, Any], other: dict[str, Any], covers: bool) -> None:
    plain = _Requests(verbs=("get",), groups=("",), resources=("pods",))
    assert plain._replace(**one).covers(plain._replace(**other)) is covers
