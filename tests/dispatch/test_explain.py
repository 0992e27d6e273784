"""Explanations are data: which policies were tried, and which field of which rule said no, with what it saw."""

from mcproxy.dispatch.explain import Explanation, Mismatch, PolicyVerdict, RuleVerdict, explain, explain_rules
from mcproxy.kube.user import UserInfo
from tests.dispatch.builders import ALICE, other_request, policy, resource_request, rule

NOBODY = UserInfo("nobody")
PODS = rule(resources=("pods", "pods/*"), non_resource_urls=())


def test_what_was_tried_up_to_the_rule_that_matches() -> None:
    policies = [
        policy("a", rule(users=("bob",), service_accounts=(("ns", "sa"),))),
        policy("b", PODS, rule(verbs=("get",)), rule()),
        policy("c", rule()),
    ]
    explanation = explain(policies, ALICE, resource_request(what="nodes"), "east")
    wanted = ("bob", "system:serviceaccount:ns:sa")
    assert explanation == Explanation(
        (
            PolicyVerdict(0, "a", (RuleVerdict(0, (Mismatch("users", wanted, ("alice",)),)),)),
            PolicyVerdict(
                1,
                "b",
                (RuleVerdict(0, (Mismatch("resources", ("pods", "pods/*"), ("nodes",)),)), RuleVerdict(1, ())),
            ),
        )
    )
    assert (explanation.policy, explanation.rule) == (explanation.policies[1], RuleVerdict(1, ()))


def test_every_field_that_does_not_match_has_its_name_in_the_file() -> None:
    none = rule(
        verbs=("list",), users=("bob",), user_groups=("-dev",), api_groups=("apps",), resources=("-pods/log",),
        resource_names=("a*",), namespaces=("",), clusters=("west",), non_resource_urls=("/api",),
    )  # fmt: skip
    policies = [policy("p", none)]
    explanation = explain(
        policies, ALICE, resource_request("get", "pods/log", "batch", namespace="n", name="x"), "east"
    )
    assert (explanation.policy, explanation.rule) == (None, None)
    assert explanation.policies[0].rules[0].mismatches == (
        Mismatch("verbs", ("list",), ("get",)),
        Mismatch("users", ("bob",), ("alice",)),
        Mismatch("userGroups", ("-dev",), ("dev", "system:authenticated")),
        Mismatch("apiGroups", ("apps",), ("batch",)),
        Mismatch("resources", ("-pods/log",), ("pods/log",)),
        Mismatch("resourceNames", ("a*",), ("x",)),
        Mismatch("namespaces", ("",), ("n",)),
        Mismatch("clusters", ("west",), ("east",)),
    )
    verdict = explain(policies, NOBODY, other_request("/version", "POST"), "west").policies[0].rules[0]
    assert [refusal.field for refusal in verdict.mismatches] == ["verbs", "users", "nonResourceURLs"]


def test_text_for_people() -> None:
    policies = [policy("dispatch[0]", rule(user_groups=("x",), verbs=())), policy('"odd\n', rule()), policy("c")]
    assert list(explain(policies, NOBODY, resource_request(), "east").lines()) == [
        'dispatch[0], rules[0]: verbs is empty; userGroups ["x"] does not admit none',
        r'dispatch[1] "\"odd\n", rules[0]: matches',
    ]


def test_without_policies_nothing_was_tried() -> None:
    assert explain([], ALICE, resource_request(), "east") == Explanation(())
    assert explain([policy("p")], ALICE, resource_request(), "east").policy is None


def test_a_plain_list_of_rules_is_explained_alike() -> None:
    verdicts = explain_rules([rule(verbs=("list",)), rule(), rule()], ALICE, resource_request(), "east")
    assert [verdict.matches for verdict in verdicts] == [False, True]
    assert explain_rules([], ALICE, resource_request(), "east") == ()
