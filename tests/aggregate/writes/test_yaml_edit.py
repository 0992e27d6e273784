"""YAML bodies: only the cluster's label and annotation go, and versions change; all other text stays."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.writes import yaml_edit
from mcproxy.kube.metadata_edit import MetadataEdit
from mcproxy.kube.status import StatusError

LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
EDIT = MetadataEdit({LABEL: None}, {ANNOTATION: None}, lambda version: version.removeprefix("vector-"))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "# mine\nkind: A\nmetadata:\n  name: n  # its name\n  labels:\n    a: b\n    mcproxy.io/cluster: east\n"
            "spec:\n  on: 0o7\n",
            "# mine\nkind: A\nmetadata:\n  name: n  # its name\n  labels:\n    a: b\nspec:\n  on: 0o7\n",
        ),
        (
            "metadata:\n  labels:\n    mcproxy.io/cluster: east # here\n    a: b\n  name: n",
            "metadata:\n  labels:\n    a: b\n  name: n",
        ),
        ("metadata:\n  name: n\n  labels:\n    mcproxy.io/cluster: east", "metadata:\n  name: n\n"),
        ("metadata:\n  labels:\n    mcproxy.io/cluster: east\n  name: n\n", "metadata:\n  name: n\n"),
        (
            "metadata:\n  finalizers:\n  - a\n  labels:\n    mcproxy.io/cluster: east\n\n\nspec: 1\n",
            "metadata:\n  finalizers:\n  - a\nspec: 1\n",
        ),
        ("metadata:\n  labels:\n    mcproxy.io/cluster: east\nspec: 1\n", "metadata:\n  {}\nspec: 1\n"),
        (
            "metadata:\n  labels:\n    mcproxy.io/cluster: a\n  annotations:\n"
            "    resource.karmada.io/cached-from-cluster: a\nspec: 1\n",
            "metadata:\n  {}\nspec: 1\n",
        ),
        ("metadata: {labels: {mcproxy.io/cluster: east, a: b}, name: n}", "metadata: {labels: {a: b}, name: n}"),
        ("metadata: {labels: {a: b, mcproxy.io/cluster: east}, name: n}", "metadata: {labels: {a: b}, name: n}"),
        ("metadata: {name: n, labels: {mcproxy.io/cluster: east}}", "metadata: {name: n}"),
        (
            '{"metadata":{"name":"n",\n"resourceVersion":"vector-7"}}',
            '{"metadata":{"name":"n",\n"resourceVersion":"7"}}',
        ),
        ("metadata:\n  resourceVersion: vector-7 # old\n", 'metadata:\n  resourceVersion: "7" # old\n'),
        (
            "spec:\n  selector:\n    matchLabels:\n      mcproxy.io/cluster: east # copied\n      a: b\n"
            "  template:\n    metadata:\n      labels: {a: b, mcproxy.io/cluster: east}\n",
            "spec:\n  selector:\n    matchLabels:\n      a: b\n  template:\n    metadata:\n      labels: {a: b}\n",
        ),
        (
            "metadata:\n  labels:\n    mcproxy.io/cluster: east\nspec:\n  selector:\n    mcproxy.io/cluster: east\n",
            "metadata:\n  {}\nspec:\n  selector:\n    {}\n",
        ),
        ("- labels: {mcproxy.io/cluster: east}\n", "- labels: {}\n"),
        (
            "metadata:\n  annotations:\n    resource.karmada.io/cached-from-cluster: >-\n      east\n    a: b\n",
            "metadata:\n  annotations:\n    a: b\n",
        ),
    ],
)
def test_metadata(before: str, after: str) -> None:
    assert yaml_edit.edit_metadata(before.encode(), EDIT).decode() == after


@pytest.mark.parametrize(
    "body",
    [
        b"metadata:\n  name: n\n",
        b"spec:\n  nodeSelector: {mcproxy.io/cluster: east}\n",
        b"data:\n  labels: {mcproxy.io/cluster: east}\n",
        b"not: [yaml",  # nothing of ours is in it: the member says what is wrong
        b"",
    ],
)
def test_all_else_passes_byte_for_byte(body: bytes) -> None:
    assert yaml_edit.edit_metadata(body, EDIT) == body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"metadata: {labels: {mcproxy.io/cluster: east", 400),
        (b"\xffmcproxy.io/cluster", 400),
        (b"[" * 10_000 + b"mcproxy.io/cluster", 400),
        (b"x: &l {mcproxy.io/cluster: a}\nmetadata:\n  name: n\n  labels: *l\n", 400),
        (
            b"mcproxy.io/cluster: 1\na0: &a0 [x]\n"
            + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n + 1, n + 1, n, n) for n in range(64)),
            400,
        ),
        (b"a: b\n---\nmetadata: {labels: {mcproxy.io/cluster: east}}", 400),
        (b"mcproxy.io/cluster: " + b"a" * 300_000, 413),
    ],
)
def test_what_cannot_be_edited_is_refused(body: bytes, code: int) -> None:
    with pytest.raises(StatusError) as caught:
        yaml_edit.edit_metadata(body, EDIT)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("body", "line", "key"),
    [
        ("metadata:\n  resourceVersion: '1'\n  resourceVersion: '1'\n", 3, "resourceVersion"),
        ("metadata:\n  labels: {mcproxy.io/cluster: a,\n  mcproxy.io/cluster: a}\n", 3, "mcproxy.io/cluster"),
        ("metadata: {}\nkind: mcproxy.io/cluster\nmetadata: {}\n", 3, "metadata"),
    ],
)
def test_a_key_that_stands_twice_is_refused_in_the_words_of_kubernetes(body: str, line: int, key: str) -> None:
    with pytest.raises(StatusError) as caught:
        yaml_edit.edit_metadata(body.encode(), EDIT)
    assert caught.value.code == 400
    assert caught.value.message == (
        f'strict decoding error: yaml: unmarshal errors:\n  line {line}: key "{key}" already set in map'
    )


@pytest.mark.parametrize("bracket", [b"[]", b"{}"])
def test_brackets_without_end_do_not_end_the_process(bracket: bytes) -> None:
    """50 KB of brackets, closed again: libyaml's composer recurses, and the process was gone (SIGSEGV)."""
    body = bracket[:1] * 25_000 + bracket[1:] * 25_000 + b" # mcproxy.io/cluster name"
    with pytest.raises(StatusError, match="nested more than 100 levels deep"):
        yaml_edit.name(body)
    with pytest.raises(StatusError, match="nested more than 100 levels deep"):
        yaml_edit.label(body, LABEL)


def test_label() -> None:
    assert yaml_edit.label(b"metadata:\n  labels:\n    mcproxy.io/cluster: east\n", LABEL) == "east"
    assert yaml_edit.label(b"metadata:\n  labels: [mcproxy.io/cluster]\n", LABEL) is None
    assert yaml_edit.label(b"kind: A", LABEL) is None


def test_preconditions() -> None:
    body = b"kind: DeleteOptions\npreconditions:\n  uid: u\n  resourceVersion: 'vector-7'\n"
    path = ("preconditions", "resourceVersion")
    assert yaml_edit.change_string(body, path, lambda version: version[7:]) == body.replace(b"'vector-7'", b'"7"')


keys = st.sampled_from(["a", "b c", "é", LABEL, ANNOTATION, "-", "#"])
maps = st.dictionaries(keys, st.sampled_from(["x", "1", "no", "# a", "two\nlines", ""]), max_size=3)


@given(
    st.fixed_dictionaries(
        {}, optional={"labels": maps, "annotations": maps, "name": st.just("n"), "finalizers": st.just(["f"])}
    ),
    st.dictionaries(keys, st.sampled_from(["x", ["y"], {"z": "1"}]), max_size=2),
    st.sampled_from([True, False, None]),
    st.sampled_from([2, 4]),
)
def test_what_is_left_is_all_else(
    metadata: dict[str, Any], rest: dict[str, Any], flow: bool | None, indent: int
) -> None:
    document = {**rest, "metadata": metadata, "zz": "end"}
    dumper = type("Dumper", (yaml.SafeDumper,), {"ignore_aliases": lambda *_: True})
    text = yaml.dump(
        document, Dumper=dumper, default_flow_style=flow, indent=indent, allow_unicode=True, sort_keys=False
    )
    after = yaml.load(yaml_edit.edit_metadata(text.encode(), EDIT), Loader=yaml.BaseLoader)
    expected = {}
    for name, value in metadata.items():
        if isinstance(value, dict):
            mark = LABEL if name == "labels" else ANNOTATION
            kept = {key: each for key, each in value.items() if key != mark}
            if kept or mark not in value:
                expected[name] = kept
        else:
            expected[name] = value
    assert after == {**rest, "metadata": expected, "zz": "end"}
