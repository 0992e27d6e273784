"""The index finds the same policy as trying one after the other, and its cache is bounded."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import PolicyIndex, RuleSet, compile_rule
from mcproxy.dispatch.explain import explain
from mcproxy.identity.authorization.attributes import attributes_of
from mcproxy.kube.requestinfo import RequestInfo, parse
from mcproxy.kube.user import UserInfo
from tests.dispatch.builders import ALICE, other_request, policy, resource_request, rule

Question = tuple[UserInfo, RequestInfo, str]
BOB = UserInfo("bob", ALICE.groups)
POD = resource_request()

WORDS = ["", "a", "b", "a-1", "a-12", "ab"]
PATHS = ["/", "/a", "/a/", "/a/b", "/ab"]
RESOURCES = ["pods", "pods/log", "nodes", "nodes/log", "*/log", "*"]
word = st.sampled_from(WORDS)
item = st.one_of(word, st.just("*"), st.sampled_from(["a*", "a-*", "b*", "ab*"]))
account = st.tuples(st.sampled_from(["x", "y"]), st.sampled_from(["s", "t"]))
SA_NAMES = [f"system:serviceaccount:{space}:{name}" for space in "xy" for name in "st"]


def lists(items: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[str, ...]]:
    signed = st.one_of(items, items.map("-{}".format))
    return st.lists(signed, max_size=3).map(tuple)


rules = st.builds(
    model.Rule,
    verbs=st.one_of(st.just(("*",)), lists(st.sampled_from(["get", "list", "post"]))),
    users=lists(st.one_of(item, st.sampled_from([*SA_NAMES, "system:*"]))),
    service_accounts=st.lists(account, max_size=2).map(tuple),
    user_groups=lists(item),
    api_groups=st.one_of(st.just(("*",)), lists(word)),
    resources=st.one_of(st.just(("*",)), lists(st.sampled_from(RESOURCES))),
    resource_names=lists(item),
    namespaces=lists(item),
    clusters=lists(item),
    non_resource_urls=st.one_of(
        st.just(("*",)), st.lists(st.sampled_from([*PATHS, "/a*", "/a/*"]), max_size=2).map(tuple)
    ),
)
policies = st.lists(st.lists(rules, max_size=3), max_size=6).map(
    lambda found: [policy(f"p{number}", *each) for number, each in enumerate(found)]
)
users = st.builds(UserInfo, st.sampled_from([*WORDS, *SA_NAMES]), st.lists(word, max_size=3, unique=True).map(tuple))
requests = st.one_of(
    st.builds(
        resource_request,
        st.sampled_from(["get", "list"]),
        st.sampled_from(["pods", "pods/log", "nodes", "nodes/log"]),
        word,
        namespace=word,
        name=word,
    ),
    st.builds(other_request, st.sampled_from(PATHS), st.sampled_from(["GET", "POST"])),
)
asked = st.lists(st.tuples(users, requests, word), min_size=1, max_size=8)


def first_match(listed: list[model.Policy], user: UserInfo, info: RequestInfo, cluster: str) -> int | None:
    """Try one policy after the other: what the reference says, word by word."""
    for number, each in enumerate(listed):
        if any(compile_rule(one).matches(user, info, cluster) for one in each.rules):
            return number
    return None


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(policies, asked)
def test_the_index_finds_the_first_policy_that_matches(listed: list[model.Policy], questions: list[Question]) -> None:
    index = PolicyIndex(listed)
    for user, info, cluster in questions * 2:  # remembered answers too
        expected = first_match(listed, user, info, cluster)
        assert index.find(user, info, cluster) == expected
        explained = explain(listed, user, info, cluster)
        assert (None if explained.policy is None else explained.policy.number) == expected
        assert len(explained.policies) == (len(listed) if expected is None else expected + 1)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(rules, max_size=5), asked)
def test_a_list_of_rules_matches_if_one_does_however_little_it_remembers(
    listed: list[model.Rule], questions: list[Question]
) -> None:
    forgetful = RuleSet(listed, cache_size=1)
    for user, info, cluster in questions * 2:
        expected = any(compile_rule(one).matches(user, info, cluster) for one in listed)
        assert forgetful.match(user, info, cluster) is expected


def test_what_no_rule_looks_at_makes_no_further_decisions_to_remember() -> None:
    compiled = RuleSet([rule(resources=("pods",))])
    for number in range(100):
        info = resource_request(name=f"web-{number}", namespace=f"ns-{number}")
        assert compiled.match(UserInfo(f"user-{number}"), info, "east")
    assert compiled.cached() == 1


@pytest.mark.parametrize(
    ("fields", "one", "other"),
    [
        ({"users": ("alice",)}, (ALICE, POD, "east"), (BOB, POD, "east")),
        ({"user_groups": ("dev",)}, (ALICE, POD, "east"), (UserInfo("alice"), POD, "east")),
        ({"verbs": ("get",)}, (ALICE, POD, "east"), (ALICE, resource_request("list"), "east")),
        ({"api_groups": ("",)}, (ALICE, POD, "east"), (ALICE, resource_request(group="apps"), "east")),
        ({"resources": ("pods",)}, (ALICE, POD, "east"), (ALICE, resource_request(what="nodes"), "east")),
        ({"resources": ("pods",)}, (ALICE, POD, "east"), (ALICE, resource_request(what="pods/log"), "east")),
        ({"resource_names": ("",)}, (ALICE, POD, "east"), (ALICE, resource_request(name="b"), "east")),
        ({"namespaces": ("",)}, (ALICE, POD, "east"), (ALICE, resource_request(namespace="b"), "east")),
        ({"clusters": ("east",)}, (ALICE, POD, "east"), (ALICE, POD, "west")),
        ({"non_resource_urls": ("/a",)}, (ALICE, other_request("/a"), "east"), (ALICE, other_request("/b"), "east")),
        ({"non_resource_urls": ()}, (ALICE, POD, "east"), (ALICE, other_request("/a"), "east")),
    ],
)
def test_attributes_that_a_rule_uses_are_distinguished(fields: dict[str, Any], one: Question, other: Question) -> None:
    for first, second in ((one, other), (other, one)):
        index = PolicyIndex([policy("narrow", rule(**fields)), policy("rest", rule())])
        answers = [index.find(*question) for question in (first, second, first, second)]
        assert answers == ([0, 1, 0, 1] if first is one else [1, 0, 1, 0])


def test_a_service_account_counts_beside_an_inverted_glob_that_it_begins_with() -> None:
    compiled = RuleSet([rule(users=("-system:*",), service_accounts=(("x", "s"),))])
    assert compiled.match(UserInfo("system:serviceaccount:x:s"), POD, "east")
    assert not compiled.match(UserInfo("system:serviceaccount:x:t"), POD, "east")


def test_a_path_is_never_taken_for_a_group() -> None:
    compiled = RuleSet([rule(api_groups=("/x",), non_resource_urls=())])
    assert not compiled.match(ALICE, other_request("/x"), "east")
    assert compiled.match(ALICE, resource_request(group="/x"), "east")
    assert not compiled.match(ALICE, other_request("/x"), "east")


def test_the_attributes_of_a_review_match_as_the_request_does() -> None:
    listed = [rule(verbs=("list",), resource_names=("x",)), rule(verbs=("get",), non_resource_urls=("/a*",))]
    for target, expected in ((b"/api/v1/pods?fieldSelector=metadata.name=x", True), (b"/ab", True), (b"/b", False)):
        info = parse(b"GET", target)
        compiled = RuleSet(listed)
        assert compiled.match(ALICE, info, "east") is expected
        assert compiled.match(ALICE, attributes_of(info, target), "east") is expected
        assert RuleSet(listed).match(ALICE, attributes_of(info, target), "east") is expected


def test_decisions_are_bounded_in_number_and_those_in_use_stay() -> None:
    compiled = RuleSet([rule(resource_names=("a",))], cache_size=10)
    for number in range(1000):
        assert not compiled.match(ALICE, resource_request(name=f"x-{number}"), "east")
        assert compiled.match(ALICE, resource_request(name="a"), "east")
        assert compiled.cached() <= 20


def test_what_clients_make_up_takes_no_memory() -> None:
    compiled = RuleSet([rule(resource_names=("a",), users=("x",), non_resource_urls=("/x",), user_groups=("y",))])
    tracemalloc.start()
    try:
        for number in range(3000):
            long = f"{number}-".ljust(30_000, "x")
            assert not compiled.match(ALICE, resource_request(name=long), "east")
            assert not compiled.match(ALICE, other_request(f"/{long}"), "east")
            assert not compiled.match(UserInfo(long), resource_request(), "east")
            assert not compiled.match(UserInfo("x", (long,)), resource_request(), "east")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
