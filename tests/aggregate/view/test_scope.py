"""What `cache.resources` takes into an aggregate."""

from __future__ import annotations

import pytest

from mcproxy.aggregate.view.scope import Scope
from mcproxy.config.model.aggregates import CachedResource
from mcproxy.kube.resource import APIResource, GroupVersionResource

VERBS = frozenset({"get", "list", "watch"})


def resource(name: str, group: str = "", version: str = "v1", namespaced: bool = True) -> APIResource:
    return APIResource(GroupVersionResource(group, version, name), name.title(), name, namespaced, VERBS)


PODS, SECRETS, NODES = resource("pods"), resource("secrets"), resource("nodes", namespaced=False)


def entry(
    name: str, *, group: str = "", namespaces: tuple[str, ...] = (), clusters: tuple[str, ...] = ()
) -> CachedResource:
    return CachedResource(group=group, version="v1", resource=name, namespaces=namespaces, clusters=clusters)


def test_which_members_an_entry_is_for() -> None:
    scope = Scope([entry("pods", clusters=("west",)), entry("*", group="apps")])
    assert scope.names(PODS.gvr)
    assert [scope.names(PODS.gvr, member) for member in ("east", "west")] == [False, True]
    assert scope.names(GroupVersionResource("apps", "v1", "anything"), "east")
    assert not scope.names(GroupVersionResource("apps", "v2", "anything"), "east")


@pytest.mark.parametrize(
    ("entries", "member", "wanted", "namespaces"),
    [
        ([], "east", PODS, ()),
        ([entry("pods")], "east", PODS, ("",)),
        ([entry("pods")], "east", SECRETS, ()),
        ([entry("pods", group="apps")], "east", PODS, ()),
        ([entry("pods", clusters=("west",))], "east", PODS, ()),
        ([entry("pods", clusters=("west",))], "west", PODS, ("",)),
        ([entry("pods", namespaces=("b", "a"))], "east", PODS, ("b", "a")),
        ([entry("pods", namespaces=("a",)), entry("pods", namespaces=("a", "b"))], "east", PODS, ("a", "b")),
        ([entry("pods", namespaces=("a",)), entry("pods", clusters=("west",))], "west", PODS, ("",)),
        ([entry("pods", namespaces=("a",)), entry("pods", clusters=("west",))], "east", PODS, ("a",)),
        ([entry("*")], "east", PODS, ("",)),
        ([entry("*", namespaces=("a",)), entry("pods")], "east", PODS, ("",)),
        ([entry("*")], "east", NODES, ("",)),
        ([entry("*", namespaces=("a",))], "east", NODES, ()),
    ],
)
def test_namespaces(
    entries: list[CachedResource], member: str, wanted: APIResource, namespaces: tuple[str, ...]
) -> None:
    assert Scope(entries).namespaces(member, wanted) == namespaces


def test_all_resources_do_not_include_core_secrets() -> None:
    assert Scope([entry("*")]).namespaces("east", SECRETS) == ()
    assert Scope([entry("*"), entry("secrets", namespaces=("a",))]).namespaces("east", SECRETS) == ("a",)


def test_secrets_of_another_group_are_a_resource_like_any_other() -> None:
    other = resource("secrets", group="vault.example.com")
    assert Scope([entry("*", group="vault.example.com")]).namespaces("east", other) == ("",)


def test_another_version_of_a_named_group_is_not_covered() -> None:
    assert Scope([entry("*")]).namespaces("east", resource("pods", version="v2")) == ()
