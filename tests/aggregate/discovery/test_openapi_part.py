"""What is taken of an API server's OpenAPI v2 document, and that it changes nothing of core's."""

from __future__ import annotations

import gzip
import json
import sys
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.discovery.openapi_merge import Spec, everything, merge_specs, own_part
from mcproxy.aggregate.discovery.openapi_services import OwnPaths, own_v3
from mcproxy.kube.discovery import DiscoveryError
from tests.aggregate.discovery.recorded import GOLDEN

JSONDict = dict[str, Any]

OWN = OwnPaths([("x.io", "v1")])
KIND = "x-kubernetes-group-version-kind"
META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
THING: JSONDict = {
    "type": "object",
    "properties": {"metadata": {"$ref": f"#/definitions/{META}"}, "size": {"type": "integer"}},
    KIND: [{"group": "x.io", "version": "v1", "kind": "Thing"}],
}
OBJECT_META: JSONDict = {"type": "object", "properties": {"name": {"type": "string"}}}


def operation(name: str, **more: Any) -> JSONDict:
    return {"responses": {"200": {"description": "OK", "schema": {"$ref": f"#/definitions/{name}"}}}, **more}


def document(definitions: JSONDict | None = None, paths: JSONDict | None = None, **more: Any) -> bytes:
    known = {"io.x.v1.Thing": THING, META: OBJECT_META}
    found = {
        "swagger": "2.0",
        "info": {"title": "x", "version": "1"},
        "paths": {"/apis/x.io/v1/things": {"get": operation("io.x.v1.Thing")}} if paths is None else paths,
        "definitions": {**known, **(definitions or {})},
        **more,
    }
    return json.dumps(found).encode()


def part(body: bytes) -> JSONDict:
    found: JSONDict = json.loads(own_part(body, OWN, OWN.owns))
    return found


def merged(*bodies: bytes) -> JSONDict:
    """Core's recorded document with what API servers add."""
    specs = [Spec(own_part(body, OWN, OWN.owns), OWN, OWN.owns) for body in bodies]
    found: JSONDict = json.loads(merge_specs([Spec(CORE, everything), *specs]))
    return found


CORE = json.dumps(
    {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": {
            "/api/v1/pods": {"get": operation("io.k8s.api.core.v1.Pod")},
            "/apis/apps/v1/deployments": {"get": operation("io.k8s.api.core.v1.Pod")},
        },
        "definitions": {
            "io.k8s.api.core.v1.Pod": {
                "type": "object",
                "properties": {"metadata": {"$ref": f"#/definitions/{META}"}},
                KIND: [{"group": "", "version": "v1", "kind": "Pod"}],
            },
            META: OBJECT_META,
        },
    }
).encode()


def test_own_paths_and_what_they_refer_to_are_taken() -> None:
    paths = {
        "/apis/x.io/v1/things": {"get": operation("io.x.v1.Thing")},
        "/apis/x.io/": {"get": operation("io.x.v1.Thing")},
        "/apis/x.io/v2/things": {"get": operation("Other")},
        "/apis/apps/v1/deployments": {"get": operation("Other")},
        "/api/v1/pods": {"get": operation("Other")},
        "/version": {"get": operation("Other")},
    }
    found = part(document({"Other": {"type": "object"}}, paths))
    assert list(found["paths"]) == ["/apis/x.io/v1/things", "/apis/x.io/"]
    assert set(found["definitions"]) == {"io.x.v1.Thing", META}


def test_definitions_of_its_kinds_are_taken_without_paths() -> None:
    other = {**THING, KIND: [{"group": "apps", "version": "v1", "kind": "Deployment"}]}
    assert set(part(document({"Other": other}, {}))["definitions"]) == {"io.x.v1.Thing", META}


def test_parameters_are_put_where_they_are_referred_to() -> None:
    pretty = {"name": "pretty", "in": "query", "type": "string", "uniqueItems": True}
    paths = {
        "/apis/x.io/v1/things": {"get": operation("io.x.v1.Thing"), "parameters": [{"$ref": "#/parameters/pretty"}]}
    }
    found = part(document(None, paths, parameters={"pretty": pretty}))
    assert found["paths"]["/apis/x.io/v1/things"]["parameters"] == [pretty]


NOWHERE, ELSEWHERE = {"$ref": "#/definitions/b"}, {"$ref": "http://x.io/a.json"}
WRONG: dict[str, bytes] = {
    "no JSON": b"<html>",
    "no object": b"[]",
    "another version": document(swagger="3.0"),
    "nested deeply": b'{"swagger": "2.0", "a":' + b"[" * 200_000,
    "many elements": document({f"d{number}": {"type": "object"} for number in range(210_000)}),
    "a reference that leads nowhere": document({"io.x.v1.Thing": {**THING, "properties": {"a": NOWHERE}}}),
    "a reference to elsewhere": document({"io.x.v1.Thing": {**THING, "properties": {"a": ELSEWHERE}}}),
    "an unknown key": document({"io.x.v1.Thing": {**THING, "evil": 1}}),
    "properties that are none": document({"io.x.v1.Thing": {**THING, "properties": ["a"]}}),
    "a schema that is none": document({"io.x.v1.Thing": {**THING, "properties": {"a": 1}}}),
    "a type that is none": document({"io.x.v1.Thing": {**THING, "type": [1]}}),
    "an operation that is none": document(None, {"/apis/x.io/v1/things": {"get": []}}),
    "a parameter without a name": document(None, {"/apis/x.io/v1/things": {"parameters": [{"in": "query"}]}}),
    "deep objects without commas": document().replace(
        b'"definitions"', b'"x-a": [' + b",".join([b'{"a":' * 50 + b"1" + b"}" * 50] * 5_000) + b'], "definitions"'
    ),
    "a parameter that is not there": document(
        None, {"/apis/x.io/v1/things": {"parameters": [{"$ref": "#/parameters/a"}]}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_document_that_clients_could_not_read_is_refused_whole(what: str) -> None:
    with pytest.raises(DiscoveryError):
        part(WRONG[what])


def referring(parameter: JSONDict, times: int) -> bytes:
    paths = {"/apis/x.io/v1/things": {"parameters": [{"$ref": "#/parameters/a"}] * times}}
    return document(None, paths, parameters={"a": {"name": "a", "in": "query", **parameter}})


def test_a_long_parameter_that_many_refer_to_takes_no_memory_for_each() -> None:
    body = referring({"description": "x" * 1_000_000}, 500)
    tracemalloc.start()
    try:
        with pytest.raises(DiscoveryError, match="8 MiB"):
            part(body)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_parameter_that_many_refer_to_does_not_become_more_elements_than_are_merged() -> None:
    with pytest.raises(DiscoveryError, match="elements"):
        part(referring({"enum": [1] * 1000}, 2000))


def test_the_schema_of_a_parameter_is_looked_at_once() -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(500)}}
    body = referring({"in": "body", "schema": schema}, 100)
    looked_at = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal looked_at
        looked_at += event == "call" and frame.f_code.co_name == "_keys"

    sys.setprofile(count)
    try:
        part(body)
    finally:
        sys.setprofile(None)
    assert looked_at < 2000


def hostile(name: str, count: int) -> bytes:
    """A document that takes all the names that others could get where they differ from core."""
    kind = {"group": "x.io", "version": "v1"}
    own = {
        f"{name}_v{number}": {"type": "object", KIND: [{**kind, "kind": f"K{number}"}]} for number in range(2, count)
    }
    return document({name: {"type": "string"}, **own})


def test_an_api_server_that_takes_all_names_is_in_nobodys_way() -> None:
    other = document({META: {"type": "object", "properties": {"uid": {"type": "string"}}}})
    found = merged(hostile(META, 2000), other)
    assert found["definitions"][META] == OBJECT_META
    assert found["definitions"][f"{META}_v2000"] == {"type": "string"}
    assert found["definitions"][f"{META}_v2001"]["properties"] == {"uid": {"type": "string"}}


def test_many_definitions_of_one_api_server_cost_nothing_for_each_other_one() -> None:
    kinds = [{"group": "x.io", "version": "v1", "kind": f"K{number}"} for number in range(2000)]
    large = document({f"d{number}": {"type": "object", KIND: [kind]} for number, kind in enumerate(kinds)})
    specs = [Spec(own_part(body, OWN, OWN.owns), OWN, OWN.owns) for body in (large, *[document()] * 100)]
    looked_at = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal looked_at
        looked_at += event == "call" and frame.f_code.co_name == "_kinds_of"

    sys.setprofile(count)
    try:
        merge_specs([Spec(CORE, everything), *specs])
    finally:
        sys.setprofile(None)
    assert looked_at < 20_000


def test_a_recorded_document_is_well_formed() -> None:
    recording = json.loads(gzip.decompress((GOLDEN / "openapi/v2.json.gz").read_bytes()))
    own = OwnPaths([("apps", "v1"), ("batch", "v1")])
    found = json.loads(own_part(recording["response"]["body"].encode(), own, own.owns))
    assert "/apis/apps/v1/deployments" in found["paths"]
    assert "io.k8s.api.apps.v1.Deployment" in found["definitions"]
    assert "io.k8s.api.policy.v1.PodDisruptionBudget" not in found["definitions"]


def test_a_definition_that_is_equal_is_there_once_and_another_gets_a_name_of_its_own() -> None:
    found = merged(document())["definitions"]
    assert set(found) == {"io.k8s.api.core.v1.Pod", META, "io.x.v1.Thing"}
    other = {"type": "object", "description": "rubbish"}
    found = merged(document({META: other}))["definitions"]
    assert found[META] == OBJECT_META
    assert found[f"{META}_v2"] == other
    assert found["io.x.v1.Thing"]["properties"]["metadata"] == {"$ref": f"#/definitions/{META}_v2"}


def test_definitions_that_differ_in_their_kinds_alone_are_the_same() -> None:
    found = merged(document({META: {**OBJECT_META, KIND: [{"group": "x.io", "version": "v1", "kind": "Meta"}]}}))
    assert found["definitions"][META] == OBJECT_META
    assert f"{META}_v2" not in found["definitions"]


def test_a_kind_of_another_group_cannot_be_claimed() -> None:
    pod = {"group": "", "version": "v1", "kind": "Pod"}
    evil = {**THING, KIND: [pod, {"group": "apps", "version": "v1", "kind": "Deployment"}, *THING[KIND]]}
    found = merged(document({"io.x.v1.Thing": evil}))["definitions"]
    assert found["io.x.v1.Thing"][KIND] == THING[KIND]
    assert [name for name, schema in found.items() if pod in schema.get(KIND, ())] == ["io.k8s.api.core.v1.Pod"]


NAMES = st.sampled_from(["io.x.v1.Thing", "io.k8s.api.core.v1.Pod", META, f"{META}_v2", "Other", "__proto__"])
SCHEMAS = st.recursive(
    st.fixed_dictionaries({"type": st.sampled_from(["string", "object"])})
    | NAMES.map(lambda name: {"$ref": f"#/definitions/{name}"}),
    lambda inner: st.fixed_dictionaries({"properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2)}),
    max_leaves=4,
)
KINDS = st.lists(
    st.fixed_dictionaries(
        {
            "group": st.sampled_from(["", "x.io", "apps"]),
            "version": st.just("v1"),
            "kind": st.sampled_from(["Pod", "Thing"]),
        }
    ),
    max_size=2,
)
DEFINITIONS = st.dictionaries(NAMES, st.tuples(SCHEMAS, KINDS).map(lambda pair: {**pair[0], KIND: pair[1]}), min_size=1)
PATHS = st.dictionaries(
    st.sampled_from(["/apis/x.io/v1/things", "/api/v1/pods", "/apis/apps/v1/deployments", "/apis/x.io/v1/"]),
    NAMES.map(lambda name: {"get": operation(name)}),
)


@given(DEFINITIONS, PATHS)
def test_core_is_as_it_was_whatever_an_api_server_publishes(definitions: JSONDict, paths: JSONDict) -> None:
    core = json.loads(CORE)
    try:
        found = merged(document(definitions, paths))
    except DiscoveryError:
        return
    for path, item in core["paths"].items():
        assert found["paths"][path] == item
    for name, schema in core["definitions"].items():
        assert found["definitions"][name] == schema
    for path in found["paths"]:
        assert path in core["paths"] or OWN(path)
    claims = [
        (kind["group"], kind["version"])
        for name, schema in found["definitions"].items()
        if name not in core["definitions"]
        for kind in schema.get(KIND, ())
    ]
    assert set(claims) <= {("x.io", "v1")}


def test_a_v3_document_has_no_paths_of_others() -> None:
    own = {"openapi": "3.0.0", "paths": {"/apis/x.io/v1/things": {}}}
    body = json.dumps(own).encode()
    assert own_v3(body, "apis/x.io/v1") is body
    more = {"openapi": "3.0.0", "paths": {**own["paths"], "/api/v1/pods": {}, "/apis/x.io/v11/things": {}}}  # type: ignore[dict-item]
    assert json.loads(own_v3(json.dumps(more).encode(), "apis/x.io/v1")) == own


@pytest.mark.parametrize("body", [b"[]", b"<html>", b'{"paths": []}', b'{"a":' * 100_000])
def test_a_v3_document_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(DiscoveryError):
        own_v3(body, "apis/x.io/v1")
