"""What requests to members have in common."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.writes.member_requests import edit_query, object_path
from mcproxy.kube.query_parameters import parse_query
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.status import StatusError


@pytest.mark.parametrize(
    ("target", "changes", "expected"),
    [
        (b"/a", {"x": "1"}, b"/a"),
        (b"/a?b=c&x=2&b=d", {"x": "1 &"}, b"/a?b=c&x=1%20%26&b=d"),
        (b"/a?x=2", {"x": None}, b"/a"),
        (b"/a?x=1&b&%78=3&x=4;5&x=%zz", {"x": None}, b"/a?b"),
        (b"/a?%78=3&x=4", {"x": "7"}, b"/a?x=7&x=7"),
        (b"/a?x=4;5&b=%zz", {"x": "7"}, b"/a?b=%zz"),
    ],
)
def test_edit_query(target: bytes, changes: dict[str, str | None], expected: bytes) -> None:
    assert edit_query(target, changes) == expected


queries = st.lists(
    st.sampled_from(
        [b"labelSelector=a", b"%6cabelSelector=b", b"labelSelector", b"limit=1", b"x;labelSelector=c", b"", b"%"]
    ),
    max_size=5,
).map(b"&".join)


@given(queries, st.sampled_from([None, "new", ""]))
def test_no_form_of_a_parameter_keeps_its_value(query: bytes, value: str | None) -> None:
    before = parse_query(query)
    after = parse_query(edit_query(b"/a?" + query, {"labelSelector": value}).partition(b"?")[2])
    expected: dict[str, Any] = {key: each for key, each in before.items() if key != "labelSelector"}
    if value is not None and "labelSelector" in before:
        expected["labelSelector"] = value
    assert after == expected


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_path_names_the_object_and_nothing_else(name: str) -> None:
    path = object_path("/api/v1/namespaces/demo/configmaps", name)
    try:
        info = parse(b"GET", path)
    except StatusError:
        assert any(char in name for char in "/\\%\x00.")
        return
    assert (info.namespace, info.resource, info.name, info.subresource) == ("demo", "configmaps", name, "")


def test_names_of_rbac_stay_readable() -> None:
    path = object_path("/apis/rbac.authorization.k8s.io/v1/clusterroles", "system:node")
    assert path == b"/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node"
