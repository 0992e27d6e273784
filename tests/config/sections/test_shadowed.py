"""A policy that is called shadowed is shadowed: whatever it matches, an earlier one matches too."""

import dataclasses
from pathlib import Path
from random import Random

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import Mark, Policy, Reject, Rule
from mcproxy.config.problem import Problems
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Document, Mapping, Place, root_place
from mcproxy.config.reading.yaml_text import read_yaml
from mcproxy.config.sections.rule_sets import halves_of, warn_of_partial_rejects, warn_of_shadowed
from mcproxy.dispatch.compiled_rules import CompiledRule, compile_rule
from mcproxy.kube.requestinfo import RequestInfo
from mcproxy.kube.user import UserInfo
from tests.config.pki import NOW
from tests.support.processor_time import processor_time

USERS = ["a", "ab", "b", "system:serviceaccount:n:s", "system:serviceaccount:n:t"]
GROUPS = ["g", "gh", "h"]
RESOURCES = [("pods", ""), ("pods", "status"), ("nodes", "status"), ("nodes", "")]
PATHS = ["/x", "/x/y", "/xy", "/z"]


def shadowed(*policies: Policy) -> list[int]:
    """Return the numbers of the policies that are warned of."""
    problems = Problems()
    context = Context(problems, {}, NOW)
    document = Document("f", "/", Mapping({}, Mark("f", 1, 1)))
    places = [
        Place(document, (number,), Mapping({}, Mark("f", number, 1)), Mark("f", number, 1))
        for number in range(len(policies))
    ]
    warn_of_shadowed(context, places, policies)
    return [problem.mark.line for problem in problems.warnings if problem.mark is not None]


def policy(*rules: Rule) -> Policy:
    return Policy(name="p", rules=rules)


def changed(rule: Rule, **lists: tuple[object, ...]) -> Rule:
    return dataclasses.replace(rule, **lists)  # type: ignore[arg-type]


class Draw:
    """Rules and requests by chance, from few values, so that they often meet."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def _items(self, *values: str) -> tuple[str, ...]:
        if not self._random.randrange(4):
            return ("*",)
        chosen = self._random.sample(values, self._random.randint(1, min(3, len(values))))
        dash = self._random.choice(["", "", "-"])
        return tuple((dash if self._random.randrange(8) else "") + value for value in chosen)

    def _maybe(self, *values: str) -> tuple[str, ...]:
        return self._items(*values) if self._random.randrange(2) else ()

    def rule(self) -> Rule:
        chance = self._random
        return Rule(
            verbs=self._items("get", "list"),
            users=self._maybe("a", "a*", "b", "system:serviceaccount:n:*", "system:serviceaccount:n:s"),
            service_accounts=chance.choice([(), (), (("n", "s"),), (("n", "s"), ("n", "t"))]),
            user_groups=self._maybe("g", "g*", "h"),
            api_groups=self._items("", "apps"),
            resources=self._items("pods", "nodes", "pods/status", "*/status"),
            resource_names=self._maybe("", "x", "x*"),
            namespaces=self._maybe("", "n", "n*"),
            clusters=self._maybe("c", "c*", "d"),
            non_resource_urls=tuple(chance.sample(["*", "/x", "/x*", "/x/*", "/z"], chance.randrange(3))),
        )

    def alike(self, rule: Rule) -> Rule:
        """Return a rule that differs in a list or two, so that one often hides the other."""
        other = self.rule()
        names = self._random.sample(NAMES, self._random.randint(1, 2))
        return changed(rule, **{name: getattr(other, name) for name in names})

    def policies(self) -> list[Policy]:
        rules = [self.rule()]
        while len(rules) < 6:
            rules.append(self.alike(self._random.choice(rules)))
        return [policy(*rules[:2]), policy(rules[2]), policy(*rules[3:5]), policy(rules[5])]

    def request(self) -> tuple[UserInfo, RequestInfo, str]:
        chance = self._random
        user = UserInfo(chance.choice(USERS), tuple(chance.sample(GROUPS, chance.randrange(3))))
        info = RequestInfo(chance.choice(PATHS), chance.choice(["get", "list", "post"]))
        if chance.randrange(3):
            info.is_resource = True
            info.group = chance.choice(["", "apps", "batch"])
            info.resource, info.subresource = chance.choice(RESOURCES)
            info.name, info.namespace = chance.choice(["", "x", "xy", "z"]), chance.choice(["", "n", "nm", "m"])
        return user, info, chance.choice(["c", "cc", "d", ""])


NAMES = [field.name for field in dataclasses.fields(Rule)]


def matches(compiled: list[CompiledRule], request: tuple[UserInfo, RequestInfo, str]) -> bool:
    return any(rule.matches(*request) for rule in compiled)


@pytest.mark.slow
def test_rules_that_one_request_matches_intersect() -> None:
    draw, both = Draw(5), 0
    for _ in range(1500):
        rules = draw.rule(), draw.rule()
        compiled = [compile_rule(rule) for rule in rules]
        for request in [draw.request() for _ in range(60)]:
            if all(rule.matches(*request) for rule in compiled):
                both += 1
                one, other = (halves_of(rule)[0 if request[1].is_resource else 1] for rule in rules)
                assert one.intersects(other), (rules, request)
                assert other.intersects(one), (rules, request)
    assert both > 500  # else this would show nothing


def test_rules_that_have_nothing_in_common_do_not_intersect() -> None:
    rule = Rule(verbs=("get",), api_groups=("",), resources=("pods",))
    for other in (
        changed(rule, verbs=("list",)),
        changed(rule, resources=("-pods",)),
        changed(rule, resources=("*/status",)),
        changed(rule, api_groups=("apps",)),
        changed(rule, resources=()),
    ):
        assert not halves_of(rule)[0].intersects(halves_of(other)[0])
        assert not halves_of(other)[0].intersects(halves_of(rule)[0])
    named = changed(rule, namespaces=("a*", "b"), users=("u",))
    assert not halves_of(named)[0].intersects(halves_of(changed(rule, namespaces=("-a*", "-b")))[0])
    assert not halves_of(named)[0].intersects(halves_of(changed(rule, namespaces=("c",)))[0])
    assert not halves_of(named)[0].intersects(halves_of(changed(rule, users=("-u",)))[0])
    assert halves_of(named)[0].intersects(halves_of(changed(rule, namespaces=("-a*",)))[0])
    groups = changed(rule, user_groups=("g",))
    assert halves_of(groups)[0].intersects(halves_of(changed(rule, user_groups=("h",)))[0])  # somebody is in both
    assert not halves_of(groups)[0].intersects(halves_of(changed(rule, user_groups=("-g",)))[0])


def test_a_thousand_rejecting_policies_are_checked_in_well_under_a_second() -> None:
    secrets = Rule(verbs=("*",), api_groups=("",), resources=("secrets",))
    rejects = [
        dataclasses.replace(
            policy(changed(secrets, namespaces=(f"n{number}",), users=(f"u{number}",))), reject=Reject()
        )
        for number in range(1000)
    ]
    rest = policy(Rule(verbs=("*",), api_groups=("*",), resources=("*",)))
    text = "".join(f"- rules: [{{namespaces: [n{number}]}}]\n" for number in range(1001))
    problems = Problems()
    root = read_yaml("f", f"dispatch:\n{text}".encode(), problems)
    assert isinstance(root, Mapping)
    places = list(root_place(Document("f", "/", root)).children("dispatch"))
    with processor_time() as taken:
        warn_of_partial_rejects(Context(problems, {}, NOW), places, [*rejects, rest])
    assert taken.seconds < 0.5
    assert len(problems.warnings) == 1000


def test_no_request_is_for_a_policy_that_is_called_shadowed() -> None:
    draw, checked, reached = Draw(4), 0, 0
    for _ in range(600):
        policies = draw.policies()
        found = shadowed(*policies)
        compiled = [[compile_rule(rule) for rule in policy.rules] for policy in policies]
        for request in [draw.request() for _ in range(80)] if found else ():
            for number in found:
                checked += 1
                if matches(compiled[number], request):
                    reached += 1
                    assert any(matches(earlier, request) for earlier in compiled[:number]), (policies, request)
    assert checked > 10_000  # else this would show nothing
    assert reached > 1000


ALL = Rule(verbs=("*",), api_groups=("*",), resources=("*",), non_resource_urls=("*",))
PODS = Rule(verbs=("get",), api_groups=("",), resources=("pods",))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (ALL, ALL),
        (ALL, PODS),
        (PODS, changed(PODS, users=("a",), user_groups=("-g",), namespaces=("n*",), resource_names=("x",))),
        (changed(PODS, users=("a*",)), changed(PODS, users=("a", "ab", "ac*"))),
        (changed(PODS, users=("-a",)), changed(PODS, users=("b",))),
        (changed(PODS, users=("-a",)), changed(PODS, users=("-a*", "-b"))),
        (changed(PODS, users=("a", "system:serviceaccount:n:s")), changed(PODS, service_accounts=(("n", "s"),))),
        (
            changed(PODS, users=("a",), service_accounts=(("n", "s"),)),
            changed(PODS, users=("a", "system:serviceaccount:n:s")),
        ),
        (changed(PODS, user_groups=("g*",)), changed(PODS, user_groups=("g", "gh"))),
        (changed(PODS, user_groups=("-g",)), changed(PODS, user_groups=("-g*",))),
        (changed(PODS, resources=("*/status",)), changed(PODS, resources=("pods/status",))),
        (changed(PODS, resources=("-nodes",)), changed(PODS, resources=("pods", "nodes/status"))),
        (changed(PODS, namespaces=("-kube-*",)), changed(PODS, namespaces=("",))),
        (changed(PODS, clusters=("e*",)), changed(PODS, clusters=("east",))),
        (Rule(verbs=("*",), non_resource_urls=("/x*",)), Rule(verbs=("get",), non_resource_urls=("/x/*", "/x"))),
    ],
)
def test_what_an_earlier_rule_covers_is_shadowed(earlier: Rule, later: Rule) -> None:
    assert shadowed(policy(earlier), policy(later)) == [1]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (PODS, ALL),
        (changed(PODS, verbs=()), changed(PODS, verbs=())),
        (changed(PODS, user_groups=("-g",)), changed(PODS, user_groups=("h",))),  # h may be in g too
        (changed(PODS, user_groups=("g",)), PODS),
        (changed(PODS, users=("a",)), changed(PODS, users=("a",), service_accounts=(("n", "s"),))),
        (changed(PODS, users=("-a*",)), changed(PODS, users=("a",))),
        (changed(PODS, users=("-ab*",)), changed(PODS, users=("a*",))),
        (changed(PODS, users=("-a*",)), changed(PODS, users=("-a",))),
        (changed(PODS, resources=("-pods/status",)), changed(PODS, resources=("*/status",))),
        (changed(PODS, resources=("*/status",)), changed(PODS, resources=("pods/log",))),
        (
            Rule(verbs=("get",), non_resource_urls=("/x",), clusters=("c",)),
            Rule(verbs=("get",), non_resource_urls=("/x",)),
        ),
        (changed(PODS, resources=("pods",)), changed(PODS, resources=("pods/log",))),
        (PODS, Rule(verbs=("get",), non_resource_urls=("/x",))),
        (Rule(verbs=("*",), non_resource_urls=("/x/*",)), Rule(verbs=("get",), non_resource_urls=("/x*",))),
    ],
)
def test_what_is_wider_or_beside_is_not(earlier: Rule, later: Rule) -> None:
    assert shadowed(policy(earlier), policy(later)) == []


def test_two_earlier_policies_may_hide_one() -> None:
    resources, urls = changed(ALL, non_resource_urls=()), Rule(verbs=("*",), non_resource_urls=("*",))
    assert shadowed(policy(resources), policy(urls), policy(ALL)) == [2]


def test_a_policy_is_not_shadowed_while_one_of_its_rules_is_not() -> None:
    assert shadowed(policy(PODS), policy(PODS, changed(PODS, verbs=("list",)))) == []


@pytest.mark.parametrize(
    "differing", ["users: [u%d]", "namespaces: [n%d]", "userGroups: [g%d]", "resourceNames: [x%d]"]
)
def test_a_thousand_policies_are_checked_in_well_under_a_second(tmp_path: Path, differing: str) -> None:
    rule = f'{{verbs: [get, list, watch], apiGroups: ["*"], resources: ["*"], {differing}}}'
    policies = "\n".join(f"      - {{rules: [{rule % number}]}}" for number in range(1000))
    file = tmp_path / "mcproxy.yaml"
    file.write_text(
        "version: 1\nclusters: [{name: a, identity: Passthrough, endpoints: [{url: 'http://127.0.0.1:1'}]}]\n"
        "authentication: [{name: all, anonymous: {enabled: true}}]\n"
        "servers:\n  - name: a\n    default: true\n    backend: {cluster: a}\n    authentication: all\n"
        f"    dispatch:\n{policies}\n"
    )
    server = load(str(file), environ={}, now=NOW).config.servers[0]
    assert server.dispatch is not None
    with processor_time() as taken:
        assert shadowed(*server.dispatch) == []
    assert taken.seconds < 0.5
