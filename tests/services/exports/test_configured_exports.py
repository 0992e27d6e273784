"""What `serviceExports` make of services: services.md, line by line, and what hostile sources try."""

from __future__ import annotations

import json

import pytest

from mcproxy.config import model
from mcproxy.services.exports import exported_slices
from mcproxy.services.exports.configured_exports import PREFIX
from mcproxy.services.exports.desired_state import desired_of
from mcproxy.services.exports.export_types import ClusterView, ProblemKind
from mcproxy.services.exports.object_keys import service_object, slice_object
from mcproxy.services.exports.source_objects import MAX_PORTS, ExportedSlice, read_slice
from tests.services.exports.given import (
    KEY,
    applied,
    encoded,
    endpoint,
    entry,
    from_file,
    names,
    one,
    port,
    service,
    slice_of,
    work_out,
)

WEST = ClusterView(service=service(), slices=(slice_of(),))
EAST = ClusterView()


def test_an_importing_cluster_gets_the_slices_and_a_service_without_selector() -> None:
    desired = work_out({"west": WEST, "east": EAST}, from_file(entry()))
    assert desired.objects == {
        service_object("east", "demo", "derived-serve"): {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "derived-serve",
                "namespace": "demo",
                "labels": {"app.kubernetes.io/managed-by": "mcproxy.io", "mcproxy.io/service-name": "serve"},
            },
            "spec": {
                "type": "ClusterIP",
                "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                "sessionAffinity": "None",
                "ipFamilyPolicy": "SingleStack",
                "ipFamilies": ["IPv4"],
            },
        },
        slice_object("east", "demo", "imported-west-serve-abc"): {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "imported-west-serve-abc",
                "namespace": "demo",
                "labels": {
                    "kubernetes.io/service-name": "derived-serve",
                    "endpointslice.kubernetes.io/managed-by": "mcproxy.io",
                    "mcproxy.io/source-cluster": "west",
                    "mcproxy.io/service-name": "serve",
                    "multicluster.kubernetes.io/service-name": "serve",
                    "multicluster.kubernetes.io/source-cluster": "west",
                },
            },
            "addressType": "IPv4",
            "endpoints": [
                {"addresses": ["10.2.0.1"], "conditions": {"ready": True, "serving": True, "terminating": False}}
            ],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        },
    }
    assert desired.statuses == {}
    assert desired.kept == frozenset()
    assert desired.problems == ()


def test_the_prefix_is_that_of_the_configurations_checks() -> None:
    assert f"{PREFIX}-" == model.DERIVED_PREFIX


def test_what_is_there_already_changes_nothing() -> None:
    exports = from_file(entry())
    first = work_out({"west": WEST, "east": EAST}, exports)
    second = work_out({"west": WEST, "east": ClusterView(derived=applied(first, "east"))}, exports)
    assert second == first


def test_conditions_zones_and_hostnames_are_kept_nodes_pods_and_hints_are_not() -> None:
    source = endpoint(
        "10.2.0.1",
        zone="a",
        hostname="serve-0",
        nodeName="node-1",
        targetRef={"kind": "Pod", "name": "serve-0", "namespace": "demo"},
        hints={"forZones": [{"name": "b"}, {"name": "a"}], "forNodes": [{"name": "node-1"}]},
        conditions={"ready": False, "serving": True, "terminating": True},
        deprecatedTopology={"x": "y"},
    )
    view = ClusterView(service=service(), slices=(slice_of(endpoints=[source]),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert one(desired, "east", "endpointslices")["endpoints"] == [
        {
            "addresses": ["10.2.0.1"],
            "conditions": {"ready": False, "serving": True, "terminating": True},
            "hostname": "serve-0",
            "zone": "a",
        }
    ]


@pytest.mark.parametrize("distribution", ["PreferClose", "PreferSameZone"])
def test_hints_are_made_of_zones_for_all_ready_endpoints_or_for_none(distribution: str) -> None:
    zoned = [endpoint("10.2.0.1", zone="a", hints={"forZones": [{"name": "x"}]}), {**endpoint("10.2.0.2"), "zone": "b"}]
    away = endpoint("10.2.0.3", conditions={"ready": False})
    silent = {"addresses": ["10.2.0.4"], "zone": "c"}  # nil ready is ready
    west = ClusterView(
        service=service(trafficDistribution=distribution), slices=(slice_of(endpoints=[*zoned, away, silent]),)
    )
    desired = work_out({"west": west, "east": EAST}, from_file(entry()))
    assert [each.get("hints") for each in one(desired, "east", "endpointslices")["endpoints"]] == [
        {"forZones": [{"name": "a"}]}, {"forZones": [{"name": "b"}]}, None, {"forZones": [{"name": "c"}]}
    ]  # fmt: skip
    north = ClusterView(service=service(), slices=(slice_of("serve-n", [endpoint("10.3.0.1")]),))
    both = work_out({"west": west, "north": north, "east": EAST}, from_file(entry(from_clusters=("west", "north"))))
    slices = [each for key, each in both.objects.items() if key.resource == "endpointslices"]
    assert not any("hints" in found for each in slices for found in each["endpoints"])


@pytest.mark.parametrize("distribution", [None, "PreferSameNode"])
def test_without_a_preference_of_zones_there_are_no_hints(distribution: str | None) -> None:
    found = service() if distribution is None else service(trafficDistribution=distribution)
    west = ClusterView(service=found, slices=(slice_of(endpoints=[endpoint("10.2.0.1", zone="a")]),))
    desired = work_out({"west": west, "east": EAST}, from_file(entry()))
    assert "hints" not in one(desired, "east", "endpointslices")["endpoints"][0]


def test_a_headless_service_keeps_addresses_that_are_not_ready() -> None:
    view = ClusterView(service=service(clusterIP="None", publishNotReadyAddresses=True), slices=(slice_of(),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert one(desired, "east", "services")["spec"]["publishNotReadyAddresses"] is True


def test_conditions_that_are_not_said_are_not_made_up() -> None:
    view = ClusterView(service=service(), slices=(slice_of(endpoints=[{"addresses": ["10.2.0.1"]}]),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert one(desired, "east", "endpointslices")["endpoints"] == [{"addresses": ["10.2.0.1"], "conditions": {}}]


def test_a_headless_source_gives_a_headless_service() -> None:
    view = ClusterView(service=service(clusterIP="None", clusterIPs=["None"]), slices=(slice_of(),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert one(desired, "east", "services")["spec"] == {
        "type": "ClusterIP",
        "clusterIP": "None",
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        "ipFamilyPolicy": "SingleStack",
        "ipFamilies": ["IPv4"],
    }
    assert one(desired, "east", "endpointslices")["metadata"]["labels"]["service.kubernetes.io/headless"] == ""


@pytest.mark.parametrize(("declared", "headless"), [("ClusterSetIP", False), ("Headless", True)])
def test_a_declared_type_is_taken_whatever_the_source_is(declared: str, headless: bool) -> None:
    view = ClusterView(service=service(clusterIP="10.96.0.7" if headless else "None"), slices=(slice_of(),))
    exports = from_file(entry(type=model.ExportType(declared)))
    desired = work_out({"west": view, "east": EAST}, exports)
    assert ("clusterIP" in one(desired, "east", "services")["spec"]) == headless
    assert desired.problems == ()


def test_dual_stack_sources_give_slices_of_both_families_and_a_service_that_prefers_both() -> None:
    six = slice_of("serve-six", [endpoint("2001:DB8::0:1")], family="IPv6")
    view = ClusterView(service=service(ipFamilies=["IPv6", "IPv4"]), slices=(slice_of(), six))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert names(desired, "east", "endpointslices") == ["imported-west-serve-abc", "imported-west-serve-six"]
    imported = desired.objects[slice_object("east", "demo", "imported-west-serve-six")]
    assert imported["addressType"] == "IPv6"
    assert imported["endpoints"][0]["addresses"] == ["2001:db8::1"]
    spec = one(desired, "east", "services")["spec"]
    assert spec["ipFamilyPolicy"] == "PreferDualStack"
    assert "ipFamilies" not in spec


def test_many_and_named_ports_of_several_protocols() -> None:
    ports = [port(80, "http"), port(443, "https", appProtocol="https"), port(53, "dns", "UDP")]
    pods = [port(53, "dns", "UDP"), port(8443, "https"), port(8080, "http", appProtocol="kubernetes.io/h2c")]
    view = ClusterView(service=service(ports), slices=(slice_of(ports=pods),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert one(desired, "east", "services")["spec"]["ports"] == [
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "https", "port": 443, "protocol": "TCP", "appProtocol": "https"},
        {"name": "dns", "port": 53, "protocol": "UDP"},
    ]
    assert one(desired, "east", "endpointslices")["ports"] == [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "http", "port": 8080, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"},
        {"name": "https", "port": 8443, "protocol": "TCP"},
    ]


def test_declared_ports_name_ports_of_slices_by_number_by_name_and_by_the_sources_service() -> None:
    declared = (
        model.ServicePort(name="number", port=1, target_port=9000),
        model.ServicePort(name="name", port=2, target_port="metrics"),
        model.ServicePort(name="http", port=3),
        model.ServicePort(name="other", port=443),
        model.ServicePort(name="nothing", port=5),
    )
    ports = [port(80, "http"), port(443, "https"), port(90, "metrics")]
    pods = [port(8080, "http"), port(8443, "https", appProtocol="https"), port(9090, "metrics")]
    view = ClusterView(service=service(ports), slices=(slice_of(ports=pods),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry(ports=declared)))
    assert [each["port"] for each in one(desired, "east", "services")["spec"]["ports"]] == [1, 2, 3, 443, 5]
    assert one(desired, "east", "endpointslices")["ports"] == [
        {"name": "http", "port": 8080, "protocol": "TCP"},
        {"name": "name", "port": 9090, "protocol": "TCP"},
        {"name": "number", "port": 9000, "protocol": "TCP"},
        {"name": "other", "port": 8443, "protocol": "TCP", "appProtocol": "https"},
    ]


def test_declared_ports_make_good_a_service_that_the_source_does_not_have() -> None:
    exports = from_file(entry(ports=(model.ServicePort(name="http", port=80),)))
    desired = work_out({"west": ClusterView(slices=(slice_of(),)), "east": EAST}, exports)
    assert one(desired, "east", "services")["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP"}]
    assert one(desired, "east", "endpointslices")["ports"][0]["port"] == 8080


def test_endpoints_that_no_port_reaches_are_reported() -> None:
    exports = from_file(entry(ports=(model.ServicePort(name="grpc", port=81),)))
    (problem,) = work_out({"west": WEST, "east": EAST}, exports).problems
    assert (problem.kind, problem.cluster) == (ProblemKind.NO_PORT, "west")


def test_several_sources_are_one_service_of_which_the_first_in_the_file_decides() -> None:
    north = ClusterView(
        service=service([port(81, "http"), port(90, "metrics")]),
        slices=(slice_of("serve-xyz", [endpoint("10.3.0.1")], [port(8081, "http"), port(9090, "metrics")]),),
    )
    exports = from_file(entry(from_clusters=("west", "north")))
    desired = work_out({"west": WEST, "north": north, "east": EAST}, exports)
    assert one(desired, "east", "services")["spec"]["ports"] == [
        {"name": "http", "port": 80, "protocol": "TCP"},
        {"name": "metrics", "port": 90, "protocol": "TCP"},
    ]
    imported = desired.objects[slice_object("east", "demo", "imported-north-serve-xyz")]
    assert [each["name"] for each in imported["ports"]] == ["metrics"]
    (problem,) = desired.problems
    assert problem.kind is ProblemKind.CONFLICT
    assert '"west"' in problem.message


def test_a_port_number_with_two_names_is_one_port() -> None:
    north = ClusterView(service=service([port(80, "web")]), slices=(slice_of("serve-xyz", ports=[port(8081, "web")]),))
    exports = from_file(entry(from_clusters=("west", "north")))
    desired = work_out({"west": WEST, "north": north, "east": EAST}, exports)
    assert one(desired, "east", "services")["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP"}]
    imported = desired.objects[slice_object("east", "demo", "imported-north-serve-xyz")]
    assert imported["ports"] == [{"name": "http", "port": 8081, "protocol": "TCP"}]


def test_ports_of_many_sources_are_bounded() -> None:
    west = ClusterView(service=service([port(1000 + number, f"a{number}") for number in range(200)]))
    north = ClusterView(service=service([port(3000 + number, f"b{number}") for number in range(200)]))
    exports = from_file(entry(from_clusters=("west", "north")))
    desired = work_out({"west": west, "north": north, "east": EAST}, exports)
    assert len(one(desired, "east", "services")["spec"]["ports"]) == MAX_PORTS


def test_a_cluster_in_from_and_to_has_its_own_endpoints_behind_the_derived_service_too() -> None:
    exports = from_file(entry(from_clusters=("east", "west"), to=("east", "west")))
    own = endpoint("10.1.0.1", nodeName="node-1")
    east = ClusterView(service=service(), slices=(slice_of("serve-east", [own]),))
    desired = work_out({"west": WEST, "east": east}, exports)
    both = ["imported-east-serve-east", "imported-west-serve-abc"]
    assert names(desired, "east", "endpointslices") == both
    assert names(desired, "west", "endpointslices") == both
    nodes = {
        cluster: desired.objects[slice_object(cluster, "demo", both[0])]["endpoints"][0].get("nodeName")
        for cluster in ("east", "west")
    }
    assert nodes == {"east": "node-1", "west": None}


@pytest.mark.parametrize(
    "labels",
    [
        {"endpointslice.kubernetes.io/managed-by": "mcproxy.io"},
        {"endpointslice.kubernetes.io/managed-by": "endpointslice-dispatch-controller.karmada.io"},
        {"endpointslice.kubernetes.io/managed-by": "lighthouse-agent.submariner.io"},
        {"endpointslice.kubernetes.io/managed-by": "endpointslice-mesh-controller.cilium.io"},
        {"multicluster.kubernetes.io/source-cluster": "x"},
        {"multicluster.kubernetes.io/service-name": "serve"},
    ],
)
def test_imported_slices_are_never_exported_again(labels: dict[str, str]) -> None:
    view = ClusterView(service=service(), slices=(slice_of(labels=labels),))
    assert names(work_out({"west": view, "east": EAST}, from_file(entry())), "east", "endpointslices") == []


def test_slices_that_somebody_manages_by_hand_are_exported() -> None:
    view = ClusterView(
        service=service(), slices=(slice_of(labels={"endpointslice.kubernetes.io/managed-by": "staff"}),)
    )
    assert names(work_out({"west": view, "east": EAST}, from_file(entry())), "east", "endpointslices")


def test_a_service_that_is_itself_imported_is_not_exported() -> None:
    view = ClusterView(service=service(labels={"app.kubernetes.io/managed-by": "mcproxy.io"}), slices=(slice_of(),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert desired.objects == {}
    assert [each.kind for each in desired.problems] == [ProblemKind.IMPORTED_SERVICE]


def test_a_service_of_type_external_name_is_not_exported() -> None:
    view = ClusterView(service=service(type="ExternalName", externalName="x.example"))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert desired.objects == {}
    assert [each.kind for each in desired.problems] == [ProblemKind.INVALID_SERVICE_TYPE]


def test_a_service_that_goes_away_takes_its_imports_with_it() -> None:
    exports = from_file(entry())
    before = work_out({"west": WEST, "east": EAST}, exports)
    after = work_out({"west": ClusterView(), "east": ClusterView(derived=applied(before, "east"))}, exports)
    assert (after.objects, after.kept) == ({}, frozenset())
    assert [each.kind for each in after.problems] == [ProblemKind.NO_SERVICE]


@pytest.mark.parametrize("views", [{}, {"west": ClusterView(known=False)}])
def test_imports_from_a_cluster_that_is_not_known_are_kept(views: dict[str, ClusterView]) -> None:
    exports = from_file(entry())
    before = work_out({"west": WEST, "east": EAST}, exports)
    after = work_out({**views, "east": ClusterView(derived=applied(before, "east"))}, exports)
    assert after.objects == {}
    assert after.kept == before.objects.keys()


def test_while_one_source_is_not_known_the_service_loses_nothing_and_may_gain() -> None:
    exports = from_file(entry(from_clusters=("north", "west")))
    north = ClusterView(service=service([port(90, "metrics")], sessionAffinity="ClientIP"), slices=())
    before = work_out({"north": north, "west": WEST, "east": EAST}, exports)
    east = ClusterView(derived=applied(before, "east"))
    place = service_object("east", "demo", "derived-serve")
    after = work_out({"west": WEST, "east": east}, exports)
    assert after.kept == {place}
    west = ClusterView(service=service([port(80, "http"), port(81, "more")]), slices=(slice_of(),))
    gained = work_out({"west": west, "east": east}, exports)
    assert [each["name"] for each in gained.objects[place]["spec"]["ports"]] == ["metrics", "http", "more"]
    assert gained.objects[place]["spec"]["sessionAffinity"] == "ClientIP"


def test_nothing_is_said_of_an_importing_cluster_that_is_not_known() -> None:
    assert work_out({"west": WEST}, from_file(entry())).objects == {}


def test_a_foreign_service_of_the_name_is_left_alone_and_gets_no_endpoints() -> None:
    foreign = {service_object("east", "demo", "derived-serve"): service(name="derived-serve")}
    desired = work_out({"west": WEST, "east": ClusterView(derived=foreign)}, from_file(entry()))
    assert desired.objects == {}
    (problem,) = desired.problems
    assert (problem.kind, problem.cluster) == (ProblemKind.FOREIGN_OBJECT, "east")
    assert "derived-serve" in problem.message


def test_an_unreadable_service_of_the_name_is_foreign() -> None:
    foreign = {service_object("east", "demo", "derived-serve"): b"[]"}
    desired = work_out({"west": WEST, "east": ClusterView(derived=foreign)}, from_file(entry()))
    assert desired.objects == {}


def test_a_namespace_that_does_not_exist_is_no_obstacle_where_it_is_created() -> None:
    views = {"west": WEST, "east": ClusterView(namespace_exists=False)}
    desired = work_out(views, from_file(entry(create_namespaces=True)))
    assert names(desired, "east", "services") == ["derived-serve"]
    assert desired.problems == ()


def test_a_namespace_that_does_not_exist_is_reported() -> None:
    desired = work_out({"west": WEST, "east": ClusterView(namespace_exists=False)}, from_file(entry()))
    assert desired.objects == {}
    assert [each.kind for each in desired.problems] == [ProblemKind.NO_NAMESPACE]


def test_of_two_entries_for_one_service_and_cluster_the_first_one_in_the_file_counts() -> None:
    north = ClusterView(service=service(), slices=(slice_of("serve-north"),))
    views = {"west": WEST, "north": north, "east": EAST}
    first, second = entry("z"), entry("a", from_clusters=("north",), to=("east", "west"))
    desired = work_out(views, from_file(first, second))
    assert names(desired, "east", "endpointslices") == ["imported-west-serve-abc"]
    assert names(desired, "west", "endpointslices") == ["imported-north-serve-north"]
    (problem,) = desired.problems
    assert (problem.kind, problem.export, problem.cluster) == (ProblemKind.EXPORTED_TWICE, "a", "east")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "239.1.1.1",
        "255.255.255.255",
        "010.2.0.1",
        "10.2.0.1/32",
        "2001:db8::1",
        "localhost",
        "",
        "10.2.0.1\n",
        "\u0661\u0660.2.0.1",
    ],
)
def test_addresses_that_are_never_exported(address: str) -> None:
    view = ClusterView(service=service(), slices=(slice_of(endpoints=[endpoint("10.2.0.9"), endpoint(address)]),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    (found,) = one(desired, "east", "endpointslices")["endpoints"]
    assert found["addresses"] == ["10.2.0.9"]
    (problem,) = desired.problems
    assert (problem.kind, problem.cluster) == (ProblemKind.ADDRESSES_REFUSED, "west")
    assert problem.message.isascii()
    assert problem.message.isprintable()


@pytest.mark.parametrize(
    "address",
    [
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "ff02::1",
        "::ffff:10.2.0.1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "10.2.0.1",
    ],
)
def test_ipv6_addresses_that_are_never_exported(address: str) -> None:
    six = slice_of(endpoints=[endpoint(address), endpoint("2001:db8::9")], family="IPv6")
    desired = work_out({"west": ClusterView(service=service(), slices=(six,)), "east": EAST}, from_file(entry()))
    (found,) = one(desired, "east", "endpointslices")["endpoints"]
    assert found["addresses"] == ["2001:db8::9"]


def test_allowed_cidrs_are_all_that_a_source_may_name() -> None:
    endpoints = [endpoint("10.2.0.1"), endpoint("10.3.0.1"), endpoint("10.2.255.255")]
    view = ClusterView(service=service(), slices=(slice_of(endpoints=endpoints),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry(allowed_cidrs=["10.2.0.0/16"])))
    found = one(desired, "east", "endpointslices")["endpoints"]
    assert [each["addresses"] for each in found] == [["10.2.0.1"], ["10.2.255.255"]]


@pytest.mark.parametrize("family", ["FQDN", "", "ipv4", "IPv5"])
def test_slices_of_names_are_not_exported(family: str) -> None:
    view = ClusterView(service=service(), slices=(slice_of(endpoints=[endpoint("evil.example")], family=family),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert names(desired, "east", "endpointslices") == []
    assert [each.kind for each in desired.problems] == [ProblemKind.ADDRESS_TYPE]


def test_no_label_annotation_or_namespace_of_a_source_reaches_an_importing_cluster() -> None:
    hostile = json.loads(slice_of())
    hostile["metadata"] |= {
        "namespace": "kube-system",
        "labels": {
            "kubernetes.io/service-name": "kubernetes",
            "mcproxy.io/source-cluster": "north",
            "mcproxy.io/service-name": "other",
            "x": "y",
        },
        "annotations": {"a": "b"},
        "ownerReferences": [{"kind": "Node", "name": "n", "uid": "u"}],
        "finalizers": ["x/y"],
    }
    view = ClusterView(service=service(labels={"x": "y"}, externalIPs=["8.8.8.8"]), slices=(encoded(hostile),))
    harmless = work_out({"west": WEST, "east": EAST}, from_file(entry()))
    assert work_out({"west": view, "east": EAST}, from_file(entry())) == harmless


@pytest.mark.parametrize("name", ["", "../x", "A", "a" * 254, "a\nb", "-a", "a_b"])
def test_slices_without_a_valid_name_are_not_exported(name: str) -> None:
    view = ClusterView(service=service(), slices=(slice_of(name), slice_of()))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert names(desired, "east", "endpointslices") == ["imported-west-serve-abc"]
    assert [each.kind for each in desired.problems] == [ProblemKind.UNREADABLE]


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b'{"endpoints":{}}', b'{"metadata":{"labels":{"a":1}}}', b"[" * 9999]
)
def test_unreadable_objects_are_reported_and_the_others_exported(data: bytes) -> None:
    view = ClusterView(service=service(), slices=(data, slice_of()))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    assert names(desired, "east", "endpointslices") == ["imported-west-serve-abc"]
    assert [each.kind for each in desired.problems] == [ProblemKind.UNREADABLE]


def test_an_unreadable_service_is_not_exported() -> None:
    desired = work_out({"west": ClusterView(service=b"[]", slices=(slice_of(),)), "east": EAST}, from_file(entry()))
    assert desired.objects == {}
    assert [each.kind for each in desired.problems] == [ProblemKind.UNREADABLE]


def test_slices_beyond_the_bound_are_left_out_and_reported_once() -> None:
    many = tuple(slice_of(f"serve-{number:04}") for number in range(100 + 7))
    desired = work_out({"west": ClusterView(service=service(), slices=many[::-1]), "east": EAST}, from_file(entry()))
    found = names(desired, "east", "endpointslices")
    assert len(found) == 100
    assert found[-1] == "imported-west-serve-0099"
    (problem,) = desired.problems
    assert problem.kind is ProblemKind.TOO_MANY
    assert "(and 6 more)" in problem.message


def test_addresses_beyond_the_bound_are_left_out_slice_by_slice() -> None:
    def full(number: int) -> bytes:
        addresses = (f"10.{number}.{each // 250}.{each % 250 + 1}" for each in range(1000))
        return slice_of(f"serve-{number:03}", [{"addresses": [address]} for address in addresses])

    many = tuple(full(number) for number in range(12))
    desired = work_out({"west": ClusterView(service=service(), slices=many), "east": EAST}, from_file(entry()))
    slices = [each for key, each in desired.objects.items() if key.resource == "endpointslices"]
    assert sum(len(each["endpoints"]) for each in slices) == 10_000
    assert [each.kind for each in desired.problems] == [ProblemKind.TOO_MANY]


def test_the_bounds_are_keys_of_the_export() -> None:
    many = tuple(
        slice_of(f"serve-{number}", [endpoint(f"10.{number}.0.{each}") for each in range(1, 4)]) for number in range(4)
    )
    views = {"west": ClusterView(service=service(), slices=many), "east": EAST}
    for export, expected in ((entry(max_slices=3), 3), (entry(max_endpoints=8), 2), (entry(max_endpoints=12), 4)):
        desired = work_out(views, from_file(export))
        assert len(names(desired, "east", "endpointslices")) == expected
        assert bool(desired.problems) == (expected < 4)


def test_what_is_beyond_the_bounds_is_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it has: 300 slices of addresses that nobody may have would take 10 seconds."""
    read: list[bytes] = []

    def counted(name: str, data: bytes) -> ExportedSlice:
        read.append(data)
        return read_slice(name, data)

    monkeypatch.setattr(exported_slices, "read_slice", counted)
    refused = tuple(
        slice_of(f"a-{number:03}", [endpoint(f"127.0.0.{each}") for each in range(1, 10)]) for number in range(300)
    )
    desired = work_out(
        {"west": ClusterView(service=service(), slices=refused), "east": EAST}, from_file(entry(max_endpoints=10))
    )
    assert [each.kind for each in desired.problems] == [ProblemKind.ADDRESSES_REFUSED, ProblemKind.TOO_MANY]
    assert len(read) == 3


def test_a_slice_of_a_thousand_endpoints_is_ten_of_a_hundred() -> None:
    endpoints = [endpoint(f"10.2.{number // 250}.{number % 250 + 1}") for number in range(1200)]
    view = ClusterView(service=service(), slices=(slice_of(endpoints=endpoints),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry()))
    found = names(desired, "east", "endpointslices")
    assert len(found) == 10
    assert found[0] == "imported-west-serve-abc"
    slices = [desired.objects[slice_object("east", "demo", name)] for name in found]
    assert [len(each["endpoints"]) for each in slices] == [100] * 10
    assert len({address for each in slices for found in each["endpoints"] for address in found["addresses"]}) == 1000
    assert {key.name for key in desired.owners} == set(found)


def test_a_part_of_a_slice_takes_no_other_slices_name() -> None:
    endpoints = [endpoint(f"10.2.0.{number}") for number in range(1, 151)]
    first = ClusterView(service=service(), slices=(slice_of("s", endpoints),))
    (second,) = set(names(work_out({"west": first, "east": EAST}, from_file(entry())), "east", "endpointslices")) - {
        "imported-west-s"
    }
    forged = slice_of(second.removeprefix("imported-west-"))
    both = ClusterView(service=service(), slices=(slice_of("s", endpoints), forged))
    assert len(names(work_out({"west": both, "east": EAST}, from_file(entry())), "east", "endpointslices")) == 3


def test_of_two_endpoints_with_one_address_always_the_same_one_is_taken() -> None:
    two = [endpoint("10.2.0.1", zone="a"), endpoint("10.2.0.1", zone="b")]
    found = [
        work_out(
            {"west": ClusterView(service=service(), slices=(slice_of(endpoints=each),)), "east": EAST},
            from_file(entry()),
        )
        for each in (two, two[::-1])
    ]
    assert found[0] == found[1]
    assert len(one(found[0], "east", "endpointslices")["endpoints"]) == 1


def test_a_service_name_that_is_too_long_for_a_derived_one_is_shortened() -> None:
    long = "s" * 63
    exports = from_file(
        model.ServiceExport(name="x", namespace="demo", service=long, from_clusters=("west",), to=("east",))
    )

    desired = desired_of(KEY._replace(service=long), {"west": WEST, "east": EAST}, exports)
    derived = one(desired, "east", "services")["metadata"]["name"]
    assert len(derived) <= 63
    assert derived.startswith("derived-sss")
    assert one(desired, "east", "endpointslices")["metadata"]["labels"]["kubernetes.io/service-name"] == derived


@pytest.mark.parametrize(
    ("to", "source", "imported"),
    [
        ("east", "Cluster", "Cluster"),
        ("east", "Local", "Cluster"),  # no endpoint is on a node of east: all would be dropped
        ("west", "Local", "Local"),
        ("west", "Cluster", "Cluster"),
    ],
)
def test_the_internal_traffic_policy_is_the_sources_where_endpoints_may_be_on_a_node_of_the_client(
    to: str, source: str, imported: str
) -> None:
    view = ClusterView(service=service(internalTrafficPolicy=source), slices=(slice_of(),))
    desired = work_out({"west": view, "east": EAST}, from_file(entry(to=("east", "west"))))
    assert desired.objects[service_object(to, "demo", "derived-serve")]["spec"]["internalTrafficPolicy"] == imported
    assert desired.problems == ()


@pytest.mark.parametrize(
    ("policy", "families", "wanted_policy", "wanted"),
    [
        ("SingleStack", ["IPv4"], "SingleStack", ["IPv4"]),
        ("SingleStack", ["IPv6"], "SingleStack", ["IPv6"]),
        ("RequireDualStack", ["IPv6", "IPv4"], "RequireDualStack", ["IPv6", "IPv4"]),
        ("RequireDualStack", ["IPv4", "IPv6"], "RequireDualStack", ["IPv4", "IPv6"]),
        ("PreferDualStack", ["IPv6", "IPv4"], "PreferDualStack", ["IPv6", "IPv4"]),
        # a cluster of one family gave it one; an API server gives the imported one both (golden/services, 8)
        ("PreferDualStack", ["IPv4"], "PreferDualStack", ["IPv4", "IPv6"]),
        ("PreferDualStack", ["IPv6"], "PreferDualStack", ["IPv6", "IPv4"]),
        (None, ["IPv4"], "SingleStack", ["IPv4"]),
        ("Sometimes", ["IPv4", "IPv6"], "PreferDualStack", ["IPv4", "IPv6"]),
    ],
)
def test_a_headless_service_has_the_families_and_the_policy_of_its_source(
    policy: str | None, families: list[str], wanted_policy: str, wanted: list[str]
) -> None:
    found = service(clusterIP="None", clusterIPs=["None"], ipFamilies=families, ipFamilyPolicy=policy)
    views = {"west": ClusterView(service=found, slices=(slice_of(),)), "east": EAST}
    spec = one(work_out(views, from_file(entry())), "east", "services")["spec"]
    assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == (wanted_policy, wanted)


def test_headless_services_of_one_family_each_are_one_of_both() -> None:
    def view(family: str) -> ClusterView:
        headless = service(clusterIP="None", ipFamilies=[family], ipFamilyPolicy="SingleStack")
        return ClusterView(service=headless, slices=(slice_of(),))

    views = {"west": view("IPv6"), "north": view("IPv4"), "east": EAST}
    spec = one(work_out(views, from_file(entry(from_clusters=("west", "north")))), "east", "services")["spec"]
    assert (spec["ipFamilyPolicy"], spec["ipFamilies"]) == ("PreferDualStack", ["IPv6", "IPv4"])


def test_topology_and_affinity_follow_the_source() -> None:
    view = ClusterView(
        service=service(
            trafficDistribution="PreferClose",
            sessionAffinity="ClientIP",
            sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}},
        ),
        slices=(slice_of(),),
    )
    spec = one(work_out({"west": view, "east": EAST}, from_file(entry())), "east", "services")["spec"]
    assert spec["trafficDistribution"] == "PreferClose"
    assert spec["sessionAffinity"] == "ClientIP"
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 60}}
