"""The table of reference "dispatch", row by row; the rows that are load errors are tested with the loader."""

from __future__ import annotations

import pytest

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import PolicyIndex, RuleSet, compile_rule
from mcproxy.dispatch.explain import explain
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.user import UserInfo
from tests.dispatch.builders import ALICE, other_request, policy, resource_request, rule

VERBS = [
    (1, "", "get", False),
    (2, "*", "get", True),
    (3, "get list", "list", True),
    (4, "get", "list", False),
    (5, "-get", "get", False),
    (6, "-get", "list", True),
    (7, "-get -list", "get", False),
    (8, "-get -list", "watch", True),
    (9, "-get list", "get", False),
    (10, "-get list", "list", True),
    (11, "-get list", "watch", False),
    (12, "get *", "delete", True),
]
API_GROUPS = [
    (16, [], "", False),
    (17, [""], "", True),
    (18, [""], "apps", False),
    (19, ["apps"], "", False),
    (20, ["-"], "", False),
    (20, ["-"], "apps", True),
    (21, ["-apps"], "batch", True),
]
RESOURCES = [
    (22, "", "pods", False),
    (23, "*", "pods/log", True),
    (24, "pods", "pods", True),
    (25, "pods", "pods/log", False),
    (26, "pods/log", "pods/log", True),
    (27, "pods/log", "pods", False),
    (28, "*/status", "pods/status", True),
    (29, "*/status", "pods", False),
    (30, "*/status", "pods/log", False),
    (32, "-pods", "pods", False),
    (33, "-pods", "pods/log", True),
    (34, "-pods", "nodes", True),
    (35, "-pods -nodes", "pods", False),
    (36, "-*/status", "pods/status", False),
    (37, "-pods nodes", "services", False),
]
RESOURCE_NAMES = [
    (38, "", "", True),
    (38, "", "x", True),
    (39, "a", "", False),
    (40, "-a", "", True),
    (40, "-a", "a", False),
]
SA = "system:serviceaccount:ns:sa"
ACCOUNT = (("ns", "sa"),)
USERS = [
    (41, "", (), "x", True),
    (42, "*", (), "x", True),
    (43, "a", (), "b", False),
    (44, "-a", (), "a", False),
    (45, "-a", (), "b", True),
    (46, "a-*", (), "a-1", True),
    (47, "a-*", (), "a", False),
    (48, "-a-*", (), "a-1", False),
    (49, "-a -b", (), "a", False),
    (50, "-a b", (), "c", False),
    (51, "system:node:*", (), "system:node:n1", True),
    (52, "", ACCOUNT, SA, True),
    (53, "", ACCOUNT, "alice", False),
    (54, "alice", ACCOUNT, "alice", True),
    (55, "alice", ACCOUNT, SA, True),
    (56, "alice", ACCOUNT, "bob", False),
    (57, f"-{SA}", ACCOUNT, SA, True),
    (58, "-alice", ACCOUNT, "alice", False),
    (59, "system:serviceaccount:ns:*", (), SA, True),
]
USER_GROUPS = [
    (61, "", "", True),
    (61, "", "a", True),
    (62, "*", "", True),
    (63, "a", "a b", True),
    (64, "a", "b", False),
    (65, "a", "", False),
    (66, "-a", "a", False),
    (67, "-a", "a b", False),
    (68, "-a", "", True),
    (69, "a*", "ab", True),
    (70, "-a b", "a b", True),
]
URLS = [
    (71, "", "/x", False),
    (72, "*", "/x", True),
    (73, "/healthz", "/healthz", True),
    (74, "/healthz", "/healthz/x", False),
    (75, "/healthz*", "/healthz", True),
    (75, "/healthz*", "/healthz/x", True),
    (75, "/healthz*", "/healthzfoo", True),
    (76, "/healthz/*", "/healthz", False),
]
# Fields of the table that have no rows of their own.
NAMESPACES = [
    ([], "", True),
    (["*"], "", True),
    (["a"], "a", True),
    (["a"], "", False),
    ([""], "", True),
    ([""], "a", False),
    (["-"], "", False),
    (["-"], "a", True),
    (["-kube-system"], "kube-system", False),
    (["-kube-system"], "", True),
    (["team-*"], "team-a", True),
    (["team-*"], "tea", False),
    (["-team-*"], "team-a", False),
    (["-a", "b"], "c", False),
]


def rule_matches(subject: model.Rule, user: UserInfo, info: RequestInfo, cluster: str = "east") -> bool:
    """What every way to ask says; they agree."""
    policies = [policy("p", subject)]
    index = PolicyIndex(policies)
    found = index.find(user, info, cluster)
    assert index.find(user, info, cluster) == found, "the second answer is the first"
    assert (explain(policies, user, info, cluster).policy is not None) == (found == 0)
    assert compile_rule(subject).matches(user, info, cluster) == (found == 0)
    assert RuleSet([subject]).match(user, info, cluster) == (found == 0)
    return found == 0


@pytest.mark.parametrize(("row", "items", "verb", "matches"), VERBS)
def test_verbs(row: int, items: str, verb: str, matches: bool) -> None:
    assert rule_matches(rule(verbs=tuple(items.split())), ALICE, resource_request(verb)) is matches


@pytest.mark.parametrize(("row", "items", "group", "matches"), API_GROUPS)
def test_api_groups(row: int, items: list[str], group: str, matches: bool) -> None:
    assert rule_matches(rule(api_groups=tuple(items)), ALICE, resource_request(group=group)) is matches


@pytest.mark.parametrize(("row", "items", "what", "matches"), RESOURCES)
def test_resources(row: int, items: str, what: str, matches: bool) -> None:
    assert rule_matches(rule(resources=tuple(items.split())), ALICE, resource_request(what=what)) is matches


@pytest.mark.parametrize(("row", "items", "name", "matches"), RESOURCE_NAMES)
def test_resource_names(row: int, items: str, name: str, matches: bool) -> None:
    assert rule_matches(rule(resource_names=tuple(items.split())), ALICE, resource_request(name=name)) is matches


@pytest.mark.parametrize(("row", "users", "accounts", "name", "matches"), USERS)
def test_users_and_service_accounts(
    row: int, users: str, accounts: tuple[tuple[str, str], ...], name: str, matches: bool
) -> None:
    subject = rule(users=tuple(users.split()), service_accounts=accounts)
    assert rule_matches(subject, UserInfo(name), resource_request()) is matches
    assert rule_matches(subject, UserInfo(name), other_request("/version")) is matches


@pytest.mark.parametrize(("row", "items", "groups", "matches"), USER_GROUPS)
def test_user_groups(row: int, items: str, groups: str, matches: bool) -> None:
    user = UserInfo("x", tuple(groups.split()))
    assert rule_matches(rule(user_groups=tuple(items.split())), user, resource_request()) is matches
    assert rule_matches(rule(user_groups=tuple(items.split())), user, other_request("/version")) is matches


@pytest.mark.parametrize(("row", "items", "path", "matches"), URLS)
def test_non_resource_urls(row: int, items: str, path: str, matches: bool) -> None:
    assert rule_matches(rule(non_resource_urls=tuple(items.split())), ALICE, other_request(path)) is matches


@pytest.mark.parametrize(("items", "namespace", "matches"), NAMESPACES)
def test_namespaces(items: list[str], namespace: str, matches: bool) -> None:
    assert rule_matches(rule(namespaces=tuple(items)), ALICE, resource_request(namespace=namespace)) is matches


@pytest.mark.parametrize(
    ("items", "cluster", "matches"),
    [
        ("", "east", True),
        ("*", "east", True),
        ("east", "east", True),
        ("east", "west", False),
        ("-east", "east", False),
        ("-east", "west", True),
        ("eu-*", "eu-1", True),
        ("-eu-*", "eu-1", False),
        ("-east west", "north", False),
    ],
)
def test_clusters(items: str, cluster: str, matches: bool) -> None:
    for info in (resource_request(), other_request("/version")):
        assert rule_matches(rule(clusters=tuple(items.split())), ALICE, info, cluster) is matches


def test_resource_names_and_namespaces_say_nothing_of_other_requests() -> None:
    subject = rule(resource_names=("a",), namespaces=("b",), api_groups=(), resources=())
    assert rule_matches(subject, ALICE, other_request("/version"))
    assert not rule_matches(rule(non_resource_urls=()), ALICE, other_request("/version"))


def test_the_verb_of_another_request_is_its_method() -> None:
    subject = rule(verbs=("post",))
    assert rule_matches(subject, ALICE, other_request("/logs", "POST"))
    assert not rule_matches(subject, ALICE, other_request("/logs", "GET"))
    assert rule_matches(rule(verbs=("head",)), ALICE, other_request("/healthz", "HEAD"))


PODS = rule(resources=("pods",), non_resource_urls=())
ANY_RESOURCE = rule(non_resource_urls=())
ANY_URL = rule(api_groups=(), resources=())


def found(index: PolicyIndex, info: RequestInfo, user: UserInfo = ALICE) -> int | None:
    return index.find(user, info, "east")


def test_the_first_policy_that_matches_applies_not_the_most_specific() -> None:
    index = PolicyIndex([policy("P1", PODS), policy("P2", ANY_RESOURCE)])
    assert found(index, resource_request()) == 0
    assert found(index, resource_request(what="nodes")) == 1
    turned = PolicyIndex([policy("P1", ANY_RESOURCE), policy("P2", PODS)])
    assert found(turned, resource_request()) == 0


def test_each_half_of_a_rule_is_for_its_kind_of_request() -> None:
    assert found(PolicyIndex([policy("p", ANY_RESOURCE)]), other_request("/healthz")) is None
    assert found(PolicyIndex([policy("p", ANY_URL)]), resource_request()) is None
    both = PolicyIndex([policy("p", rule())])
    assert found(both, other_request("/healthz")) == found(both, resource_request()) == 0


def test_rules_are_or_ed_and_their_fields_are_not_mixed() -> None:
    index = PolicyIndex(
        [policy("p", rule(resources=("pods",), users=("a",)), rule(resources=("nodes",), users=("b",)))]
    )
    assert found(index, resource_request(), UserInfo("b")) is None
    assert found(index, resource_request(what="nodes"), UserInfo("b")) == 0
    assert found(index, resource_request(), UserInfo("a")) == 0


def test_without_policies_or_rules_nothing_matches() -> None:
    assert found(PolicyIndex([]), resource_request()) is None
    assert found(PolicyIndex([policy("p")]), resource_request()) is None
