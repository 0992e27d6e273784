"""What is answered while a member is away: never a 404, a 410 or a list that says more than is known.

The table is that of `mcproxy.aggregate.freshness`. East has `c`, west has `w`; north is another replica.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.aggregate.freshness import Freshness
from mcproxy.aggregate.request import LeftOut
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import NODES, pod
from tests.aggregate.reads.harness import Fleet, query

ALL = "/api/v1/pods"
PATH = "/api/v1/namespaces/demo/pods"
POLICIES = tuple(UnavailableMembers)
UNASKED = LeftOut("west", "it cannot be asked whether this is allowed", undecided=True)
REFUSED = LeftOut("west", "no")
STATES = ("up", "away", "silent", "never", "absent", "refused", "refused and away", "unasked")


def fleet(
    policy: UnavailableMembers = UnavailableMembers.STALE, state: str = "up", **options: Any
) -> tuple[Fleet, dict[str, Any]]:
    """Return members of which west is in a state, and the rights of a request."""
    freshness = Freshness(unavailable=policy, initial_sync_timeout=0.0)
    if state == "absent":
        found = Fleet(("east",), undiscovered=["west"], freshness=freshness, **options)
    else:
        found = Fleet(freshness=freshness, **options)
        if state != "never":
            found.fill("west", [pod("w", version=18)], 20)
    found.fill("east", [pod("c", version=3)], 10)
    if state in ("away", "refused and away"):
        found.stores["west"].unavailable("no route")
    if state == "silent":
        found.probe_errors["west"] = TimeoutError("no answer")
    rights: dict[str, Any] = {"allowed": ("east",) if state in ("unasked", "absent") else ("east", "west")}
    if state == "unasked":
        rights["left_out"] = [UNASKED]
    if state.startswith("refused"):
        rights = {"allowed": ("east",), "left_out": [REFUSED]}
    return found, rights


def code(found: Fleet, target: str, **rights: Any) -> int:
    """Return the status; the client is told when to try again where it may."""
    try:
        return found.read(target, **rights).status
    except StatusError as refusal:
        error = refusal
    if error.code == 503:
        assert dict(error.headers)[b"Retry-After"] == b"1"
        assert error.reason == "ServiceUnavailable"
    return error.code


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("rv", ["", "?resourceVersion=0"])
def test_an_object_that_is_not_known_is_404_only_where_that_is_certain(
    policy: UnavailableMembers, state: str, rv: str
) -> None:
    found, rights = fleet(policy, state)
    certain = state in ("up", "refused", "refused and away") or (state == "silent" and bool(rv))
    assert code(found, f"{PATH}/none{rv}", **rights) == (404 if certain else 503)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", STATES)
def test_a_list_of_one_name_says_no_more_than_a_get(policy: UnavailableMembers, state: str) -> None:
    certain = state in ("up", "refused", "refused and away")
    for path in (PATH, ALL):
        found, rights = fleet(policy, state)
        assert code(found, query(path, fieldSelector="metadata.name=none"), **rights) == (200 if certain else 503)


@pytest.mark.parametrize("policy", [UnavailableMembers.STALE, UnavailableMembers.PARTIAL])
@pytest.mark.parametrize("state", STATES)
def test_an_object_of_another_member_is_shown_whoever_is_away(policy: UnavailableMembers, state: str) -> None:
    found, rights = fleet(policy, state)
    assert code(found, f"{PATH}/c", **rights) == 200
    assert found.read(query(PATH, fieldSelector="metadata.name=c"), **rights).names == ["east/c"]


@pytest.mark.parametrize(
    ("policy", "state", "expected"),
    [
        (UnavailableMembers.STALE, "away", 200),  # its last known state
        (UnavailableMembers.PARTIAL, "away", 503),
        (UnavailableMembers.FAIL, "away", 503),
        (UnavailableMembers.STALE, "unasked", 503),
        (UnavailableMembers.PARTIAL, "unasked", 503),
        (UnavailableMembers.STALE, "refused", 404),
        (UnavailableMembers.STALE, "refused and away", 404),
    ],
)
def test_an_object_of_the_member_itself(policy: UnavailableMembers, state: str, expected: int) -> None:
    found, rights = fleet(policy, state)
    assert code(found, f"{PATH}/w", **rights) == expected


def test_the_503_of_a_get_names_the_member_and_the_cause() -> None:
    found, rights = fleet(state="unasked")
    assert found.refusal(f"{PATH}/none", **rights).message == (
        'it is not known whether cluster west has pods "none": it cannot be asked whether this is allowed'
    )
    found, rights = fleet(state="away")
    assert found.refusal(f"{PATH}/none", **rights).message == (
        'it is not known whether cluster west has pods "none": it cannot be reached'
    )


@given(st.sampled_from(STATES), st.sampled_from(POLICIES))
def test_a_refusal_does_not_tell_whether_the_object_exists(state: str, policy: UnavailableMembers) -> None:
    """Whoever may not read west learns nothing of it: `w` is there, `none` is not."""
    if state not in ("unasked", "refused", "refused and away"):
        return
    answers = []
    for name in ("w", "none"):
        found, rights = fleet(policy, state)
        error = found.refusal(f"{PATH}/{name}", **rights)
        answers.append((error.code, error.message.replace(f'"{name}"', '""'), error.headers))
    assert answers[0] == answers[1]


def test_a_namespace_that_the_member_does_not_cover_is_not_its_matter() -> None:
    found = Fleet(namespaces={"east": [""], "west": ["prod"]})
    found.fill("east", [pod("c", version=3)], 10)
    found.fill("west/prod", [pod("w", "prod", version=18)], 20)
    assert code(found, f"{PATH}/none", allowed=("east",), left_out=[UNASKED]) == 404
    assert code(found, "/api/v1/namespaces/prod/pods/none", allowed=("east",), left_out=[UNASKED]) == 503
    text = found.view.format.list_version((10, 20))
    assert code(found, query(PATH, resourceVersion=text), allowed=("east",), left_out=[UNASKED]) == 200


def test_a_resource_without_namespaces() -> None:
    found = Fleet(("east",), NODES, undiscovered=["west"])
    found.fill("east", [], 10)
    assert code(found, "/api/v1/nodes/none", allowed=("east", "west")) == 503


# -- a version with the member's part -----------------------------------------------------------------------------

MATCHES = [{}, {"resourceVersionMatch": "NotOlderThan"}, {"resourceVersionMatch": "Exact"}, {"limit": 5}]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("state", ["unasked", "absent"])
@pytest.mark.parametrize("match", MATCHES)
def test_a_relist_is_never_answered_without_a_member_that_cannot_be_asked(
    policy: UnavailableMembers, state: str, match: dict[str, Any]
) -> None:
    found, rights = fleet(policy, state)
    text = found.view.format.list_version((10, 20))
    assert code(found, query(PATH, resourceVersion=text, **match), **rights) == 503


@pytest.mark.parametrize("state", ["unasked", "absent"])
@pytest.mark.parametrize("match", MATCHES)
def test_a_version_without_its_part_is_answered_without_the_member(state: str, match: dict[str, Any]) -> None:
    found, rights = fleet(state=state)
    response = found.read(query(PATH, resourceVersion=found.view.format.list_version((10, 0)), **match), **rights)
    assert response.names == ["east/c"]
    assert len(response.warnings) == 1 if state == "unasked" else True


@pytest.mark.parametrize(("match", "expected"), list(zip(MATCHES, (200, 200, 410, 410), strict=True)))
def test_the_part_of_a_member_that_refuses(match: dict[str, Any], expected: int) -> None:
    found, rights = fleet(state="refused")
    target = query(PATH, resourceVersion=found.view.format.list_version((10, 20)), **match)
    assert code(found, target, **rights) == expected
    if expected == 200:
        response = found.read(target, **rights)
        assert (response.names, response.warnings) == (["east/c"], ["cluster west: its objects are left out: no"])


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("match", MATCHES)
def test_a_member_that_is_away_and_behind_the_version_is_503(synced: bool, match: dict[str, Any]) -> None:
    """Upon a 504 client-go lists without a version: it would go back in time, or lose the member's objects."""
    found, _ = fleet(state="up" if synced else "never")
    found.stores["west"].unavailable("no route")
    request, done = found.begin(query(PATH, resourceVersion=found.view.format.list_version((10, 25)), **match))
    found.clock.advance(3.1)
    with pytest.raises(StatusError) as raised:
        found.finish(request, done)
    assert raised.value.code == 503
    assert dict(raised.value.headers)[b"Retry-After"] == b"1"


def test_partial_leaves_out_a_member_that_is_away_however_far_it_was() -> None:
    found, _ = fleet(UnavailableMembers.PARTIAL, "away")
    for part in (15, 25):
        response = found.read(query(PATH, resourceVersion=found.view.format.list_version((10, part))))
        assert response.names == ["east/c"]
        assert "unavailable since" in response.warnings[0]


@pytest.mark.parametrize("target", [f"{PATH}/none", query(PATH, fieldSelector="metadata.name=none")])
def test_a_plain_number_of_an_object_that_may_be_the_members(target: str) -> None:
    found, rights = fleet(state="unasked")
    target += ("&" if "?" in target else "?") + "resourceVersion=12"
    assert code(found, target, **rights) == 503
    found, rights = fleet(state="refused")
    assert code(found, target, **rights) == 410


# -- pages --------------------------------------------------------------------------------------------------------


def paged(policy: UnavailableMembers = UnavailableMembers.STALE) -> tuple[Fleet, str]:
    """Return members, and the target of the second page of their list."""
    found = Fleet(freshness=Freshness(unavailable=policy, initial_sync_timeout=0.0))
    found.fill("east", [pod("a", version=1), pod("b", version=2)], 10)
    found.fill("west", [pod("w", version=18)], 20)
    return found, second(found)


def second(found: Fleet) -> str:
    first = found.read(query(PATH, limit=1))
    return query(PATH, **{"continue": first.json()["metadata"]["continue"]})


def inconsistent(found: Fleet, target: str, **rights: Any) -> list[str]:
    """Check that a page is 410, and go on with the token that comes with it."""
    error = found.refusal(target, **rights)
    assert (error.code, error.reason) == (410, "Expired")
    assert "inconsistent list" in error.message
    token = error.metadata["continue"]
    return found.read(query(PATH, **{"continue": token}), **rights).names


def test_a_page_without_a_member_of_the_list_is_410() -> None:
    found, target = paged(UnavailableMembers.PARTIAL)
    found.stores["west"].unavailable("no route")
    assert inconsistent(found, target) == ["east/b"]
    found, target = paged()
    assert inconsistent(found, target, allowed=("east",), left_out=[REFUSED]) == ["east/b"]
    found, target = paged()
    found.stores["west"].clear()
    assert inconsistent(found, target) == ["east/b"]


def test_a_page_is_503_while_a_member_cannot_be_asked_or_must_not_be_away() -> None:
    found, target = paged()
    assert code(found, target, allowed=("east",), left_out=[UNASKED]) == 503
    found, target = paged(UnavailableMembers.FAIL)
    found.stores["west"].unavailable("no route")
    assert code(found, target) == 503


def test_a_page_goes_on_with_the_last_known_objects() -> None:
    found, target = paged()
    found.stores["west"].unavailable("no route")
    assert found.read(target).names == ["east/b", "west/w"]


def test_a_token_waits_at_another_replica_for_its_version() -> None:
    found, _ = paged()
    found.apply("east", "ADDED", pod("z", version=15))
    target = second(found)
    other, _ = paged()
    request, done = other.begin(target)
    other.clock.advance(1.0)
    assert not request.connection.done
    other.apply("east", "ADDED", pod("z", version=15))
    assert other.finish(request, done).names == ["east/b", "east/z", "west/w"]
    late, _ = paged()
    request, done = late.begin(target)
    late.clock.advance(3.1)
    with pytest.raises(StatusError) as raised:
        late.finish(request, done)
    assert (raised.value.code, raised.value.message.partition(":")[0]) == (504, "Timeout")


def test_a_token_waits_for_each_of_a_members_stores() -> None:
    def replica() -> Fleet:
        found = Fleet(("east",), namespaces={"east": ["demo", "prod"]})
        found.fill("east/demo", [pod("a", version=1), pod("b", version=2)], 10)
        found.fill("east/prod", [pod("p", "prod", version=3)], 10)
        return found

    found, other = replica(), replica()
    found.apply("east/prod", "ADDED", pod("q", "prod", version=15))
    first = found.read(query(ALL, limit=1))
    target = query(ALL, **{"continue": first.json()["metadata"]["continue"]})
    request, done = other.begin(target)
    other.clock.advance(1.0)
    assert not request.connection.done
    other.apply("east/prod", "ADDED", pod("q", "prod", version=15))
    assert other.finish(request, done).names == found.read(target).names == ["east/b", "east/p", "east/q"]


def test_a_token_at_a_replica_that_does_not_hold_the_member_is_410() -> None:
    target = paged()[1]
    other, _ = paged()
    other.stores["west"].clear()
    other.stores["west"].unavailable("no route")
    assert inconsistent(other, target) == ["east/b"]


def test_a_token_that_ended_in_a_member_that_was_removed_goes_on_at_the_next() -> None:
    found = Fleet(("east", "west"))
    found.fill("east", [pod("a", version=1), pod("b", version=2)], 10)
    found.fill("west", [pod("w", version=18)], 20)
    target = second(found)
    rest = Fleet(("west",))
    rest.fill("west", [pod("w", version=18)], 20)
    assert rest.refusal(target).metadata == {}  # nothing is known of what was before
    rest.recall(("east", "west"))
    assert inconsistent(rest, target) == ["west/w"]


def test_a_page_of_a_list_that_began_without_a_member_says_so() -> None:
    found, _ = paged()
    first = found.read(query(PATH, limit=1), allowed=("east",), left_out=[REFUSED])
    rest = found.read(query(PATH, **{"continue": first.json()["metadata"]["continue"]}))
    assert rest.names == ["east/b"]
    assert rest.json()["metadata"]["resourceVersion"] == first.json()["metadata"]["resourceVersion"]
    assert rest.warnings == ["cluster west: its objects are left out: the list began without it"]
