"""The names, tickets and bodies of the protocol of tunnels."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.net.alpn import H2, HTTP1_1
from mcproxy.tunnels import protocol
from mcproxy.tunnels.protocol import DialRequest, DrainRequest


def test_tickets_name_their_process_and_differ() -> None:
    tickets = [protocol.new_ticket("worker-0-4711") for _ in range(100)]
    assert len(set(tickets)) == 100
    assert {protocol.process_of(each.encode()) for each in tickets} == {"worker-0-4711"}
    assert all(len(each.partition(".")[2]) == 32 for each in tickets), "128 bits"


@pytest.mark.parametrize(
    "ticket",
    [b"", b"hub", b"hub.", b"hub." + b"0" * 31, b"hub." + b"0" * 33, b"HUB." + b"0" * 32, b"." + b"0" * 32,
     b"a b." + b"0" * 32, b"hub." + b"g" * 32, b"hub." + b"0" * 32 + b"\n", b"x" * 41 + b"." + b"0" * 32],
)  # fmt: skip
def test_malformed_tickets(ticket: bytes) -> None:
    with pytest.raises(ValueError, match="malformed"):
        protocol.process_of(ticket)


@pytest.mark.parametrize("alpn", [H2, HTTP1_1])
def test_a_dial_is_read_as_it_was_written(alpn: bytes) -> None:
    request = DialRequest(protocol.new_ticket("hub"), alpn)
    assert DialRequest.decode(request.encode()) == request


def test_later_versions_may_add_members() -> None:
    ticket = protocol.new_ticket("hub")
    body = json.dumps({"ticket": ticket, "protocol": "h2", "priority": 7}).encode()
    assert DialRequest.decode(body) == DialRequest(ticket, H2)


@pytest.mark.parametrize(
    "members",
    [{}, {"ticket": "x", "protocol": "h2"}, {"ticket": 7, "protocol": "h2"}, {"ticket": "hub." + "0" * 32},
     {"ticket": "hub." + "0" * 32, "protocol": "h3"}, {"ticket": "hub." + "0" * 32, "protocol": ["h2"]}],
)  # fmt: skip
def test_wrong_dials(members: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"dial|ticket"):
        DialRequest.decode(json.dumps(members).encode())


@pytest.mark.parametrize("within", [0, 0.5, 60])
def test_a_drain_is_read_as_it_was_written(within: float) -> None:
    assert DrainRequest.decode(DrainRequest(within).encode()).within == within


@pytest.mark.parametrize("within", ["1", None, True, -1, 61, float("inf"), float("nan"), [1]])
def test_wrong_drains(within: object) -> None:
    with pytest.raises(ValueError, match="within"):
        DrainRequest.decode(json.dumps({"within": within}).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_an_error(body: bytes) -> None:
    for read in (DialRequest.decode, DrainRequest.decode):
        with contextlib.suppress(ValueError):
            read(body)
    assert isinstance(protocol.decode_cause(body), str)


_NAMES = st.sampled_from(["ticket", "protocol", "within", "cause", "x"])
_SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(_NAMES, inner)))
def test_any_json_is_a_body_or_an_error(value: object) -> None:
    body = json.dumps(value).encode()
    for read in (DialRequest.decode, DrainRequest.decode):
        with contextlib.suppress(ValueError):
            read(body)
    cause = protocol.decode_cause(body)
    assert cause.isprintable()
    assert len(cause) <= 300


def test_a_body_is_short_and_shallow() -> None:
    with pytest.raises(ValueError, match="4096"):
        DialRequest.decode(b" " * 4097)
    with pytest.raises(ValueError, match="JSON"):
        DialRequest.decode(b"[" * 4000)


def test_a_cause_of_the_peer_is_one_printable_line() -> None:
    assert protocol.decode_cause(json.dumps({"cause": "a\nb\x1b[31m  c" + "x" * 500}).encode()).startswith("a b [31m c")
    assert protocol.decode_cause(protocol.encode_cause("no route to host")) == "no route to host"


@given(st.text())
def test_instances(text: str) -> None:
    value = text.encode("utf-8", "surrogatepass")
    assert protocol.is_instance(value) == (len(value) == 32 and all(each in b"0123456789abcdef" for each in value))
