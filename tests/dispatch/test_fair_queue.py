"""Users take turns; each user's own come in their order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.dispatch.fair_queue import FairQueue


def everything(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def queue_of(*items: str) -> FairQueue[str]:
    """Items are named after their user: a1 is of the user a."""
    queue: FairQueue[str] = FairQueue()
    for item in items:
        queue.push(item[0], item)
    return queue


def test_first_in_first_out_for_one_user() -> None:
    assert everything(queue_of("a1", "a2", "a3")) == ["a1", "a2", "a3"]


def test_users_take_turns() -> None:
    assert everything(queue_of("a1", "a2", "a3", "b1", "c1", "c2")) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_hundred_of_one_user_delay_another_by_one_turn() -> None:
    queue = queue_of(*(f"a{n}" for n in range(100)), "b1")
    assert [queue.pop(), queue.pop()] == ["a0", "b1"]
    queue.push("b", "b2")
    assert [queue.pop(), queue.pop()] == ["a1", "b2"]


def test_whoever_leaves_is_no_longer_served() -> None:
    queue = queue_of("a1", "a2", "b1")
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    assert everything(queue) == ["a2"]


def test_what_is_not_there_cannot_be_taken_out() -> None:
    queue = queue_of("a1")
    with pytest.raises(KeyError):
        queue.remove("b", "b1")
    with pytest.raises(ValueError):
        queue.remove("a", "a2")
    queue.pop()
    with pytest.raises(KeyError):
        queue.pop()


@given(st.lists(st.sampled_from("aaaaabbc"), max_size=60))
def test_every_waiting_user_has_a_turn_before_a_second_one(users: list[str]) -> None:
    queue = queue_of(*(f"{user}{n}" for n, user in enumerate(users)))
    left = {user: users.count(user) for user in set(users)}
    served_since: dict[str, set[str]] = {user: set() for user in left}
    while len(queue):
        user = queue.pop()[0]
        for other, seen in served_since.items():
            if left[other] and other != user:
                assert user not in seen, f"{user} came twice while {other} waited"
                seen.add(user)
        served_since[user] = set()
        left[user] -= 1
    assert not any(left.values())


def test_the_newest_of_the_fullest_makes_room() -> None:
    queue = queue_of("a1", "b1", "a2", "b2", "a3")
    assert queue.pop_newest_of_fullest() == "a3"
    assert everything(queue) == ["a1", "b1", "a2", "b2"]
    with pytest.raises(KeyError):
        queue.pop_newest_of_fullest()


@pytest.mark.parametrize(
    ("items", "user", "room"),
    [
        ("aab", "c", True),  # a has two, c would have one
        ("aab", "b", False),  # a tie: both would have two
        ("aaab", "b", True),
        ("aaab", "a", False),  # his own newest would be the one that came
        ("abc", "d", False),
        ("", "a", False),
    ],
)
def test_room_is_made_only_by_a_user_who_has_more(items: str, user: str, room: bool) -> None:
    assert queue_of(*items).can_make_room_for(user) is room


@given(
    st.lists(st.tuples(st.sampled_from("aaaaabbcdef"), st.sampled_from(["come", "come", "next", "leave"])), max_size=80)
)
def test_a_full_queue_shares_its_places(steps: list[tuple[str, str]]) -> None:
    """Whatever came and went: nobody is kept out, or pushed out, by a user with fewer items than he has."""
    size, number = 6, 0
    queue: FairQueue[str] = FairQueue()
    waiting: dict[str, list[str]] = {user: [] for user in "abcdef"}
    for user, step in steps:
        number += 1
        counts = {each: len(items) for each, items in waiting.items()}
        if step == "next" and len(queue):
            item = queue.pop()
            assert waiting[item[0]].pop(0) == item
        elif step == "leave" and waiting[user]:
            queue.remove(user, waiting[user].pop(0))
        elif step == "come":
            fits = len(queue) < size
            assert queue.can_make_room_for(user) is (max(counts.values()) > counts[user] + 1)
            if not fits and not queue.can_make_room_for(user):
                continue
            item = f"{user}{number}"
            queue.push(user, item)
            waiting[user].append(item)
            if not fits:
                out = queue.pop_newest_of_fullest()
                assert out[0] != user
                assert counts[out[0]] == max(counts.values())
                assert waiting[out[0]].pop() == out
        assert len(queue) == sum(map(len, waiting.values())) <= size
    left = everything(queue)
    assert {user: [item for item in left if item[0] == user] for user in waiting} == waiting
