"""Objects and envelopes in each representation, against recordings of a kube-apiserver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcproxy.aggregate.representation.objects import (
    ListMeta,
    Representation,
    envelope,
    partial_object,
    representation,
    row_conditions,
    row_object,
    table_row,
)
from mcproxy.kube.media_types import Accepted
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import PODS, decoded, pod

GOLDEN = Path(__file__).parent.parent.parent / "golden"
TYPE = b'"kind":"Pod","apiVersion":"v1",'


def body(name: str) -> str:
    recorded = json.loads((GOLDEN / name).read_text())["response"]["body"]
    assert isinstance(recorded, str)
    return recorded


@pytest.mark.parametrize(
    ("name", "kind", "api_version", "custom"),
    [
        ("list/east/empty-list-no-such-ns.json", "PodList", "v1", False),
        ("list/east/empty-list-cr-no-such-ns.json", "WidgetList", "example.com/v1", True),
    ],
)
def test_empty_lists(name: str, kind: str, api_version: str, custom: bool) -> None:
    metadata = ListMeta(json.loads(body(name))["metadata"]["resourceVersion"])
    made = envelope(Representation(), metadata, list_kind=kind, api_version=api_version, custom=custom)
    assert b"".join(made).decode() == body(name)


@pytest.mark.parametrize(
    ("name", "wanted", "custom"),
    [
        ("paging/pods-limit2-page1.json", Representation(), False),
        ("paging/widgets-limit2-page1.json", Representation(), True),
        ("paging/limit-equals-count.json", Representation(), True),
        ("table/pods-limit2-page1.json", Representation("Table"), False),
        ("table/pods-v1beta1.json", Representation("Table", "v1beta1"), False),
        ("partialmeta/pods.json", Representation("PartialObjectMetadataList"), False),
        ("partialmeta/widgets.json", Representation("PartialObjectMetadataList"), True),
    ],
)
def test_envelopes(name: str, wanted: Representation, custom: bool) -> None:
    recorded = body(name)
    found = json.loads(recorded)
    metadata = found["metadata"]
    meta = ListMeta(metadata["resourceVersion"], metadata.get("continue", ""), metadata.get("remainingItemCount"))
    columns = json.dumps(found.get("columnDefinitions"), separators=(",", ":"), ensure_ascii=False).encode()
    head, tail = envelope(
        wanted, meta, list_kind=found["kind"], api_version=found["apiVersion"], custom=custom, columns=columns
    )
    assert recorded.startswith(head.decode().replace("<", "\\u003c").replace(">", "\\u003e"))
    assert recorded.endswith(tail.decode())


def test_include_object() -> None:
    obj = decoded(pod(spec={"x": 1}))
    assert row_object(obj, b"9", TYPE, Representation("Table", include_object="None")) == b"null"
    whole = json.loads(row_object(obj, b"9", TYPE, Representation("Table", include_object="Object")))
    assert (whole["kind"], whole["spec"], whole["metadata"]["resourceVersion"]) == ("Pod", {"x": 1}, "9")
    part = json.loads(row_object(obj, b"9", TYPE, Representation("Table", "v1beta1")))
    assert part == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1beta1",
        "metadata": {**whole["metadata"], "resourceVersion": "9"},
    }
    assert json.loads(partial_object(obj, b"9"))["apiVersion"] == "meta.k8s.io/v1"


def test_a_wrong_include_object_is_400() -> None:
    with pytest.raises(StatusError) as caught:
        representation(Accepted(kind="Table", version="v1"), "Bogus")
    assert caught.value.body().decode() == body("table/pods-includeObject-Bogus.json")
    assert representation(Accepted(), "Bogus") == Representation()
    assert representation(Accepted(kind="Table", version="v1"), "") == Representation("Table")


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "Succeeded"), ("Failed", "Failed"), ("Running", None)])
def test_rows_of_pods_that_have_ended_say_so(phase: str, reason: str | None) -> None:
    obj = decoded(pod(status={"phase": phase}))
    row = json.loads(table_row(b"[]", b"null", row_conditions(obj)))
    conditions = row.get("conditions")
    assert (conditions and conditions[0]["reason"]) == reason
    assert row["object"] is None


def test_a_phase_elsewhere_in_the_object_is_none() -> None:
    assert row_conditions(decoded(pod(spec={"phase": "Failed"}), PODS)) == b""
