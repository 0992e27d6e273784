"""The rules that are measured are as many as said, and the requests match none of them but the last."""

import random

from bench import rules
from mcproxy.dispatch.compiled_rules import PolicyIndex
from mcproxy.kube.requestinfo import parse
from mcproxy.kube.user import UserInfo


def test_only_the_last_rule_matches() -> None:
    policies = rules.make_policies(100)
    assert sum(len(policy.rules) for policy in policies) == 100
    info = parse(b"GET", b"/api/v1/namespaces/demo/pods/web-1")
    assert PolicyIndex(policies).find(UserInfo("alice", ("dev",)), info, "east") == 99


def test_a_measurement_has_a_row_for_each_kind_and_both_targets() -> None:
    section = rules.measure(1, random.Random(1))
    assert [row[0] for row in section.rows] == ["first time", "seen before", "without an index"]
    assert len(section.targets) == 2
    assert all(target.measured != "not measured" for target in section.targets)
