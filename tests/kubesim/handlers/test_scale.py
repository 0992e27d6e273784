"""The scale subresource."""

from __future__ import annotations

from typing import Any

import pytest

from kubesim.apimachinery.resources import ResourceInfo
from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.handlers import subresources
from kubesim.registry import objects

DEPLOYMENTS = ("apps", "deployments")


def deployment(image: str = "i:1", replicas: int = 2) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}


def test_scale_of_a_builtin_resource(small_cluster: SimulatedCluster) -> None:
    resource = objects.served_resource(small_cluster, *DEPLOYMENTS)
    obj = {**deployment(), "status": {"replicas": 1}}
    found = subresources.scale_of(resource, obj)
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 1, "selector": "app=web"}
    new = subresources.with_scale(resource, obj, {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 4}})
    assert (new["spec"]["replicas"], new["metadata"]["resourceVersion"]) == (4, "7")
    assert obj["spec"]["replicas"] == 2
    with pytest.raises(StatusError, match="must be greater than or equal to 0"):
        subresources.with_scale(resource, obj, {"spec": {"replicas": -1}})


def test_scale_of_a_custom_resource_follows_its_paths() -> None:
    paths = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.s"}
    resource = ResourceInfo(
        "example.com", "v1", "W", "ws", "w", True, (), builtin=False, crd_version={"subresources": {"scale": paths}}
    )
    obj = {"metadata": {"name": "w"}, "spec": {"n": 3}, "status": {"n": 2, "s": "a=b"}}
    assert subresources.scale_of(resource, obj)["status"] == {"replicas": 2, "selector": "a=b"}
    assert subresources.with_scale(resource, obj, {"spec": {"replicas": 9}})["spec"] == {"n": 9}
