"""Leases of hostile clusters, and what is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.services.lease import Lease, MalformedLeaseError, Record, lease_body, parse_lease

RECORD = Record("me", 15, 3, "2026-01-01T00:00:00.000000Z", "2026-01-01T00:00:02.000000Z")


def lease(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "n", "namespace": "ns", "uid": "u", "resourceVersion": "7", "managedFields": [{}]},
        "spec": spec,
    }


def test_a_lease_is_read() -> None:
    found = parse_lease(json.dumps(lease(holderIdentity="a", leaseDurationSeconds=15, leaseTransitions=2)).encode())
    assert (found.holder, found.duration, found.transitions) == ("a", 15, 2)
    assert (found.uid, found.resource_version) == ("u", "7")


def test_absent_and_null_fields_are_those_of_a_free_lease() -> None:
    whole = lease(holderIdentity=None, renewTime=None)
    assert parse_lease(json.dumps(whole).encode()).holder == ""
    assert parse_lease(json.dumps({**whole, "spec": None}).encode()).transitions == 0


def test_a_very_long_duration_counts_as_five_minutes() -> None:
    assert parse_lease(json.dumps(lease(holderIdentity="a", leaseDurationSeconds=10**12)).encode()).duration == 300


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"kind":"\xc3"}',
        b'{"kind":"Status"}',
        json.dumps({**lease(), "metadata": {"uid": "u"}}).encode(),
        json.dumps({**lease(), "spec": [1]}).encode(),
        json.dumps(lease(holderIdentity=5)).encode(),
        json.dumps(lease(holderIdentity="x" * 10_000)).encode(),
        json.dumps(lease(leaseDurationSeconds=-1)).encode(),
        json.dumps(lease(leaseTransitions="2")).encode(),
        json.dumps(lease(leaseTransitions=True)).encode(),
    ],
)
def test_what_is_no_lease_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedLeaseError):
        parse_lease(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("holderIdentity", "leaseDurationSeconds", "leaseTransitions", "acquireTime", "renewTime", "other")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_spec_is_a_lease_or_refused(spec: dict[str, Any]) -> None:
    try:
        found = parse_lease(json.dumps(lease(**spec)).encode())
    except MalformedLeaseError:
        return
    assert isinstance(found.holder, str)
    assert 0 <= found.duration <= 300


def test_an_update_names_what_it_replaces_and_keeps_what_it_does_not_know() -> None:
    whole = lease(holderIdentity="a", strategy="OldestEmulationVersion")
    whole["metadata"]["labels"] = {"app": "x"}
    written = json.loads(lease_body(RECORD, "ns", "n", parse_lease(json.dumps(whole).encode())))
    assert (written["metadata"]["uid"], written["metadata"]["resourceVersion"]) == ("u", "7")
    assert written["metadata"]["labels"] == {"app": "x"}
    assert "managedFields" not in written["metadata"]
    assert written["spec"]["strategy"] == "OldestEmulationVersion"
    assert written["spec"]["holderIdentity"] == "me"


def test_a_creation_names_nothing_but_the_name() -> None:
    written = json.loads(lease_body(RECORD, "ns", "n", None))
    assert written["metadata"] == {"name": "n", "namespace": "ns"}
    assert written["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 3,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:02.000000Z",
    }


def test_a_change_of_metadata_alone_is_no_renewal() -> None:
    before = parse_lease(json.dumps(lease(holderIdentity="a")).encode())
    after = Lease(before.holder, before.duration, 0, "", "", "u", "8", {})
    assert before.record == after.record
