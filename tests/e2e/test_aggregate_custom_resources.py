"""kubectl and resources that only one cluster of an aggregate has: listed, explained, applied, watched for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.kube.discovery import AGGREGATED_ACCEPT
from tests.aggregate.reflector.harness import crd
from tests.e2e.aggregate_environment import RESOURCES, AggregateEnvironment
from tests.e2e.http_client import Answer, ask
from tests.e2e.processes import Kubectl, mcproxy, wait_until
from tests.e2e.test_aggregate_writes import Api

CLUSTER = "mcproxy.io/cluster"
SCOPE = """\
        - {group: west.example.com, version: v1, resource: "*"}
        - {group: example.com, version: v1, resource: "*"}
        - {group: example.com, version: v2, resource: "*"}
        - {group: apiextensions.k8s.io, version: v1, resource: customresourcedefinitions}
"""
DEFINITIONS_OF_EAST = (
    ", {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], to: east, show: One}"
)


def gizmos() -> dict[str, Any]:
    """A definition with a schema."""
    definition = crd("gizmos", "Gizmo", "west.example.com")
    weight = {"type": "integer", "description": "How heavy it is."}
    spec = {"type": "object", "properties": {"weight": weight, "color": {"type": "string"}}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}
    definition["spec"]["versions"][0]["schema"] = schema
    columns = [{"name": "Weight", "type": "integer", "jsonPath": ".spec.weight"}]
    definition["spec"]["versions"][0]["additionalPrinterColumns"] = columns
    return definition


def gizmo(name: str, **spec: Any) -> str:
    metadata = {"name": name, "namespace": "demo", "labels": {CLUSTER: "west"}}
    return json.dumps({"apiVersion": "west.example.com/v1", "kind": "Gizmo", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, kubectl: str) -> Iterator[AggregateEnvironment]:
    environment = AggregateEnvironment(tmp_path_factory.mktemp("custom"))
    environment.resources = RESOURCES + SCOPE
    try:
        environment.start()
        environment.kubectl(kubectl, "west").good("create", "-f", "-", stdin=json.dumps(gizmos()))
        kube = environment.kubectl(kubectl)
        wait_until("the definition is known", lambda: "gizmos" in kube.good("api-resources", "-o", "name"))
        yield environment
    finally:
        environment.stop()


@pytest.fixture
def kube(environment: AggregateEnvironment, kubectl: str) -> Kubectl:
    return environment.kubectl(kubectl)


@pytest.mark.slow
def test_it_is_listed_and_explained(kube: Kubectl) -> None:
    shown = kube.good("api-resources", "--api-group=west.example.com", "--no-headers", "-o", "wide").split()
    assert shown[:4] == ["gizmos", "west.example.com/v1", "true", "Gizmo"]
    assert "create" in shown[4].split(",")
    assert "How heavy it is." in kube.good("explain", "gizmos.spec.weight")
    assert kube.good("get", "gizmos") == ""


def test_its_columns_are_shown(kube: Kubectl) -> None:
    """It was made at run time, so its cache began empty."""
    kube.good("apply", "-f", "-", stdin=gizmo("heavy", weight=7))
    assert kube.good("get", "gizmos").split() == ["NAME", "WEIGHT", "heavy", "7"]
    kube.good("delete", "gizmo", "heavy")


@pytest.mark.slow
def test_what_is_listed_can_be_read_at_the_paths_that_it_says(
    environment: AggregateEnvironment, kube: Kubectl, kubectl: str
) -> None:
    """Also where members disagree on a scope: the first one's is served, and the other's objects are left out."""
    for cluster, scope in (("west", "Cluster"), ("east", "Namespaced")):
        definition = crd("gears", "Gear")
        definition["spec"]["scope"] = scope
        environment.kubectl(kubectl, cluster).good("create", "-f", "-", stdin=json.dumps(definition))
        wait_until("it is known", lambda: "gears" in kube.good("api-resources", "-o", "name"))
    wait_until("the first one's counts", lambda: scope_of(environment, "gears") == "Namespaced")
    groups = [*get(environment, "/api", AGGREGATED_ACCEPT).json["items"]]
    groups += get(environment, "/apis", AGGREGATED_ACCEPT).json["items"]
    checked = set()
    for group in groups:
        for version in group["versions"]:
            name = group["metadata"].get("name", "")
            root = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
            for resource in version["resources"]:
                if "list" in resource["verbs"]:
                    plural, namespaced = resource["resource"], resource["scope"] == "Namespaced"
                    assert get(environment, f"{root}/{plural}?limit=1").status == 200, plural
                    within = get(environment, f"{root}/namespaces/demo/{plural}?limit=1").status
                    assert within == (200 if namespaced else 404), plural
                    checked.add(plural)
    assert {"pods", "nodes", "gears", "gizmos", "deployments"} <= checked
    assert get(environment, "/apis/example.com/v1/gears/a").status == 404
    left_out = (
        "cluster west: its objects are left out: there gears.example.com is a cluster-scoped Gear, not a namespaced"
    )
    assert left_out in kube("get", "gears").stderr
    # Clients that take definitions for discovery (lightkube's loader) need a rule (docs/troubleshooting.md).
    with pytest.raises(ValueError, match="Gear already created but with different signature"):
        load_generic_resources(environment)
    environment.conflicts += DEFINITIONS_OF_EAST
    environment.reload()
    paths = load_generic_resources(environment)
    assert paths["example.com/v1", "Gear"] == "/apis/example.com/v1/namespaces/demo/gears"
    assert ("west.example.com/v1", "Gizmo") in paths  # which west alone has
    assert {get(environment, path).status for path in paths.values()} == {200}


def load_generic_resources(environment: AggregateEnvironment) -> dict[tuple[str, str], str]:
    """Do as lightkube's `load_in_cluster_generic_resources`; return the path of each kind in the namespace demo."""
    found: dict[tuple[str, str], str] = {}
    for definition in get(environment, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions").json["items"]:
        spec = definition["spec"]
        within = "/namespaces/demo" if spec["scope"] == "Namespaced" else ""
        kind, plural = spec["names"]["kind"], spec["names"]["plural"]
        for version in spec["versions"]:
            api_version = f"{spec['group']}/{version['name']}"
            path = f"/apis/{api_version}{within}/{plural}"
            if found.setdefault((api_version, kind), path) != path:
                raise ValueError(f"Resource {kind} already created but with different signature")
    return found


@pytest.mark.slow
def test_a_definition_that_is_upgraded_cluster_by_cluster_hides_no_objects(
    environment: AggregateEnvironment, kube: Kubectl, kubectl: str
) -> None:
    definition = crd("wheels", "Wheel")
    for cluster in ("east", "west"):
        environment.kubectl(kubectl, cluster).good("create", "-f", "-", stdin=json.dumps(definition))
        wheel = {"apiVersion": "example.com/v1", "kind": "Wheel", "metadata": {"name": f"of-{cluster}"}}
        environment.kubectl(kubectl, cluster).good("create", "-f", "-", stdin=json.dumps(wheel))
    both = ["wheel.example.com/of-east", "wheel.example.com/of-west"]
    wait_until("both are there", lambda: kube("get", "wheels", "-o", "name").stdout.split() == both)
    first = definition["spec"]["versions"][0]
    definition["spec"]["versions"] = [first, {**first, "name": "v2", "storage": False}]
    environment.kubectl(kubectl, "west").good("apply", "-f", "-", stdin=json.dumps(definition))
    wait_until("v2 is known", lambda: get(environment, "/apis/example.com/v2").status == 200)
    assert kube.good("api-resources", "--api-group=example.com", "--no-headers").split().count("example.com/v2") == 0
    assert kube.good("get", "wheels", "-o", "name").split() == both
    newer = kube("get", "wheels.v2.example.com", "-o", "name")
    assert newer.stdout.split() == both[1:]
    why = "Warning: cluster east: its objects are left out: it serves wheels.example.com in version v1, not in v2"
    assert why in newer.stderr
    missing = kube("get", "wheels.v2.example.com", "of-east")
    assert "NotFound" in missing.stderr
    assert why in missing.stderr  # the 404 is of version v2, and says so
    refused = kube("delete", "wheels.v2.example.com", "of-east")
    assert "is in cluster east, which serves it in version v1 and not in v2" in refused.stderr
    wheel = {"apiVersion": "example.com/v2", "kind": "Wheel", "metadata": {"name": "n", "labels": {CLUSTER: "east"}}}
    refused = kube("create", "-f", "-", stdin=json.dumps(wheel))
    assert 'create rule 1 of aggregate "fleet" (to: Label) leads to cluster east' in refused.stderr
    status = ("status", "-c", str(environment.daemon.file))
    assert "is left out: " in mcproxy(*status).stdout
    left_out = json.loads(mcproxy(*status, "-o", "json").stdout)["aggregates"][0]["leftOut"]
    why = "it serves wheels.example.com in version v1, not in v2"
    assert {"resource": "wheels.example.com", "version": "v2", "cluster": "east", "cause": why} in left_out


def scope_of(environment: AggregateEnvironment, plural: str) -> str:
    """The scope of a resource of example.com/v1 in discovery."""
    entries = get(environment, "/apis/example.com/v1").json["resources"]
    return next(
        ("Namespaced" if entry["namespaced"] else "Cluster" for entry in entries if entry["name"] == plural), ""
    )


def get(environment: AggregateEnvironment, target: str, accept: str = "application/json") -> Answer:
    return ask(environment.address, target, headers=[("Authorization", "Bearer admin"), ("Accept", accept)])


def test_server_side_apply(kube: Kubectl, environment: AggregateEnvironment, kubectl: str) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kube.good(*apply, stdin=gizmo("applied", weight=1))
    kube.good(*apply, stdin=gizmo("applied", weight=2, color="red"))
    assert kube.good("get", "gizmo", "applied", "-o", "jsonpath={.spec.weight} {.spec.color}") == "2 red"
    direct = json.loads(environment.kubectl(kubectl, "west").good("get", "gizmo", "applied", "-o", "json"))
    assert CLUSTER not in direct["metadata"].get("labels", {})
    kube.good("delete", "gizmo", "applied")


def test_client_side_apply_and_validation(kube: Kubectl) -> None:
    kube.good("apply", "-f", "-", stdin=gizmo("plain", weight=1))
    assert "unchanged" in kube.good("apply", "-f", "-", stdin=gizmo("plain", weight=1))
    refused = kube("apply", "-f", "-", stdin=gizmo("plain", weigth=1))
    assert refused.status == 1
    assert 'unknown field "spec.weigth"' in refused.stderr
    refused = kube("apply", "-f", "-", stdin=gizmo("plain", weight="heavy"))
    assert refused.status == 1
    kube.good("delete", "gizmo", "plain")


def test_field_selectors_know_the_schema(kube: Kubectl) -> None:
    for name, color in (("one", "red"), ("two", "blue")):
        kube.good("apply", "-f", "-", stdin=gizmo(name, color=color))
    assert kube.good("get", "gizmos", "--field-selector", "spec.color=red", "-o", "name").split() == [
        "gizmo.west.example.com/one"
    ]
    refused = kube("get", "gizmos", "--field-selector", "spec.colour=red")
    assert refused.status == 1
    assert "BadRequest" in refused.stderr
    kube.good("delete", "gizmos", "--all")


def doodads(plural: str = "doodads", kind: str = "Doodad") -> dict[str, Any]:
    return crd(plural, kind, "example.com")


def test_what_is_made_of_a_definition_at_once_is_never_the_primarys(
    environment: AggregateEnvironment, kubectl: str
) -> None:
    """It went to the primary as it was sent, or was its 404; a watch showed the primary's versions for ever."""
    api = Api(environment)
    path = "/apis/example.com/v1/namespaces/demo/doodads"
    mark = environment.control("east").mark()
    assert api("GET", path).status == 404
    environment.kubectl(kubectl, "west").good("create", "-f", "-", stdin=json.dumps(doodads()))
    labels = {CLUSTER: "west", "app": "x"}
    obj = {"apiVersion": "example.com/v1", "kind": "Doodad", "metadata": {"name": "first", "labels": labels}}
    made = api.good("POST", path, obj)
    assert made["metadata"]["labels"] == labels
    assert len(made["metadata"]["resourceVersion"]) > 20  # the aggregate's
    assert [item["metadata"]["name"] for item in api.good("GET", path)["items"]] == ["first"]
    direct = json.loads(environment.kubectl(kubectl, "west").good("get", "doodad", "first", "-o", "json"))
    assert direct["metadata"]["labels"] == {"app": "x"}
    asked = [record["path"] for record in environment.control("east").audit(mark) if "doodads" in record["path"]]
    assert asked == []


def test_kubectl_knows_a_definition_that_was_just_made(
    environment: AggregateEnvironment, kube: Kubectl, kubectl: str
) -> None:
    definition = doodads("dingbats", "Dingbat")
    environment.kubectl(kubectl, "west").good("create", "-f", "-", stdin=json.dumps(definition))
    # kubectl reads discovery anew for what it does not know; the documents are a second old at most.
    wait_until("kubectl knows it", lambda: kube("get", "dingbats.example.com").status == 0)
    assert kube.good("get", "dingbats.example.com") == ""


@pytest.mark.slow
def test_the_cluster_of_the_definition_goes_away_and_its_objects_stay_readable(
    environment: AggregateEnvironment, kube: Kubectl
) -> None:
    kube.good("apply", "-f", "-", stdin=gizmo("last", weight=1))
    environment.clusters["west"].kill()
    wait_until("west is unavailable", lambda: "cluster west" in kube("get", "gizmos").stderr)
    assert "gizmos.west.example.com" in kube.good("api-resources", "-o", "name")
    assert "last" in kube.good("get", "gizmos")
    assert "How heavy it is." in kube.good("explain", "gizmos.spec.weight")
    # What it may have is not known: no 404 for it, and no object in the other cluster in its place.
    api = Api(environment)
    maps = "/api/v1/namespaces/demo/configmaps"
    for method, target in (
        ("GET", "/apis/example.com/v1/namespaces/demo/others"),
        ("GET", f"{maps}/nowhere"),
        ("DELETE", f"{maps}/nowhere"),
        ("GET", "/api/v1/namespaces/demo/pods/nowhere/log"),
        ("GET", f"{maps}?fieldSelector=metadata.name%3Dnowhere"),
        ("PUT", "/apis/west.example.com/v1/namespaces/demo/gizmos/last"),
    ):
        body = json.loads(gizmo("last", weight=2)) if method == "PUT" else None
        answer = api(method, target, body)
        assert (answer.status, answer.json["reason"]) == (503, "ServiceUnavailable"), (method, target)
        assert answer.header("retry-after"), (method, target)
    states = "[+]cluster/east ok\n[-]cluster/west not needed: it cannot be reached\n"
    wait_until("its checks have failed", lambda: states in kube.good("get", "--raw", "/readyz?verbose"))
