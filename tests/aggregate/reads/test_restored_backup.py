"""Lists of a member that was put back to a backup: it has the same versions again, with other objects.

No page is of another branch of its history than those before. A version alone does not tell the branches apart, so
what is said here of versions holds only where this process saw both.
"""

from __future__ import annotations

import msgspec
import pytest

from mcproxy.aggregate.reads.continue_token import decode_token
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import pod
from tests.aggregate.reads.harness import Fleet, query
from tests.aggregate.reads.test_paging import ALL, fleet, names, pages, token_of


def undo(found: Fleet) -> None:
    """Put a member back to before its last object was written; it comes to the same version with another one."""
    store = found.stores["west"]
    store.put_back()
    found.fill("west", [pod(f"p{index}", version=101 + index) for index in range(5)], 107)
    found.apply("west", "ADDED", pod("p5", version=109))
    store.progress(110)


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("exact", [False, True])
def test_no_page_is_of_another_branch_than_those_before(replicas: int, exact: bool) -> None:
    one = fleet()
    version = one.read(ALL).json()["metadata"]["resourceVersion"]
    asked = {"resourceVersion": version, "resourceVersionMatch": "Exact"} if exact else {}
    first = one.read(query(ALL, limit=8, **asked))
    assert first.names[-1] == "west/p1"
    other = fleet() if replicas == 2 else one
    undo(other)
    assert other.read(ALL).json()["metadata"]["resourceVersion"] == version, "the versions tell them apart"
    error = other.refusal(query(ALL, limit=8, **{"continue": token_of(first)}))
    assert (error.code, error.reason) == (410, "Expired")
    assert "continue" not in error.metadata, "some of the objects of the first page are undone: it is no beginning"
    got = pages(other, ALL, 5)
    assert names(got) == other.read(ALL).names


def test_pages_of_the_new_branch_do_not_go_on_at_a_replica_that_shows_the_old_one() -> None:
    late, first = fleet(), fleet()
    undo(first)
    token = token_of(first.read(query(ALL, limit=8)))
    assert late.refusal(query(ALL, limit=8, **{"continue": token})).code == 410
    undo(late)
    assert late.read(query(ALL, **{"continue": token})).names == first.read(ALL).names[8:]


def test_of_the_stores_of_one_member_each_is_compared() -> None:
    def scoped() -> Fleet:
        found = Fleet(("east",), namespaces={"east": ["demo", "prod"]})
        for namespace in ("demo", "prod"):
            pods = [pod(f"p{index}", namespace, version=index + 1) for index in range(5)]
            found.fill(f"east/{namespace}", pods, 110)
        return found

    one, other = scoped(), scoped()
    first = one.read(query(ALL, limit=2))
    target = query(ALL, **{"continue": token_of(first)})
    assert [*first.names, *other.read(target).names] == one.read(ALL).names
    store = other.stores["east/prod"]
    store.put_back()
    other.fill("east/prod", [pod("p0", "prod", version=1)], 110)
    assert other.refusal(target).code == 410


def test_a_replica_that_came_to_the_same_state_by_another_way_goes_on() -> None:
    one, other = fleet(), fleet()
    one.apply("west", "MODIFIED", pod("p2", version=111))
    one.apply("west", "DELETED", pod("p0", version=112))
    first = one.read(query(ALL, limit=8))
    one.apply("west", "DELETED", pod("p3", version=113))
    whole = [*one.read(query(ALL, **{"continue": token_of(first)})).names]
    kept = [pod(f"p{index}", version=101 + index) for index in (1, 3, 4)]
    store = other.stores["west"]
    relist = store.replace()
    for obj in (kept[0], pod("p2", version=111), *kept[1:], pod("q", "prod", version=109)):
        relist.add(other.decode(store, obj))
    relist.commit(112)
    assert other.read(query(ALL, **{"continue": token_of(first)})).names == whole


def test_a_token_of_an_earlier_release_does_not_tell_the_branch() -> None:
    found = fleet()
    whole = found.read(ALL).names
    token = replace_state(token_of(found.read(query(ALL, limit=8))))
    assert found.read(query(ALL, **{"continue": token})).names == whole[8:]


def replace_state(token: str) -> str:
    return msgspec.structs.replace(decode_token(token), state="").encode()


# -- versions that both branches have ---------------------------------------------------------------------------------


def test_a_version_that_a_member_had_twice_is_410_once_the_member_is_beyond() -> None:
    found = fleet()
    version = found.read(ALL).json()["metadata"]["resourceVersion"]
    exact = query(ALL, resourceVersion=version, resourceVersionMatch="Exact")
    newer = query(ALL, resourceVersion=version, resourceVersionMatch="NotOlderThan")
    undo(found)
    assert "west/p5" in found.read(exact).names, "nothing tells that it is of another branch"
    found.apply("west", "ADDED", pod("p6", version=111))
    assert found.refusal(exact).code == 410
    assert found.read(newer).names[-1] == "west/p6"
    version = found.read(ALL).json()["metadata"]["resourceVersion"]
    found.apply("west", "DELETED", pod("p6", version=112))
    exact = query(ALL, resourceVersion=version, resourceVersionMatch="Exact")
    assert found.read(exact).names[-1] == "west/p6", "it has its past again"


def test_pages_of_the_new_branch_go_on_when_the_member_is_beyond_what_was_undone() -> None:
    found = fleet()
    undo(found)
    whole = found.read(ALL).names
    token = token_of(found.read(query(ALL, limit=8)))
    found.apply("west", "ADDED", pod("p6", version=111))
    assert found.read(query(ALL, **{"continue": token})).names == whole[8:]


def test_a_token_beyond_where_a_member_was_put_back_to_waits_and_is_504() -> None:
    found = fleet()
    token = token_of(found.read(query(ALL, limit=8)))
    found.stores["west"].put_back()
    found.fill("west", [pod("p0", version=101)], 105)
    request, done = found.begin(query(ALL, **{"continue": token}))
    found.clock.advance(3.1)
    with pytest.raises(StatusError) as raised:
        found.finish(request, done)
    assert raised.value.code == 504
