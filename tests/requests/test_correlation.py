"""Which Audit-IDs and trace contexts of clients are used and passed on."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.requests.correlation import MAX_TRACESTATE, correlate, new_audit_id

UUID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"
PARENT = b"traceparent: 00-" + TRACE + b"-" + SPAN + b"-01\r\n"


@pytest.mark.parametrize(
    ("sent", "taken"),
    [(b"7a0b", True), (b"a" * 64, True), (b"a" * 65, False), (b"", False), (b"a b", False), (b"\xe4", False)],
)
def test_a_proper_audit_id_is_kept_and_another_goes_no_further(sent: bytes, taken: bool) -> None:
    found = correlate(b"A: 1\r\nAudit-ID: " + sent + b"\r\nB: 2\r\n")
    assert found.audit_id == (sent if taken else b"")
    assert (b"Audit-ID" in found.fields) is taken
    assert found.fields.startswith(b"A: 1\r\n")
    assert found.fields.endswith(b"B: 2\r\n")


def test_the_first_of_two_audit_ids_counts_as_in_a_kube_apiserver() -> None:
    found = correlate(b"Audit-ID: 1\r\naudit-id: 2\r\n")
    assert (found.audit_id, found.fields) == (b"1", b"Audit-ID: 1\r\n")


def test_a_block_without_any_is_the_same_object() -> None:
    fields = b"Accept: */*\r\nUser-Agent: kubectl\r\n"
    found = correlate(fields)
    assert found.fields is found.untraced is fields
    assert found.user_agent == "kubectl"


def test_a_new_audit_id_is_a_uuid_of_its_own() -> None:
    made = [new_audit_id() for _ in range(300)]  # random bytes are read for some at once
    assert all(UUID.fullmatch(each) for each in made)
    assert len(set(made)) == 300
    assert len({each[-12:] for each in made}) == len({each[:8] for each in made}) == 300


def test_a_trace_context_is_read_and_passed_on_as_it_came() -> None:
    fields = b"A: 1\r\n" + PARENT + b"Tracestate: a=1\r\ntracestate: b@c=2\r\nB: 2\r\n"
    found = correlate(fields)
    assert found.trace is not None
    assert (found.trace.trace_id, found.trace.parent_id, found.trace.flags) == (TRACE, SPAN, 1)
    assert found.trace.state == b"a=1,b@c=2"
    assert found.fields == fields
    assert found.untraced == b"A: 1\r\nB: 2\r\n"


@pytest.mark.parametrize(
    "parent",
    [
        b"00-" + TRACE.upper() + b"-" + SPAN + b"-01",
        b"00-" + b"0" * 32 + b"-" + SPAN + b"-01",
        b"00-" + TRACE + b"-" + b"0" * 16 + b"-01",
        b"00-" + TRACE + b"-" + SPAN + b"-01-more",
        b"ff-" + TRACE + b"-" + SPAN + b"-01",
        b"00-" + TRACE + b"-" + SPAN,
        b"01-" + TRACE + b"-" + SPAN + b"-01-" + b"x" * 100,
        b"",
    ],
)
def test_a_malformed_context_goes_no_further_nor_does_its_state(parent: bytes) -> None:
    found = correlate(b"A: 1\r\ntraceparent: " + parent + b"\r\ntracestate: a=1\r\n")
    assert found.trace is None
    assert found.fields == b"A: 1\r\n"


def test_two_parents_are_none() -> None:
    assert correlate(PARENT + PARENT).fields == b""


def test_a_later_version_passes_with_what_it_adds() -> None:
    fields = b"traceparent: 01-" + TRACE + b"-" + SPAN + b"-01-more\r\n"
    assert correlate(fields).fields == fields


@pytest.mark.parametrize(
    "state",
    [b"A=1", b"a", b"a=\x7f", b"a=1," * 33, b"a=" + b"x" * 257, b",".join([b"a=" + b"x" * 250] * 5), b"a==1"],
)
def test_a_malformed_state_goes_no_further_but_its_parent_does(state: bytes) -> None:
    found = correlate(PARENT + b"tracestate: " + state + b"\r\n")
    assert found.fields == PARENT
    assert found.trace is not None
    assert found.trace.state == b""


@given(st.lists(st.tuples(st.sampled_from([b"audit-id", b"traceparent", b"tracestate", b"x"]), st.binary(max_size=80))))
def test_what_goes_on_is_well_formed_whatever_came(sent: list[tuple[bytes, bytes]]) -> None:
    lines = [(name, value.translate(None, b"\r\n\0")) for name, value in sent]
    found = correlate(b"".join(b"%b: %b\r\n" % line for line in lines))
    again = correlate(found.fields)
    assert again.fields == found.fields
    assert again.audit_id == found.audit_id
    assert found.fields.count(b"x: ") <= len(lines) or b"x: " not in found.fields
    assert len(found.fields.lower().split(b"tracestate: ")) - 1 == 0 or (found.trace and found.trace.state)
    assert found.trace is None or len(found.trace.state) <= MAX_TRACESTATE
