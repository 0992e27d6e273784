"""Where a watch may end: at every split of its bytes."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.kube.watch_framing import EventBoundary

JSON, PROTOBUF = b"application/json", b"application/vnd.kubernetes.protobuf;stream=watch"


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


lines = st.lists(st.binary(max_size=10).map(lambda line: line.replace(b"\n", b"") + b"\n"), min_size=1, max_size=4)
frames = st.lists(st.binary(max_size=300).map(frame), min_size=1, max_size=4)


@given(st.one_of(st.tuples(st.just(JSON), lines), st.tuples(st.just(PROTOBUF), frames)), st.data())
def test_only_behind_an_event_is_a_border(kind: tuple[bytes, list[bytes]], data: st.DataObject) -> None:
    content_type, events = kind
    wire = b"".join(events)
    borders, position = {0}, 0
    for event in events:
        position += len(event)
        borders.add(position)
    border, sent = EventBoundary(content_type), 0
    assert border.clean
    while sent < len(wire):
        size = data.draw(st.integers(1, len(wire) - sent))
        border.passed(wire[sent : sent + size])
        sent += size
        assert border.clean is (sent in borders)


@pytest.mark.parametrize("content_type", [JSON, PROTOBUF])
def test_byte_by_byte(content_type: bytes) -> None:
    event = b'{"a": 1}\n' if content_type is JSON else frame(b"abc")
    border = EventBoundary(content_type)
    for _ in range(2):
        seen = []
        for index in range(len(event)):
            border.passed(event[index : index + 1])
            seen.append(border.clean)
        assert seen == [False] * (len(event) - 1) + [True]


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [
        (b"text/plain", None),
        (None, None),
        (JSON, b"deflate"),
        (JSON, b"gzip, gzip"),
        (b"text/plain", b"gzip"),
        (b"application/json-seq", None),
        (b"application/yaml", None),
    ],
)
def test_what_cannot_be_followed_has_a_border_only_at_its_beginning(
    content_type: bytes | None, encoding: bytes | None
) -> None:
    border = EventBoundary(content_type, encoding)
    assert border.clean
    border.passed(b"{}\n")
    assert not border.clean


@pytest.mark.parametrize(
    "content_type", [b"application/json;stream=watch", b"Application/JSON", b"application/json ; a=b"]
)
def test_json_with_parameters(content_type: bytes) -> None:
    border = EventBoundary(content_type)
    border.passed(b"{}\n")
    assert border.clean


@given(
    st.sampled_from([JSON, PROTOBUF]),
    st.lists(st.binary(max_size=300).map(gzip.compress), min_size=1, max_size=4),
    st.data(),
)
def test_an_event_ends_where_a_member_of_gzip_ends(
    content_type: bytes, members: list[bytes], data: st.DataObject
) -> None:
    """Kubernetes 1.37 ends a member with each flush; Go's reader takes one after the other for one body."""
    wire = b"".join(members)
    borders = {sum(map(len, members[:number])) for number in range(len(members) + 1)}
    border, sent = EventBoundary(content_type, b"gzip"), 0
    while sent < len(wire):
        size = data.draw(st.integers(1, len(wire) - sent))
        border.passed(wire[sent : sent + size])
        sent += size
        assert border.clean is (sent in borders)


def test_a_large_event_is_followed_to_its_end() -> None:
    whole = gzip.compress(b"x" * 3_000_000)
    border = EventBoundary(JSON, b"gzip")
    border.passed(whole[:-1])
    assert not border.clean
    border.passed(whole[-1:])
    assert border.clean


def test_a_flush_within_a_member_is_no_border() -> None:
    """What ended there would be a truncated gzip to the client."""
    whole = gzip.compress(b'{"a": 1}\n')
    border = EventBoundary(JSON, b"gzip")
    border.passed(whole[:-8])  # all but the checksum and length
    assert not border.clean
    border.passed(whole[-8:])
    assert border.clean


@pytest.mark.parametrize(
    "data", [b"{}\n", gzip.compress(b"x") + b"rubbish", gzip.compress(bytes(64 * 1024 * 1024))], ids=len
)
def test_what_is_no_gzip_or_expands_without_end_is_not_followed(data: bytes) -> None:
    border = EventBoundary(JSON, b"gzip")
    border.passed(data)
    assert not border.clean
    border.passed(gzip.compress(b"{}\n"))
    assert not border.clean
