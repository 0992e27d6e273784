"""limit and continue: pages of one consistent state, tokens that are not trusted, and what is left of old ones."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.aggregate.freshness import Freshness
from mcproxy.aggregate.reads.continue_token import decode_token
from mcproxy.aggregate.reads.list_state import HOLD_SECONDS, MAX_HELD
from mcproxy.aggregate.resource_version.formats import version_format
from mcproxy.aggregate.resource_version.reader import VersionReader
from mcproxy.config.model.aggregates import UnavailableMembers
from mcproxy.kube.status import StatusError
from tests.aggregate.objects import pod
from tests.aggregate.reads.harness import Fleet, Response, query

ALL = "/api/v1/pods"
DEMO = "/api/v1/namespaces/demo/pods"


def fleet(**options: Any) -> Fleet:
    found = Fleet(**options)
    for member, start in (("east", 0), ("west", 100)):
        pods = [pod(f"p{index}", version=start + index + 1, labels={"odd": str(index % 2)}) for index in range(5)]
        found.fill(member, [*pods, pod("q", "prod", version=start + 9)], start + 10)
    return found


def token_of(found: Response) -> str:
    return str(found.json()["metadata"].get("continue", ""))


def pages(found: Fleet, target: str, limit: int, **parameters: Any) -> list[Response]:
    token, result = "", []
    while True:
        more = {"continue": token} if token else {}
        result.append(found.read(query(target, limit=limit, **more, **parameters)))
        token = token_of(result[-1])
        if not token:
            return result


def names(found: list[Response]) -> list[str]:
    return [name for page in found for name in page.names]


@pytest.mark.parametrize("limit", range(1, 14))
@pytest.mark.parametrize("target", [ALL, DEMO])
def test_pages_joined_are_the_list(target: str, limit: int) -> None:
    found = fleet()
    whole = found.read(target)
    got = pages(found, target, limit)
    assert names(got) == whole.names
    assert [len(page.names) for page in got[:-1]] == [limit] * (len(got) - 1)
    versions = {page.json()["metadata"]["resourceVersion"] for page in got}
    assert versions == {whole.json()["metadata"]["resourceVersion"]}


def test_how_many_remain_is_said_without_a_selector_only() -> None:
    found = fleet()
    assert [page.json()["metadata"].get("remainingItemCount") for page in pages(found, ALL, 5)] == [7, 2, None]
    assert [page.json()["metadata"].get("remainingItemCount") for page in pages(found, DEMO, 4)] == [6, 2, None]
    got = pages(found, DEMO, 2, labelSelector="odd=1")
    assert names(got) == ["east/p1", "east/p3", "west/p1", "west/p3"]
    assert all("remainingItemCount" not in page.json()["metadata"] for page in got)
    assert len(got) == 2  # no empty last page


def test_a_limit_that_is_the_number_of_objects_has_no_next_page() -> None:
    assert len(pages(fleet(), ALL, 12)) == 1
    assert len(pages(fleet(), ALL, 10**9)) == 1


def test_the_token_is_base64url_json() -> None:
    token = token_of(fleet().read(query(ALL, limit=7)))
    data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    assert data.keys() == {"v", "rv", "cluster", "continue", "of", "order", "state"}
    assert (data["cluster"], data["continue"]) == ("west", "demo/p0")


def test_changes_do_not_show_in_later_pages() -> None:
    found = fleet()
    whole = found.read(ALL).names
    first = found.read(query(ALL, limit=4))
    found.apply("east", "DELETED", pod("p4", version=11))
    found.apply("east", "ADDED", pod("p00", version=12))
    found.apply("west", "ADDED", pod("a", version=111))
    rest = found.read(query(ALL, **{"continue": token_of(first)}))
    assert [*first.names, *rest.names] == whole


def test_a_state_is_held_even_where_the_log_has_lost_it() -> None:
    found = fleet()
    whole = found.read(ALL).names
    first = found.read(query(ALL, limit=4))
    store = found.stores["west"]
    relist = store.replace()
    relist.add(found.decode(store, pod("new", version=500)))
    relist.commit(500)
    assert [*first.names, *found.read(query(ALL, **{"continue": token_of(first)})).names] == whole


def test_another_replica_goes_on_from_its_event_log() -> None:
    one, other = fleet(), fleet()
    whole = one.read(ALL).names
    first = one.read(query(ALL, limit=4))
    other.apply("east", "DELETED", pod("p4", version=11))
    rest = other.read(query(ALL, **{"continue": token_of(first)}))
    assert [*first.names, *rest.names] == whole


def expire(found: Fleet) -> None:
    """The log no longer reaches back, and no state is held."""
    found.clock.advance(HOLD_SECONDS + 1)
    for index, name in enumerate(("east", "west")):
        store = found.stores[name]
        store.progress(1000 + index)
        relist = store.replace()
        for number in range(6):
            relist.add(found.decode(store, pod(f"p{number}", version=900)))
        relist.commit(2000)
        store.clear()
        relist = store.replace()
        for number in range(6):
            relist.add(found.decode(store, pod(f"p{number}", version=900)))
        relist.commit(3000)


def test_a_token_that_is_too_old_is_410_with_one_to_go_on_with() -> None:
    found = fleet()
    first = found.read(query(ALL, limit=4))
    expire(found)
    error = found.refusal(query(ALL, limit=4, **{"continue": token_of(first)}))
    assert (error.code, error.reason) == (410, "Expired")
    assert error.message.startswith("The provided continue parameter is too old to display a consistent list result.")
    token = error.metadata["continue"]
    assert decode_token(token).resource_version == "-1"
    rest = found.read(query(ALL, limit=4, **{"continue": token}))
    assert rest.names == ["east/p4", "east/p5", "west/p0", "west/p1"]
    last = found.read(query(ALL, limit=40, **{"continue": token_of(rest)}))
    assert last.names == ["west/p2", "west/p3", "west/p4", "west/p5"]
    version = last.json()["metadata"]["resourceVersion"]
    assert version == rest.json()["metadata"]["resourceVersion"] == found.view.format.list_version((3000, 3000))


def test_states_are_held_for_a_time_and_in_a_number() -> None:
    found = fleet()
    held = found.reads._states._held
    found.read(query(ALL, limit=1))
    assert len(held) == 2
    found.clock.advance(HOLD_SECONDS - 1)
    found.read(query(ALL, limit=1))
    found.clock.advance(2)
    assert len(held) == 2  # used again meanwhile
    found.clock.advance(HOLD_SECONDS)
    assert len(held) == 0
    for version in range(MAX_HELD + 10):
        found.stores["east"].progress(1000 + version)
        found.read(query(ALL, limit=1))
    assert len(held) == MAX_HELD


def test_a_token_is_of_one_list() -> None:
    found = fleet()
    token = token_of(found.read(query(DEMO, limit=2)))
    for target, parameters in (
        (ALL, {}),
        ("/api/v1/namespaces/prod/pods", {}),
        (DEMO, {"labelSelector": "odd=1"}),
        (DEMO, {"fieldSelector": "metadata.name=p1"}),
    ):
        error = found.refusal(query(target, **{"continue": token}, **parameters))
        assert error.code == 400
        assert error.message.startswith("invalid continue token")


def test_a_token_goes_with_no_resource_version_but_0() -> None:
    found = fleet()
    token = token_of(found.read(query(DEMO, limit=2)))
    error = found.refusal(query(DEMO, resourceVersion="10", **{"continue": token}))
    assert (error.code, error.message) == (400, "specifying resource version is not allowed when using continue")
    error = found.refusal(query(DEMO, resourceVersionMatch="Exact", **{"continue": token}))
    assert error.code == 422
    rest = found.read(query(DEMO, limit=2, resourceVersion="0", **{"continue": token}))
    assert len(rest.names) == 8  # the limit is ignored, as for resourceVersion=0


def test_a_token_gives_nothing_that_the_user_may_not_list() -> None:
    found = fleet()
    token = token_of(found.read(query(ALL, limit=2)))
    refused: Any = {"allowed": ("west",), "left_out": [("east", "no right")]}
    error = found.refusal(query(ALL, **{"continue": token}), **refused)
    assert (error.code, error.reason) == (410, "Expired")
    rest = found.read(query(ALL, **{"continue": error.metadata["continue"]}), **refused)
    assert all(name.startswith("west/") for name in rest.names)
    assert len(rest.names) == 6
    assert rest.warnings == ["cluster east: its objects are left out: no right"]


def test_a_token_for_members_of_others_is_410_and_does_not_loop() -> None:
    found, other = fleet(), Fleet(("east", "north"))
    for member in ("east", "north"):
        other.fill(member, [pod("a", version=1), pod("b", version=2)], 10)
    token = token_of(other.read(query(ALL, limit=1)))
    error = found.refusal(query(ALL, **{"continue": token}))
    assert error.code == 410
    assert "continue" not in error.metadata, "nobody knows what comes next in an order that was never had here"


def relaid(found: Fleet, *names: str) -> None:
    """A reload gives the aggregate these members, in this order; a new one is not filled yet."""
    view, parts = found.view, {member.name: member for member in found.view.members}
    found.history = found.history.changed(names)
    members = tuple(replace(parts[name], index=place) for place, name in enumerate(names) if name in parts)
    form, reader = version_format(found.history.present), VersionReader(found.history)
    view.update(replace(view.state, members=members, history=found.history, format=form, reader=reader))


def test_pages_do_not_go_on_in_another_order_of_the_members() -> None:
    found = fleet()
    token = token_of(found.read(query(ALL, limit=8)))
    assert found.read(query(ALL, **{"continue": token})).names[0] == "west/p2"
    relaid(found, "west", "east")
    for text in (token, _inconsistent(token)):
        error = found.refusal(query(ALL, **{"continue": text}))
        assert (error.code, error.reason) == (410, "Expired")
        assert "continue" not in error.metadata
    relaid(found, "east", "west")
    assert found.read(query(ALL, **{"continue": token})).names[0] == "west/p2"


def test_pages_go_on_beside_new_members_with_the_version_that_they_had() -> None:
    found = fleet()
    first = found.read(query(ALL, limit=8))
    relaid(found, "north", "east", "middle", "west")
    rest = found.read(query(ALL, **{"continue": token_of(first)}))
    assert [*first.names, *rest.names] == found.read(query(ALL, resourceVersion=0)).names
    assert rest.json()["metadata"]["resourceVersion"] == first.json()["metadata"]["resourceVersion"]


def test_pages_go_on_with_the_next_member_where_the_one_that_they_ended_in_was_removed() -> None:
    found = fleet()
    token = token_of(found.read(query(ALL, limit=2)))
    relaid(found, "west")
    error = found.refusal(query(ALL, **{"continue": token}))
    assert error.code == 410
    rest = found.read(query(ALL, **{"continue": error.metadata["continue"]}))
    assert rest.names == found.read(ALL).names


def _inconsistent(token: str) -> str:
    return decode_token(token).inconsistent().encode()


def test_a_list_goes_on_when_a_member_goes_down_meanwhile() -> None:
    found = fleet(freshness=Freshness(unavailable=UnavailableMembers.STALE))
    whole = found.read(ALL).names
    first = found.read(query(ALL, limit=4))
    found.stores["west"].unavailable("gone")
    rest = found.read(query(ALL, **{"continue": token_of(first)}))
    assert [*first.names, *rest.names] == whole
    assert "unavailable since" in rest.warnings[0]


def test_no_object_of_a_cluster_that_was_swapped_is_in_a_later_page() -> None:
    found = fleet()
    target = query(ALL, **{"continue": token_of(found.read(query(ALL, limit=4)))})
    found.stores["west"].clear()
    request, done = found.begin(target)
    found.clock.advance(11)
    with pytest.raises(StatusError) as raised:
        found.finish(request, done)
    error = raised.value
    assert (error.code, error.reason) == (410, "Expired")
    rest = found.read(query(ALL, **{"continue": error.metadata["continue"]}))
    assert rest.names == ["east/p4", "east/q"]
    assert rest.warnings == ["cluster west: its objects are left out, they could not be listed yet"]
    found.fill("west", [pod("new", version=700)], 701)
    error = found.refusal(target)
    assert (error.code, error.reason) == (410, "Expired")
    rest = found.read(query(ALL, **{"continue": error.metadata["continue"]}))
    assert rest.names == ["east/p4", "east/q", "west/new"]


def test_stores_of_several_namespaces_are_paged_from_their_own_versions() -> None:
    found = Fleet(("east", "west"), namespaces={"east": ["prod", "demo"], "west": [""]})
    found.fill("east/demo", [pod(f"p{index}", version=1 + index) for index in range(3)], 10)
    found.fill("east/prod", [pod(f"p{index}", "prod", version=1 + index) for index in range(3)], 10)
    found.fill("west", [pod("w", version=3)], 30)
    found.apply("east/prod", "ADDED", pod("p9", "prod", version=15))
    whole = found.read(ALL)
    assert whole.names == ["east/p0", "east/p1", "east/p2", "east/p0", "east/p1", "east/p2", "east/p9", "west/w"]
    first = found.read(query(ALL, limit=2))
    found.apply("east/prod", "DELETED", pod("p9", "prod", version=16))
    found.apply("east/demo", "DELETED", pod("p2", version=17))
    rest = found.read(query(ALL, **{"continue": token_of(first)}))
    assert [*first.names, *rest.names] == whole.names
    assert rest.json()["metadata"] == whole.json()["metadata"]


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["east", "west"]), st.sampled_from(["ADDED", "DELETED"]), st.integers(0, 9)), max_size=4
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=12), st.integers(1, 6), st.sampled_from(["", "odd=1"]), st.sampled_from([ALL, DEMO]))
def test_pages_under_changes_are_the_list_at_their_beginning(
    changes: list[list[tuple[str, str, int]]], limit: int, selector: str, target: str
) -> None:
    found = fleet()
    parameters = {"labelSelector": selector} if selector else {}
    whole = found.read(query(target, **parameters))
    token, got, version = "", [], 1000
    for step in [*changes, *([[]] * 40)]:
        page = found.read(query(target, limit=limit, **({"continue": token} if token else {}), **parameters))
        got += page.json()["items"]
        token = token_of(page)
        if not token:
            break
        for member, event, number in step:
            version += 1
            found.apply(member, event, pod(f"p{number}", version=version, labels={"odd": str(number % 2)}))
    assert got == whole.json()["items"]


@pytest.mark.slow
@given(st.text(max_size=30) | st.binary(max_size=40).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_text_is_a_token_or_400(text: str) -> None:
    with pytest.raises(StatusError) as caught:
        decode_token(text)
    assert caught.value.code == 400


FORGED = st.fixed_dictionaries(
    {},
    optional={
        "rv": st.sampled_from(["-1", "0", "", "10", "x", "-2"]) | st.integers(),
        "cluster": st.sampled_from(["east", "west", "north", ""]) | st.none(),
        "continue": st.sampled_from(["a/b", "/", "demo/p2", "zzz/z", "x", "\0/\0"]),
        "stores": st.dictionaries(
            st.sampled_from(["east", "north"]),
            st.dictionaries(st.sampled_from(["", "demo"]), st.integers(-(2**70), 2**70), max_size=2),
        ),
        "state": st.sampled_from(["", "x", 7]),
        "more": st.integers(),
    },
)


@settings(deadline=None)
@given(FORGED)
def test_a_forged_token_is_an_error_or_part_of_the_list(changes: dict[str, Any]) -> None:
    found = fleet()
    whole = found.read(ALL).names
    token = token_of(found.read(query(ALL, limit=3)))
    data = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    forged = base64.urlsafe_b64encode(json.dumps({**data, **changes}).encode()).decode().rstrip("=")
    code, names = 200, []
    try:
        request, done = found.begin(query(ALL, limit=3, **{"continue": forged}))
        found.clock.advance(3.1)  # a version that is not there is waited for
        names = found.finish(request, done).names
    except StatusError as error:
        code = error.code
    assert code in (200, 400, 410, 504)
    assert set(names) <= set(whole)
