"""The merge of OpenAPI documents: paths are united, definitions of the same name and other content renamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.discovery.openapi_merge import Spec, everything, merge_specs
from mcproxy.kube.discovery import DiscoveryError
from tests.aggregate.discovery.stage import recorded_response

V2, V3 = "#/definitions/", "#/components/schemas/"


def v2(paths: dict[str, str], **definitions: Any) -> bytes:
    """A document whose paths refer to a definition each."""
    items = {path: {"get": {"schema": {"$ref": V2 + name}}} for path, name in paths.items()}
    return json.dumps({"swagger": "2.0", "info": {}, "paths": items, "definitions": definitions}).encode()


def merged(*documents: bytes) -> Any:
    return json.loads(merge_specs([Spec(document, everything) for document in documents]))


def target(document: Any, path: str) -> Any:
    """The definition that a path refers to."""
    name = document["paths"][path]["get"]["schema"]["$ref"].removeprefix(V2)
    return document["definitions"][name]


def obj(**fields: str) -> Any:
    return {"type": "object", "properties": {name: {"$ref": V2 + ref} for name, ref in fields.items()}}


def unescaped(body: bytes) -> str:
    """With keys in their order; Go's encoder escapes "<" and others."""
    return json.dumps(json.loads(body))


def test_one_document_stays_as_it_is() -> None:
    body = recorded_response("openapi/v3-crd").body
    assert unescaped(merge_specs([Spec(body, everything)])) == unescaped(body)


def test_the_same_document_twice_is_that_document() -> None:
    body = recorded_response("openapi/v3-crd").body
    assert unescaped(merge_specs([Spec(body, everything)] * 2)) == unescaped(body)


def test_paths_and_definitions_are_united() -> None:
    document = merged(v2({"/a": "A"}, A=obj(), Shared=obj()), v2({"/b": "B"}, B=obj(shared="Shared"), Shared=obj()))
    assert set(document["paths"]) == {"/a", "/b"}
    assert set(document["definitions"]) == {"A", "B", "Shared"}


def test_a_definition_of_other_content_is_renamed() -> None:
    first = v2({"/a": "A"}, A=obj(meta="Meta"), Meta={"description": "new"})
    second = v2({"/b": "B"}, B=obj(meta="Meta"), Meta={"description": "old"})
    document = merged(first, second)
    assert document["definitions"]["Meta"] == {"description": "new"}
    reference = target(document, "/b")["properties"]["meta"]["$ref"]
    assert reference == V2 + "Meta_v2"
    assert document["definitions"]["Meta_v2"] == {"description": "old"}
    assert target(document, "/a")["properties"]["meta"]["$ref"] == V2 + "Meta"


def test_what_refers_to_a_renamed_definition_is_renamed() -> None:
    """List has the same text in both, but its items are others."""
    first = v2({"/a": "List"}, List=obj(items="Item"), Item={"description": "new"})
    second = v2({"/b": "List"}, List=obj(items="Item"), Item={"description": "old"})
    document = merged(first, second)
    items = target(document, "/b")["properties"]["items"]["$ref"].removeprefix(V2)
    assert document["definitions"][items] == {"description": "old"}
    assert document["definitions"]["List"]["properties"]["items"]["$ref"] == V2 + "Item"


def test_definitions_that_refer_to_themselves() -> None:
    first = v2({"/a": "Tree"}, Tree={"description": "new", **obj(child="Tree")})
    second = v2({"/b": "Tree"}, Tree={"description": "old", **obj(child="Tree")})
    document = merged(first, second, second)
    assert document["definitions"]["Tree_v2"]["properties"]["child"]["$ref"] == V2 + "Tree_v2"
    assert set(document["definitions"]) == {"Tree", "Tree_v2"}


def test_a_third_form_gets_a_third_name() -> None:
    documents = [v2({f"/{n}": "A"}, A={"description": str(n)}) for n in range(3)]
    assert set(merged(*documents)["definitions"]) == {"A", "A_v2", "A_v3"}


def test_a_renamed_definition_claims_no_kind_that_another_has() -> None:
    kind = {"group": "", "version": "v1", "kind": "DeleteOptions"}
    own = {"group": "x.io", "version": "v1", "kind": "DeleteOptions"}
    name = "x-kubernetes-group-version-kind"
    first = v2({"/a": "Options"}, Options={"description": "new", name: [kind]})
    second = v2({"/b": "Options"}, Options={"description": "old", name: [kind, own]})
    assert merged(first, second)["definitions"]["Options_v2"][name] == [own]


def test_only_what_is_asked_for_is_taken() -> None:
    first = Spec(v2({"/a": "A", "/x": "A"}, A=obj()), lambda path: path == "/a")
    second = Spec(v2({"/b": "B", "/y": "Y"}, B=obj(), Y=obj()), lambda path: path == "/b")
    document = json.loads(merge_specs([first, second]))
    assert set(document["paths"]) == {"/a", "/b"}
    assert set(document["definitions"]) == {"A", "B"}


def test_a_path_is_the_first_ones() -> None:
    document = merged(v2({"/a": "A"}, A=obj()), v2({"/a": "B"}, B=obj()))
    assert target(document, "/a") == obj()
    assert set(document["definitions"]) == {"A"}


def test_v3() -> None:
    body = recorded_response("openapi/v3-crd").body
    other = body.replace(b"Widget", b"Gizmo").replace(b"widgets", b"gizmos")
    document = merged(body, other)
    assert "/apis/example.com/v1/gizmos" in document["paths"]
    assert {"com.example.v1.Widget", "com.example.v1.Gizmo"} <= set(document["components"]["schemas"])
    assert not [name for name in document["components"]["schemas"] if name.endswith("_v2")]


@pytest.mark.parametrize("broken", [b"", b"[]", b"7", b"\xff", b'{"a":' * 5000])
def test_what_is_no_document_is_refused(broken: bytes) -> None:
    with pytest.raises(DiscoveryError):
        merged(v2({}), broken)


def test_a_document_of_too_many_elements_is_refused() -> None:
    with pytest.raises(DiscoveryError, match="elements"):
        merged(v2({}), b'{"paths":[' + b"0," * 1_000_001 + b"0]}")


@pytest.mark.parametrize("depth", [100, 300, 500, 900, 5000, 100_000])
def test_a_document_that_is_nested_deeply_is_merged_or_refused(depth: int) -> None:
    nested = b'{"swagger":"2.0","paths":{"/x":%b{"$ref":"#/definitions/A"}%b},"definitions":{"A":{"x":%b{}%b}}}' % (
        b'{"a":' * depth,
        b"}" * depth,
        b"[" * depth,
        b"]" * depth,
    )
    try:
        document = merged(v2({"/a": "A"}, A=obj()), nested)
    except DiscoveryError:
        assert depth > 100
    else:
        assert set(document["definitions"]) == {"A", "A_v2"}


def test_a_long_chain_of_definitions_takes_no_quadratic_time() -> None:
    """Each refers to the next, and the last one differs: all are renamed."""
    count = 20_000
    chain = {f"D{number}": obj(next=f"D{number + 1}") for number in range(count)}
    first = v2({"/a": "D0"}, **chain, **{f"D{count}": {"description": "new"}})
    second = v2({"/b": "D0"}, **chain, **{f"D{count}": {"description": "old"}})
    document = merged(first, second)
    assert len(document["definitions"]) == 2 * (count + 1)
    assert target(document, "/b")["properties"]["next"]["$ref"] == V2 + "D1_v2"


def test_versions_do_not_mix() -> None:
    with pytest.raises(DiscoveryError, match="different versions"):
        merged(v2({}), b'{"openapi":"3.0.0"}')


@pytest.mark.parametrize("odd", [b"{}", b'{"paths":[],"definitions":7}', b'{"paths":{"/x":7},"definitions":{"A":7}}'])
def test_odd_documents_add_what_they_have(odd: bytes) -> None:
    document = merged(v2({"/a": "A"}, A=obj()), odd)
    assert target(document, "/a") == obj()


NAMES = st.sampled_from(["A", "B", "C"])
DOCUMENTS = st.builds(
    lambda paths, definitions: (paths, definitions),
    st.dictionaries(st.sampled_from(["/a", "/b", "/c"]), NAMES, max_size=3),
    st.fixed_dictionaries(
        {
            name: st.builds(lambda text, ref: {"description": text, **obj(x=ref)}, st.sampled_from("12"), NAMES)
            for name in "ABC"
        }
    ),
)


def expanded(definitions: Any, name: str, depth: int = 4) -> Any:
    """A definition with its references followed, some levels deep."""
    found = definitions[name]
    child = found["properties"]["x"]["$ref"].removeprefix(V2)
    return found["description"], (expanded(definitions, child, depth - 1) if depth else None)


@given(st.lists(DOCUMENTS, min_size=1, max_size=3))
def test_each_path_means_what_it_meant(documents: list[tuple[dict[str, str], dict[str, Any]]]) -> None:
    document = merged(*(v2(paths, **definitions) for paths, definitions in documents))
    for path, item in document["paths"].items():
        paths, definitions = next(one for one in documents if path in one[0])
        name = item["get"]["schema"]["$ref"].removeprefix(V2)
        assert expanded(document["definitions"], name) == expanded(definitions, paths[path])
    assert set(document["paths"]) == {path for paths, _ in documents for path in paths}
