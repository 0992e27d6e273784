"""Names in rules that no request has: what `check` advises is right when it is applied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors, Problem
from mcproxy.config.sections.rule_names import _differ_in_one
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES, singular

TEXT = """\
version: 1
listeners: [{{name: a, bind: "127.0.0.1:0"}}]
authentication: [{{name: all, anonymous: {{enabled: true}}, tokenReview: {{cluster: a}}}}]
clusters: [{{name: a, credentials: {{token: t}}, endpoints: [{{url: "http://127.0.0.1:1"}}], identity: Passthrough}}]
servers:
  - name: a
    default: true
    authentication: all
    backend: {{cluster: a}}
    dispatch:
      - name: p
        rules: [{{verbs: {verbs}, {matched}}}]{allow}
        {reject}
      - {{name: rest, rules: [{{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}]}}
"""


def problems(
    folder: Path,
    *,
    verbs: str = '["*"]',
    groups: str = '[""]',
    resources: str = "[pods]",
    namespaces: str = '["*"]',
    urls: str = "",
    users: str = "['*']",
    user_groups: str = "['*']",
    reject: bool = True,
    allow: str = "",
) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings about the names in a rule."""
    file = folder / "mcproxy.yaml"
    matched = f"apiGroups: {groups}, resources: {resources}, namespaces: {namespaces}"
    matched += f", users: {users}, userGroups: {user_groups}"
    if urls:
        matched = f"nonResourceURLs: {urls}"
    file.write_text(TEXT.format(verbs=verbs, matched=matched, reject="reject: {}" if reject else "", allow=allow))
    try:
        errors, warnings = [], list(load(str(file)).warnings)
    except ConfigErrors as found:
        errors, warnings = list(found.problems), list(found.warnings)
    mine = [
        [each for each in some if ".rules[0]" in each.key and each.lint != "partial-reject"]
        for some in (errors, warnings)
    ]
    return mine[0], mine[1]


WRONG = [
    {"resources": "[secret]"},
    {"resources": "[secerts]"},
    {"resources": "[po]"},
    {"resources": "[pod/exec]"},
    {"resources": "[-secret]"},
    {"resources": "[deployments]"},
    {"resources": "[deploy]", "groups": "[apps]"},
    {"resources": "[ingress]", "groups": "['*']"},
    {"resources": "[roles]", "groups": "[rbac]"},
    {"resources": "[deployments]", "groups": "[app]"},
    {"namespaces": "['team-.*']"},
    {"namespaces": "['^kube-']"},
    {"verbs": "[read]"},
    {"verbs": "[gets]"},
    {"verbs": "[post]"},
    {"resources": "[Secrets]"},
    {"resources": "[pods/exce]"},
    {"resources": "[pods/logs]", "groups": "['*']"},
    {"resources": "['*/eviciton']"},
    {"groups": "[core]"},
    {"groups": "[-v1]", "resources": "['*']"},
    {"groups": "[Apps]", "resources": "[deployments]"},
    {"namespaces": "[Team-a]"},
    {"urls": "['/metrics/.*']"},
    {"urls": "[/healthz$$]"},
    {"verbs": "[list]", "urls": "[/metrics]"},
]


@pytest.mark.parametrize("reject", [True, False])
@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: " ".join(wrong.values()))
def test_advice_that_is_applied_leaves_nothing_to_say(tmp_path: Path, wrong: dict[str, str], reject: bool) -> None:
    lists = dict(wrong)
    for _ in range(3):
        errors, warnings = problems(tmp_path, **lists, reject=reject)
        if not errors and not warnings:
            break
        (found, *_) = errors or warnings
        assert found.right is not None
        key = re.search(r"\.(\w+)\[0\]$", found.key)
        assert key is not None, found
        if written := re.search(r'write apiGroups: (\["[^"]*"\])', found.right):
            lists["groups"] = written[1]
        elif written := re.search(r'^write (".*"): ', found.right):
            lists["groups"] = f"[{written[1]}]"
        elif meant := re.search(r'did you mean "?([^"?]*)"?\?', found.right):
            lists[{"apiGroups": "groups", "nonResourceURLs": "urls"}.get(key[1], key[1])] = f'["{meant[1]}"]'
        else:
            lists[key[1]] = f"[{found.right.removeprefix('write ')}]"
    else:
        pytest.fail(f"{lists} still has {errors or warnings}")
    assert lists != wrong


def test_a_rejecting_rule_that_keeps_nothing_back_is_an_error_which_a_comment_allows(tmp_path: Path) -> None:
    errors, warnings = problems(tmp_path, resources="[secret]")
    assert [each.what for each in errors] == [
        '"secret" is not the plural, by which requests name resources, so it keeps nothing back'
    ]
    assert not warnings
    errors, warnings = problems(tmp_path, resources="[secret]", reject=False)
    assert (len(errors), len(warnings)) == (0, 1)
    assert problems(tmp_path, resources="[secret]", allow=" # mcproxy: allow matches-nothing") == ([], [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"resources": "[Secrets]"},
        {"resources": "[pods/exce]"},
        {"resources": "[deployments/exec]", "groups": "[apps]"},
        {"resources": "[secrets]", "groups": "[core]"},
        {"namespaces": "[team_a]"},
        {"verbs": "[post]"},
        {"verbs": "[list]", "urls": "[/metrics]"},
        {"verbs": "[]"},
        {"groups": "[]"},
        {"urls": "[/api/v1/secrets]"},
        {"urls": "['/api/v1/namespaces/*']"},
        {"urls": "['/metrics/.*']"},
        {"users": "[system:masters]"},
        {"users": "['system:serviceaccounts:ci']"},
        {"users": "['system:serviceaccount:ci']"},
        {"users": "['^dev-[0-9]+$$']"},
        {"user_groups": "['system:serviceaccount:ci:runner']"},
        {"user_groups": "[system:anonymous]"},
    ],
    ids=lambda wrong: " ".join(wrong.values()),
)
def test_what_a_rule_cannot_match_is_an_error_where_it_rejects_and_a_warning_elsewhere(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    errors, warnings = problems(tmp_path, reject=True, **wrong)
    assert (len(errors), len(warnings)) == (1, 0)
    errors, warnings = problems(tmp_path, reject=False, **wrong)
    assert (len(errors), [each.lint for each in warnings]) == (0, ["matches-nothing"])


@pytest.mark.parametrize(
    "right",
    [
        {"resources": "[pods/exec, pods/log, nodes/proxy, services/proxy, serviceaccounts/token]"},
        {"resources": "[nodes/metrics, '*/status', '*/ratings']"},
        {"resources": "[deployments/scale, deployments/status]", "groups": "[apps]"},
        {"resources": "[pods/eviction, widgets/exce]", "groups": "['*']"},
        {"resources": "[resourceclaims/binding]", "groups": "[resource.k8s.io]"},
        {"users": "['system:serviceaccount:ci:runner', 'system:serviceaccount:ci:*', 'system:node:a', 'a|b@c (x)']"},
        {"user_groups": "['system:serviceaccounts:ci', system:authenticated, system:masters, system:nodes]"},
        {"resources": "[userextras/scopes]", "groups": "[authentication.k8s.io]"},
        {"urls": "[/api, '/api/v1/*', '/apis/apps/*', /openapi/v3, /.well-known/openid-configuration]"},
    ],
    ids=lambda right: " ".join(right.values()),
)
def test_what_kubernetes_has_is_not_warned_of(tmp_path: Path, right: dict[str, str]) -> None:
    assert problems(tmp_path, reject=True, **right) == ([], [])


@pytest.mark.parametrize("groups", ["['*']", "[example.com]", "['', example.com]", "[gateway.networking.k8s.io]"])
def test_a_custom_resource_may_have_any_name(tmp_path: Path, groups: str) -> None:
    assert problems(tmp_path, groups=groups, resources="[widgets, kservices, nodepools]") == ([], [])


def test_every_singular_and_short_name_is_found(tmp_path: Path) -> None:
    plurals = [(group, plural) for group, resources in BUILT_IN_RESOURCES.items() for plural in resources]
    for group, plural in plurals[::5]:
        errors, _ = problems(tmp_path, groups=f"['{group}']", resources=f"[{singular(plural)}]")
        assert [each.right for each in errors] == [f'did you mean "{plural}"?']


@given(st.text("abcd", min_size=1, max_size=6), st.data())
def test_names_that_differ_in_one_letter(name: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(name) - 1))
    changed = {
        name[:at] + "x" + name[at + 1 :],
        name[:at] + "x" + name[at:],
        name[:at] + name[at + 1 :],
        name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
    } - {name}
    assert all(_differ_in_one(name, each) and _differ_in_one(each, name) for each in changed)
    assert not _differ_in_one(name, name)
    assert not _differ_in_one(name, name + "xy")
