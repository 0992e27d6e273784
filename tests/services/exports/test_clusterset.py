"""ServiceExports and ServiceImports: what KEP-1645 and its conformance suite demand, on the level of the pure function.

The cases of sig-multicluster's suite (conformance/*.go of kubernetes-sigs/mcs-api) are written anew here; what they ask
of DNS and of packets is the clusters' own.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from mcproxy.services.exports.export_types import ClusterView, Desired, Exports, ProblemKind
from mcproxy.services.exports.object_keys import import_object, service_object, slice_object
from tests.services.exports.given import (
    CLUSTERS,
    applied,
    condition,
    discovered,
    encoded,
    endpoint,
    entry,
    export_object,
    names,
    one,
    port,
    service,
    slice_of,
    work_out,
)

SERVED = ClusterView(multicluster_version="v1beta1")
HELLO = [port(42, "tcp"), port(42, "udp", "UDP")]
PODS = [port(42, "tcp"), port(42, "udp", "UDP")]
ALL = discovered()
OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def exporting(created: str = OLD, export: dict[str, Any] | None = None, **spec: Any) -> ClusterView:
    ports = spec.pop("ports", HELLO)
    return replace(
        SERVED,
        service=service(ports, **spec),
        slices=(slice_of(ports=spec.pop("pods", PODS)),),
        export=export_object(created, **(export or {})),
    )


def settled(views: dict[str, ClusterView]) -> Desired:
    """Apply what is wanted until nothing changes any more, as the writer does."""
    desired = work_out(views, ALL)
    for _ in range(4):
        views = {
            name: replace(view, derived=applied(desired, name)) if view.known else view for name, view in views.items()
        }
        after = work_out(views, ALL)
        if after == desired:
            return desired
        desired = after
    raise AssertionError("the desired state does not settle")


def spec_of(desired: Desired, cluster: str = "east") -> dict[str, Any]:
    return dict(one(desired, cluster, "serviceimports")["spec"])


def everywhere(**exporters: ClusterView) -> dict[str, ClusterView]:
    return {"east": SERVED, "west": SERVED, "north": SERVED, **exporters}


# -- conformance/service_import.go ------------------------------------------------------------------------------------


def test_an_exported_service_has_an_import_of_type_cluster_set_ip_in_each_cluster() -> None:
    desired = settled(everywhere(west=exporting()))
    for cluster in ("east", "west", "north"):
        assert spec_of(desired, cluster)["type"] == "ClusterSetIP"
        assert one(desired, cluster, "serviceimports")["metadata"]["name"] == "serve"
    assert condition(desired, "west", "Valid") == {
        "type": "Valid",
        "status": "True",
        "reason": "Valid",
        "message": "The Service can be exported.",
    }
    assert condition(desired, "west", "Conflict") == {
        "type": "Conflict",
        "status": "False",
        "reason": "NoConflicts",
        "message": "The exported Services agree.",
    }
    assert (condition(desired, "west", "Ready") or {})["status"] == "True"


def test_an_import_exists_only_as_long_as_a_cluster_exports() -> None:
    both = settled(everywhere(west=exporting(), north=exporting(NEW)))
    one_left = work_out(
        {**everywhere(north=exporting(NEW)), "east": replace(SERVED, derived=applied(both, "east"))}, ALL
    )
    assert names(one_left, "east", "serviceimports") == ["serve"]
    none_left = work_out({**everywhere(), "east": replace(SERVED, derived=applied(both, "east"))}, ALL)
    assert (none_left.objects, none_left.kept, none_left.statuses) == ({}, frozenset(), {})


def test_only_exported_labels_and_annotations_are_on_the_import() -> None:
    export = {"exportedLabels": {"dummy-label": "true"}, "exportedAnnotations": {"dummy-annotation": "true"}}
    desired = settled(everywhere(west=exporting(export=export, labels={"dummy-svc": "dummy"})))
    metadata = one(desired, "east", "serviceimports")["metadata"]
    assert metadata["labels"] == {
        "dummy-label": "true",
        "app.kubernetes.io/managed-by": "mcproxy.io",
        "mcproxy.io/service-name": "serve",
    }
    assert metadata["annotations"] == {
        "dummy-annotation": "true",
        "multicluster.kubernetes.io/derived-service": "clusterset-serve",
    }


def test_of_conflicting_labels_and_annotations_the_oldest_exports_are_taken() -> None:
    first = {"exportedLabels": {"a": "1"}, "exportedAnnotations": {"b": "1"}}
    second = {"exportedLabels": {"a": "2"}, "exportedAnnotations": {"b": "2"}}
    desired = settled(everywhere(west=exporting(OLD, first), north=exporting(NEW, second)))
    metadata = one(desired, "east", "serviceimports")["metadata"]
    assert metadata["labels"]["a"] == "1"
    assert metadata["annotations"]["b"] == "1"
    for cluster in ("west", "north"):
        found = condition(desired, cluster, "Conflict")
        assert found is not None
        assert (found["status"], found["reason"]) == ("True", "AnnotationsConflict,LabelsConflict")


def test_session_affinity_policy_and_distribution_are_those_of_the_service() -> None:
    affinity: dict[str, Any] = {
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}},
    }
    desired = settled(
        everywhere(west=exporting(**affinity, internalTrafficPolicy="Cluster", trafficDistribution="PreferClose"))
    )
    for found in (spec_of(desired), one(desired, "east", "services")["spec"]):
        assert found["sessionAffinity"] == "ClientIP"
        assert found["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10}}
        assert found["internalTrafficPolicy"] == "Cluster"
        assert found["trafficDistribution"] == "PreferClose"


@pytest.mark.parametrize("ips", [["10.97.0.9"], ["10.97.0.9", "fd00::9"], ["fd00::9", "10.97.0.9"]])
def test_an_import_has_an_address_for_each_family_in_their_order(ips: list[str]) -> None:
    views = everywhere(west=exporting(ipFamilies=["IPv4", "IPv6"]))
    first = work_out(views, ALL)
    assert "ips" not in spec_of(first)
    second = work_out({**views, "east": replace(SERVED, derived=applied(first, "east", ips))}, ALL)
    found = spec_of(second)
    assert found["ips"] == ips
    assert found["ipFamilies"] == ["IPv6" if ":" in ip else "IPv4" for ip in ips]


def test_an_import_is_ready_when_its_service_has_an_address() -> None:
    views = everywhere(west=exporting())
    first = work_out(views, ALL)
    place = import_object("east", "v1beta1", "demo", "serve")
    assert first.statuses[place]["conditions"][0]["reason"] == "Pending"
    assert settled(views).statuses[place] == {
        "clusters": [{"cluster": "west"}],
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "Ready",
                "message": 'The service is reached through Service "clusterset-serve".',
            }
        ],
    }


def test_the_ports_of_an_import_are_those_of_the_service() -> None:
    desired = settled(everywhere(west=exporting(ports=[port(42, "tcp", appProtocol="http"), port(42, "udp", "UDP")])))
    assert spec_of(desired)["ports"] == [
        {"name": "tcp", "port": 42, "protocol": "TCP", "appProtocol": "http"},
        {"name": "udp", "port": 42, "protocol": "UDP"},
    ]


def test_different_ports_are_united_and_a_conflict_of_all() -> None:
    second = exporting(NEW, ports=[HELLO[0], port(142, "stcp", "SCTP")])
    desired = settled(everywhere(west=exporting(), north=second))
    assert [each["name"] for each in spec_of(desired)["ports"]] == ["tcp", "udp", "stcp"]
    for cluster in ("west", "north"):
        found = condition(desired, cluster, "Conflict")
        assert found is not None
        assert (found["status"], found["reason"]) == ("True", "PortConflict")
        assert '"west"' in found["message"]
        assert "1/2 clusters disagree" in found["message"]


def test_of_conflicting_ports_the_oldest_exports_are_taken() -> None:
    desired = settled(everywhere(west=exporting(), north=exporting(NEW, ports=[port(43, "tcp")])))
    assert spec_of(desired)["ports"] == [
        {"name": "tcp", "port": 42, "protocol": "TCP"},
        {"name": "udp", "port": 42, "protocol": "UDP"},
    ]


def test_a_headless_service_has_an_import_of_type_headless_without_address() -> None:
    desired = settled(everywhere(west=exporting(clusterIP="None", clusterIPs=["None"])))
    for cluster in ("east", "west"):
        found = spec_of(desired, cluster)
        assert found["type"] == "Headless"
        assert "ips" not in found
        assert found["ipFamilies"] == ["IPv4"]
        assert one(desired, cluster, "services")["spec"]["clusterIP"] == "None"


def test_only_a_headless_service_needs_no_ports() -> None:
    headless = settled(everywhere(west=exporting(clusterIP="None", clusterIPs=["None"], ports=[], pods=[])))
    assert spec_of(headless)["type"] == "Headless"
    assert not spec_of(headless).get("ports")
    desired = settled(everywhere(west=exporting(ports=[], pods=[])))
    assert not [place for place in desired.objects if place.cluster == "east"]


def test_a_service_of_type_external_name_is_not_valid() -> None:
    desired = settled(everywhere(west=exporting(type="ExternalName")))
    assert desired.objects == {}
    found = condition(desired, "west", "Valid")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "InvalidServiceType")
    assert condition(desired, "west", "Conflict") is None


def test_conflicting_types_are_that_of_the_oldest() -> None:
    desired = settled(everywhere(west=exporting(), north=exporting(NEW, clusterIP="None")))
    for cluster in ("east", "west", "north"):
        assert spec_of(desired, cluster)["type"] == "ClusterSetIP"
    for cluster in ("west", "north"):
        found = condition(desired, cluster, "Conflict")
        assert found is not None
        assert found["reason"] == "TypeConflict"
        assert found["message"] == (
            'Conflicting type. Using "ClusterSetIP" from oldest service export in "west". 1/2 clusters disagree.'
        )


# -- conformance/endpoint_slice.go, headless_service_dns.go ------------------------------------------------------------


def test_slices_have_the_labels_of_the_api_and_another_manager_than_kubernetes() -> None:
    desired = settled(everywhere(west=exporting()))
    for cluster in ("east", "west", "north"):
        found = one(desired, cluster, "endpointslices")
        assert found["metadata"]["labels"] == {
            "kubernetes.io/service-name": "clusterset-serve",
            "endpointslice.kubernetes.io/managed-by": "mcproxy.io",
            "mcproxy.io/source-cluster": "west",
            "mcproxy.io/service-name": "serve",
            "multicluster.kubernetes.io/service-name": "serve",
            "multicluster.kubernetes.io/source-cluster": "west",
        }


def test_hostnames_of_pods_of_a_stateful_set_are_kept() -> None:
    pods = [endpoint(f"10.2.0.{number}", hostname=f"hello-ss-{number}") for number in (1, 2)]
    view = replace(exporting(clusterIP="None"), slices=(slice_of(endpoints=pods, ports=PODS),))
    found = one(settled(everywhere(west=view)), "east", "endpointslices")
    assert [each["hostname"] for each in found["endpoints"]] == ["hello-ss-1", "hello-ss-2"]


# -- conformance/connectivity.go ---------------------------------------------------------------------------------------


def test_a_service_that_is_not_exported_is_nowhere() -> None:
    assert settled(everywhere(west=replace(exporting(), export=None))).objects == {}


def test_a_service_in_two_clusters_has_the_endpoints_of_the_one_that_exports() -> None:
    other = replace(exporting(), export=None, slices=(slice_of("other"),))
    assert names(settled(everywhere(west=exporting(), north=other)), "east", "endpointslices") == [
        "clusterset-west-serve-abc"
    ]


def test_a_conflicting_port_leads_only_to_clusters_that_expose_it() -> None:
    second = replace(
        exporting(NEW, ports=[port(4242, "tcp"), port(5, "more")]),
        slices=(slice_of("two", ports=[port(42, "tcp"), port(55, "more")]),),
    )
    desired = settled(everywhere(west=exporting(), north=second))
    imported = desired.objects[slice_object("east", "demo", "clusterset-north-two")]
    assert imported["ports"] == [{"name": "more", "port": 55, "protocol": "TCP"}]


def test_each_of_different_ports_leads_to_the_cluster_that_exposes_it() -> None:
    first = replace(exporting(ports=[port(42, "tcp")]), slices=(slice_of("one", ports=[port(42, "tcp")]),))
    second = replace(exporting(NEW, ports=[port(4242, "tcp2")]), slices=(slice_of("two", ports=[port(42, "tcp2")]),))
    desired = settled(everywhere(west=first, north=second))
    by_name = {key.name: obj for key, obj in desired.objects.items() if key.cluster == "east"}
    assert [each["name"] for each in by_name["clusterset-west-one"]["ports"]] == ["tcp"]
    assert [each["name"] for each in by_name["clusterset-north-two"]["ports"]] == ["tcp2"]
    assert [each["port"] for each in spec_of(desired)["ports"]] == [42, 4242]


# -- what the suite does not ask, and the KEP says ---------------------------------------------------------------------


def test_without_the_service_an_export_is_not_valid() -> None:
    desired = settled(everywhere(west=replace(SERVED, export=export_object())))
    found = condition(desired, "west", "Valid")
    assert found is not None
    assert (found["status"], found["reason"]) == ("False", "NoService")
    assert desired.objects == {}


def test_an_import_is_only_where_the_namespace_exists_and_the_api_is_served() -> None:
    views = everywhere(west=exporting(), north=ClusterView())
    views["east"] = replace(SERVED, namespace_exists=False)
    desired = work_out(views, ALL)
    assert {key.cluster for key in desired.objects} == {"west"}
    assert desired.problems == ()


def test_nothing_is_imported_by_clusters_outside_the_set() -> None:
    views = everywhere(west=exporting(), north=exporting(NEW))
    desired = work_out(views, discovered("east", "west"))
    assert {key.cluster for key in desired.objects} == {"east", "west"}
    assert names(desired, "east", "endpointslices") == ["clusterset-west-serve-abc"]
    assert condition(desired, "north", "Valid") is None


def test_discovery_that_is_off_does_nothing() -> None:
    exports = discovered()
    exports.discovery = replace(exports.discovery, enabled=False)
    assert work_out(everywhere(west=exporting()), exports).objects == {}


def test_of_exports_of_one_time_the_first_cluster_by_name_decides_and_one_without_time_is_the_newest() -> None:
    same = settled(everywhere(west=exporting(clusterIP="None"), north=exporting()))
    assert spec_of(same)["type"] == "ClusterSetIP"
    without = settled(everywhere(west=exporting(), north=exporting("yesterday", clusterIP="None")))
    assert spec_of(without)["type"] == "ClusterSetIP"


def test_clusters_of_an_import_are_all_that_export() -> None:
    desired = settled(everywhere(west=exporting(), north=exporting(NEW)))
    status = desired.statuses[import_object("east", "v1beta1", "demo", "serve")]
    assert status["clusters"] == [{"cluster": "north"}, {"cluster": "west"}]


def test_different_families_are_united_and_a_conflict() -> None:
    six = replace(
        exporting(NEW, ipFamilies=["IPv6"]),
        slices=(slice_of("six", [endpoint("2001:db8::1")], PODS, "IPv6"),),
    )
    desired = work_out(everywhere(west=exporting(), north=six), ALL)
    assert one(desired, "east", "services")["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    found = condition(desired, "west", "Conflict")
    assert found is not None
    assert found["reason"] == "IPFamilyConflict"


def test_a_source_that_does_not_say_its_families_conflicts_with_nobody() -> None:
    desired = work_out(everywhere(west=exporting(), north=exporting(NEW, ipFamilies=[])), ALL)
    found = condition(desired, "north", "Conflict")
    assert found is not None
    assert found["status"] == "False"


def test_all_conflicts_are_named() -> None:
    second = exporting(
        NEW,
        sessionAffinity="ClientIP",
        sessionAffinityConfig={"clientIP": {"timeoutSeconds": 5}},
        internalTrafficPolicy="Local",
        trafficDistribution="PreferClose",
    )
    found = condition(settled(everywhere(west=exporting(), north=second)), "north", "Conflict")
    assert found is not None
    assert found["reason"] == (
        "SessionAffinityConflict,SessionAffinityConfigConflict,InternalTrafficPolicyConflict,TrafficDistributionConflict"
    )


def test_a_service_with_several_ports_has_no_port_without_name() -> None:
    first = exporting(ports=[port(80)])
    desired = settled(everywhere(west=first, north=exporting(NEW)))
    assert spec_of(desired)["ports"] == [{"port": 80, "protocol": "TCP"}]
    desired = settled(everywhere(west=exporting(), north=exporting(NEW, ports=[port(80)])))
    assert [each["name"] for each in spec_of(desired)["ports"]] == ["tcp", "udp"]


def test_nodes_are_named_in_their_own_cluster_alone() -> None:
    slices = (slice_of(endpoints=[endpoint("10.2.0.1", nodeName="node-1")], ports=PODS),)
    desired = settled(everywhere(west=replace(exporting(internalTrafficPolicy="Local"), slices=slices)))
    assert one(desired, "west", "endpointslices")["endpoints"][0]["nodeName"] == "node-1"
    assert "nodeName" not in one(desired, "east", "endpointslices")["endpoints"][0]


def test_v1alpha1_gets_only_what_all_its_revisions_have() -> None:
    old = replace(SERVED, multicluster_version="v1alpha1")
    desired = settled(
        everywhere(west=exporting(internalTrafficPolicy="Local", trafficDistribution="PreferClose"), east=old)
    )
    found = one(desired, "east", "serviceimports")
    assert found["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"
    assert found["spec"].keys() == {"type", "ports", "sessionAffinity", "ips"}
    assert desired.statuses[import_object("east", "v1alpha1", "demo", "serve")] == {"clusters": [{"cluster": "west"}]}


def test_a_foreign_import_or_service_is_left_alone() -> None:
    place = import_object("east", "v1beta1", "demo", "serve")
    foreign = encoded({"metadata": {"name": "serve"}, "spec": {"type": "ClusterSetIP", "ports": []}})
    for where, obj in ((place, foreign), (service_object("east", "demo", "clusterset-serve"), service())):
        views = everywhere(west=exporting(), east=replace(SERVED, derived={where: obj}))
        desired = work_out(views, ALL)
        assert {key.cluster for key in desired.objects} == {"west", "north"}
        (problem,) = desired.problems
        assert (problem.kind, problem.cluster) == (ProblemKind.FOREIGN_OBJECT, "east")
        assert work_out(everywhere(east=views["east"]), ALL).problems == ()


def test_a_cluster_has_its_id_in_labels_and_in_the_status_of_imports() -> None:
    views = everywhere(west=replace(exporting(), cluster_id="site-7"))
    desired = settled(views)
    labels = one(desired, "east", "endpointslices")["metadata"]["labels"]
    assert labels["multicluster.kubernetes.io/source-cluster"] == "site-7"
    assert labels["mcproxy.io/source-cluster"] == "west"
    status = desired.statuses[import_object("east", "v1beta1", "demo", "serve")]
    assert status["clusters"] == [{"cluster": "site-7"}]
    # While the cluster is not known, nor its id: what it has given stays.
    before = {name: replace(SERVED, derived=applied(desired, name)) for name in ("east", "north")}
    after = work_out({**before, "west": ClusterView(known=False)}, ALL)
    assert after.objects == {}
    assert slice_object("east", "demo", "clusterset-west-serve-abc") in after.kept
    north = replace(exporting(NEW, ports=[port(44, "new")]), derived=before["north"].derived)
    views = {**before, "west": ClusterView(known=False), "north": north}
    gained = work_out(views, ALL).statuses[import_object("east", "v1beta1", "demo", "serve")]
    assert gained["clusters"] == [{"cluster": "north"}, {"cluster": "site-7"}]


def test_an_import_of_which_the_cluster_has_no_family_says_so_until_its_service_is_there() -> None:
    six = exporting(ipFamilies=["IPv6"])
    views = everywhere(west=six, east=replace(SERVED, families_refused=True))
    place = import_object("east", "v1beta1", "demo", "serve")
    desired = work_out(views, ALL)
    (refused,) = desired.statuses[place]["conditions"]
    assert refused == {
        "type": "Ready",
        "status": "False",
        "reason": "IPFamilyNotSupported",
        "message": "The cluster supports none of the IP families of the service: IPv6.",
    }
    assert service_object("east", "demo", "clusterset-serve") in desired.objects  # it is tried again from time to time
    assert desired.statuses[place._replace(cluster="north")]["conditions"][0]["reason"] == "Pending"
    # After a restart nobody has asked the cluster yet, and its status stays what it is.
    derived = applied(desired, "east")
    del derived[service_object("east", "demo", "clusterset-serve")]
    after = work_out(everywhere(west=six, east=replace(SERVED, derived=derived)), ALL)
    assert after.statuses[place]["conditions"] == [refused]
    # Another family is another question.
    four = work_out(everywhere(west=exporting(), east=replace(SERVED, derived=derived)), ALL)
    assert four.statuses[place]["conditions"][0]["reason"] == "Pending"
    # The cluster has got the family.
    ready = work_out(everywhere(west=six, east=replace(SERVED, derived=applied(desired, "east", ["fd00::9"]))), ALL)
    assert ready.statuses[place]["conditions"][0]["reason"] == "Ready"


def test_a_headless_import_needs_no_family_of_the_cluster() -> None:
    views = everywhere(
        west=exporting(clusterIP="None", ipFamilies=["IPv6"]), east=replace(SERVED, families_refused=True)
    )
    place = import_object("east", "v1beta1", "demo", "serve")
    assert work_out(views, ALL).statuses[place]["conditions"][0]["reason"] == "Ready"


def test_a_policy_of_local_is_on_the_import_and_its_service_as_the_api_has_it() -> None:
    desired = settled(everywhere(west=exporting(internalTrafficPolicy="Local")))
    assert spec_of(desired)["internalTrafficPolicy"] == "Local"
    assert one(desired, "east", "services")["spec"]["internalTrafficPolicy"] == "Local"


def test_what_was_imported_from_a_cluster_that_is_not_known_stays() -> None:
    before = settled(everywhere(west=exporting(), north=exporting(NEW, ports=[port(43, "other")])))
    derived = {name: replace(SERVED, derived=applied(before, name)) for name in ("east", "north")}
    views = {**derived, "west": ClusterView(known=False)}
    after = work_out(views, ALL)
    assert after.objects == {}
    assert after.kept == {key for key in before.objects if key.cluster != "west" and "-north-" not in key.name}
    views["north"] = replace(exporting(NEW, ports=[port(44, "new")]), derived=views["north"].derived)
    gained = work_out(views, ALL)
    assert [each["name"] for each in spec_of(gained)["ports"]] == ["tcp", "udp", "other", "new"]
    assert gained.statuses[import_object("east", "v1beta1", "demo", "serve")]["clusters"] == [
        {"cluster": "north"},
        {"cluster": "west"},
    ]
    assert condition(gained, "north", "Conflict") is None


def test_a_cluster_that_is_not_known_and_had_no_part_in_a_service_holds_nothing_up() -> None:
    before = settled({"east": SERVED, "north": exporting()})
    views = {"east": replace(SERVED, derived=applied(before, "east")), "north": SERVED}
    assert work_out(views, ALL).objects == {}
    assert work_out(views, ALL).kept == frozenset()


def test_an_imported_service_is_not_exported_again() -> None:
    view = exporting(labels={"app.kubernetes.io/managed-by": "mcproxy.io"})
    desired = settled(everywhere(west=view))
    assert desired.objects == {}
    assert (condition(desired, "west", "Valid") or {})["status"] == "False"


@pytest.mark.parametrize(
    "key",
    [
        "app.kubernetes.io/managed-by",
        "app.kubernetes.io/instance",
        "mcproxy.io/service-name",
        "mcproxy.io/source-cluster",
        "multicluster.kubernetes.io/derived-service",
        "kubernetes.io/service-name",
        "endpointslice.kubernetes.io/managed-by",
        "external-dns.alpha.kubernetes.io/hostname",
        "kubectl.kubernetes.io/last-applied-configuration",
        "x.k8s.io/y",
        "a b",
        "/a",
        "a/",
        "A.b/c",
        "x" * 64,
    ],
)
def test_labels_and_annotations_that_an_export_may_not_set(key: str) -> None:
    export = {"exportedLabels": {key: "evil", "a": "b"}, "exportedAnnotations": {key: "evil", "a": "b"}}
    metadata = one(settled(everywhere(west=exporting(export=export))), "east", "serviceimports")["metadata"]
    assert "evil" not in metadata["labels"].values()
    assert "evil" not in metadata["annotations"].values()
    assert metadata["labels"]["a"] == "b"


def test_an_export_that_is_one_too_many_says_so() -> None:
    desired = settled(everywhere(west=replace(exporting(), export_admitted=False)))
    assert desired.objects == {}
    assert (condition(desired, "west", "Valid") or {})["status"] == "True"
    assert (condition(desired, "west", "Ready") or {})["reason"] == "Failed"
    assert [each.kind for each in desired.problems] == [ProblemKind.TOO_MANY]


def test_an_export_of_which_not_all_is_imported_says_so() -> None:
    slices = tuple(slice_of(f"serve-{number:03}") for number in range(101))
    east = ClusterView(multicluster_version="v1beta1", service=service(), slices=slices, export=export_object())
    desired = work_out({"east": east}, discovered("east"))
    ready = condition(desired, "east", "Ready")
    assert ready is not None
    assert (ready["status"], ready["reason"]) == ("True", "Ready")
    assert "serve-100 exceeds the limit" in ready["message"]


def test_recommended_labels_may_be_exported_and_invalid_values_may_not() -> None:
    export = {"exportedLabels": {"app.kubernetes.io/name": "serve", "x": "not a value", "y": "z" * 64}}
    labels = one(settled(everywhere(west=exporting(export=export))), "east", "serviceimports")["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "serve"
    assert not labels.keys() & {"x", "y"}


def test_labels_and_annotations_are_bounded() -> None:
    many = {f"key-{number:05}": "v" for number in range(5000)}
    long = {f"key-{number:05}": "v" * 5000 for number in range(50)}
    export = {"exportedLabels": many, "exportedAnnotations": long}
    metadata = one(settled(everywhere(west=exporting(export=export))), "east", "serviceimports")["metadata"]
    assert len(metadata["labels"]) < 70
    assert sum(map(len, metadata["annotations"].values())) < 20_000


def test_addresses_outside_allowed_cidrs_are_not_imported() -> None:
    slices = (slice_of(endpoints=[endpoint("10.2.0.1"), endpoint("10.9.0.1")], ports=PODS),)
    exports = discovered(allowed_cidrs=(ip_network("10.2.0.0/16"),))
    desired = work_out(everywhere(west=replace(exporting(), slices=slices)), exports)
    assert [each["addresses"] for each in one(desired, "east", "endpointslices")["endpoints"]] == [["10.2.0.1"]]


def test_an_export_by_the_file_and_one_by_the_api_do_not_disturb_each_other() -> None:
    exports = Exports((entry(),), ALL.discovery, CLUSTERS)
    desired = work_out(everywhere(west=exporting()), exports)
    assert names(desired, "east", "services") == ["clusterset-serve", "derived-serve"]
    assert names(desired, "east", "endpointslices") == ["clusterset-west-serve-abc", "imported-west-serve-abc"]
