"""`show: One`: a list has one object of each name; pages, counts, selectors and forms agree about which."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.aggregate.cache.sequence import ObjectSequence, Snapshot
from mcproxy.aggregate.freshness import Freshness
from mcproxy.aggregate.view.conflicts import Conflicts, DuplicateNames
from mcproxy.config.model import ConflictRule, Show, UnavailableMembers
from tests.aggregate.objects import NAMESPACES, decoded, pod
from tests.aggregate.reads.harness import Fleet, Response, query
from tests.aggregate.reads.test_paging import names, pages

ALL = "/api/v1/pods"
DEMO = "/api/v1/namespaces/demo/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


def rule(to: str, *namespaces: str, show: Show = Show.ONE) -> ConflictRule:
    return ConflictRule(api_groups=("*",), resources=("*",), namespaces=namespaces, to=to, show=show)


def fleet(*rules: ConflictRule, **options: Any) -> Fleet:
    """East has a, b, d and prod/b; west b, c, d (with a label) and prod/b."""
    found = Fleet(conflicts=Conflicts(rules or (rule("east"),)), **options)
    east = [pod(name, version=index + 1) for index, name in enumerate("abd")]
    west = [pod(name, version=index + 101, labels={"app": "x"}) for index, name in enumerate("bcd")]
    found.fill("east", [*east, pod("b", "prod", version=5)], 10)
    found.fill("west", [*west, pod("b", "prod", version=105)], 110)
    return found


def clusters(found: Response) -> list[str]:
    """cluster/name of each item."""
    return found.names


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ((rule("east"),), ["east/a", "east/b", "east/d", "east/b", "west/c"]),
        ((rule("west"),), ["east/a", "west/b", "west/c", "west/d", "west/b"]),
        ((rule("west", "prod"),), ["east/a", "east/b", "east/d", "west/b", "west/c", "west/d", "west/b"]),
        ((rule("west", "prod"), rule("east")), ["east/a", "east/b", "east/d", "west/c", "west/b"]),
        (
            (rule("east", show=Show.ALL),),
            ["east/a", "east/b", "east/d", "east/b", "west/b", "west/c", "west/d", "west/b"],
        ),
        ((rule("nobody"),), ["east/a", "east/b", "east/d", "east/b", "west/c"]),
    ],
)
def test_the_chosen_members_object_is_shown_alone(rules: tuple[ConflictRule, ...], expected: list[str]) -> None:
    assert fleet(*rules).read(ALL).names == expected


@pytest.mark.parametrize("accept", ["application/json", TABLE, PARTIAL])
def test_in_every_form(accept: str) -> None:
    body = fleet().read(DEMO, accept=accept).json()
    found = [row["object"] for row in body["rows"]] if "rows" in body else body["items"]
    shown = [(each["metadata"]["labels"]["mcproxy.io/cluster"], each["metadata"]["name"]) for each in found]
    assert shown == [("east", "a"), ("east", "b"), ("east", "d"), ("west", "c")]


def test_a_name_means_the_same_object_whatever_is_selected() -> None:
    found = fleet()
    assert found.read(query(ALL, labelSelector="app=x")).names == ["west/c"]
    assert found.read(query(ALL, labelSelector="mcproxy.io/cluster=west")).names == ["west/c"]
    assert found.read(query(DEMO, fieldSelector="metadata.name=b")).names == ["east/b"]
    assert found.read(query(ALL, fieldSelector="metadata.name=b")).names == ["east/b", "east/b"]
    assert found.read(query(ALL, fieldSelector="metadata.namespace=prod")).names == ["east/b"]


@pytest.mark.parametrize("limit", range(1, 7))
@pytest.mark.parametrize("target", [ALL, DEMO])
@pytest.mark.parametrize("to", ["east", "west"])
def test_pages_and_what_remains_are_exact(target: str, limit: int, to: str) -> None:
    found = fleet(rule(to))
    whole = found.read(target).names
    got = pages(found, target, limit)
    assert names(got) == whole
    assert [len(page.names) for page in got[:-1]] == [limit] * (len(got) - 1)
    shown = 0
    for page in got[:-1]:
        shown += len(page.names)
        assert page.json()["metadata"]["remainingItemCount"] == len(whole) - shown


def test_later_pages_hide_what_was_hidden_when_the_list_began() -> None:
    found = fleet()
    whole = found.read(ALL).names
    first = found.read(query(ALL, limit=2))
    found.apply("east", "DELETED", pod("b", version=11))  # now west's would show
    found.apply("east", "ADDED", pod("c", version=12))  # and west's c would not
    token = first.json()["metadata"]["continue"]
    rest = found.read(query(ALL, **{"continue": token}))
    assert [*first.names, *rest.names] == whole
    assert found.read(DEMO).names == ["east/a", "east/c", "east/d", "west/b"]


def test_another_replica_hides_the_same() -> None:
    one, other = fleet(), fleet()
    whole = one.read(ALL).names
    first = one.read(query(ALL, limit=2))
    other.apply("east", "DELETED", pod("b", version=11))
    rest = other.read(query(ALL, **{"continue": first.json()["metadata"]["continue"]}))
    assert [*first.names, *rest.names] == whole


def test_an_exact_list_hides_by_the_state_that_it_shows() -> None:
    found = fleet()
    version = found.read(ALL).json()["metadata"]["resourceVersion"]
    whole = found.read(ALL).names
    found.apply("east", "DELETED", pod("b", version=11))
    found.apply("west", "DELETED", pod("c", version=111))
    assert found.read(query(ALL, resourceVersion=version, resourceVersionMatch="Exact")).names == whole
    assert found.read(DEMO).names == ["east/a", "east/d", "west/b"]


def test_a_member_that_the_user_may_not_read_hides_nothing_and_nothing_tells_of_it() -> None:
    found = fleet()
    seen = found.read(query(DEMO, limit=1), allowed=("west",))
    assert seen.names == ["west/b"]
    assert seen.json()["metadata"]["remainingItemCount"] == 2
    assert found.read(DEMO, allowed=("west",)).names == ["west/b", "west/c", "west/d"]


@pytest.mark.parametrize(
    ("unavailable", "expected"),
    [
        (UnavailableMembers.STALE, ["east/a", "east/b", "east/d", "west/c"]),
        (UnavailableMembers.PARTIAL, ["west/b", "west/c", "west/d"]),
    ],
)
def test_of_a_member_that_is_down_what_is_shown_hides_and_what_is_not_does_not(
    unavailable: UnavailableMembers, expected: list[str]
) -> None:
    found = fleet(freshness=Freshness(unavailable=unavailable))
    found.stores["east"].unavailable("gone")
    assert found.read(DEMO).names == expected


def test_members_with_a_store_for_each_namespace() -> None:
    found = Fleet(conflicts=Conflicts((rule("west"),)), namespaces={"east": ("demo", "prod"), "west": ("prod", "test")})
    found.fill("east/demo", [pod("a", version=1)], 10)
    found.fill("east/prod", [pod("a", "prod", version=2), pod("b", "prod", version=3)], 10)
    found.fill("west/prod", [pod("b", "prod", version=101)], 110)
    found.fill("west/test", [pod("a", "test", version=102)], 110)
    assert found.read(ALL).names == ["east/a", "east/a", "west/b", "west/a"]
    assert names(pages(found, ALL, 1)) == ["east/a", "east/a", "west/b", "west/a"]


def test_cluster_wide_resources() -> None:
    found = Fleet(resource=NAMESPACES, conflicts=Conflicts((rule("west"),)))
    for member in ("east", "west"):
        found.fill(member, [pod(name, "", version=3) for name in ("default", "kube-system", member)], 10)
    assert found.read("/api/v1/namespaces").names == ["east/east", "west/default", "west/kube-system", "west/west"]


def test_without_such_a_rule_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("names were compared")

    monkeypatch.setattr(DuplicateNames, "__init__", never)
    assert len(fleet(rule("east", show=Show.ALL)).read(ALL).names) == 8
    assert fleet(rule("east", "prod")).read(DEMO).names == ["east/a", "east/b", "east/d", "west/b", "west/c", "west/d"]


def test_what_is_hidden_is_worked_out_once_for_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    begin = DuplicateNames.__init__

    def counted(self: DuplicateNames, *arguments: Any) -> None:
        made.append(arguments)
        begin(self, *arguments)

    monkeypatch.setattr(DuplicateNames, "__init__", counted)
    found = fleet()
    assert len(pages(found, ALL, 1)) == 5
    assert len(made) == 1
    pages(found, DEMO, 1)
    assert len(made) == 2


keys = st.sets(st.tuples(st.sampled_from(("n1", "n10", "n2")), st.integers(0, 40).map(lambda number: f"o{number}")))


@settings(max_examples=60)
@given(st.lists(keys, min_size=1, max_size=4), st.sampled_from(("", "n1", "n3")), st.sampled_from(("", "o7")))
def test_an_overlap_is_what_several_states_have(states: list[set[tuple[str, str]]], namespace: str, name: str) -> None:
    name = name if namespace else ""
    snapshots: list[Snapshot[Any]] = []
    for state in states:
        objects = ObjectSequence()
        for space, item in sorted(state):
            objects = objects.put(decoded(pod(item, space)))
        snapshots.append(Snapshot(None, 1, objects))
    duplicates = DuplicateNames(snapshots, namespace, name)
    while duplicates.step():
        pass
    expected: dict[str, list[int]] = {}
    for place, state in enumerate(states):
        for space, item in state:
            if namespace in ("", space) and name in ("", item):
                expected.setdefault(f"{space}/{item}", []).append(place)
    assert duplicates.places == {key: places for key, places in expected.items() if len(places) > 1}


def test_a_big_state_is_looked_at_in_short_steps() -> None:
    snapshots: list[Snapshot[Any]] = [
        Snapshot(None, 1, ObjectSequence.from_sorted([decoded(pod(f"p{number:05d}")) for number in range(start, 3000)]))
        for start in (0, 1000, 2500)
    ]
    duplicates = DuplicateNames(snapshots)
    steps = 0
    while duplicates.step():
        steps += 1
    assert steps >= 8
    assert len(duplicates.places) == 2000
    assert duplicates.places["demo/p02500"] == [0, 1, 2]
    assert json.dumps(duplicates.places["demo/p01000"]) == "[0, 1]"
