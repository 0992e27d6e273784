"""Edits of metadata on the wire: recorded bodies, random messages, and hostile ones."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubesim.apimachinery import protobuf as decoding
from mcproxy.kube import protobuf
from mcproxy.kube.json_edit import MetadataEdit
from mcproxy.kube.protobuf import MAGIC, MalformedProtobuf, encode_bytes, encode_varint

GOLDEN = Path(__file__).parents[1] / "golden"
LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
TYPE = encode_bytes(1, encode_bytes(1, b"v1") + encode_bytes(2, b"ConfigMap"))
REMOVED = MetadataEdit({LABEL: None}, {ANNOTATION: None})
ADDED = MetadataEdit({LABEL: "east"}, {ANNOTATION: "east"})


def recorded(path: str, side: str) -> bytes:
    """The body of the last exchange of a recording, of the request or the response."""
    content = json.loads((GOLDEN / path).read_text())
    message: dict[str, Any] = content.get("exchanges", [content])[-1][side]
    encoded = message.get("body_base64")
    return base64.b64decode(encoded) if encoded else message["body"].encode()


def body(*meta: bytes, rest: bytes = b"") -> bytes:
    """An envelope of a ConfigMap; each of `meta` is one occurrence of its metadata."""
    raw = b"".join(encode_bytes(1, part) for part in meta) + rest
    return MAGIC + TYPE + encode_bytes(2, raw) + encode_bytes(3, b"") + encode_bytes(4, b"")


def entry(number: int, key: str, value: str) -> bytes:
    return encode_bytes(number, encode_bytes(1, key.encode()) + encode_bytes(2, value.encode()))


class TestRecorded:
    def test_labels_annotation_and_version_of_a_node(self) -> None:
        before = recorded("clients/kubectl-1.36/cordon.json", "response")
        labels, version = protobuf.metadata_of(before)
        assert labels["kubernetes.io/hostname"] == "worker-1"
        assert version.isdecimal()
        edit = MetadataEdit({LABEL: "east"}, {ANNOTATION: "east"}, lambda known: "1" + known)
        after = protobuf.edit_metadata(before, edit)
        assert protobuf.metadata_of(after) == (labels | {LABEL: "east"}, "1" + version)
        assert after != before
        back = protobuf.edit_metadata(after, MetadataEdit({LABEL: None}, {ANNOTATION: None}, lambda known: known[1:]))
        assert back == before

    @pytest.mark.parametrize(
        ("path", "side"),
        [
            ("clients/kubectl-1.36/create-cm.json", "request"),
            ("clients/kubectl-1.36/create-cm.json", "response"),
            ("clients/kubectl-1.36/create-token.json", "request"),
            ("clients/kubectl-1.36/cordon.json", "response"),
            ("get/get-configmap-protobuf.json", "response"),
        ],
    )
    def test_what_is_added_and_taken_off_leaves_the_body_as_it_was(self, path: str, side: str) -> None:
        before = recorded(path, side)
        assert protobuf.edit_metadata(before, REMOVED) is before
        added = protobuf.edit_metadata(before, ADDED)
        assert protobuf.metadata_of(added)[0][LABEL] == "east"
        assert protobuf.edit_metadata(added, REMOVED) == before

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("clients/kubectl-1.36/create-cm.json", "ConfigMap"),
            ("clients/kubectl-1.36/create-token.json", "TokenRequest"),
            ("clients/kubectl-1.36/auth-can-i.json", "SelfSubjectAccessReview"),
            ("clients/kubectl-1.36/auth-can-i-list.json", "SelfSubjectRulesReview"),
            ("clients/kubectl-1.36/auth-whoami.json", "SelfSubjectReview"),
        ],
    )
    def test_the_kind_of_what_kubectl_sends(self, path: str, kind: str) -> None:
        assert protobuf.envelope(recorded(path, "request")).kind == kind

    def test_the_edited_object_decodes_as_before(self) -> None:
        before = recorded("clients/kubectl-1.36/create-cm.json", "request")
        decoded = decoding.decode(protobuf.edit_metadata(before, ADDED))
        expected = decoding.decode(before)
        expected["metadata"] |= {"labels": {LABEL: "east"}, "annotations": {ANNOTATION: "east"}}
        assert decoded == expected


class TestDeleteOptions:
    def options(self, *versions: str) -> bytes:
        """A DeleteOptions with one preconditions for each version."""
        preconditions = [encode_bytes(2, encode_bytes(1, b"u") + encode_bytes(2, each.encode())) for each in versions]
        return b"\x08\x1e" + b"".join(preconditions) + encode_bytes(4, b"Background")

    def test_the_version_of_the_preconditions_is_changed(self) -> None:
        before = MAGIC + TYPE + encode_bytes(2, self.options("7"))
        after = protobuf.change_string(before, protobuf.DELETE_OPTIONS_VERSION, lambda version: version + "00")
        assert after == MAGIC + TYPE + encode_bytes(2, self.options("700"))

    def test_several_are_refused(self) -> None:
        before = MAGIC + TYPE + encode_bytes(2, self.options(*["7"] * 5_000))
        with pytest.raises(MalformedProtobuf, match="field 2 stands twice"):
            protobuf.change_string(before, protobuf.DELETE_OPTIONS_VERSION, lambda version: version + "00")

    def test_those_of_an_eviction(self) -> None:
        meta = encode_bytes(1, encode_bytes(1, b"web"))
        before = MAGIC + TYPE + encode_bytes(2, meta + encode_bytes(2, self.options("7")))
        after = protobuf.change_string(before, protobuf.EVICTION_VERSION, lambda _: "12345")
        assert after == MAGIC + TYPE + encode_bytes(2, meta + encode_bytes(2, self.options("12345")))

    def test_where_there_is_none_none_is_added(self) -> None:
        before = MAGIC + TYPE + encode_bytes(2, b"\x08\x1e")
        assert protobuf.change_string(before, protobuf.DELETE_OPTIONS_VERSION, lambda _: "5") is before


class TestRepeated:
    """Go merges repeated messages and takes the last of repeated strings; in metadata that would be two readings."""

    @pytest.mark.parametrize(
        ("metas", "field"),
        [
            ([entry(11, LABEL, "west"), encode_bytes(1, b"name")], "metadata"),
            ([entry(11, LABEL, "west") * 2], f"metadata.labels.{LABEL}"),
            ([entry(12, "a", "1") + entry(12, "b", "1") + entry(12, "a", "1")], "metadata.annotations.a"),
            ([encode_bytes(6, b"2") * 50_000], "metadata.resourceVersion"),
            ([encode_bytes(1, b"2") + encode_bytes(1, b"3")], "metadata.name"),
        ],
    )
    def test_what_stands_twice_is_refused(self, metas: list[bytes], field: str) -> None:
        edit = MetadataEdit(REMOVED.labels, REMOVED.annotations, lambda version: version)
        for read in (lambda: protobuf.edit_metadata(body(*metas), edit), lambda: protobuf.metadata_of(body(*metas))):
            with pytest.raises(MalformedProtobuf, match=f'duplicate field "{field}"'):
                read()

    def test_an_entry_whose_last_key_is_the_label(self) -> None:
        trick = encode_bytes(11, encode_bytes(1, b"harmless") + encode_bytes(1, LABEL.encode()))
        assert protobuf.edit_metadata(body(trick), REMOVED) == body(b"")

    def test_an_object_without_metadata_gets_one(self) -> None:
        assert protobuf.metadata_of(protobuf.edit_metadata(body(), ADDED))[0] == {LABEL: "east"}
        assert protobuf.edit_metadata(body(), REMOVED) == body()

    def test_the_last_object_of_an_envelope_applies(self) -> None:
        first = encode_bytes(2, encode_bytes(1, entry(11, LABEL, "west")))
        last = encode_bytes(2, encode_bytes(1, entry(11, LABEL, "east")))
        assert protobuf.edit_metadata(MAGIC + first + last, REMOVED) == MAGIC + first + encode_bytes(
            2, encode_bytes(1, b"")
        )


@pytest.mark.parametrize(("wire", "content"), [(0, b"\x96\x01"), (1, b"8 bytes!"), (2, b"\x03abc"), (5, b"four")])
def test_a_field_ends_where_its_wire_type_says(wire: int, content: bytes) -> None:
    message = encode_varint(7 << 3 | wire) + content
    first, second = protobuf.scan(message + encode_bytes(8, b"x"))
    assert (first.number, first.wire, first.begin, first.end) == (7, wire, 0, len(message))
    assert (second.number, second.wire, second.begin) == (8, 2, len(message))


@pytest.mark.parametrize("wire", [3, 4, 6, 7])
def test_groups_and_unknown_wire_types_are_malformed(wire: int) -> None:
    with pytest.raises(MalformedProtobuf, match=f"wire type {wire}"):
        list(protobuf.scan(encode_varint(7 << 3 | wire) + b"\x00" * 16))


class TestMalformed:
    @pytest.mark.parametrize(
        "bad",
        [
            b"",
            b"{}",
            MAGIC,
            MAGIC + TYPE,
            MAGIC + b"\x12\x05abc",  # truncated
            MAGIC + b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a varint of eleven bytes
            MAGIC + b"\x10\x01",  # an integer where the object should stand
            MAGIC + b"\x13\x14",  # a group
            MAGIC + b"\x02\x00",  # field number 0
            MAGIC + encode_bytes(2, b"\x08\x01"),  # an integer where the metadata should stand
            MAGIC + encode_bytes(2, encode_bytes(1, b"\x58\x01")),  # … a label
            MAGIC + encode_bytes(2, encode_bytes(1, encode_bytes(11, b"\x08\x01"))),  # … a label's key
            MAGIC + encode_bytes(2, encode_bytes(1, encode_bytes(11, encode_bytes(1, b"\xff")))),
        ],
    )
    def test_it_is_refused(self, bad: bytes) -> None:
        with pytest.raises(MalformedProtobuf):
            protobuf.edit_metadata(bad, REMOVED)

    def test_a_field_number_that_go_would_cut_to_a_small_one(self) -> None:
        label = entry(11, LABEL, "west")[1:]
        with pytest.raises(MalformedProtobuf, match="field number"):
            protobuf.edit_metadata(body(encode_varint((1 << 32 | 11) << 3 | 2) + label), REMOVED)

    def test_too_many_fields(self) -> None:
        with pytest.raises(MalformedProtobuf, match="more than 10000 fields"):
            protobuf.edit_metadata(body(rest=b"\x18\x00" * 10_001), REMOVED)
        assert protobuf.edit_metadata(body(rest=b"\x18\x00" * 9_999), REMOVED)
        with pytest.raises(MalformedProtobuf, match="more than 1000 fields"):
            protobuf.edit_metadata(body(b"".join(entry(11, f"{n}", "") for n in range(1001))), REMOVED)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
maps = st.dictionaries(texts.filter(lambda key: key not in (LABEL, ANNOTATION)), texts, max_size=4)
others = st.lists(st.tuples(st.integers(13, 40), st.binary(max_size=200)), max_size=4)


@st.composite
def metadata(draw: st.DrawFn) -> bytes:
    """An ObjectMeta as Go's encoder orders it."""
    version = draw(texts)
    fields = encode_bytes(1, draw(texts).encode()) + (encode_bytes(6, version.encode()) if version else b"")
    for number in (11, 12):
        fields += b"".join(entry(number, key, value) for key, value in draw(maps).items())
    return fields + b"".join(encode_bytes(number, content) for number, content in draw(others))


@given(metadata(), st.binary(max_size=300))
def test_what_is_added_and_taken_off_again_changes_nothing(meta: bytes, data: bytes) -> None:
    before = body(meta, rest=encode_bytes(2, data))
    changed = protobuf.edit_metadata(
        before, MetadataEdit(ADDED.labels, ADDED.annotations, lambda version: "é" + version)
    )
    labels, version = protobuf.metadata_of(before)
    assert protobuf.metadata_of(changed) == (labels | {LABEL: "east"}, "é" + version if version else "")
    assert protobuf.edit_metadata(changed, MetadataEdit(REMOVED.labels, REMOVED.annotations, lambda v: v[1:])) == before


@given(st.binary(max_size=200))
def test_any_bytes_are_edited_or_refused(data: bytes) -> None:
    try:
        protobuf.edit_metadata(MAGIC + data, REMOVED)
    except MalformedProtobuf:
        return
    assert protobuf.envelope(MAGIC + data)


@given(st.integers(0, (1 << 64) - 1))
def test_varint(value: int) -> None:
    assert list(protobuf.values(b"\x08" + encode_varint(value))) == [(1, value)]
