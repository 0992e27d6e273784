"""kubectl against two clusters as one: everything that a user does with one cluster."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.e2e.aggregate_environment import CLUSTERS, AggregateEnvironment
from tests.e2e.processes import Kubectl, wait_until

CLUSTER = "mcproxy.io/cluster"


@pytest.fixture(params=[0, 1], ids=["newer", "older"])
def kube(fleet: AggregateEnvironment, kubectls: tuple[str, ...], request: pytest.FixtureRequest) -> Kubectl:
    """The administrator of the aggregate, with each kubectl that is there."""
    return fleet.kubectl(kubectls[min(request.param, len(kubectls) - 1)])


def names(text: str) -> list[str]:
    return sorted(text.split())


def items(kubectl: Kubectl, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl.good("get", *arguments, "-o", "json"))["items"]
    return found


@contextmanager
def config_map(kubectl: Kubectl, name: str, cluster: str) -> Iterator[str]:
    """A ConfigMap in a cluster, made through the aggregate."""
    kubectl.good("apply", "-f", "-", stdin=json.dumps(manifest(name, cluster)))
    try:
        yield name
    finally:
        kubectl.good("delete", "cm", name, "--ignore-not-found")


def manifest(name: str, cluster: str = "", **data: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "demo"}
    if cluster:
        metadata["labels"] = {CLUSTER: cluster}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "one", **data}}


class TestReading:
    @pytest.mark.slow
    def test_a_list_is_the_union_with_the_cluster_as_a_column(
        self, fleet: AggregateEnvironment, kube: Kubectl, kubectl: str
    ) -> None:
        union = [
            (*line.split()[:2], name)
            for name in CLUSTERS
            for line in fleet.kubectl(kubectl, name).good("get", "pods", "-A", "--no-headers").splitlines()
        ]
        shown = kube.good("get", "pods", "-A", "--no-headers", "-L", CLUSTER).splitlines()
        assert sorted((*line.split()[:2], line.split()[-1]) for line in shown) == sorted(union)

    def test_a_selector_of_the_cluster_keeps_its_objects_alone(self, kube: Kubectl) -> None:
        for name in CLUSTERS:
            nodes = names(kube.good("get", "nodes", "-l", f"{CLUSTER}={name}", "-o", "name"))
            assert nodes
            assert all(node.startswith(f"node/{name}-") for node in nodes)

    def test_an_object_is_found_whichever_cluster_has_it(self, kube: Kubectl) -> None:
        assert "east" in kube.good("get", "node", "east-node-1", "-o", "jsonpath={.metadata.labels}")
        assert "west" in kube.good("describe", "node", "west-node-1")

    def test_pages_are_the_whole_list(self, kube: Kubectl) -> None:
        whole = names(kube.good("get", "pods", "-A", "-o", "name"))
        assert names(kube.good("get", "pods", "-A", "-o", "name", "--chunk-size=7")) == whole

    def test_errors_are_those_of_one_cluster(self, kube: Kubectl) -> None:
        result = kube("get", "pod", "absent")
        assert result.status == 1
        assert result.stderr.endswith('Error from server (NotFound): pods "absent" not found\n')
        result = kube("get", "pods", "--field-selector", "spec.nodename=a")
        assert result.status == 1
        assert "BadRequest" in result.stderr
        result = kube("get", "pods", "-l", "a in b")
        assert result.status == 1

    def test_the_user_and_the_rights_are_shown(self, kube: Kubectl) -> None:
        assert "admin" in kube.good("auth", "whoami")
        assert kube.good("auth", "can-i", "create", "deployments").strip() == "yes"

    def test_explain_and_api_resources_know_what_members_have(self, kube: Kubectl) -> None:
        assert "deployments" in kube.good("api-resources", "--api-group=apps")
        assert "replicas" in kube.good("explain", "deployment.spec")


class TestWatching:
    def test_a_watch_shows_changes_of_both_clusters(self, kube: Kubectl) -> None:
        with kube.begin("get", "cm", "-w", "--output-watch-events", "-L", CLUSTER, "-l", "watched=yes") as watch:
            for name in CLUSTERS:
                labelled = manifest(f"watched-{name}", name)
                labelled["metadata"]["labels"]["watched"] = "yes"
                kube.good("create", "-f", "-", stdin=json.dumps(labelled))
                watch.wait_for(f"watched-{name}")
                kube.good("delete", "cm", f"watched-{name}")
            wait_until("both deletions", lambda: watch.output.count(b"DELETED") == 2 and watch.output.endswith(b"\n"))
        lines = [line.split() for line in watch.output.decode().splitlines()[1:]]
        assert [(line[0], line[1], line[-1]) for line in lines] == [
            ("ADDED", "watched-east", "east"),
            ("DELETED", "watched-east", "east"),
            ("ADDED", "watched-west", "west"),
            ("DELETED", "watched-west", "west"),
        ]

    def test_wait_and_rollout_status(self, kube: Kubectl) -> None:
        kube.good("wait", "--for=condition=Ready", "node/west-node-2", "--timeout=60s")
        assert "successfully rolled out" in kube.good("rollout", "status", "deploy/warehouse-west", "-n", "shop")


class TestWriting:
    @pytest.mark.parametrize("cluster", CLUSTERS)
    def test_create_goes_where_the_label_says_and_is_seen_at_once(
        self, fleet: AggregateEnvironment, kube: Kubectl, kubectl: str, cluster: str
    ) -> None:
        with config_map(kube, f"made-{cluster}", cluster) as name:
            assert kube.good("get", "cm", name, "-o", "name").strip() == f"configmap/{name}"
            own = json.loads(fleet.kubectl(kubectl, cluster).good("get", "cm", name, "-o", "json"))
            assert CLUSTER not in own["metadata"].get("labels", {})
            assert "resource.karmada.io" not in json.dumps(own["metadata"].get("annotations", {}))
            other = next(each for each in CLUSTERS if each != cluster)
            assert fleet.kubectl(kubectl, other)("get", "cm", name).status == 1

    def test_create_without_the_label_says_how_to_choose(self, kube: Kubectl) -> None:
        result = kube("create", "-f", "-", stdin=json.dumps(manifest("nowhere")))
        assert result.status == 1
        assert CLUSTER in result.stderr

    @pytest.mark.slow
    def test_apply_twice_and_get_never_shows_the_past(self, kube: Kubectl) -> None:
        with config_map(kube, "applied", "west") as name:
            for number in range(3):
                kube.good("apply", "-f", "-", stdin=json.dumps(manifest(name, "west", key=str(number))))
                assert kube.good("get", "cm", name, "-o", "jsonpath={.data.key}") == str(number)

    @pytest.mark.slow
    def test_server_side_apply_patch_label_and_edit(self, kube: Kubectl) -> None:
        with config_map(kube, "changed", "west") as name:
            kube.good(
                "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(manifest(name, key="two"))
            )
            kube.good("patch", "cm", name, "-p", '{"data":{"more":"three"}}')
            kube.good("patch", "cm", name, "--type=json", "-p", '[{"op":"add","path":"/data/last","value":"four"}]')
            kube.good("label", "cm", name, "a=b")
            kube.good("annotate", "cm", name, "c=d")
            found = json.loads(kube.good("get", "cm", name, "-o", "json"))
            assert found["data"] == {"key": "two", "more": "three", "last": "four"}
            assert found["metadata"]["labels"] == {"a": "b", CLUSTER: "west"}

    def test_a_put_with_an_old_version_conflicts(self, kube: Kubectl) -> None:
        with config_map(kube, "conflicting", "west") as name:
            old = kube.good("get", "cm", name, "-o", "json")
            kube.good("label", "cm", name, "a=b")
            result = kube("replace", "-f", "-", stdin=old)
            assert result.status == 1
            assert "the object has been modified" in result.stderr
            fresh = json.loads(kube.good("get", "cm", name, "-o", "json"))
            fresh["data"]["key"] = "replaced"
            kube.good("replace", "-f", "-", stdin=json.dumps(fresh))
            assert kube.good("get", "cm", name, "-o", "jsonpath={.data.key}") == "replaced"

    def test_scale_and_rollout_restart(self, fleet: AggregateEnvironment, kube: Kubectl, kubectl: str) -> None:
        kube.good("scale", "deploy/warehouse-west", "-n", "shop", "--replicas=3")
        try:
            west = fleet.kubectl(kubectl, "west")
            shown = west.good("get", "deploy/warehouse-west", "-n", "shop", "-o", "jsonpath={.spec.replicas}")
            assert shown == "3"
            restart = ("rollout", "restart", "deploy/warehouse-west", "-n", "shop")
            wait_until("a restart, one a second", lambda: kube(*restart).status == 0)
        finally:
            kube.good("scale", "deploy/warehouse-west", "-n", "shop", "--replicas=2")

    def test_deleting_a_collection_deletes_in_both(
        self, fleet: AggregateEnvironment, kube: Kubectl, kubectl: str
    ) -> None:
        for name in CLUSTERS:
            labelled = manifest(f"gone-{name}", name)
            labelled["metadata"]["labels"]["gone"] = "yes"
            kube.good("create", "-f", "-", stdin=json.dumps(labelled))
        kube.good("delete", "cm", "-l", "gone=yes")
        assert kube.good("get", "cm", "-l", "gone=yes", "-o", "name") == ""
        for name in CLUSTERS:
            assert fleet.kubectl(kubectl, name)("get", "cm", f"gone-{name}").status == 1

    def test_what_both_clusters_have_needs_a_choice(self, kube: Kubectl) -> None:
        result = kube("label", "deploy", "web", "a=b")
        assert result.status == 1
        assert "AlreadyExists" in result.stderr
        assert "east" in result.stderr
        assert "west" in result.stderr


@contextmanager
def in_both(fleet: AggregateEnvironment, kubectl: str, kind: str, name: str, **fields: Any) -> Iterator[None]:
    """An object that each cluster has one of, in the namespace demo."""
    for cluster in CLUSTERS:
        labels = {"shared": "yes", "in": cluster}
        metadata = {"name": name, "namespace": "demo", "labels": labels}
        obj = {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}
        fleet.kubectl(kubectl, cluster).good("create", "-f", "-", stdin=json.dumps(obj))
    try:
        yield
    finally:
        for cluster in CLUSTERS:
            fleet.kubectl(kubectl, cluster).good("delete", kind, name, "--ignore-not-found")


class TestNamesThatBothHave:
    def test_apply_with_the_label_of_the_second_is_refused_and_changes_nothing(
        self, fleet: AggregateEnvironment, kube: Kubectl, kubectl: str
    ) -> None:
        """It said "configured", twice: the patch was worked out from the first cluster's object. Nothing changed."""
        name = f"shared-{time.time_ns()}"
        with in_both(fleet, kubectl, "ConfigMap", name, data={"key": "old"}):

            def value(cluster: str) -> str:
                return fleet.kubectl(kubectl, cluster).good("get", "cm", name, "-o", "jsonpath={.data.key}")

            wanted = json.dumps(manifest(name, "west", key="new"))
            for _ in range(2):
                result = kube("apply", "-f", "-", stdin=wanted)
                assert result.status == 1
                assert "exists in several clusters: east, west" in result.stderr
                assert "/clusters/west/" in result.stderr
                assert "a patch does not choose by its label" in result.stderr
            assert [value(cluster) for cluster in CLUSTERS] == ["old", "old"]
            for _ in range(2):
                kube.good("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=wanted)
            assert [value(cluster) for cluster in CLUSTERS] == ["old", "new"]
            result = kube("replace", "-f", "-", stdin=wanted)  # it gets the version first, of east's
            assert "the version that a get through the path /clusters/west/ shows" in result.stderr
            result = kube("delete", "cm", name)
            assert result.status == 1
            assert "label" not in result.stderr.partition("exists in several")[2]

    @pytest.mark.slow
    def test_a_rule_chooses_and_lists_and_watches_show_one(
        self, fleet: AggregateEnvironment, kube: Kubectl, kubectl: str
    ) -> None:
        """Of resource quotas this server shows west's."""
        name = f"shared-{time.time_ns()}"
        west = fleet.kubectl(kubectl, "west")

        def shown() -> list[str]:
            found = items(kube, "resourcequotas", "-l", "shared=yes")
            return [item["metadata"]["labels"][CLUSTER] for item in found if item["metadata"]["name"] == name]

        def shows_again() -> bool:
            return b"ADDED" in watch.output.rpartition(b"DELETED")[2]

        watching = ("get", "resourcequotas", "-w", "--output-watch-events", "-L", CLUSTER, "-l", "shared=yes")
        with ExitStack() as stack:
            stack.enter_context(in_both(fleet, kubectl, "ResourceQuota", f"first-{name}", spec={}))
            watch = stack.enter_context(kube.begin(*watching, "--no-headers"))
            watch.wait_for(f"first-{name}")
            stack.enter_context(in_both(fleet, kubectl, "ResourceQuota", name, spec={}))
            wait_until("both are known", lambda: shown() == ["west"])
            result = kube("get", "resourcequota", name, "-o", "jsonpath={.metadata.labels.in}")
            assert (result.stdout, result.stderr) == ("west", "")
            quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "demo"}}
            for _ in range(2):
                kube.good("apply", "-f", "-", stdin=json.dumps({**quota, "spec": {"hard": {"pods": "5"}}}))
            assert west.good("get", "resourcequota", name, "-o", "jsonpath={.spec.hard.pods}") == "5"
            kube.good("delete", "resourcequota", name)
            wait_until("east's appears", lambda: shown() == ["east"])
            wait_until("the watch too", lambda: watch.output.count(b"DELETED") == 2 and shows_again())
        events = [
            (line.split()[0], line.split()[-1]) for line in watch.output.decode().splitlines() if f" {name} " in line
        ]
        begin = events.index(("DELETED", "east"))
        assert events[begin : begin + 2] == [("DELETED", "east"), ("ADDED", "west")]
        assert ("ADDED", "east") in events[events.index(("DELETED", "west")) :]

    def test_namespaces_are_no_news(self, kube: Kubectl) -> None:
        result = kube("get", "namespace", "demo", "-o", "name")
        assert (result.stdout.strip(), result.stderr) == ("namespace/demo", "")


class TestStreams:
    def pod_of(self, kube: Kubectl, cluster: str) -> str:
        found = [
            pod["metadata"]["name"]
            for pod in items(kube, "pods", "-l", f"app=web,{CLUSTER}={cluster}")
            if pod["status"]["phase"] == "Running"
        ]
        return str(found[0])

    @pytest.mark.parametrize("cluster", CLUSTERS)
    def test_logs_and_exec_reach_the_pods_own_cluster(self, kube: Kubectl, cluster: str) -> None:
        pod = self.pod_of(kube, cluster)
        assert f"demo/{pod}/" in kube.good("logs", pod)
        assert kube.good("exec", pod, "--", "sh", "-c", "echo $CLUSTER").strip() == cluster

    def test_logs_are_followed(self, fleet: AggregateEnvironment, kube: Kubectl) -> None:
        pod = self.pod_of(kube, "west")
        with kube.begin("logs", "-f", "--tail=1", pod) as log:
            log.wait_for("log line")
            fleet.control("west").append_log("demo", pod, "something new\n")
            log.wait_for("something new")


class TestOnePath:
    def test_a_member_has_its_whole_api_below_its_name(self, fleet: AggregateEnvironment, kubectl: str) -> None:
        kube = fleet.kubectl(kubectl)
        for path in ("/clusters/west", "/apis/cluster.karmada.io/v1alpha1/clusters/west/proxy"):
            server = f"https://127.0.0.1:{fleet.port}{path}"
            found = names(kube.good("--server", server, "get", "nodes", "-o", "name"))
            assert all(node.startswith("node/west-") for node in found)
            assert found
        own = json.loads(kube.good("get", "--raw", "/clusters/west/api/v1/nodes/west-node-1"))
        assert CLUSTER not in own["metadata"]["labels"]


class TestRights:
    def test_somebody_sees_what_the_clusters_let_them_see(self, fleet: AggregateEnvironment, kubectl: str) -> None:
        alice = fleet.kubectl(kubectl, "alice")
        assert len(alice.good("get", "pods", "--no-headers").splitlines()) > 1
        result = alice("get", "pods", "-A")
        assert (result.status, result.stdout) == (1, "")
        assert 'pods is forbidden: User "alice" cannot list resource "pods"' in result.stderr
        assert "at the cluster scope" in result.stderr
        for what in (["secrets"], ["secret", "web-credentials"], ["secrets", "-w"], ["secrets", "-o", "json"]):
            result = alice("get", *what)
            assert result.status == 1
            assert "credentials" not in result.stdout  # names, or anything of them
            assert "forbidden" in result.stderr

    def test_a_right_in_one_cluster_shows_that_cluster_with_a_warning(
        self, fleet: AggregateEnvironment, kubectl: str
    ) -> None:
        name = f"west-only-{int(time.time())}"
        west = fleet.kubectl(kubectl, "west")
        west.good("create", "role", name, "-n", "demo", "--verb=get,list,watch", "--resource=configmaps")
        west.good("create", "rolebinding", name, "-n", "demo", f"--role={name}", "--user=nobody")
        try:
            nobody = fleet.kubectl(kubectl, "nobody")
            result = nobody("get", "cm", "-o", "json")
            assert result.status == 0
            assert {item["metadata"]["labels"][CLUSTER] for item in json.loads(result.stdout)["items"]} == {"west"}
            assert "Warning: cluster east" in result.stderr
        finally:
            west.good("delete", "role,rolebinding", name, "-n", "demo")


def test_an_exposed_pod_is_selected_by_its_service(fleet: AggregateEnvironment, kube: Kubectl) -> None:
    """kubectl copies the pod's labels into the selector; the cluster's would select nothing there."""
    pod = next(item for item in items(kube, "pods", "-n", "demo") if set(item["metadata"]["labels"]) > {CLUSTER})
    cluster, name = pod["metadata"]["labels"][CLUSTER], pod["metadata"]["name"]
    kube.good("expose", "pod", name, "-n", "demo", "--port=80", "--name=exposed")
    try:
        own = {key: value for key, value in pod["metadata"]["labels"].items() if key != CLUSTER}
        service = json.loads(kube.good("get", "svc", "exposed", "-n", "demo", "-o", "json"))
        assert service["spec"]["selector"] == own
        assert service["metadata"]["labels"] == {**own, CLUSTER: cluster}
    finally:
        kube.good("delete", "svc", "exposed", "-n", "demo")


def test_the_log_says_which_clusters_served(fleet: AggregateEnvironment, kubectl: str) -> None:
    kube = fleet.kubectl(kubectl)
    marker = f"marked-{time.time_ns()}"
    kube.good("get", "--raw", f"/api/v1/namespaces/demo/configmaps?labelSelector={marker}")
    log = fleet.directory / "access.log"
    wait_until("the line", lambda: marker in log.read_text())
    [entry] = [json.loads(line) for line in log.read_text().splitlines() if marker in line]
    assert (entry["cluster"], entry["cached"], entry["user"], entry["verb"]) == ("east,west", True, "admin", "list")
