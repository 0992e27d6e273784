"""What becomes of bodies on the way to a member: recorded ones of kubectl and the Python client, in each encoding."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.aggregate.resource_version.formats import version_format
from mcproxy.aggregate.resource_version.layout import Layout, LayoutHistory
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.aggregate.writes.request_body import BodyKind, RequestBody
from mcproxy.kube import protobuf
from mcproxy.kube.json_edit import MetadataEdit
from mcproxy.kube.media_types import JSON, PROTOBUF
from mcproxy.kube.protobuf import MAGIC, encode_bytes
from mcproxy.kube.status import StatusError

GOLDEN = Path(__file__).parents[2] / "golden"
LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
LAYOUT = Layout(["east", "west"])
READER = VersionReader(LayoutHistory(LAYOUT))
VECTOR = version_format(LAYOUT).event((700, 900), 0, 700)


def owner_part(text: str) -> str:
    return READER.owner_part(text, "east", 'configmaps "a"')


def sent(name: str) -> tuple[str, bytes, bytes | None]:
    """Method, body and Content-Type of the last write of a recorded command."""
    exchanges = json.loads((GOLDEN / "clients" / "kubectl-1.36" / f"{name}.json").read_text())["exchanges"]
    request: dict[str, Any] = [each["request"] for each in exchanges if each["request"]["method"] != "GET"][-1]
    encoded = request.get("body_base64")
    data = base64.b64decode(encoded) if encoded else request["body"].encode()
    types = [value.encode() for key, value in request["headers"] if key.lower() == "content-type"]
    return request["method"], data, types[0] if types else None


@pytest.mark.parametrize("name", ["create-cm", "create-token", "label", "patch-json", "auth-can-i"])
def test_a_recorded_body_without_anything_of_ours_stays_as_it_is(name: str) -> None:
    _, data, content_type = sent(name)
    body = RequestBody(data, content_type)
    assert body.for_member("east", owner_part) == data
    assert body.cluster() is None


def test_a_recorded_replace_with_what_the_aggregate_served() -> None:
    _, data, content_type = sent("replace")
    version = json.loads(data)["metadata"]["resourceVersion"]
    marks = f',"labels":{{"{LABEL}":"east"}},"annotations":{{"{ANNOTATION}":"east"}}}}}}'
    vector = version_format(LAYOUT).event((int(version), 900), 0, int(version))
    served = data.replace(f'"{version}"'.encode(), f'"{vector}"'.encode()).rstrip(b"}\n") + marks.encode() + b"\n"
    json.loads(served)
    body = RequestBody(served, content_type)
    assert body.cluster() == "east"
    assert body.for_member("east", owner_part) == data


def test_a_recorded_protobuf_body_with_a_label() -> None:
    _, data, content_type = sent("create-cm")
    edit = MetadataEdit({LABEL: "west"}, {ANNOTATION: "west"})
    body = RequestBody(protobuf.edit_metadata(data, edit), content_type)
    assert body.media_type == PROTOBUF
    assert body.cluster() == "west"
    assert body.for_member("west", owner_part) == data


def test_its_name_in_each_form() -> None:
    _, data, content_type = sent("create-cm")
    recorded = RequestBody(data, content_type)
    assert recorded.media_type == PROTOBUF
    assert recorded.name() in data.decode("latin-1")
    assert recorded.name() != ""
    assert RequestBody(b'{"metadata":{"name":"a"}}', b"application/json").name() == "a"
    assert RequestBody(b"metadata:\n  name: a\n", b"application/yaml").name() == "a"
    for broken, form in [(b"{", JSON), (b"k8s", PROTOBUF), (b"metadata: [", "application/yaml"), (b"{}", JSON)]:
        assert RequestBody(broken, form.encode()).name() == ""


@pytest.mark.parametrize(
    ("content_type", "data", "expected"),
    [
        (
            b"application/json; charset=utf-8",
            '{"metadata":{"resourceVersion":"@"}}',
            '{"metadata":{"resourceVersion":"700"}}',
        ),
        (None, '{"metadata":{"resourceVersion":"@"}}', '{"metadata":{"resourceVersion":"700"}}'),
        (
            b"application/merge-patch+json",
            '{"metadata":{"resourceVersion":"@","labels":{"mcproxy.io/cluster":null,"a":null}}}',
            '{"metadata":{"resourceVersion":"700","labels":{"a":null}}}',
        ),
        (
            b"application/strategic-merge-patch+json",
            '{"metadata":{"labels":{"$patch":"replace","mcproxy.io/cluster":"east"}}}',
            '{"metadata":{"labels":{"$patch":"replace"}}}',
        ),
        (
            b"application/json-patch+json",
            '[{"op":"test","path":"/metadata/resourceVersion","value":"@"}]',
            '[{"op":"test","path":"/metadata/resourceVersion","value":"700"}]',
        ),
        (b"application/apply-patch+yaml", '{"metadata":{"labels":{"mcproxy.io/cluster":"east"}}}', '{"metadata":{}}'),
        (b"application/apply-patch+yaml", "metadata: {labels: {mcproxy.io/cluster: east}}", '{"metadata":{}}'),
        (b"application/apply-patch+yaml", "{metadata: {labels: {mcproxy.io/cluster: east}}}", '{"metadata":{}}'),
        (b"application/apply-patch+yaml", "metadata: {labels: {a: b}} # kept\n", "metadata: {labels: {a: b}} # kept\n"),
        (b"application/yaml", "not: [yaml", "not: [yaml"),
        (
            b"application/yaml",
            "metadata:\n  labels: {mcproxy.io/cluster: east}\nspec: {on: 0o7}\n",
            '{"metadata":{},"spec":{"true":7}}',
        ),
        (b"application/yaml", "metadata:\n  resourceVersion: '@'\n", '{"metadata":{"resourceVersion":"700"}}'),
        (b"text/plain", '{"metadata":{"resourceVersion":"@"}}', '{"metadata":{"resourceVersion":"@"}}'),
        (b"application/json", '{"metadata":{"labels":', '{"metadata":{"labels":'),
    ],
)
def test_each_media_type(content_type: bytes | None, data: str, expected: str) -> None:
    body = RequestBody(data.replace("@", VECTOR).encode(), content_type)
    assert body.for_member("east", owner_part).decode() == expected.replace("@", VECTOR)


class TestPreconditions:
    """A composite version that stayed in DELETE preconditions made every such delete fail elsewhere."""

    OPTIONS = '{"kind":"DeleteOptions","preconditions":{"resourceVersion":"%s","uid":"u"}}'

    def test_of_a_delete(self) -> None:
        body = RequestBody((self.OPTIONS % VECTOR).encode(), b"application/json")
        assert body.for_member("east", owner_part, BodyKind.DELETE_OPTIONS).decode() == self.OPTIONS % "700"

    def test_of_an_eviction(self) -> None:
        eviction = '{"kind":"Eviction","metadata":{"name":"a"},"deleteOptions":%s}'
        body = RequestBody((eviction % (self.OPTIONS % VECTOR)).encode(), b"application/json")
        expected = eviction % (self.OPTIONS % "700")
        assert body.for_member("east", owner_part, BodyKind.EVICTION).decode() == expected

    def test_in_protobuf_and_yaml(self) -> None:
        def options(version: str) -> bytes:
            return MAGIC + encode_bytes(2, encode_bytes(2, encode_bytes(2, version.encode())))

        body = RequestBody(options(VECTOR), PROTOBUF.encode())
        assert body.for_member("east", owner_part, BodyKind.DELETE_OPTIONS) == options("700")
        body = RequestBody(f"preconditions:\n  resourceVersion: '{VECTOR}'\n".encode(), b"application/yaml")
        expected = b'{"preconditions":{"resourceVersion":"700"}}'
        assert body.for_member("east", owner_part, BodyKind.DELETE_OPTIONS) == expected


def test_a_version_without_a_part_of_the_owner_is_409() -> None:
    text = version_format(LAYOUT).object(1, 900)
    body = RequestBody(json.dumps({"metadata": {"resourceVersion": text}}).encode(), b"application/json")
    with pytest.raises(StatusError) as caught:
        body.for_member("east", owner_part)
    assert (caught.value.code, caught.value.reason) == (409, "Conflict")


@pytest.mark.parametrize("content_type", [b"application/cbor", b"application/apply-patch+cbor"])
def test_cbor_is_415(content_type: bytes) -> None:
    with pytest.raises(StatusError) as caught:
        RequestBody(b"\xa0", content_type)
    assert caught.value.code == 415


def test_malformed_protobuf_is_400() -> None:
    body = RequestBody(b"k8s\x00mcproxy.io/cluster", PROTOBUF.encode())
    for read in (body.cluster, lambda: body.for_member("east", owner_part)):
        with pytest.raises(StatusError) as caught:
            read()
        assert caught.value.code == 400


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "labels": {"app": "web", LABEL: "east"}},
    "spec": {"selector": {"app": "web", LABEL: "east"}, "ports": [{"port": 80}]},
}


@pytest.mark.parametrize(
    "content_type",
    [
        b"application/json",
        b"application/merge-patch+json",
        b"application/strategic-merge-patch+json",
        b"application/yaml",
        b"application/apply-patch+yaml",
    ],
)
@pytest.mark.parametrize("yaml_text", [False, True])
def test_a_selector_that_was_made_of_a_pods_labels(content_type: bytes, yaml_text: bool) -> None:
    """`kubectl expose pod`: with the label of the cluster in it, a selector selects nothing."""
    if yaml_text and not content_type.endswith(b"yaml"):
        return
    data = (yaml.safe_dump(SERVICE) if yaml_text else json.dumps(SERVICE)).encode()
    sent = yaml.safe_load(RequestBody(data, content_type).for_member("east", owner_part))
    assert sent == {
        **SERVICE,
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
    }


def test_a_merge_patch_may_take_off_what_stands_in_a_selector() -> None:
    data = b'{"spec":{"selector":{"mcproxy.io/cluster":null}}}'
    assert RequestBody(data, b"application/merge-patch+json").for_member("east", owner_part) == data
    assert RequestBody(data, b"application/json").for_member("east", owner_part) == b'{"spec":{"selector":{}}}'


@pytest.mark.parametrize(
    ("api_version", "kind", "changed"), [("v1", "Service", True), ("v1", "Pod", False), ("x/v1", "Service", False)]
)
def test_a_services_selector_in_protobuf(api_version: str, kind: str, changed: bool) -> None:
    def entry(key: str, value: str) -> bytes:
        return encode_bytes(2, encode_bytes(1, key.encode()) + encode_bytes(2, value.encode()))

    def service(*selector: bytes) -> bytes:
        meta = encode_bytes(1, encode_bytes(1, b"web"))
        spec = encode_bytes(2, b"".join(selector) + encode_bytes(3, b"10.0.0.1"))
        types = encode_bytes(1, encode_bytes(1, api_version.encode()) + encode_bytes(2, kind.encode()))
        return MAGIC + types + encode_bytes(2, meta + spec)

    data = service(entry("app", "web"), entry(LABEL, "east"))
    edited = RequestBody(data, PROTOBUF.encode()).for_member("east", owner_part)
    assert edited == (service(entry("app", "web")) if changed else data)


@pytest.mark.parametrize(
    ("content_type", "data", "message"),
    [
        (b"application/json", b'{"a":' * 101 + b"1" + b"}" * 101, "nested more than 100 levels deep"),
        (b"application/json-patch+json", b"[" * 101 + b"]" * 101, "nested more than 100 levels deep"),
        (b"application/apply-patch+yaml", b'{"a":' * 5000 + b"1" + b"}" * 5000, "nested more than 100 levels deep"),
        (
            b"application/merge-patch+json",
            b'{"metadata":{"resourceVersion":"1","resourceVersion":"1"}}',
            'strict decoding error: duplicate field "metadata.resourceVersion"',
        ),
        (
            b"application/json-patch+json",
            b"[" + b",".join([b'{"op":"add","path":"/metadata/labels/a","value":"b"}'] * 1001) + b"]",
            "more than 1000 operations",
        ),
    ],
)
def test_what_is_not_taken_apart_is_refused(content_type: bytes, data: bytes, message: str) -> None:
    with pytest.raises(StatusError) as caught:
        RequestBody(data, content_type).for_member("east", owner_part)
    assert caught.value.code == 400
    assert message in caught.value.message


LABELLED = b"metadata: {labels: {mcproxy.io/cluster: east}}\n"


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (LABELLED + b"spec: [", 400, "error decoding YAML: "),
        (LABELLED + b"a: \xff", 400, "error decoding YAML: "),
        (LABELLED + b"---\n" + LABELLED, 400, "more than one document; send JSON"),
        (b"a: &l {mcproxy.io/cluster: a}\nmetadata: {labels: *l}\n", 400, "it has aliases; send JSON"),
        (LABELLED + b"a: " + b"a" * 300_000, 413, "limit of YAML is 262144; send JSON"),
        (
            b"metadata:\n  resourceVersion: '1'\n  resourceVersion: '1'\n",
            400,
            'strict decoding error: yaml: unmarshal errors:\n  line 3: key "resourceVersion" already set in map',
        ),
    ],
)
@pytest.mark.parametrize("content_type", [b"application/yaml", b"application/apply-patch+yaml"])
def test_yaml_that_cannot_be_read_here_is_refused(content_type: bytes, data: bytes, code: int, message: str) -> None:
    body = RequestBody(data, content_type)
    with pytest.raises(StatusError) as caught:
        body.for_member("east", owner_part)
    assert caught.value.code == code
    assert message in caught.value.message


@pytest.mark.parametrize("bracket", [b"[]", b"{}"])
def test_brackets_without_end_do_not_end_the_process(bracket: bytes) -> None:
    """50 KB of brackets, closed again: libyaml's composer recurses, and the process was gone (SIGSEGV)."""
    data = bracket[:1] * 25_000 + bracket[1:] * 25_000 + b" # mcproxy.io/cluster name"
    body = RequestBody(data, b"application/yaml")
    assert body.name() == ""
    for read in (body.cluster, lambda: body.for_member("east", owner_part)):
        with pytest.raises(StatusError, match="nested more than 100 levels deep"):
            read()


def test_a_patch_of_many_operations_that_concern_nothing_here_goes_on() -> None:
    data = b"[" + b",".join([b'{"op":"add","path":"/spec/a/b","value":["c"]}'] * 10_000) + b"]"
    assert RequestBody(data, b"application/json-patch+json").for_member("east", owner_part) == data
