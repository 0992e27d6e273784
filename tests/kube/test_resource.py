"""Names and paths of resources."""

from __future__ import annotations

import pytest

from mcproxy.kube.requestinfo import parse
from mcproxy.kube.resource import APIResource, APISubresource, GroupVersionResource

PODS = GroupVersionResource("", "v1", "pods")
DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")


@pytest.mark.parametrize(
    ("gvr", "namespace", "name", "path"),
    [
        (PODS, "", "", "/api/v1/pods"),
        (PODS, "demo", "", "/api/v1/namespaces/demo/pods"),
        (PODS, "demo", "web", "/api/v1/namespaces/demo/pods/web"),
        (DEPLOYMENTS, "", "", "/apis/apps/v1/deployments"),
        (DEPLOYMENTS, "demo", "web", "/apis/apps/v1/namespaces/demo/deployments/web"),
        (GroupVersionResource("", "v1", "nodes"), "", "n1", "/api/v1/nodes/n1"),
    ],
)
def test_a_path_is_read_back_as_the_same_resource(
    gvr: GroupVersionResource, namespace: str, name: str, path: str
) -> None:
    assert gvr.path(namespace, name) == path
    info = parse(b"GET", path.encode())
    assert GroupVersionResource(info.group, info.version, info.resource) == gvr
    assert (info.namespace, info.name) == (namespace, name)


def test_names_as_kube_apiserver_has_them() -> None:
    assert (PODS.api_version, DEPLOYMENTS.api_version) == ("v1", "apps/v1")
    assert (str(PODS), str(DEPLOYMENTS)) == ("pods", "deployments.apps")
    assert (PODS.group_version_path, DEPLOYMENTS.group_version_path) == ("/api/v1", "/apis/apps/v1")


@pytest.mark.parametrize(
    ("verbs", "listable", "watchable"),
    [({"get"}, False, False), ({"list"}, True, False), ({"watch"}, False, False), ({"list", "watch"}, True, True)],
)
def test_only_what_can_be_listed_and_watched_is_cached(verbs: set[str], listable: bool, watchable: bool) -> None:
    resource = APIResource(PODS, "Pod", "pod", True, frozenset(verbs))
    assert (resource.listable, resource.watchable) == (listable, watchable)


def test_subresources_are_found_by_name() -> None:
    scale = APISubresource("scale", "Scale", "autoscaling", "v1", frozenset({"get", "update", "patch"}))
    resource = APIResource(
        DEPLOYMENTS, "Deployment", "deployment", True, frozenset({"get", "list", "watch"}), subresources=(scale,)
    )
    assert resource.subresource("scale") is scale
    assert resource.subresource("status") is None
    assert resource.list_kind == "DeploymentList"
