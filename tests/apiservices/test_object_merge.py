"""Our APIService objects over the backend's: lists, single objects and watches, in each form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.apiservices.availability import Condition
from mcproxy.apiservices.object_merge import (
    Maker,
    Own,
    RequestedForm,
    UnreadableAnswer,
    WatchMerge,
    merged_list,
    names_of,
)
from mcproxy.config import model

RECORDED = Path(__file__).parent.parent / "golden" / "apiservices"
METRICS = model.APIService(
    group="metrics.k8s.io", version="v1beta1", cluster="metrics", group_priority_minimum=100, version_priority=10
)
ZOO = model.APIService(group="zoo.io", version="v1", cluster="zoo")
UP = Condition("True", "Passed", "all checks passed", 1_790_000_000.0, 1_789_999_000.0)
DOWN = Condition("False", "FailedDiscoveryCheck", "no <answer>", 1_790_000_100.0, 1_789_999_000.0)
OURS = [Own(METRICS, DOWN), Own(ZOO, UP)]
HIDDEN = ("v1beta1.metrics.k8s.io", "v1.zoo.io")
NOW = 1_790_000_000.0 + 3600


def maker(**form: str) -> Maker:
    return Maker("web", RequestedForm(**form), lambda: NOW)


def backend_list(*names: str, **more: Any) -> bytes:
    items = [{"metadata": {"name": name, "resourceVersion": "5"}, "spec": {"x": 1.50}} for name in names]
    return json.dumps(
        {
            "kind": "APIServiceList",
            "apiVersion": "apiregistration.k8s.io/v1",
            "metadata": {"resourceVersion": "77", **more},
            "items": items,
        }
    ).encode()


def test_a_list_has_ours_by_name_and_the_versions_of_the_backend() -> None:
    merged = json.loads(merged_list(backend_list("v1.", "v1.apps", "v2.zz.io"), maker(), HIDDEN, OURS))
    assert merged["kind"] == "APIServiceList"
    assert merged["metadata"] == {"resourceVersion": "77"}
    names = [item["metadata"]["name"] for item in merged["items"]]
    assert names == ["v1.", "v1.apps", "v1.zoo.io", "v1beta1.metrics.k8s.io", "v2.zz.io"]
    assert merged["items"][0]["metadata"]["resourceVersion"] == "5"
    ours = merged["items"][3]
    assert ours["metadata"]["resourceVersion"] == "77"
    assert "kind" not in ours


def test_an_object_of_ours_is_that_of_kube_aggregator() -> None:
    recorded = json.loads(json.loads((RECORDED / "apiservice.json").read_text())["response"]["body"])
    ours = json.loads(maker().single(OURS[0], "9"))
    assert list(ours) == list(recorded)
    assert set(ours["metadata"]) - {"labels", "annotations"} <= set(recorded["metadata"])
    assert [*ours["spec"]] == [key for key in recorded["spec"] if key in ours["spec"]]
    assert [list(each) for each in ours["status"]["conditions"]] == [
        list(each) for each in recorded["status"]["conditions"]
    ]
    assert ours["metadata"]["name"] == "v1beta1.metrics.k8s.io"
    assert ours["spec"]["service"] == {"namespace": "mcproxy", "name": "metrics", "port": 443}
    condition = ours["status"]["conditions"][0]
    assert (condition["status"], condition["lastTransitionTime"]) == ("False", "2026-09-21T14:15:00Z")
    assert b"no \\u003canswer\\u003e" in maker().single(OURS[0], "9")


def test_the_uid_is_stable_and_another_one_for_each() -> None:
    one, again, other = (json.loads(maker().single(own, "9"))["metadata"]["uid"] for own in (OURS[0], OURS[0], OURS[1]))
    assert one == again
    assert one != other


def test_what_has_our_name_is_hidden_whatever_the_selection() -> None:
    merged = json.loads(merged_list(backend_list("v1.", "v1beta1.metrics.k8s.io"), maker(), HIDDEN, []))
    assert [item["metadata"]["name"] for item in merged["items"]] == ["v1."]


def test_a_table_has_a_row_for_each_as_kubectl_prints_it() -> None:
    body = json.dumps(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {"resourceVersion": "77"},
            "columnDefinitions": [
                {"name": name, "type": "string"} for name in ("Name", "Service", "Available", "Age", "New")
            ],
            "rows": [
                {"cells": ["v1.", "Local", "True", "3d", "x"], "object": {"metadata": {"name": "v1."}}},
                {"cells": ["v1.zoo.io", "kube-system/old", "True", "3d", "x"], "object": None},
            ],
        }
    ).encode()
    merged = json.loads(merged_list(body, maker(kind="Table"), HIDDEN, OURS))
    assert [row["cells"] for row in merged["rows"]] == [
        ["v1.", "Local", "True", "3d", "x"],
        ["v1.zoo.io", "mcproxy/zoo", "True", "76m", None],
        ["v1beta1.metrics.k8s.io", "mcproxy/metrics", "False (FailedDiscoveryCheck)", "76m", None],
    ]
    assert merged["rows"][1]["object"]["kind"] == "PartialObjectMetadata"


@pytest.mark.parametrize(
    ("include", "expected"), [("None", None), ("Object", "APIService"), ("Metadata", "PartialObjectMetadata")]
)
def test_the_object_of_a_row_is_what_was_asked_for(include: str, expected: str | None) -> None:
    table = json.loads(maker(kind="Table", include_object=include).single(OURS[0], "9"))
    assert table["kind"] == "Table"
    assert (table["rows"][0]["object"] or {}).get("kind") == expected


def test_metadata_alone() -> None:
    assert json.loads(maker(kind="PartialObjectMetadata").single(OURS[0], "9"))["kind"] == "PartialObjectMetadata"
    listed = json.loads(merged_list(backend_list("v1."), maker(kind="PartialObjectMetadataList"), HIDDEN, OURS))
    assert [sorted(item) for item in listed["items"][1:]] == [["apiVersion", "kind", "metadata"]] * 2


def test_ours_alone_where_the_backend_has_none() -> None:
    listed = json.loads(merged_list(maker().empty_list("3"), maker(), HIDDEN, OURS))
    assert [item["metadata"]["name"] for item in listed["items"]] == ["v1.zoo.io", "v1beta1.metrics.k8s.io"]
    table = json.loads(merged_list(maker(kind="Table").empty_list("3"), maker(kind="Table"), HIDDEN, OURS))
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Service", "Available", "Age"]
    assert len(table["rows"]) == 2


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"kind":"x"}', b'{"kind":"x","metadata":{},"items":[1]}', b"\xff", b'{"a":' * 5000]
)
def test_what_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        merged_list(body, maker(), HIDDEN, OURS)


def test_the_version_and_names_of_a_list() -> None:
    assert names_of(backend_list("v1.", "v1.apps")) == ("77", ("v1.", "v1.apps"))


# -- watches ---


def event(kind: str, name: str, version: str, **more: Any) -> bytes:
    return (
        json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version, **more}}}).encode()
        + b"\n"
    )


def test_events_of_hidden_objects_are_left_out_and_their_versions_count() -> None:
    merge = WatchMerge(maker(), HIDDEN, "5")
    assert json.loads(merge.ours("MODIFIED", OURS[0]))["object"]["metadata"]["resourceVersion"] == "5"
    first, second = event("ADDED", "v1.apps", "7"), event("MODIFIED", "v1.zoo.io", "8")
    assert merge.lines(first + second) == [first]
    assert merge.version == "8"
    ours = json.loads(merge.ours("MODIFIED", OURS[0]))
    assert (ours["type"], ours["object"]["metadata"]["resourceVersion"]) == ("MODIFIED", "8")


def test_initial_events_of_ours_come_before_their_end() -> None:
    merge = WatchMerge(maker(), HIDDEN, "")
    merge.initial = lambda: [merge.ours("ADDED", own) for own in OURS]
    bookmark = event("BOOKMARK", "", "9", annotations={"k8s.io/initial-events-end": "true"})
    lines = merge.lines(event("BOOKMARK", "", "6") + bookmark)
    assert [json.loads(line)["type"] for line in lines] == ["BOOKMARK", "ADDED", "ADDED", "BOOKMARK"]
    assert json.loads(lines[1])["object"]["metadata"]["resourceVersion"] == "9"
    assert lines[-1] == bookmark
    assert merge.lines(bookmark) == [bookmark]


def test_column_definitions_come_with_the_first_event_alone() -> None:
    merge = WatchMerge(maker(kind="Table"), HIDDEN, "5")
    heads = [json.loads(merge.ours("MODIFIED", OURS[0]))["object"]["columnDefinitions"] for _ in range(2)]
    assert heads[0] is not None
    assert heads[1] is None


def test_an_error_of_the_backend_is_passed_on() -> None:
    gone = b'{"type":"ERROR","object":{"kind":"Status","code":410,"metadata":{}}}\n'
    assert WatchMerge(maker(), HIDDEN, "5").lines(gone) == [gone]


@pytest.mark.parametrize("line", [b"x\n", b'{"type":1}\n', b"[]\n", b"a" * (8 * 1024 * 1024 + 1)])
def test_what_is_no_event_ends_the_watch(line: bytes) -> None:
    with pytest.raises(UnreadableAnswer):
        WatchMerge(maker(), HIDDEN, "5").lines(line)


@given(st.lists(st.integers(1, 200), max_size=20))
def test_events_may_come_in_any_pieces(cuts: list[int]) -> None:
    whole = event("ADDED", "v1.apps", "7") + event("ADDED", "v1.zoo.io", "8") + event("DELETED", "v1.apps", "9")
    merge, got, rest = WatchMerge(maker(), HIDDEN, "5"), b"", whole
    for cut in cuts:
        got += b"".join(merge.lines(rest[:cut]))
        rest = rest[cut:]
    got += b"".join(merge.lines(rest))
    assert got == event("ADDED", "v1.apps", "7") + event("DELETED", "v1.apps", "9")
    assert merge.clean
