"""`bench rules`: what a dispatch decision costs with 10 rules and with 1,000, the first time and once it was made.

Runs in this process and needs neither upstream nor load. The requests match the last rule only, and the rules before it
look at every field, so that no answer is an early one. Processor time, so that neighbours count less.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence

from bench.report import Section, limit
from bench.stats import paired_ratios, shuffled_rounds, spread
from mcproxy.config import model
from mcproxy.dispatch.compiled_rules import PolicyIndex, compile_rule
from mcproxy.kube.requestinfo import RequestInfo, parse
from mcproxy.kube.user import UserInfo

_FEW, _MANY = 10, 1000
_REQUESTS = 1500  # all of which an index can remember
_USER = UserInfo("alice", ("dev", "system:authenticated"))
_ALL = ("*",)

Round = dict[str, float]  # by number of rules, microseconds for a decision


def measure(rounds: int, rng: random.Random) -> Section:
    """Compare the two numbers of rules, both in each of `rounds` rounds."""
    requests = [parse(b"GET", b"/api/v1/namespaces/demo/pods/web-%d" % number) for number in range(_REQUESTS)]
    first: list[Round] = []
    again: list[Round] = []
    naive: list[Round] = []
    for order in shuffled_rounds([str(_FEW), str(_MANY)], rounds, rng):
        for kind in (first, again, naive):
            kind.append({})
        for count in order:
            policies = make_policies(int(count))
            index = PolicyIndex(policies)
            first[-1][count] = _time(index.find, requests)
            again[-1][count] = _time(index.find, requests)
            naive[-1][count] = _time(_one_by_one(policies), requests[:10])
    return _section(first, again, naive)


def make_policies(rules: int) -> list[model.Policy]:
    """Return policies with so many rules, of which only the last matches: rules of many teams, and the rest."""
    policies = []
    for number in range(rules - 1):
        rule = model.Rule(
            verbs=("get", "list", "watch") if number % 2 else _ALL,
            users=(f"user-{number}", f"robot-{number}-*"),
            user_groups=(f"team-{number}",) if number % 3 else (),
            api_groups=("", "apps") if number % 4 else _ALL,
            resources=("pods", "pods/log") if number % 5 else _ALL,
            resource_names=(f"db-{number}",) if number % 7 == 0 else (),
            namespaces=(f"team-{number}-*",) if number % 2 else (f"team-{number}",),
        )
        policies.append(model.Policy(name=f"team-{number}", rules=(rule,)))
    rest = model.Rule(verbs=_ALL, api_groups=_ALL, resources=_ALL, non_resource_urls=_ALL)
    return [*policies, model.Policy(name="rest", rules=(rest,))]


def _time(find: Callable[[UserInfo, RequestInfo, str], int | None], requests: Sequence[RequestInfo]) -> float:
    """Return microseconds for a decision."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        for info in requests:
            find(_USER, info, "east")
        return (time.process_time() - began) / len(requests) * 1e6
    finally:
        gc.enable()


def _one_by_one(policies: Sequence[model.Policy]) -> Callable[[UserInfo, RequestInfo, str], int | None]:
    """Return what a list of policies costs without an index."""
    compiled = [[compile_rule(rule) for rule in policy.rules] for policy in policies]

    def find(user: UserInfo, info: RequestInfo, cluster: str) -> int | None:
        for number, rules in enumerate(compiled):
            if any(rule.matches(user, info, cluster) for rule in rules):
                return number
        return None

    return find


def _section(first: Sequence[Round], again: Sequence[Round], naive: Sequence[Round]) -> Section:
    few, many = str(_FEW), str(_MANY)
    section = Section("Dispatch decisions", ["decision", f"{_FEW} rules us", f"{_MANY:,} rules us", "ratio"])
    for what, kind in (("first time", first), ("seen before", again), ("without an index", naive)):
        figures = [spread([one[count] for one in kind]).show() for count in (few, many)]
        section.rows.append([what, *figures, spread(paired_ratios(kind, many, few)).show()])
    section.targets += [
        limit(f"a decision, {_MANY:,} rules / {_FEW}", paired_ratios(first, many, few), at_most=1.3),
        limit("a decision that was made before", [one[many] for one in again], unit="us", at_most=5),
    ]
    return section
