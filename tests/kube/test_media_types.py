"""Representations by Accept headers, and what a kube-apiserver answers where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.media_types import (
    BUILTIN_TYPES,
    CUSTOM_TYPES,
    JSON,
    PROTOBUF,
    YAML,
    NegotiatedMediaType,
    accepts_gzip,
    clauses,
    negotiate,
    prefers_yaml,
)
from mcproxy.kube.status import StatusError

GOLDEN = Path(__file__).parent.parent / "golden"
TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io"
PARTIAL = f"{JSON};as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PODS = ("", "Pod")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", NegotiatedMediaType()),
        ("*/*", NegotiatedMediaType()),
        ("application/*", NegotiatedMediaType()),
        (f"{JSON},{YAML}", NegotiatedMediaType()),
        (YAML, NegotiatedMediaType(YAML)),
        (f"{JSON};q=0.1, {YAML}", NegotiatedMediaType(YAML)),
        (f"{PROTOBUF},{JSON}", NegotiatedMediaType()),
        ("text/html, */*;q=0.8", NegotiatedMediaType()),
        (f"{TABLE},{JSON}", NegotiatedMediaType(JSON, "Table", "v1")),
        (f"{JSON};as=Table;v=v9;g=meta.k8s.io,{JSON}", NegotiatedMediaType()),
        (f"{JSON};as=Table;v=v1beta1;g=meta.k8s.io", NegotiatedMediaType(JSON, "Table", "v1beta1")),
        (PARTIAL, NegotiatedMediaType(JSON, "PartialObjectMetadata", "v1")),
        (f"{PARTIAL.replace(JSON, PROTOBUF)},{PARTIAL}", NegotiatedMediaType(JSON, "PartialObjectMetadata", "v1")),
        (f"{JSON};q=junk", NegotiatedMediaType()),
    ],
)
def test_accepted(accept: str, expected: NegotiatedMediaType) -> None:
    assert negotiate(accept, writable=CUSTOM_TYPES) == expected


def test_yaml_where_the_server_does_not_write_it() -> None:
    assert negotiate(f"{YAML}, {JSON};q=0.1", writable=(JSON,)) == NegotiatedMediaType()
    with pytest.raises(StatusError, match=r"only the following media types are accepted: application/json$"):
        negotiate(YAML, writable=(JSON,))


@pytest.mark.parametrize(
    ("accept", "custom", "message"),
    [
        ("text/html", False, f"406: Not Acceptable\n\nAvailable representations: {', '.join(BUILTIN_TYPES)}"),
        (PROTOBUF, False, f"only the following media types are accepted: {JSON}, {YAML}"),
        (PROTOBUF, True, f"only the following media types are accepted: {JSON}, {YAML}"),
        ("text/html", True, f"only the following media types are accepted: {JSON}, {YAML}"),
        (f"{JSON};as=Chair;v=v1;g=meta.k8s.io", False, f"only the following media types are accepted: {JSON}, {YAML}"),
    ],
)
def test_not_acceptable(accept: str, custom: bool, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        negotiate(accept, custom=custom, writable=CUSTOM_TYPES)
    assert (caught.value.code, caught.value.reason, caught.value.message) == (406, "NotAcceptable", message)
    assert not caught.value.body().endswith(b"\n")


@pytest.mark.parametrize(
    ("name", "custom", "list_of"),
    [
        ("errors/406-unknown-accept.json", False, None),
        ("errors/406-xml.json", False, ("", "ConfigMap")),
        ("partialmeta/pods-asked-single-kind-for-list.json", False, PODS),
        ("table/v2-406.json", False, PODS),
    ],
)
def test_refusals_are_those_of_a_kube_apiserver(name: str, custom: bool, list_of: tuple[str, str] | None) -> None:
    recorded = json.loads((GOLDEN / name).read_text())
    accept = dict(recorded["request"]["headers"])["Accept"]
    with pytest.raises(StatusError) as caught:
        negotiate(accept, custom=custom, list_of=list_of, writable=CUSTOM_TYPES, named=BUILTIN_TYPES)
    assert caught.value.body().decode() == recorded["response"]["body"]


def test_a_list_cannot_be_one_partial_object() -> None:
    listed = f"{JSON};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    assert negotiate(listed, list_of=PODS).kind == "PartialObjectMetadataList"
    with pytest.raises(StatusError, match=r"\*core.PodList"):
        negotiate(PARTIAL, list_of=PODS)
    with pytest.raises(StatusError, match=r"\*unstructured.UnstructuredList"):
        negotiate(PARTIAL, list_of=("e.com", "Widget"), custom=True)


def test_a_header_of_thousands_of_entries_is_not_read_whole() -> None:
    assert len(clauses(",".join(["text/html"] * 5000))) <= 64


@given(st.text(alphabet="applicton/jsy*;=q.,01 \t", max_size=40))
def test_any_accept_header_is_understood_or_406(accept: str) -> None:
    code, found = 200, JSON
    try:
        found = negotiate(accept, writable=(JSON,)).media_type
    except StatusError as error:
        code = error.code
    assert (code, found) in ((200, JSON), (406, JSON))


@pytest.mark.parametrize(
    ("field", "accepted"),
    [
        (None, False),
        (b"", False),
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"*", False),
        (b"br, identity", False),
    ],
)
def test_gzip_is_accepted_where_it_is_named(field: bytes | None, accepted: bool) -> None:
    assert accepts_gzip(field) is accepted


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("application/yaml", True),
        ("application/yaml, application/json", True),
        ("application/json, application/yaml", False),
        ("application/yaml;q=0.5, */*", False),
        ("application/yaml;as=Table;v=v1;g=meta.k8s.io", False),
        ("application/yaml;as=Table;v=v1;g=meta.k8s.io, application/yaml", True),
        ("text/html", False),
        ("", False),
    ],
)
def test_who_prefers_yaml(accept: str, expected: bool) -> None:
    assert prefers_yaml(accept) is expected
