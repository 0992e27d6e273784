"""The `kubernetes` package, and what client-go's informers ask, against two clusters as one."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from tests.e2e.aggregate_environment import CLUSTERS, AggregateEnvironment
from tests.e2e.http_client import Client, ask, lines_of
from tests.e2e.test_informers import CONFIGMAPS, JSON, METADATA, PROTOBUF, WATCH_LIST

kubernetes: Any = importlib.import_module("kubernetes")  # it has no types
streams: Any = importlib.import_module("kubernetes.stream")
CLUSTER = "mcproxy.io/cluster"

INFORMERS = {
    "metadata": ("/api/v1/configmaps", "timeout=6m43s&timeoutSeconds=403&watch=true", METADATA),
    "typed-default": (CONFIGMAPS, "timeout=8m9s&timeoutSeconds=489&watch=true", PROTOBUF),
    "typed-json": (CONFIGMAPS, "timeout=6m59s&timeoutSeconds=419&watch=true", JSON),
}


@pytest.fixture
def api(fleet: AggregateEnvironment) -> Iterator[Any]:
    with kubernetes.config.new_client_from_config(str(fleet.kubeconfig), context="admin") as client:
        yield kubernetes.client.CoreV1Api(client)


def config_map(name: str, cluster: str = "") -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "demo"}
    if cluster:
        metadata["labels"] = {CLUSTER: cluster}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}


def place(obj: Any) -> tuple[str, str]:
    return obj.metadata.labels[CLUSTER], obj.metadata.name


class TestKubernetesPackage:
    @pytest.mark.slow
    def test_list_whole_and_in_pages(self, api: Any) -> None:
        whole = [place(pod) for pod in api.list_pod_for_all_namespaces(label_selector="app").items]
        assert {where for where, _ in whole} == set(CLUSTERS)
        pages, token = [], ""
        while True:
            page = api.list_pod_for_all_namespaces(label_selector="app", limit=5, _continue=token)
            pages += [place(pod) for pod in page.items]
            token = page.metadata._continue
            if not token:
                break
        assert pages == whole

    def test_write_in_each_cluster_and_watch_it(self, fleet: AggregateEnvironment, api: Any) -> None:
        version = api.list_namespaced_config_map("demo").metadata.resource_version
        for cluster in CLUSTERS:
            api.create_namespaced_config_map("demo", config_map(f"python-{cluster}", cluster))
            api.patch_namespaced_config_map(f"python-{cluster}", "demo", {"data": {"b": "2"}})
            stale = api.read_namespaced_config_map(f"python-{cluster}", "demo")
            api.patch_namespaced_config_map(
                f"python-{cluster}", "demo", [{"op": "replace", "path": "/data/a", "value": "3"}]
            )
            with pytest.raises(ApiException) as conflict:
                api.replace_namespaced_config_map(f"python-{cluster}", "demo", stale)
            assert (conflict.value.status, conflict.value.reason) == (409, "Conflict")
            fresh = api.read_namespaced_config_map(f"python-{cluster}", "demo")
            fresh.data["c"] = "4"
            assert api.replace_namespaced_config_map(f"python-{cluster}", "demo", fresh).data["c"] == "4"
            api.delete_namespaced_config_map(f"python-{cluster}", "demo")
            with pytest.raises(ApiException) as gone:
                api.read_namespaced_config_map(f"python-{cluster}", "demo")
            assert gone.value.status == 404
        seen = []
        watch = kubernetes.watch.Watch()
        for event in watch.stream(
            api.list_namespaced_config_map, "demo", resource_version=version, timeout_seconds=20, _request_timeout=20
        ):
            seen.append((event["type"], *place(event["object"])))
            if len(seen) == 10:
                watch.stop()
        for cluster in CLUSTERS:
            kinds = [kind for kind, where, name in seen if (where, name) == (cluster, f"python-{cluster}")]
            assert kinds == ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]

    @pytest.mark.parametrize("cluster", CLUSTERS)
    def test_exec_and_logs(self, api: Any, cluster: str) -> None:
        found = api.list_namespaced_pod("demo", label_selector=f"app=web,{CLUSTER}={cluster}").items
        pod = next(pod for pod in found if pod.status.phase == "Running").metadata.name
        assert pod in api.read_namespaced_pod_log(pod, "demo")
        shown = streams.stream(
            api.connect_get_namespaced_pod_exec, pod, "demo", command=["sh", "-c", "echo $CLUSTER"], stdout=True,
            stderr=True, stdin=False, tty=False,
        )  # fmt: skip
        assert shown.strip() == cluster

    def test_errors(self, api: Any) -> None:
        with pytest.raises(ApiException) as nowhere:
            api.create_namespaced_config_map("demo", config_map("nowhere"))
        assert nowhere.value.status == 422
        with pytest.raises(ApiException) as expired:
            api.list_namespaced_config_map(
                "demo", resource_version="183418" + "0" * 59 + "1", resource_version_match="Exact"
            )
        assert expired.value.status == 410


class TestInformers:
    """The requests that client-go 0.34 was recorded to send."""

    def headers(self, accept: str) -> list[tuple[str, str]]:
        return [
            ("User-Agent", "informertrace/v0.0.0"),
            ("Accept", accept),
            ("Authorization", "Bearer admin"),
            ("Accept-Encoding", "gzip"),
        ]

    @pytest.mark.parametrize("informer", INFORMERS)
    def test_watch_list_gives_the_objects_of_all_members_a_bookmark_and_changes(
        self, fleet: AggregateEnvironment, informer: str
    ) -> None:
        path, query, accept = INFORMERS[informer]
        with Client(fleet.address) as client:
            response = client.begin("GET", f"{path}?{WATCH_LIST}{query}", self.headers(accept))
            assert response.status == 200
            assert response.getheader("Content-Type") == "application/json"
            self.follow(fleet, response, informer)
            response.close()

    @pytest.mark.parametrize("informer", INFORMERS)
    def test_list_and_watch_from_its_version(self, fleet: AggregateEnvironment, informer: str) -> None:
        path, query, accept = INFORMERS[informer]
        answer = ask(fleet.address, f"{path}?limit=500&resourceVersion=0", headers=self.headers(accept))
        assert answer.status == 200
        version = answer.json["metadata"]["resourceVersion"]
        assert {item["metadata"]["labels"][CLUSTER] for item in answer.json["items"]} == set(CLUSTERS)
        since = f"allowWatchBookmarks=true&resourceVersion={version}&{query}"
        with Client(fleet.address) as client:
            response = client.begin("GET", f"{path}?{since}", self.headers(accept))
            self.changes(fleet, response, informer)
            response.close()

    def follow(self, fleet: AggregateEnvironment, response: Any, informer: str) -> None:
        initial = set()
        for line in lines_of(response):
            event = json.loads(line)
            if event["type"] == "BOOKMARK":
                assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
                break
            assert event["type"] == "ADDED"
            initial.add(event["object"]["metadata"]["labels"][CLUSTER])
        assert initial == set(CLUSTERS)
        self.changes(fleet, response, informer)

    def changes(self, fleet: AggregateEnvironment, response: Any, informer: str) -> None:
        """Change an object in each cluster; each watch tells all of it, once."""
        seen = []
        for cluster in CLUSTERS:
            name = f"informed-{informer}-{cluster}"
            head = [("Authorization", "Bearer admin"), ("Content-Type", JSON), ("Accept", JSON)]
            body = json.dumps(config_map(name, cluster)).encode()
            assert ask(fleet.address, CONFIGMAPS, method="POST", headers=head, body=body).status == 201
            assert ask(fleet.address, f"{CONFIGMAPS}/{name}", method="DELETE", headers=head[:1]).status == 200
            for line in lines_of(response):
                event = json.loads(line)
                if event["type"] != "BOOKMARK":
                    seen.append((event["type"], event["object"]["metadata"]["name"]))
                if seen[-1:] == [("DELETED", name)]:
                    break
        names = [f"informed-{informer}-{cluster}" for cluster in CLUSTERS]
        assert [event for event in seen if event[1] in names] == [
            (kind, name) for name in names for kind in ("ADDED", "DELETED")
        ]
