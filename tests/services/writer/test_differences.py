"""What is written, for what a cluster has and what it shall have."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from mcproxy.services.exports.export_types import Desired
from mcproxy.services.exports.object_keys import ObjectKey
from mcproxy.services.writer.differences import (
    APPLIED_HASH,
    CACHE_PATIENCE,
    MutationCache,
    Observed,
    PlannedWrite,
    Verb,
    changes,
    status_place,
)
from tests.services.objects import cached
from tests.support.clock import Clock

KEY = ObjectKey("east", "discovery.k8s.io", "v1", "endpointslices", "demo", "imported-west-s")
OURS = {"endpointslice.kubernetes.io/managed-by": "mcproxy.io"}
NOW = "2026-01-01T00:00:00Z"


def wanted(*addresses: str, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": KEY.name, "namespace": "demo", "labels": OURS},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses],
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}, {"name": "b", "port": 81, "protocol": "TCP"}],
        **more,
    }


def observed(found: dict[str, Any], version: int = 5, *, ours: bool = True, uid: str = "u") -> Observed:
    return Observed(uid, version, ours, cached(found, version))


def applied(desired: dict[str, Any]) -> dict[str, Any]:
    """What a cluster has after an apply of it: with the hash, and what the API server adds."""
    change = only(Desired({KEY: desired}), {})
    assert change.body is not None
    body: dict[str, Any] = copy.deepcopy({**change.body})
    metadata = {**body["metadata"], "uid": "u", "managedFields": [{}], "generation": 1}
    metadata["labels"] = {**metadata["labels"], "mcproxy.io/cluster": "east"}
    return {**body, "metadata": metadata}


def compare(
    desired: Desired, has: dict[ObjectKey, Observed], mutations: MutationCache | None = None
) -> list[PlannedWrite]:
    return changes(desired, has, mutations or MutationCache(Clock().seconds), NOW)


def only(desired: Desired, has: dict[ObjectKey, Observed], mutations: MutationCache | None = None) -> PlannedWrite:
    (found,) = compare(desired, has, mutations)
    return found


def test_what_is_not_there_is_created_where_nothing_is() -> None:
    found = only(Desired({KEY: wanted("10.0.0.1")}), {})
    assert (found.verb, found.uid, found.version) == (Verb.CREATE, "", "1")


def test_what_is_right_is_not_written_whatever_else_is_there() -> None:
    desired = wanted("10.0.0.1")
    has = applied(desired)
    has["endpoints"][0]["conditions"] = {"ready": True, "serving": True}
    has["ports"] = list(reversed(has["ports"]))
    assert compare(Desired({KEY: desired}), {KEY: observed(has)}) == []


@pytest.mark.parametrize("field", ["endpoints", "ports"])
def test_no_items_and_no_list_are_the_same(field: str) -> None:
    desired = wanted(**{field: []})
    has = applied(desired)
    del has[field]
    assert compare(Desired({KEY: desired}), {KEY: observed(has)}) == []


@pytest.mark.parametrize(
    "damage",
    [
        {"endpoints": []},
        {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": False}}]},
        {"endpoints": [{"addresses": ["10.0.0.1", "10.0.0.2"], "conditions": {"ready": True}}]},
        {"ports": [{"name": "", "port": 80, "protocol": "TCP"}]},
    ],
)
def test_what_somebody_has_changed_is_applied_over_exactly_that(damage: dict[str, Any]) -> None:
    desired = wanted("10.0.0.1")
    found = only(Desired({KEY: desired}), {KEY: observed({**applied(desired), **damage})})
    assert (found.verb, found.uid, found.version) == (Verb.APPLY, "u", "5")


def test_a_field_that_is_not_wanted_any_more_is_a_difference() -> None:
    before = wanted("10.0.0.1")
    before["endpoints"][0]["zone"] = "z"
    found = only(Desired({KEY: wanted("10.0.0.1")}), {KEY: observed(applied(before))})
    assert found.verb is Verb.APPLY


def test_the_hash_is_of_what_is_applied_and_in_it() -> None:
    first, second = (only(Desired({KEY: wanted(each)}), {}) for each in ("10.0.0.1", "10.0.0.2"))
    assert first.body is not None
    assert first.body["metadata"]["annotations"] == {APPLIED_HASH: first.digest}
    assert first.digest != second.digest


def test_what_is_not_ours_is_neither_written_nor_deleted() -> None:
    foreign = observed(wanted("10.9.9.9"), ours=False)
    assert compare(Desired({KEY: wanted("10.0.0.1")}), {KEY: foreign}) == []
    assert compare(Desired(), {KEY: foreign}) == []


def test_what_is_not_wanted_is_deleted_if_nobody_has_changed_it_and_not_if_it_is_kept() -> None:
    has = {KEY: observed(applied(wanted()))}
    found = only(Desired(), has)
    assert (found.verb, found.uid, found.version) == (Verb.DELETE, "u", "5")
    assert compare(Desired(kept=frozenset((KEY,))), has) == []


def test_what_is_being_deleted_is_waited_for() -> None:
    has = applied(wanted())
    has["metadata"]["deletionTimestamp"] = NOW
    assert compare(Desired({KEY: wanted("10.0.0.1")}), {KEY: observed(has)}) == []
    assert compare(Desired(), {KEY: observed(has)}) == []


def test_a_field_that_cannot_be_changed_is_a_deletion() -> None:
    has = {**applied(wanted()), "addressType": "IPv6"}
    assert only(Desired({KEY: wanted()}), {KEY: observed(has)}).verb is Verb.DELETE


def test_until_the_cache_shows_a_write_the_next_one_goes_over_its_answer() -> None:
    clock = Clock()
    mutations = MutationCache(clock.seconds)
    first = only(Desired({KEY: wanted("10.0.0.1")}), {}, mutations)
    mutations.wrote(KEY, "u", 7, first.digest)
    assert compare(Desired({KEY: wanted("10.0.0.1")}), {}, mutations) == []
    second = only(Desired({KEY: wanted("10.0.0.2")}), {}, mutations)
    assert (second.verb, second.uid, second.version) == (Verb.APPLY, "u", "7")
    older = {KEY: observed(applied(wanted("10.0.0.9")), 6)}
    assert compare(Desired({KEY: wanted("10.0.0.1")}), older, mutations) == []
    gone = only(Desired(), older, mutations)
    assert (gone.verb, gone.version) == (Verb.DELETE, "7")
    clock.advance(CACHE_PATIENCE)
    assert only(Desired({KEY: wanted("10.0.0.1")}), older, mutations).version == "6"


def test_what_was_deleted_is_not_deleted_again_and_created_when_the_cache_shows_it() -> None:
    mutations = MutationCache(Clock().seconds)
    has = {KEY: observed(applied(wanted()))}
    mutations.removed(KEY, "u")
    assert compare(Desired(), has, mutations) == []
    assert compare(Desired({KEY: wanted()}), has, mutations) == []
    assert only(Desired({KEY: wanted()}), {}, mutations).verb is Verb.CREATE


def test_what_an_api_server_makes_of_it_is_not_applied_again_and_again() -> None:
    mutations = MutationCache(Clock().seconds)
    desired = Desired({KEY: wanted("10.0.0.1")})
    mutated = {**applied(wanted("10.0.0.1")), "ports": []}
    change = only(desired, {KEY: observed(mutated)}, mutations)
    mutations.wrote(KEY, "u", 6, change.digest)  # a webhook has made the same of it again
    assert compare(desired, {KEY: observed(mutated, 6)}, mutations) == []
    assert only(desired, {KEY: observed(mutated, 7)}, mutations).verb is Verb.APPLY  # somebody has written it


EXPORT = ObjectKey("west", "multicluster.x-k8s.io", "v1alpha1", "serviceexports", "demo", "web")
CONDITION = {"type": "Valid", "status": "True", "reason": "Valid", "message": "yes"}


def export(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "web", "namespace": "demo"}, **({"status": status} if status else {})}


def test_a_status_is_written_to_who_has_none_and_to_nobody_who_is_not_there() -> None:
    desired = Desired(statuses={EXPORT: {"conditions": [CONDITION]}})
    assert compare(desired, {}) == []
    found = only(desired, {EXPORT: observed(export(), ours=False)})
    assert (found.verb, found.uid, found.version) == (Verb.STATUS, "u", "5")
    assert found.body == {
        "apiVersion": "multicluster.x-k8s.io/v1alpha1",
        "kind": "ServiceExport",
        "status": {"conditions": [{**CONDITION, "lastTransitionTime": NOW}]},
    }


def test_a_status_that_is_right_keeps_its_times() -> None:
    desired = Desired(statuses={EXPORT: {"conditions": [CONDITION]}})
    has = export(conditions=[{**CONDITION, "lastTransitionTime": "2020-01-01T00:00:00Z"}])
    assert compare(desired, {EXPORT: observed(has, ours=False)}) == []


def test_a_status_that_was_written_is_not_written_again_until_the_cache_shows_it() -> None:
    mutations = MutationCache(Clock().seconds)
    desired = Desired(statuses={EXPORT: {"conditions": [CONDITION]}})
    has = {EXPORT: observed(export(), ours=False)}
    change = only(desired, has, mutations)
    mutations.wrote(status_place(EXPORT), "u", 6, change.digest)
    assert compare(desired, has, mutations) == []


def test_a_ledger_forgets_what_is_not_there_any_more() -> None:
    clock = Clock()
    mutations = MutationCache(clock.seconds)
    mutations.wrote(KEY, "u", 7, "d")
    clock.advance(CACHE_PATIENCE)
    mutations.prune(lambda place: False)
    assert not mutations.has_result(KEY, "u", 7, "d")
    assert mutations.ahead_of(KEY, None) is None
