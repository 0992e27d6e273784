"""What controllers and kubelets do in a simulated cluster, pass by pass; its fixtures; scale, eviction and binding."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from mcproxy.demo.apimachinery.resources import ResourceInfo
from mcproxy.demo.apimachinery.status import APIError
from mcproxy.demo.cluster import SimulatedCluster
from mcproxy.demo.controllers import controller_utils, deployments, garbage_collector, kubelet, workloads
from mcproxy.demo.fixtures import activity, bootstrap, demo_objects, populate
from mcproxy.demo.handlers import eviction, scale
from mcproxy.demo.registry import deletion, objects, pod_binding, pod_topology_labels

NOW = "2026-11-21T10:00:00Z"
DEPLOYMENTS, PODS, REPLICA_SETS = ("apps", "deployments"), ("", "pods"), ("apps", "replicasets")


@pytest.fixture
def cluster() -> SimulatedCluster:
    made = SimulatedCluster("east", rng=random.Random(1))
    bootstrap.bootstrap(made)
    node = objects.find(made, "", "nodes")
    objects.create(made, node, "", demo_objects.node("n1", 1, "east"))
    return made


def create(cluster: SimulatedCluster, key: tuple[str, str], obj: dict[str, Any]) -> dict[str, Any]:
    return objects.create(cluster, objects.find(cluster, *key), obj["metadata"].get("namespace", ""), obj)


def deployment(image: str = "i:1", replicas: int = 2) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web", "namespace": "default"}, "spec": spec}


def everything(cluster: SimulatedCluster, key: tuple[str, str]) -> list[dict[str, Any]]:
    return list(cluster.store.collection(key).objects.values())


def change(cluster: SimulatedCluster, obj: dict[str, Any]) -> None:
    resource = objects.find(cluster, *DEPLOYMENTS)
    objects.update(cluster, resource, "default", "web", obj, manager="test", patch=True)


def test_a_pod_is_bound_and_then_ready(cluster: SimulatedCluster) -> None:
    create(
        cluster,
        PODS,
        {"metadata": {"name": "p", "namespace": "default"}, **deployment()["spec"]["template"]}
        | {"metadata": {"name": "p", "namespace": "default"}},
    )
    workloads.reconcile(cluster)
    assert everything(cluster, PODS)[0]["spec"]["nodeName"] == "n1"
    assert everything(cluster, PODS)[0]["status"]["phase"] == "Pending"
    workloads.reconcile(cluster)
    assert controller_utils.is_ready(everything(cluster, PODS)[0])
    assert not workloads.reconcile(cluster)


def test_a_deployment_gets_its_replica_set_and_pods(cluster: SimulatedCluster) -> None:
    create(cluster, DEPLOYMENTS, deployment())
    workloads.settle(cluster)
    found = everything(cluster, DEPLOYMENTS)[0]
    assert found["status"]["availableReplicas"] == 2
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert found["metadata"]["annotations"][deployments.REVISION] == "1"
    owner = everything(cluster, REPLICA_SETS)[0]
    assert {item["metadata"]["ownerReferences"][0]["uid"] for item in everything(cluster, PODS)} == {
        owner["metadata"]["uid"]
    }


def test_a_new_template_replaces_the_pods(cluster: SimulatedCluster) -> None:
    create(cluster, DEPLOYMENTS, deployment())
    workloads.settle(cluster)
    change(cluster, deployment("i:2"))
    workloads.settle(cluster)
    assert [pod["spec"]["containers"][0]["image"] for pod in everything(cluster, PODS)] == ["i:2", "i:2"]
    assert sorted(item["spec"]["replicas"] for item in everything(cluster, REPLICA_SETS)) == [0, 2]


def test_scaling_makes_and_removes_pods(cluster: SimulatedCluster) -> None:
    create(cluster, DEPLOYMENTS, deployment())
    for replicas in (5, 1, 0):
        change(cluster, deployment(replicas=replicas))
        workloads.settle(cluster)
        assert len(everything(cluster, PODS)) == replicas


def test_dependents_go_with_their_owner(cluster: SimulatedCluster) -> None:
    create(cluster, DEPLOYMENTS, deployment())
    workloads.settle(cluster)
    deletion.delete(cluster, objects.find(cluster, *DEPLOYMENTS), "default", "web")
    workloads.settle(cluster)
    assert everything(cluster, REPLICA_SETS) == []
    assert everything(cluster, PODS) == []


@pytest.mark.parametrize(("policy", "left"), [("Foreground", 0), ("Orphan", 1)])
def test_propagation_policies_are_kept(cluster: SimulatedCluster, policy: str, left: int) -> None:
    create(cluster, DEPLOYMENTS, deployment())
    workloads.settle(cluster)
    options = deletion.DeleteOptions(propagation=policy)
    deletion.delete(cluster, objects.find(cluster, *DEPLOYMENTS), "default", "web", options)
    assert len(everything(cluster, DEPLOYMENTS)) == 1
    workloads.settle(cluster)
    assert everything(cluster, DEPLOYMENTS) == []
    assert len(everything(cluster, REPLICA_SETS)) == left


def test_a_namespace_empties_itself_before_it_goes(cluster: SimulatedCluster) -> None:
    create(cluster, ("", "namespaces"), {"metadata": {"name": "tmp"}})
    create(cluster, ("", "configmaps"), {"metadata": {"name": "c", "namespace": "tmp"}})
    deletion.delete(cluster, objects.find(cluster, "", "namespaces"), "", "tmp")
    while garbage_collector.step(cluster):
        pass
    assert cluster.store.get(("", "namespaces"), "", "tmp") is None
    assert cluster.store.get(("", "configmaps"), "tmp", "c") is None


def test_a_job_completes(cluster: SimulatedCluster) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    job = {"metadata": {"name": "j", "namespace": "default"}, "spec": {"completions": 2, "template": template}}
    create(cluster, ("batch", "jobs"), job)
    workloads.settle(cluster)
    state = everything(cluster, ("batch", "jobs"))[0]["status"]
    assert state["succeeded"] == 2
    assert {item["type"] for item in state["conditions"]} == {"Complete", "SuccessCriteriaMet"}


def test_services_get_endpoints_of_ready_pods(cluster: SimulatedCluster) -> None:
    create(cluster, DEPLOYMENTS, deployment())
    service = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    create(cluster, ("", "services"), {"metadata": {"name": "web", "namespace": "default"}, "spec": service})
    workloads.settle(cluster)
    found = cluster.store.get(("", "endpoints"), "default", "web")
    assert found is not None
    assert [len(item["addresses"]) for item in found["subsets"]] == [2]
    assert found["subsets"][0]["ports"][0]["port"] == 8080


def test_fixtures_are_the_same_for_the_same_name_and_at_rest() -> None:
    def summary(name: str) -> list[tuple[str, str, str]]:
        made = SimulatedCluster(name)
        bootstrap.bootstrap(made)
        populate.populate(made)
        assert not workloads.reconcile(made)
        return [
            (plural, namespace, name)
            for (_, plural), kept in made.store.collections().items()
            for namespace, name in kept.objects
        ]

    first = summary("east")
    assert first == summary("east")
    assert first != summary("west")
    assert len(first) >= 250


def test_life_goes_on(cluster: SimulatedCluster) -> None:
    populate.populate(cluster)
    before = cluster.store.revision
    rng = random.Random(2)
    for _ in range(90):
        activity.step(cluster, rng)
    tick = cluster.store.get(("", "configmaps"), "default", "tick")
    assert tick is not None
    assert tick["data"]["count"] == "90"
    assert cluster.store.revision > before + 90
    assert any(
        item["restartCount"]
        for pod in everything(cluster, PODS)
        for item in pod["status"].get("containerStatuses") or ()
    )


def test_live_ends_when_it_is_cancelled(cluster: SimulatedCluster) -> None:
    async def run() -> None:
        task = asyncio.create_task(populate.run_activity(cluster))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(asyncio.all_tasks()) == 1

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def test_scale_of_a_builtin_resource(cluster: SimulatedCluster) -> None:
    resource = objects.find(cluster, *DEPLOYMENTS)
    obj = {**deployment(), "status": {"replicas": 1}}
    found = scale.get(resource, obj)
    assert found["spec"] == {"replicas": 2}
    assert found["status"] == {"replicas": 1, "selector": "app=web"}
    new = scale.update(resource, obj, {"metadata": {"resourceVersion": "7"}, "spec": {"replicas": 4}})
    assert (new["spec"]["replicas"], new["metadata"]["resourceVersion"]) == (4, "7")
    assert obj["spec"]["replicas"] == 2
    with pytest.raises(APIError, match="must be greater than or equal to 0"):
        scale.update(resource, obj, {"spec": {"replicas": -1}})


def test_scale_of_a_custom_resource_follows_its_paths() -> None:
    paths = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n", "labelSelectorPath": ".status.s"}
    resource = ResourceInfo(
        "example.com", "v1", "W", "ws", "w", True, (), builtin=False, crd_version={"subresources": {"scale": paths}}
    )
    obj = {"metadata": {"name": "w"}, "spec": {"n": 3}, "status": {"n": 2, "s": "a=b"}}
    assert scale.get(resource, obj)["status"] == {"replicas": 2, "selector": "a=b"}
    assert scale.update(resource, obj, {"spec": {"replicas": 9}})["spec"] == {"n": 9}


def budget(**status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "web", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"observedGeneration": 1, "currentHealthy": 3, "desiredHealthy": 3, **status},
    }


def running_pod(**labels: str) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": "p", "labels": labels}, "status": {"phase": "Running", "conditions": ready}}


def test_an_eviction_that_a_budget_forbids_is_429() -> None:
    with pytest.raises(APIError) as caught:
        eviction.evict(running_pod(app="web"), [budget(disruptionsAllowed=0)], NOW)
    assert caught.value.code == 429
    assert caught.value.headers == ()
    assert caught.value.details == {
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget web needs 3 healthy pods and has 3 currently",
            }
        ]
    }


def test_an_eviction_before_the_budget_is_observed_says_when_to_come_again() -> None:
    with pytest.raises(APIError) as caught:
        eviction.evict(running_pod(app="web"), [budget(observedGeneration=0)], NOW)
    assert caught.value.headers == (("Retry-After", "10"),)


def test_an_eviction_uses_up_the_budget() -> None:
    new = eviction.evict(running_pod(app="web"), [budget(disruptionsAllowed=1)], NOW)
    assert new is not None
    assert (new["status"]["disruptionsAllowed"], new["status"]["disruptedPods"]) == (0, {"p": NOW})
    assert eviction.evict(running_pod(app="other"), [budget(disruptionsAllowed=0)], NOW) is None


def test_a_pod_is_bound_only_once_and_gets_the_zone_of_its_node(cluster: SimulatedCluster) -> None:
    pod = {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {}}
    node = cluster.store.get(("", "nodes"), "", "n1")
    assert node is not None
    zone = {key: node["metadata"]["labels"][key] for key in pod_topology_labels.COPIED}
    bound = pod_binding.bind(cluster, pod, {"name": "n1"})
    assert bound["spec"] == {"nodeName": "n1"}
    assert bound["metadata"]["labels"] == {"app": "x", **zone}
    assert pod == {"metadata": {"name": "p", "labels": {"app": "x"}}, "spec": {}}
    with pytest.raises(APIError, match='pod p is already assigned to node "n1"'):
        pod_binding.bind(cluster, bound, {"name": "n2"})


def test_pods_go_to_the_emptiest_node_that_takes_any(cluster: SimulatedCluster) -> None:
    for number in (2, 3):
        node = demo_objects.node(f"n{number}", number, "east")
        node["spec"]["unschedulable"] = number == 3
        create(cluster, ("", "nodes"), node)
    cluster.store.put(PODS, {"metadata": {"name": "p", "namespace": "x"}, "spec": {"nodeName": "n1"}})
    assert kubelet.choose_node(cluster, {}) == "n2"
    assert kubelet.choose_node(cluster, {"kubernetes.io/hostname": "n1"}) == "n1"
    assert kubelet.choose_node(cluster, {"no": "such"}) is None
