"""Controllers and kubelets of a simulated cluster, pass by pass."""

from __future__ import annotations

from typing import Any

import pytest

from kubesim.cluster import SimulatedCluster
from kubesim.registry import deletion, objects
from kubesim.workloads import controllers, garbage_collector

DEPLOYMENTS, PODS, REPLICA_SETS = ("apps", "deployments"), ("", "pods"), ("apps", "replicasets")


def create(cluster: SimulatedCluster, key: tuple[str, str], obj: dict[str, Any]) -> dict[str, Any]:
    return objects.create(cluster, objects.served_resource(cluster, *key), obj["metadata"].get("namespace", ""), obj)


def deployment(image: str = "i:1", replicas: int = 2) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}


def everything(cluster: SimulatedCluster, key: tuple[str, str]) -> list[dict[str, Any]]:
    return list(cluster.store.collection(key).objects.values())


def change(cluster: SimulatedCluster, obj: dict[str, Any]) -> None:
    resource = objects.served_resource(cluster, *DEPLOYMENTS)
    objects.update(cluster, resource, "default", "web", obj, manager="test", patch=True)


def test_a_pod_is_bound_and_then_ready(small_cluster: SimulatedCluster) -> None:
    create(
        small_cluster,
        PODS,
        {"metadata": {"name": "p", "namespace": "default"}, **deployment()["spec"]["template"]}
        | {"metadata": {"name": "p", "namespace": "default"}},
    )
    controllers.reconcile(small_cluster)
    assert everything(small_cluster, PODS)[0]["spec"]["nodeName"] == "n1"
    assert everything(small_cluster, PODS)[0]["status"]["phase"] == "Pending"
    controllers.reconcile(small_cluster)
    assert objects.is_ready(everything(small_cluster, PODS)[0])
    assert not controllers.reconcile(small_cluster)


def test_a_deployment_gets_its_replica_set_and_pods(small_cluster: SimulatedCluster) -> None:
    create(small_cluster, DEPLOYMENTS, deployment())
    controllers.reconcile_until_stable(small_cluster)
    found = everything(small_cluster, DEPLOYMENTS)[0]
    assert found["status"]["availableReplicas"] == 2
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert found["metadata"]["annotations"][controllers.REVISION] == "1"
    owner = everything(small_cluster, REPLICA_SETS)[0]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in everything(small_cluster, PODS)} == {
        owner["metadata"]["uid"]
    }


def test_a_new_template_replaces_the_pods(small_cluster: SimulatedCluster) -> None:
    create(small_cluster, DEPLOYMENTS, deployment())
    controllers.reconcile_until_stable(small_cluster)
    change(small_cluster, deployment("i:2"))
    controllers.reconcile_until_stable(small_cluster)
    assert [pod["spec"]["containers"][0]["image"] for pod in everything(small_cluster, PODS)] == ["i:2", "i:2"]
    assert sorted(item["spec"]["replicas"] for item in everything(small_cluster, REPLICA_SETS)) == [0, 2]


def test_scaling_makes_and_removes_pods(small_cluster: SimulatedCluster) -> None:
    create(small_cluster, DEPLOYMENTS, deployment())
    for replicas in (5, 1, 0):
        change(small_cluster, deployment(replicas=replicas))
        controllers.reconcile_until_stable(small_cluster)
        assert len(everything(small_cluster, PODS)) == replicas


def test_dependents_are_deleted_with_their_owner(small_cluster: SimulatedCluster) -> None:
    create(small_cluster, DEPLOYMENTS, deployment())
    controllers.reconcile_until_stable(small_cluster)
    deletion.delete(small_cluster, objects.served_resource(small_cluster, *DEPLOYMENTS), "default", "web")
    controllers.reconcile_until_stable(small_cluster)
    assert everything(small_cluster, REPLICA_SETS) == []
    assert everything(small_cluster, PODS) == []


@pytest.mark.parametrize(("policy", "left"), [("Foreground", 0), ("Orphan", 1)])
def test_propagation_policies_are_kept(small_cluster: SimulatedCluster, policy: str, left: int) -> None:
    create(small_cluster, DEPLOYMENTS, deployment())
    controllers.reconcile_until_stable(small_cluster)
    options = deletion.DeleteOptions(propagation=policy)
    deletion.delete(small_cluster, objects.served_resource(small_cluster, *DEPLOYMENTS), "default", "web", options)
    assert len(everything(small_cluster, DEPLOYMENTS)) == 1
    controllers.reconcile_until_stable(small_cluster)
    assert everything(small_cluster, DEPLOYMENTS) == []
    assert len(everything(small_cluster, REPLICA_SETS)) == left


def test_the_content_of_a_namespace_is_deleted_first(small_cluster: SimulatedCluster) -> None:
    create(small_cluster, ("", "namespaces"), {"metadata": {"name": "tmp"}})
    create(small_cluster, ("", "configmaps"), {"metadata": {"name": "c", "namespace": "tmp"}})
    deletion.delete(small_cluster, objects.served_resource(small_cluster, "", "namespaces"), "", "tmp")
    while garbage_collector.reconcile(small_cluster):
        pass
    assert small_cluster.store.get(("", "namespaces"), "", "tmp") is None
    assert small_cluster.store.get(("", "configmaps"), "tmp", "c") is None


def test_a_job_completes(small_cluster: SimulatedCluster) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"completions": 2, "template": template}}
    create(small_cluster, ("batch", "jobs"), job)
    controllers.reconcile_until_stable(small_cluster)
    state = everything(small_cluster, ("batch", "jobs"))[0]["status"]
    assert state["succeeded"] == 2
    assert {item["type"] for item in state["conditions"]} == {"Complete", "SuccessCriteriaMet"}


def test_services_get_endpoints_of_ready_pods(small_cluster: SimulatedCluster) -> None:
    create(small_cluster, DEPLOYMENTS, deployment())
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    create(small_cluster, ("", "services"), {"metadata": {"name": "web", "namespace": "default"}, "spec": service})
    controllers.reconcile_until_stable(small_cluster)
    found = small_cluster.store.get(("", "endpoints"), "default", "web")
    assert found is not None
    assert [len(item["addresses"]) for item in found["subsets"]] == [2]
    assert found["subsets"][0]["ports"][0]["port"] == 8080
