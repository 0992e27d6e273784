"""`as: SameName`: the Service of the exported one's name, made where there is none, used where there is one."""

from __future__ import annotations

from typing import Any

from mcproxy.config import model
from mcproxy.services.exports.export_types import ClusterView, ProblemKind
from mcproxy.services.exports.object_keys import service_object, slice_object
from tests.services.exports.given import (
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


def same_name(**values: Any) -> model.ServiceExport:
    return entry(made_as=model.ExportAs.SAME_NAME, **values)


def after(desired: Any, cluster: str) -> ClusterView:
    """Return what a cluster has when everything was applied to it."""
    derived = applied(desired, cluster)
    slices = tuple(data for key, data in derived.items() if key.resource == "endpointslices")
    return ClusterView(service=derived.get(service_object(cluster, "demo", "serve")), slices=slices, derived=derived)


def test_the_service_is_made_where_there_is_none_and_its_slices_go_with_it() -> None:
    exports = from_file(same_name())
    desired = work_out({"west": WEST, "east": ClusterView()}, exports)
    made = one(desired, "east", "services")
    assert made["metadata"]["name"] == "serve"
    assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "mcproxy.io"
    assert "selector" not in made["spec"]
    (key,) = [each for each in desired.objects if each.resource == "endpointslices"]
    assert key == slice_object("east", "demo", "west-serve-abc")
    assert desired.owners == {key: service_object("east", "demo", "serve")}
    assert desired.objects[key]["metadata"]["labels"]["kubernetes.io/service-name"] == "serve"
    assert work_out({"west": WEST, "east": after(desired, "east")}, exports) == desired


def test_a_service_that_is_there_is_used_and_not_written() -> None:
    east = ClusterView(service=service([port(80, "web")]), slices=(slice_of("serve-east", [endpoint("10.1.0.1")]),))
    desired = work_out({"west": WEST, "east": east}, from_file(same_name()))
    assert names(desired, "east", "services") == []
    imported = one(desired, "east", "endpointslices")
    assert imported["ports"] == [{"name": "web", "port": 8080, "protocol": "TCP"}]  # by its own Service's name
    assert [each["addresses"] for each in imported["endpoints"]] == [["10.2.0.1"]]
    assert list(desired.owners.values()) == [service_object("east", "demo", "serve")]
    assert {problem.kind for problem in desired.problems} <= {ProblemKind.CONFLICT}


def test_a_port_that_the_service_there_lacks_is_reported_and_left_out() -> None:
    east = ClusterView(service=service([port(81, "http")]))
    desired = work_out({"west": WEST, "east": east}, from_file(same_name()))
    assert one(desired, "east", "endpointslices")["ports"] == []
    assert {(problem.kind, problem.cluster) for problem in desired.problems} == {
        (ProblemKind.CONFLICT, "east"), (ProblemKind.NO_PORT, "west")
    }  # fmt: skip


def test_a_cluster_in_from_and_to_gets_those_of_others_alone() -> None:
    both = ("east", "west")
    east = ClusterView(service=service(), slices=(slice_of("serve-east", [endpoint("10.1.0.1")]),))
    desired = work_out({"west": WEST, "east": east}, from_file(same_name(from_clusters=both, to=both)))
    assert names(desired, "east", "endpointslices") == ["west-serve-abc"]
    assert names(desired, "west", "endpointslices") == ["east-serve-east"]
    assert names(desired, "east", "services") == names(desired, "west", "services") == []


def test_what_was_made_is_not_exported_again() -> None:
    both = ("east", "west")
    exports = from_file(same_name(from_clusters=both, to=both))
    first = work_out({"west": WEST, "east": ClusterView()}, exports)
    assert names(first, "east", "services") == ["serve"]
    second = work_out({"west": WEST, "east": after(first, "east")}, exports)
    assert second == first
    assert {key.cluster for key in second.objects} == {"east"}
    gone = work_out({"west": ClusterView(), "east": after(first, "east")}, exports)
    assert gone.objects == {}


def test_a_service_that_only_names_another_host_is_left_alone() -> None:
    east = ClusterView(service=service(type="ExternalName"))
    desired = work_out({"west": WEST, "east": east}, from_file(same_name()))
    assert desired.objects == {}
    assert [(each.kind, each.cluster) for each in desired.problems] == [(ProblemKind.INVALID_SERVICE_TYPE, "east")]


def test_an_unreadable_service_is_left_alone() -> None:
    desired = work_out({"west": WEST, "east": ClusterView(service=encoded({"spec": 1}))}, from_file(same_name()))
    assert desired.objects == {}
    assert [each.kind for each in desired.problems] == [ProblemKind.UNREADABLE]


def test_imports_of_a_source_that_is_not_known_stay() -> None:
    exports = from_file(same_name())
    first = work_out({"west": WEST, "east": ClusterView()}, exports)
    for view in (after(first, "east"), ClusterView(service=service(), derived=applied(first, "east"))):
        desired = work_out({"west": ClusterView(known=False), "east": view}, exports)
        assert slice_object("east", "demo", "west-serve-abc") in desired.kept


def test_one_service_may_be_exported_under_both_names() -> None:
    desired = work_out({"west": WEST, "east": ClusterView()}, from_file(entry("a"), same_name(name="b")))
    assert names(desired, "east", "services") == ["derived-serve", "serve"]
    assert names(desired, "east", "endpointslices") == ["imported-west-serve-abc", "west-serve-abc"]
    assert desired.problems == ()


def test_headless_stays_headless_where_it_is_made_and_as_it_is_where_it_is_used() -> None:
    headless = ClusterView(service=service(clusterIP="None"), slices=(slice_of(),))
    made = work_out({"west": headless, "east": ClusterView()}, from_file(same_name()))
    assert one(made, "east", "services")["spec"]["clusterIP"] == "None"
    used = work_out({"west": headless, "east": ClusterView(service=service())}, from_file(same_name()))
    assert "service.kubernetes.io/headless" not in one(used, "east", "endpointslices")["metadata"]["labels"]
    assert [each.kind for each in used.problems] == [ProblemKind.CONFLICT]
