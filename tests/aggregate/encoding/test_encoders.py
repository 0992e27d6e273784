"""Objects and the envelopes of lists in each representation, against recordings of a kube-apiserver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.aggregate.cache.cached_object import CachedObject
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.encoding.columns import Columns
from mcproxy.aggregate.encoding.encoder import Encoder, encoder_for
from mcproxy.aggregate.encoding.objects import ListMeta, Representation, requested_representation
from mcproxy.aggregate.encoding.table import row_conditions
from mcproxy.kube.media_types import NegotiatedMediaType
from mcproxy.kube.resource import APIResource
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import CREATED, PODS, WIDGETS, decoded, pod
from tests.support.clock import Clock

GOLDEN = Path(__file__).parent.parent.parent / "golden"


def body(name: str) -> str:
    recorded = json.loads((GOLDEN / name).read_text())["response"]["body"]
    assert isinstance(recorded, str)
    return recorded


def encoder(wanted: Representation, of: APIResource = PODS, *, custom: bool = False) -> Encoder:
    return encoder_for(wanted, of, lambda: CREATED, custom=custom)


def single(wanted: Representation, obj: CachedObject, version: bytes = b"9") -> Any:
    """Return the body of a get."""
    return json.loads(encoder(wanted).single(Store(Clock(), "east", PODS), obj, version))


@pytest.mark.parametrize(
    ("name", "kind", "custom"),
    [
        ("list/east/empty-list-no-such-ns.json", "PodList", False),
        ("list/east/empty-list-cr-no-such-ns.json", "WidgetList", True),
    ],
)
def test_empty_lists(name: str, kind: str, custom: bool) -> None:
    metadata = ListMeta(json.loads(body(name))["metadata"]["resourceVersion"])
    of = WIDGETS if custom else PODS
    made = encoder(Representation(), of, custom=custom).envelope(metadata, kind, None)
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
    of = WIDGETS if custom else PODS
    union = Columns([columns], of.gvr, custom=custom)
    head, tail = encoder(wanted, of, custom=custom).envelope(meta, found["kind"], union)
    assert recorded.startswith(head.decode().replace("<", "\\u003c").replace(">", "\\u003e"))
    assert recorded.endswith(tail.decode())


def test_include_object() -> None:
    obj = decoded(pod(spec={"x": 1}))

    def shown(wanted: Representation) -> Any:
        table = single(wanted, obj)
        assert (table["kind"], table["metadata"]) == ("Table", {"resourceVersion": "9"})
        return table["rows"][0]["object"]

    assert shown(Representation("Table", include_object="None")) is None
    whole = shown(Representation("Table", include_object="Object"))
    assert (whole["kind"], whole["spec"], whole["metadata"]["resourceVersion"]) == ("Pod", {"x": 1}, "9")
    part = shown(Representation("Table", "v1beta1"))
    assert part == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1beta1",
        "metadata": {**whole["metadata"], "resourceVersion": "9"},
    }
    assert single(Representation("PartialObjectMetadata"), obj)["apiVersion"] == "meta.k8s.io/v1"


@pytest.mark.parametrize("include", ["None", "Metadata", "Object"])
def test_a_row_is_the_same_in_a_get_and_in_a_list(include: str) -> None:
    wanted = Representation("Table", include_object=include)
    store = Store(Clock(), "east", PODS)
    obj = decoded(pod(status={"phase": "Failed"}))
    columns = Columns([None], PODS.gvr, custom=False)
    items = encoder(wanted).items(store.snapshot(), lambda version: b"9", columns)([obj])
    assert json.loads(b"".join(items)[1:]) == single(wanted, obj)["rows"][0]


def test_a_wrong_include_object_is_400() -> None:
    with pytest.raises(StatusError) as caught:
        requested_representation(NegotiatedMediaType(kind="Table", version="v1"), "Bogus")
    assert caught.value.body().decode() == body("table/pods-includeObject-Bogus.json")
    assert requested_representation(NegotiatedMediaType(), "Bogus") == Representation()
    assert requested_representation(NegotiatedMediaType(kind="Table", version="v1"), "") == Representation("Table")


@pytest.mark.parametrize(("phase", "reason"), [("Succeeded", "Succeeded"), ("Failed", "Failed"), ("Running", None)])
def test_rows_of_pods_that_have_ended_say_so(phase: str, reason: str | None) -> None:
    obj = decoded(pod(status={"phase": phase}))
    row = single(Representation("Table", include_object="None"), obj)["rows"][0]
    conditions = row.get("conditions")
    assert (conditions and conditions[0]["reason"]) == reason
    assert row["object"] is None


def test_a_phase_elsewhere_in_the_object_is_none() -> None:
    assert row_conditions(decoded(pod(spec={"phase": "Failed"}), PODS)) == b""
