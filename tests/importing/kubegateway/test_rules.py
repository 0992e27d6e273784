"""Rules: never wider than KubeGateway's matcher, compared request by request; and the differences by name."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import PolicyIndex
from mcproxy.importing.fragment import problems_of
from mcproxy.importing.kubegateway.policy_rules import Mode, translate
from mcproxy.importing.kubegateway.upstream_cluster import KubeGatewayOptions, listener
from mcproxy.importing.kubegateway.upstream_cluster import translate as translate_cluster
from mcproxy.importing.object_files import Fields
from mcproxy.kube.user import UserInfo
from tests.importing.builders import one, upstream_cluster
from tests.importing.kubegateway.original import Request, policy_of

VERBS = ["get", "list", "create"]
USERS = ["alice", "bob", "a-1", "system:serviceaccount:ns:sa"]
GROUPS = ["dev", "ops", "dev-1"]
API_GROUPS = ["", "apps"]
RESOURCES = ["pods", "nodes", "pods/log", "pods/status"]
NAMES = ["", "x", "x-1"]
PATHS = ["/healthz", "/healthz/x", "/metrics"]
ODD = ["*", "-*", "-", "", "**", "a*b", "-a*b", "GET", "-GET", "pods/*", "-pods/*", "*/status", "-*/status", "/a/*/b"]


def lists(*words: str) -> st.SearchStrategy[list[str]]:
    plain = st.sampled_from([*words, *ODD])
    stars = st.sampled_from([word + "*" for word in words] + [f"{word[:2]}**" for word in words])
    item = st.one_of(plain, plain.map("-".__add__), stars, stars.map("-".__add__))
    inverted = st.lists(st.sampled_from(words).map("-".__add__), max_size=2)
    return st.one_of(st.just(["*"]), st.lists(st.sampled_from(words), max_size=2), inverted, st.lists(item, max_size=3))


ACCOUNT = st.fixed_dictionaries(
    {}, optional={"namespace": st.sampled_from(["ns", "", "n*"]), "name": st.sampled_from(["sa", ""])}
)
LISTS = {
    "verbs": lists(*VERBS),
    "apiGroups": lists(*API_GROUPS),
    "resources": lists(*RESOURCES),
    "resourceNames": lists(*NAMES),
    "users": lists(*USERS),
    "userGroups": lists(*GROUPS),
    "serviceAccounts": st.lists(ACCOUNT, max_size=2),
    "nonResourceURLs": lists(*PATHS),
}
ALL: dict[str, Any] = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "nonResourceURLs": ["*"]}


def narrowed(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Rules that match everything but for a few lists, so that each list matters."""
    return st.fixed_dictionaries({key: LISTS[key] for key in keys}).map(lambda found: {**ALL, **found})


RULE = st.lists(st.sampled_from(sorted(LISTS)), min_size=1, max_size=2, unique=True).flatmap(narrowed)
SCHEMAS = [
    {"name": "none", "maxRequestsInflight": {"max": 0}},
    {"name": "some", "maxRequestsInflight": {"max": 5}},
    {"name": "bucket", "tokenBucket": {"qps": 5, "burst": 5}},
]
POLICY = st.fixed_dictionaries(
    {"rules": st.lists(RULE, max_size=2)},
    optional={
        "flowControlSchemaName": st.sampled_from(["none", "some", "bucket", "undefined"]),
        "upstreamSubset": st.sampled_from([["https://10.0.0.1:6443"], ["https://gone:1"], []]),
    },
)
POLICIES = st.lists(POLICY, max_size=3)
ABOUT: list[dict[str, str]] = [
    *({"path": path} for path in PATHS),
    {"resource": "nodes"},
    *({"resource": "pods", "name": name} for name in NAMES),
    *({"resource": "pods", "subresource": each, "name": "x"} for each in ("log", "status")),
    {"resource": "pods", "group": "apps", "name": "x-1"},
]
REQUESTS = [
    Request(user, (*groups, "system:authenticated"), verb, **about)
    for user in USERS
    for groups in ((), ("dev",), ("dev-1",), ("dev", "ops"))
    for verb in VERBS
    for about in ABOUT
]
"""What is asked of each list of policies."""


def translated(policies: Sequence[dict[str, Any]], mode: Mode | None = None) -> list[dict[str, Any]]:
    """Return the policies of the server that is made."""
    flow_control = {"flowControlSchemas": SCHEMAS}
    found = one(upstream_cluster(dispatchPolicies=policies, flowControl=flow_control))
    made: list[dict[str, Any]] = translate_cluster(found, KubeGatewayOptions(mode=mode)).sections["servers"][0][
        "dispatch"
    ]
    return made


def index_of(policies: Sequence[dict[str, Any]]) -> PolicyIndex:
    return PolicyIndex([model.Policy(name=p["name"], rules=tuple(map(rule_of, p["rules"]))) for p in policies])


def rule_of(rule: dict[str, Any]) -> model.Rule:
    names = {re.sub("[^a-z]", "", each.name.lower()): each.name for each in dataclasses.fields(model.Rule)}
    values: dict[str, Any] = {names[key.lower()]: tuple(items) for key, items in rule.items()}
    if "service_accounts" in values:
        values["service_accounts"] = tuple((each["namespace"], each["name"]) for each in values["service_accounts"])
    return model.Rule(**values)


def refuses(policy: dict[str, Any]) -> bool:
    """Whether KubeGateway refuses what such a policy is applied to, or would not have taken the object."""
    return policy.get("flowControlSchemaName") in ("none", "undefined") or policy.get("upstreamSubset") == [
        "https://gone:1"
    ]


def outcomes(made: Sequence[dict[str, Any]]) -> Iterator[tuple[Request, dict[str, Any] | None]]:
    """Yield each request with the policy that is applied to it."""
    index = index_of(made)
    for request in REQUESTS:
        place = index.find(UserInfo(request.user, request.groups), request, "east.example.com")
        yield request, made[place] if place is not None else None


@settings(max_examples=80, deadline=None)
@given(POLICIES)
@example([{"rules": [{**ALL, "verbs": ["-get", "-list"]}]}])
@example([{"rules": [{**ALL, "userGroups": ["dev-*"]}]}])
@example([{"rules": [{**ALL, "resourceNames": ["x*"]}]}])
@example([{"rules": [{**ALL, "serviceAccounts": [{"name": "sa"}]}]}])
@example([{"rules": []}])
@example([])
def test_what_was_refused_is_never_allowed(policies: list[dict[str, Any]]) -> None:
    made = translated(policies)
    assert made, "a server without policies lets everything pass"
    for request, policy in outcomes(made):
        if policy is not None and "reject" not in policy:
            place = policy_of(policies, request)
            assert place is not None, (request, policy)
            assert not refuses(policies[place]), (request, policy)
            control = policies[place].get("flowControlSchemaName", "")
            assert policy.get("flowControl", "").rpartition("_")[2] == control, "another limit than before"


@settings(max_examples=40, deadline=None)
@given(POLICIES)
def test_as_written_nothing_is_allowed_that_was_refused(policies: list[dict[str, Any]]) -> None:
    for request, policy in outcomes(translated(policies, Mode.AS_WRITTEN)):
        if policy is not None and "reject" not in policy:
            place = policy_of(policies, request)
            assert place is not None, (request, policy)
            assert not refuses(policies[place]), (request, policy)


@settings(max_examples=60, deadline=None)
@given(POLICIES)
def test_as_run_the_same_policy_applies(policies: list[dict[str, Any]]) -> None:
    for request, policy in outcomes(translated(policies, Mode.AS_RUN)):
        place = policy_of(policies, request)
        if place is None:
            assert policy is None or "reject" in policy, request
        else:
            assert policy is not None, request
            assert policy["name"] == f"policy-{place + 1}", request
            assert ("reject" in policy) == refuses(policies[place])


@settings(max_examples=10, deadline=None)
@given(POLICIES)
def test_the_loader_takes_whatever_is_made(policies: list[dict[str, Any]]) -> None:
    found = one(upstream_cluster(dispatchPolicies=policies, flowControl={"flowControlSchemas": SCHEMAS}))
    made = translate_cluster(found, KubeGatewayOptions())
    assert problems_of([made, listener([made], KubeGatewayOptions())]) == []


def rule(mode: Mode = Mode.AS_WRITTEN, **lists: Any) -> Any:
    return translate(Fields({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], **lists}, "rule"), mode)


@pytest.mark.parametrize(
    ("key", "items", "written", "run", "note"),
    [
        ("verbs", ["-get", "-list"], ["-get", "-list"], ["*"], "several inverted items"),
        ("verbs", ["-get"], ["-get"], ["-get"], ""),
        ("verbs", ["-get", "list"], ["list"], ["list"], ""),
        ("userGroups", ["-dev"], ["-dev"], ["*"], "system:authenticated"),
        ("users", ["-a-*"], ["-a-*"], ["*"], "inverted pattern"),
        ("users", ["a**"], ["a*"], ["a*"], ""),
        ("users", ["**"], ["*"], ["*"], ""),
        ("resources", ["-*/status"], ["-*/status"], ["*"], "*/subresource"),
        ("resources", ["pods/*", "nodes"], ["nodes"], ["nodes"], '"pods/*"'),
        ("resourceNames", ["web-*", "x"], ["x"], ["x"], "no pattern there"),
        ("verbs", ["GET", "list"], ["list"], ["list"], '"GET"'),
    ],
)
def test_lists(key: str, items: list[str], written: list[str], run: list[str], note: str) -> None:
    lists: dict[str, Any] = {key: items}
    as_written, as_run = rule(**lists), rule(Mode.AS_RUN, **lists)
    assert as_written.rule[key] == written
    assert as_run.rule[key] == run
    notes = " ".join(what for _, what in [*as_written.notes, *as_written.differing])
    assert note in notes
    assert bool(notes) == bool(note)


@pytest.mark.parametrize(
    "lists",
    [
        {"users": ["a*b"]},
        {"userGroups": ["team-*"]},
        {"serviceAccounts": [{"namespace": "", "name": "sa"}]},
        {"serviceAccounts": [{"name": "sa"}]},
        {"users": ["a*b"], "serviceAccounts": [{"namespace": "n:x", "name": "sa"}]},
        {"resourceNames": ["web-*"]},
        {"verbs": ["GET"]},
        {"resources": ["pods/*"]},
        {"resources": [], "nonResourceURLs": ["-/healthz"]},
    ],
)
def test_a_list_that_loses_its_items_does_not_become_one_for_all(lists: dict[str, Any]) -> None:
    assert rule(**lists).rule is None


@pytest.mark.parametrize(
    "lists", [{"users": ["-a*b"]}, {"verbs": ["-GET"]}, {"resources": ["-pods/*"]}, {"users": ["-*"]}]
)
def test_what_cannot_be_said_is_refused(lists: dict[str, Any]) -> None:
    made = rule(**lists)
    assert (made.rule, made.refused) == (None, True)
    policies = translated([{"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], **lists}]}])
    assert [policy["reject"]["code"] for policy in policies] == [403]


@pytest.mark.parametrize(
    ("first", "second", "verbs"),
    [("some", "some", ["-get", "-list"]), ("some", "none", ["-get", "-list"]), ("some", "bucket", ["*"]),
     ("some", "", ["*"]), ("", "some", ["*"]), ("", "", ["-get", "-list"])],
)  # fmt: skip
def test_an_inverted_list_is_as_written_where_no_request_gets_another_limit(
    first: str, second: str, verbs: list[str]
) -> None:
    policies = translated(
        [
            {"rules": [{**ALL, "verbs": ["-get", "-list"]}], "flowControlSchemaName": first},
            {"rules": [ALL], "flowControlSchemaName": second},
        ]
    )
    assert policies[0]["rules"][0]["verbs"] == verbs


def test_a_rule_that_refuses_does_not_become_narrower() -> None:
    rules = [{"verbs": ["-get", "-list"], "apiGroups": ["*"], "resources": ["*"]}]
    policies = translated([{"rules": rules, "flowControlSchemaName": "none"}, {"rules": [dict(rules[0], verbs=["*"])]}])
    assert policies[0]["rules"][0]["verbs"] == ["*"]
    assert policies[0]["reject"]["code"] == 429
