"""Content negotiation by Accept headers, and the encoding of responses."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from kubesim.apimachinery.resources import Registry, ResourceInfo
from kubesim.apimachinery.status import StatusError
from kubesim.apimachinery.user import User
from kubesim.cluster import SimulatedCluster
from kubesim.request import negotiation
from kubesim.request.call import Call, request_info
from mcproxy.kube import media_types
from mcproxy.kube.media_types import JSON, PROTOBUF, YAML, NegotiatedMediaType

TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"
PARTIAL = f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PODS = Registry().preferred("", "pods")
WIDGETS = ResourceInfo("e.com", "v1", "Widget", "widgets", "widget", True, (), builtin=False)
PATH = "/api/v1/namespaces/demo/pods"


def call(accept: str = "", *, resource: ResourceInfo | None = PODS, query: str = "", encoding: str = "") -> Call:
    headers = {key: value for key, value in (("Accept", accept), ("Accept-Encoding", encoding)) if value}
    request = make_mocked_request("GET", f"{PATH}{query}", headers=headers)
    return Call(SimulatedCluster("east"), request, request_info("GET", PATH, {}), User("u"), resource)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", NegotiatedMediaType()),
        ("*/*", NegotiatedMediaType()),
        ("application/*", NegotiatedMediaType()),
        (JSON, NegotiatedMediaType()),
        (YAML, NegotiatedMediaType(YAML)),
        (f"{JSON};q=0.1, {YAML}", NegotiatedMediaType(YAML)),
        (f"{PROTOBUF},{JSON}", NegotiatedMediaType()),
        ("text/html, */*;q=0.8", NegotiatedMediaType()),
        (f"{TABLE},{JSON}", NegotiatedMediaType(JSON, "Table", "v1")),
        (f"{JSON};as=Table;v=v9;g=meta.k8s.io,{JSON}", NegotiatedMediaType()),
        (f"{YAML};as=Table;v=v1beta1;g=meta.k8s.io", NegotiatedMediaType(YAML, "Table", "v1beta1")),
        (PARTIAL, NegotiatedMediaType(JSON, "PartialObjectMetadata", "v1")),
        (f"{JSON};q=junk", NegotiatedMediaType()),
    ],
)
def test_accepted(accept: str, expected: NegotiatedMediaType) -> None:
    assert negotiation.negotiate(call(accept)) == expected


@pytest.mark.parametrize(
    ("accept", "resource", "message"),
    [
        ("text/html", PODS, "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml"),
        (PROTOBUF, PODS, "only the following media types are accepted: application/json, application/yaml"),
        (PROTOBUF, WIDGETS, "only the following media types are accepted: application/json, application/yaml"),
        ("text/html", WIDGETS, "only the following media types are accepted: application/json, application/yaml"),
        (f"{JSON};as=Chair;v=v1;g=meta.k8s.io", PODS, "only the following media types are accepted"),
    ],
)
def test_not_acceptable(accept: str, resource: ResourceInfo, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        negotiation.negotiate(call(accept, resource=resource))
    assert (caught.value.code, caught.value.reason) == (406, "NotAcceptable")
    assert caught.value.message.startswith(message)
    assert not caught.value.body().endswith(b"\n")


def test_a_list_cannot_be_one_partial_object() -> None:
    listed = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    assert negotiation.negotiate(call(listed), listing=True).kind == "PartialObjectMetadataList"
    with pytest.raises(StatusError, match="you requested PartialObjectMetadata, but the requested object is a list"):
        negotiation.negotiate(call(PARTIAL), listing=True)


QUALITIES = st.sampled_from(["", ";q=1", ";q=0.5", ";q=0.2"])
TYPES = st.sampled_from([JSON, YAML, "text/html", "*/*", PROTOBUF])


@given(st.lists(st.tuples(TYPES, QUALITIES), min_size=1, max_size=5))
def test_the_best_clause_comes_first_and_equal_ones_keep_their_order(wanted: list[tuple[str, str]]) -> None:
    found = media_types.clauses(",".join(name + quality for name, quality in wanted))
    qualities = [float(quality.partition("=")[2] or 1) for _, quality in wanted]
    order = sorted(range(len(wanted)), key=lambda index: (-qualities[index], index))
    assert [clause.media_type for clause in found] == [wanted[index][0] for index in order]


@given(st.text(alphabet="applicton/jsy*;=q.,01 \t", max_size=40))
def test_any_accept_header_is_understood_or_406(accept: str) -> None:
    code = 200
    try:
        assert negotiation.negotiate(call(accept.strip())).media_type in (JSON, YAML)
    except StatusError as error:
        code = error.code
    assert code in (200, 406)


def answer(made: web.StreamResponse) -> tuple[bytes, Any]:
    assert isinstance(made, web.Response)
    assert isinstance(made.body, bytes)
    return made.body, made.headers


def test_small_answers_have_a_length_and_others_are_chunked() -> None:
    small, big = ({"kind": "ConfigMap", "data": {"x": "y" * size}} for size in (10, 3000))
    assert not negotiation.respond(call(), small).chunked
    assert negotiation.respond(call(), big).chunked


def test_big_answers_are_gzipped_for_those_who_take_it() -> None:
    obj = {"kind": "ConfigMap", "data": {"x": "y" * 200_000}}
    plain, headers = answer(negotiation.respond(call(), obj))
    assert "Content-Encoding" not in headers
    body, headers = answer(negotiation.respond(call(encoding="gzip"), obj))
    assert (headers["Content-Encoding"], headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(body) == plain


def test_forms_of_an_answer() -> None:
    obj = {"kind": "ConfigMap", "data": {"b": "<&>", "a": "é"}}
    assert answer(negotiation.respond(call(), obj))[0] == (
        '{"kind":"ConfigMap","data":{"b":"\\u003c\\u0026\\u003e","a":"é"}}\n'.encode()
    )
    assert yaml.safe_load(answer(negotiation.respond(call(YAML), obj))[0]) == obj
    assert b'\n  "kind"' in answer(negotiation.respond(call(query="?pretty=true"), obj))[0]
    sorted_keys = answer(negotiation.respond(call(resource=WIDGETS), obj))[0]
    assert list(json.loads(sorted_keys)) == ["data", "kind"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "unexpected end of JSON input"),
        (b'{"a":', "unexpected end of JSON input"),
        (b'{"a":x}', "invalid character 'x' looking for beginning of value"),
        (b"[1]", "cannot unmarshal array into Go value"),
        (b'"text"', "cannot unmarshal string into Go value"),
    ],
)
def test_bodies_that_are_no_object_are_400(body: bytes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        negotiation.parse_object(body, JSON, "Pod")
    assert caught.value.code == 400
    assert message in caught.value.message
