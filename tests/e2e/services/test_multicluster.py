"""The cases of sig-multicluster's conformance suite for the MCS API (KEP-1645), over simulated clusters.

Written anew after conformance/*.go of kubernetes-sigs/mcs-api; what they ask of DNS and of packets is not a matter of
who writes the objects. The first cluster is the one that exports, as there.
"""

from __future__ import annotations

import ipaddress
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from tests.e2e.processes import wait_until
from tests.e2e.services.environment import Clusters

GROUP, VERSION = "multicluster.x-k8s.io", "v1beta1"
ROOT = f"/apis/{GROUP}/{VERSION}"
FIRST, SECOND = "east", "west"
TCP = {"name": "tcp", "port": 42, "protocol": "TCP"}
UDP = {"name": "udp", "port": 42, "protocol": "UDP"}


def text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


def structure(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def listed(items: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)} if keys else {}
    return {"type": "array", "items": items, **kind}


STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
NUMBER = {"type": "integer", "format": "int32"}
CONDITIONS = listed(
    {
        **structure(
            type=text(),
            status=text(enum=["True", "False", "Unknown"]),
            reason=text(pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
            message=text(maxLength=32768),
            lastTransitionTime=text(format="date-time"),
        ),
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    },
    "type",
)
PORTS = listed({**structure(name=text(), protocol=text(), appProtocol=text(), port=NUMBER), "required": ["port"]})
EXPORT = structure(
    spec=structure(exportedLabels=STRINGS, exportedAnnotations=STRINGS), status=structure(conditions=CONDITIONS)
)
IMPORT = structure(
    spec={
        **structure(
            type=text(enum=["ClusterSetIP", "Headless"]),
            ports=PORTS,
            ips=listed(text()),
            ipFamilies=listed(text()),
            sessionAffinity=text(),
            sessionAffinityConfig=structure(clientIP=structure(timeoutSeconds=NUMBER)),
            internalTrafficPolicy=text(),
            trafficDistribution=text(),
        ),
        "required": ["ports", "type"],
    },
    status=structure(clusters=listed(structure(cluster=text()), "cluster"), conditions=CONDITIONS),
)


def definition(kind: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


class Case:
    """One case: a namespace of its own in all clusters, and the service `hello`."""

    def __init__(self, clusters: Clusters, namespace: str) -> None:
        self.clusters = clusters
        self.namespace = namespace
        for name in clusters.processes:
            made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
            self.post(name, "/api/v1/namespaces", made)

    def post(self, name: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        status, answer = self.clusters.send(name, "POST", path, body)
        assert status == 201, answer
        assert isinstance(answer, dict)
        return answer

    def place(self, root: str, resource: str, name: str = "") -> str:
        return f"{root}/namespaces/{self.namespace}/{resource}{name and '/'}{name}"

    def deploy(self, name: str, address: str = "10.2.0.1", hostname: str = "", **spec: Any) -> dict[str, Any]:
        """Create the service and its EndpointSlice, as a cluster's own controller makes it."""
        ports = spec.pop("ports", [TCP, UDP])
        made = self.post(
            name,
            self.place("/api/v1", "services"),
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "hello", "annotations": {"dummy-svc": "dummy"}, "labels": {"dummy-svc": "dummy"}},
                "spec": {"selector": {"app": "hello"}, "ports": ports, **spec},
            },
        )
        endpoint: dict[str, Any] = {"addresses": [address], "conditions": {"ready": True}}
        if hostname:
            endpoint["hostname"] = hostname
        if spec.get("type") != "ExternalName":
            self.post(
                name,
                self.place("/apis/discovery.k8s.io/v1", "endpointslices"),
                {
                    "apiVersion": "discovery.k8s.io/v1",
                    "kind": "EndpointSlice",
                    "metadata": {
                        "name": "hello-abcde",
                        "labels": {
                            "kubernetes.io/service-name": "hello",
                            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                        },
                    },
                    "addressType": "IPv4",
                    "endpoints": [endpoint],
                    "ports": [{"name": each["name"], "port": 42, "protocol": each["protocol"]} for each in ports],
                },
            )
        return made

    def export(self, name: str, **spec: Any) -> None:
        metadata = {"name": "hello", "annotations": {"dummy-svcexport": "dummy"}}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "ServiceExport", "metadata": metadata, "spec": spec}
        self.post(name, self.place(ROOT, "serviceexports"), body)

    def unexport(self, name: str) -> None:
        assert self.clusters.send(name, "DELETE", self.place(ROOT, "serviceexports", "hello"))[0] == 200

    def get(self, name: str, path: str) -> dict[str, Any] | None:
        status, answer = self.clusters.send(name, "GET", path)
        assert status in (200, 404), answer
        return answer if status == 200 else None

    def service_import(self, name: str) -> dict[str, Any] | None:
        return self.get(name, self.place(ROOT, "serviceimports", "hello"))

    def slices(self, name: str) -> list[dict[str, Any]]:
        """Return the EndpointSlices of the MCS API."""
        found = self.get(name, self.place("/apis/discovery.k8s.io/v1", "endpointslices"))
        assert found is not None
        keys = {"multicluster.kubernetes.io/service-name", "multicluster.kubernetes.io/source-cluster"}
        return [each for each in found["items"] if keys <= each["metadata"]["labels"].keys()]

    def await_slice(self, name: str) -> dict[str, Any]:
        """Wait for the first EndpointSlice of the MCS API in a cluster."""
        wait_until(f"a slice in {name}", lambda: bool(self.slices(name)))
        return self.slices(name)[0]

    def await_import(
        self, name: str, verify: Callable[[Any], object] = lambda found: True, what: str = "the ServiceImport"
    ) -> dict[str, Any]:
        found: list[dict[str, Any]] = []

        def there() -> bool:
            one = self.service_import(name)
            found[:] = [] if one is None else [one]
            return one is not None and bool(verify(one))

        wait_until(f"{what} in {name}", there)
        return found[0]

    def await_no_import(self, *names: str) -> None:
        for name in names:
            wait_until(f"no ServiceImport in {name}", partial(self._has_no_import, name))

    def _has_no_import(self, name: str) -> bool:
        return self.service_import(name) is None

    def condition(self, name: str, kind: str) -> dict[str, Any] | None:
        found = self.get(name, self.place(ROOT, "serviceexports", "hello")) or {}
        conditions: Sequence[dict[str, Any]] = found.get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), None)

    def await_condition(self, name: str, kind: str, status: str) -> dict[str, Any]:
        wait_until(f"{kind} {status} in {name}", lambda: (self.condition(name, kind) or {}).get("status") == status)
        found = self.condition(name, kind)
        assert found is not None
        return found

    def await_conflict(self, reason: str) -> None:
        for name in (FIRST, SECOND):
            assert self.await_condition(name, "Conflict", "True")["reason"] == reason


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    with Clusters(tmp_path_factory.mktemp("mcs"), (FIRST, SECOND)) as found:
        for name in (FIRST, SECOND):
            for kind, schema in (("ServiceExport", EXPORT), ("ServiceImport", IMPORT)):
                status, answer = found.send(
                    name, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind, schema)
                )
                assert status == 201, answer
        daemon = found.daemon("proxy", [])
        discovery = f"serviceDiscovery: {{enabled: true, clusters: [{FIRST}, {SECOND}]}}\n"
        daemon.file.write_text(daemon.file.read_text() + discovery)
        with daemon:
            yield found


@pytest.fixture
def case(clusters: Clusters) -> Case:
    return Case(clusters, f"mcs-{uuid.uuid4().hex[:8]}")


def exported_twice(case: Case, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Export from both clusters, from the second one when the first one's import is there (and so, not before it)."""
    case.deploy(FIRST, **first.get("service", {}))
    case.export(FIRST, **first.get("export", {}))
    case.await_import(FIRST)
    case.deploy(SECOND, "10.3.0.1", **second.get("service", {}))
    case.export(SECOND, **second.get("export", {}))


def source_of(found: Mapping[str, Any]) -> str:
    """Return the id of the cluster that a slice is from."""
    return str(found["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"])


# -- service_import.go -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def cluster_ip_export(case: Case) -> None:
    case.deploy(FIRST)
    case.export(FIRST)
    case.await_condition(FIRST, "Valid", "True")
    for name in (FIRST, SECOND):
        found = case.await_import(name)
        assert found["spec"]["type"] == "ClusterSetIP"
        assert [(each["name"], each["port"], each["protocol"]) for each in found["spec"]["ports"]] == [
            ("tcp", 42, "TCP"),
            ("udp", 42, "UDP"),
        ]
        found = case.await_import(name, lambda found: found["spec"].get("ips"), "an address")
        assert len(found["spec"]["ips"]) == len(found["spec"]["ipFamilies"]) == 1
        case.await_import(name, lambda found: found.get("status", {}).get("clusters") == [{"cluster": FIRST}], "status")
    case.unexport(FIRST)
    case.await_no_import(FIRST, SECOND)


def lives_with_its_exporters(case: Case) -> None:
    exported_twice(case, {}, {})
    both = [{"cluster": FIRST}, {"cluster": SECOND}]
    case.await_import(FIRST, lambda found: found.get("status", {}).get("clusters") == both, "both clusters")
    before = case.await_import(FIRST)["metadata"]["uid"]
    case.unexport(FIRST)
    case.await_import(FIRST, lambda found: found.get("status", {}).get("clusters") == both[1:], "one cluster")
    assert case.await_import(FIRST)["metadata"]["uid"] == before
    case.unexport(SECOND)
    case.await_no_import(FIRST, SECOND)


def exported_labels(case: Case) -> None:
    case.deploy(FIRST)
    case.export(FIRST, exportedAnnotations={"dummy-annotation": "true"}, exportedLabels={"dummy-label": "true"})
    metadata = case.await_import(SECOND)["metadata"]
    assert metadata["labels"]["dummy-label"] == metadata["annotations"]["dummy-annotation"] == "true"
    assert "dummy-svc" not in {**metadata["labels"], **metadata["annotations"]}


def conflicting_labels(case: Case) -> None:
    first = {"exportedAnnotations": {"a": "1"}, "exportedLabels": {"b": "1"}}
    second = {"exportedAnnotations": {"a": "2"}, "exportedLabels": {"b": "2"}}
    exported_twice(case, {"export": first}, {"export": second})
    case.await_conflict("AnnotationsConflict,LabelsConflict")
    metadata = case.await_import(FIRST)["metadata"]
    assert (metadata["annotations"]["a"], metadata["labels"]["b"]) == ("1", "1")


def carried(case: Case, **spec: Any) -> None:
    """What a Service says is what its import says."""
    case.deploy(FIRST, **spec)
    case.export(FIRST)
    found = case.await_import(SECOND)["spec"]
    assert {name: found.get(name) for name in spec} == spec


def session_affinity(case: Case) -> None:
    carried(case, sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 10}})


def internal_traffic_policy(case: Case) -> None:
    carried(case, internalTrafficPolicy="Cluster")


def traffic_distribution(case: Case) -> None:
    carried(case, trafficDistribution="PreferClose")


def cluster_set_ip(case: Case) -> None:
    case.deploy(FIRST)
    case.export(FIRST)
    spec = case.await_import(FIRST, lambda found: found["spec"].get("ips"), "an address")["spec"]
    families = ["IPv6" if ipaddress.ip_address(each).version == 6 else "IPv4" for each in spec["ips"]]
    assert families == spec["ipFamilies"]


def ports(case: Case) -> None:
    made = [{**TCP, "appProtocol": "http"}, UDP]
    case.deploy(FIRST, ports=made)
    case.export(FIRST)
    found = case.await_import(SECOND)["spec"]["ports"]
    assert sorted(found, key=str) == sorted(made, key=str)


def union_of_ports(case: Case) -> None:
    more = {"name": "stcp", "port": 142, "protocol": "SCTP"}
    exported_twice(case, {}, {"service": {"ports": [TCP, more]}})
    case.await_conflict("PortConflict")
    ports = {"tcp": 42, "udp": 42, "stcp": 142}
    case.await_import(
        FIRST, lambda found: {each["name"]: each["port"] for each in found["spec"]["ports"]} == ports, "all ports"
    )


def conflicting_ports(case: Case) -> None:
    exported_twice(case, {}, {"service": {"ports": [{**TCP, "port": 43}]}})
    case.await_conflict("PortConflict")
    spec = case.await_import(SECOND)["spec"]
    assert {each["name"]: each["port"] for each in spec["ports"]} == {"tcp": 42, "udp": 42}
    wait_until("slices of both", lambda: len(case.slices(FIRST)) == 2)
    by_source = {
        each["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"]: [
            port["name"] for port in each.get("ports") or ()
        ]
        for each in case.slices(FIRST)
    }
    assert by_source == {FIRST: ["tcp", "udp"], SECOND: []}


def headless_export(case: Case) -> None:
    case.deploy(FIRST, clusterIP="None", hostname="hello-ss-0")
    case.export(FIRST)
    for name in (FIRST, SECOND):
        found = case.await_import(name)
        assert found["spec"]["type"] == "Headless"
        assert "ips" not in found["spec"]
        assert [each["hostname"] for each in case.await_slice(name)["endpoints"]] == ["hello-ss-0"]
    case.unexport(FIRST)
    case.await_no_import(FIRST, SECOND)


def external_name(case: Case) -> None:
    case.deploy(FIRST, type="ExternalName", externalName="example.com")
    case.export(FIRST)
    assert case.await_condition(FIRST, "Valid", "False")["reason"] == "InvalidServiceType"
    assert case.service_import(FIRST) is None
    assert case.service_import(SECOND) is None


def conflicting_type(case: Case) -> None:
    exported_twice(case, {}, {"service": {"clusterIP": "None"}})
    case.await_conflict("TypeConflict")
    for name in (FIRST, SECOND):
        assert case.await_import(name)["spec"]["type"] == "ClusterSetIP"


def headless_has_no_ip(case: Case) -> None:
    case.deploy(FIRST, clusterIP="None")
    case.export(FIRST)
    for name in (FIRST, SECOND):
        found = case.await_import(name, lambda found: found.get("status", {}).get("conditions"), "a status")
        assert not found["spec"].get("ips")


# -- endpoint_slice.go, connectivity.go, *_dns.go ----------------------------------------------------------------------


def endpoint_slices(case: Case) -> None:
    case.deploy(FIRST)
    case.export(FIRST)
    for name in (FIRST, SECOND):
        found = case.await_slice(name)
        labels = found["metadata"]["labels"]
        assert labels["multicluster.kubernetes.io/service-name"] == "hello"
        assert labels["multicluster.kubernetes.io/source-cluster"] == FIRST
        assert labels["endpointslice.kubernetes.io/managed-by"] == "mcproxy.io"
        assert found["endpoints"][0]["addresses"] == ["10.2.0.1"]
    case.unexport(FIRST)
    wait_until("no slices", lambda: not case.slices(FIRST) + case.slices(SECOND))


def only_the_exporter(case: Case) -> None:
    case.deploy(FIRST)
    case.deploy(SECOND, "10.3.0.1")
    case.export(FIRST)
    case.await_import(SECOND)
    case.await_slice(SECOND)
    assert len(case.slices(SECOND)) == 1
    case.export(SECOND)
    wait_until("two slices", lambda: len(case.slices(FIRST)) == len(case.slices(SECOND)) == 2)
    case.await_condition(SECOND, "Conflict", "False")
    assert case.condition(SECOND, "Ready") is not None


def not_exported(case: Case) -> None:
    """Nothing is in any cluster by which it could be reached: neither an import, nor a Service, nor a slice."""
    case.deploy(FIRST)
    case.deploy(SECOND, "10.3.0.1")
    time.sleep(1)
    for name in (FIRST, SECOND):
        assert case.service_import(name) is None
        assert case.slices(name) == []
        found = case.get(name, case.place("/api/v1", "services")) or {}
        assert [each["metadata"]["name"] for each in found["items"]] == ["hello"]


def two_port_names(case: Case) -> None:
    second = {"name": "tcp2", "port": 4242, "protocol": "TCP"}
    exported_twice(case, {"service": {"ports": [TCP]}}, {"service": {"ports": [second]}})
    wait_until("slices of both", lambda: len(case.slices(FIRST)) == 2)
    by_source = {
        each["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"]: [
            port["name"] for port in each["ports"]
        ]
        for each in case.slices(FIRST)
    }
    assert by_source == {FIRST: ["tcp"], SECOND: ["tcp2"]}


def local_service_stays(case: Case) -> None:
    """`cluster.local` is answered from the Service of the cluster, which is not touched."""
    case.deploy(FIRST)
    path = case.place("/api/v1", "services", "hello")
    before = case.get(FIRST, path)
    case.export(FIRST)
    case.await_import(FIRST, _is_ready, "a ServiceImport that is ready")
    assert case.get(FIRST, path) == before


def hostnames(case: Case) -> None:
    """What a DNS server needs for HOSTNAME.CLUSTER.SERVICE: a ready endpoint with a hostname, and the cluster's id."""
    case.deploy(FIRST, clusterIP="None", hostname="hello-ss-0")
    case.export(FIRST)
    for name in (FIRST, SECOND):
        found = case.await_slice(name)
        assert [(each["hostname"], each["conditions"]["ready"]) for each in found["endpoints"]] == [
            ("hello-ss-0", True)
        ]
        assert found["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"] == FIRST


_DNS = "a DNS server of the cluster answers this from the ServiceImport and its slices (CoreDNS, plugin multicluster)"
CASES: dict[str, Callable[[Case], None] | str] = {
    # required
    "not exported: not reachable": not_exported,
    "ServiceImport lives with its exporters": lives_with_its_exporters,
    "ClusterIP export": cluster_ip_export,
    "session affinity": session_affinity,
    "internal traffic policy": internal_traffic_policy,
    "traffic distribution": traffic_distribution,
    "clusterset IP": cluster_set_ip,
    "ports": ports,
    "union of ports": union_of_ports,
    "conflicting ports": conflicting_ports,
    "headless export": headless_export,
    "headless has no IP": headless_has_no_ip,
    "ExternalName": external_name,
    "conflicting type": conflicting_type,
    # optional
    "exported labels and annotations": exported_labels,
    "conflicting labels and annotations": conflicting_labels,
    "EndpointSlices": endpoint_slices,
    "reachable by name": "kube-proxy of the cluster carries packets to the endpoints of the slices, and " + _DNS,
    "only the exporter": only_the_exporter,
    "same port name, two numbers": conflicting_ports,
    "two port names": two_port_names,
    "A/AAAA of a ClusterIP import": _DNS,
    "SRV of a ClusterIP import": _DNS,
    "cluster.local stays local": local_service_stays,
    "A/AAAA of a headless import": _DNS,
    "hostname.clusterid.service": hostnames,
    "SRV of a headless import": _DNS,
}
"""The cases of mcs-api's conformance suite by their names in our list, or why one is not for who writes objects.

Those of packets (`not exported`, `only the exporter`, the two of ports) assert the objects that decide it.
"""


@pytest.mark.parametrize("name", [name for name, check in CASES.items() if callable(check)])
def test_conformance(case: Case, name: str) -> None:
    check = CASES[name]
    assert callable(check)
    check(case)


def test_a_service_that_comes_after_its_export_is_imported_then(case: Case) -> None:
    case.export(FIRST)
    assert case.await_condition(FIRST, "Valid", "False")["reason"] == "NoService"
    case.deploy(FIRST)
    case.await_condition(FIRST, "Valid", "True")
    case.await_import(SECOND)


@pytest.mark.slow
def test_nothing_is_written_when_all_is_there(case: Case, clusters: Clusters) -> None:
    case.deploy(FIRST)
    case.export(FIRST)
    for name in (FIRST, SECOND):
        case.await_import(name, _is_ready, "a ServiceImport that is ready")
        case.await_slice(name)
    case.await_condition(FIRST, "Conflict", "False")
    written: list[str] = []

    def silent() -> bool:
        """Whether two seconds pass without a write: the last one that the export needs may still be on its way."""
        marks = {name: clusters.control(name).mark() for name in (FIRST, SECOND)}
        time.sleep(2)
        writes = [each for name, mark in marks.items() for each in clusters.writes(name, mark)]
        found = [f"{each['method']} {each['path']}" for each in writes if f"/{case.namespace}/" in each["path"]]
        written.extend(found)
        return not found

    wait_until("a silence", silent)
    assert len(written) <= 4, written


def _is_ready(found: Mapping[str, Any]) -> bool:
    conditions = found.get("status", {}).get("conditions", ())
    return bool(found["spec"].get("ips")) and [each["status"] for each in conditions] == ["True"]
