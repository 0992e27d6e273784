"""Names in rules that no request has: what `check` advises is right when it is applied."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors, Problem
from mcproxy.config.rule_checks.rule_names import _differ_in_one
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES, singular

TEXT = """\
version: 1
listeners: [{{name: a, bind: "127.0.0.1:0"}}]
clusters: [{{name: a, endpoints: [{{url: "http://127.0.0.1:1"}}], identity: Passthrough}}]
servers:
  - name: a
    default: true
    backend: {{cluster: a}}
    dispatch:
      - name: p
        rules: [{{verbs: {verbs}, apiGroups: {groups}, resources: {resources}, namespaces: {namespaces}}}]{allow}
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
    reject: bool = True,
    allow: str = "",
) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings about the names in a rule."""
    file = folder / "mcproxy.yaml"
    keys = {"verbs": verbs, "groups": groups, "resources": resources, "namespaces": namespaces}
    file.write_text(TEXT.format(**keys, reject="reject: {}" if reject else "", allow=allow))
    try:
        errors, warnings = [], list(load(str(file)).warnings)
    except ConfigErrors as found:
        errors, warnings = list(found.problems), list(found.warnings)
    mine = [
        [each for each in some if ".rules[0]." in each.key and each.lint != "partial-reject"]
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
        elif meant := re.search(r'did you mean "?([^"?]*)"?\?', found.right):
            lists[{"apiGroups": "groups"}.get(key[1], key[1])] = f'["{meant[1]}"]'
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
