"""Names in rules that no request has.

They are resources that Kubernetes does not have by that name or in that group, regular expressions in place of names,
and names with characters that a name cannot have. In a rule that
rejects, and inverted in one that authorizes, such a name has no effect although a protection was intended, so it is an
error, which a comment on its line can allow; elsewhere it is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES, groups_of, singular
from mcproxy.kube.constrained_impersonation import MODES, verb_of

_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?|[a-z0-9][a-z0-9-]*\*")
_GROUP = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_EXPRESSION = re.compile(r"^\^|\$$|[.\])][*+?]|\[[^\]]*\]|\\[.dwsb]|\([^)]*\|[^)]*\)")
"""Syntax of regular expressions that names of users, groups and objects do not contain."""
_EXPRESSION_BEGINS = re.compile(r"[][\\^$.*+?(){}|]")

_VERBS_OF_MODES = frozenset(map(verb_of, MODES))
_GROUP_OF_MODES = "authentication.k8s.io"
_RESOURCES_OF_MODES = ("users", "groups", "uids", "serviceaccounts", "nodes", "userextras")

Fault = tuple[str, str]


def check_rule_names(context: Context, rule: Place, *, rejects: bool = False, authorizes: bool = False) -> None:
    """Report the names in a rule that no request can have.

    `rejects`: what the rule matches is refused; `authorizes`: it is allowed.
    """

    def report(item: Place, fault: Fault | None) -> None:
        if fault is None or item.is_broken:
            return
        what, right = fault
        inverted = (item.string or "").startswith("-")
        if inverted:
            right = right.replace('did you mean "', 'did you mean "-')
        if (rejects and not inverted) or (authorizes and inverted):
            what = f"{item.shown} {what}, so it keeps nothing back"
            context.error_unless_allowed(item, "matches-nothing", what, right)
        else:
            context.warn(item, "matches-nothing", f"{item.shown} {what}", right)

    groups = [item.string or "" for item in rule.children("apiGroups")]
    verbs = [item.string or "" for item in rule.children("verbs")]
    in_modes = bool(verbs) and _VERBS_OF_MODES.issuperset(verbs)
    for item in rule.children("apiGroups"):
        report(item, _group_fault(_name(item)))
    for item in rule.children("resources"):
        report(item, _fault_of_modes(_name(item), groups) if in_modes else _resource_fault(_name(item), groups))
    for item in rule.children("namespaces"):
        report(item, _namespace_fault(_name(item)))
    for key in ("users", "userGroups", "resourceNames"):
        for item in rule.children(key):
            report(item, _expression_fault(_name(item)))


def _name(item: Place) -> str:
    return (item.string or "").removeprefix("-")


def _group_fault(group: str) -> Fault | None:
    if group in ("", "core", "v1", *BUILT_IN_RESOURCES) or "*" in group or "/" in group or group != group.lower():
        return None  # good, or reported as another mistake
    if not _GROUP.fullmatch(group):
        return "cannot be an API group: these are domain names", 'write the group, or "*" for all'
    near = [known for known in BUILT_IN_RESOURCES if known.startswith(f"{group}.")] or list(
        _near(group, BUILT_IN_RESOURCES)
    )
    if near:
        return "is no API group of Kubernetes", f'did you mean "{near[0]}"?'
    if "." not in group:
        return (
            "is no API group of Kubernetes, and others have a dot",
            "see the groups in `kubectl api-resources -o wide`",
        )
    return None


def _resource_fault(name: str, groups: list[str]) -> Fault | None:
    resource, slash, subresource = name.partition("/")
    rest = slash + subresource
    plain = [group for group in groups if not group.startswith("-") and group != "*"]
    every_group = "*" in groups or not plain
    if resource in ("", "*") or "*" in resource or resource != resource.lower():
        return None
    if not every_group and not all(group in BUILT_IN_RESOURCES for group in plain):
        return None  # another API server's group may have it
    searched = list(BUILT_IN_RESOURCES) if every_group else plain
    if any(resource in BUILT_IN_RESOURCES[group] for group in searched):
        return None
    if homes := groups_of(resource):
        shown = " and ".join(f'"{group}"' for group in plain)
        return f"is not in the API group {shown}", f'write apiGroups: ["{homes[0]}"] for it'
    meant = _by_other_name(resource, searched) or _by_other_name(resource, BUILT_IN_RESOURCES)
    if meant:
        return "is not the plural, by which requests name resources", f'did you mean "{meant}{rest}"?'
    plurals = [plural for group in searched for plural in BUILT_IN_RESOURCES[group]]
    if near := next(_near(resource, plurals), None):
        return "is no resource of Kubernetes", f'did you mean "{near}{rest}"?'
    if every_group:
        return None  # a custom resource
    return "is no resource of these API groups", "see `kubectl api-resources`, and write the plural"


def _fault_of_modes(name: str, groups: list[str]) -> Fault | None:
    """Return the mistake in a resource of a rule with verbs of constrained impersonation on users."""
    if name.partition("/")[0] not in ("*", *_RESOURCES_OF_MODES):
        return "cannot be impersonated", f"write {', '.join(_RESOURCES_OF_MODES[:-1])} or userextras/KEY"
    if not groups or any(group in ("*", _GROUP_OF_MODES) or group.startswith("-") for group in groups):
        return None
    return f'is in the API group "{_GROUP_OF_MODES}" for these verbs', f'write apiGroups: ["{_GROUP_OF_MODES}"] for it'


def _by_other_name(resource: str, groups: Iterable[str]) -> str | None:
    return next(
        (
            plural
            for group in groups
            for plural, short_names in BUILT_IN_RESOURCES[group].items()
            if resource in short_names or resource == singular(plural)
        ),
        None,
    )


def _namespace_fault(name: str) -> Fault | None:
    if name in ("", "*") or name != name.lower() or "*" in name[:-1]:
        return _expression_fault(name) if name not in ("", "*") else None
    if _NAMESPACE.fullmatch(name):
        return None
    return _expression_fault(name) or (
        "cannot be the name of a namespace",
        "write lower-case letters, digits and dashes, or a beginning of these with a star at its end",
    )


def _expression_fault(name: str) -> Fault | None:
    if not _EXPRESSION.search(name):
        return None
    literal = _EXPRESSION_BEGINS.split(name.removeprefix("^"), maxsplit=1)[0]
    right = f'did you mean "{literal}*"?' if literal else "write whole names, or beginnings with a star at their end"
    return "is compared as it is written, not as a regular expression", right


def _near(name: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the names with the same first letter and one letter changed, added, left out, or swapped with the next."""
    return (each for each in known if each[:1] == name[:1] and _differ_in_one(name, each))


def _differ_in_one(one: str, other: str) -> bool:
    shorter, longer = sorted((one, other), key=len)
    if one == other or len(longer) - len(shorter) > 1:
        return False
    at = next((at for at, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    if len(shorter) < len(longer):
        return shorter[at:] == longer[at + 1 :]
    swapped = shorter[at + 1 : at + 2] + shorter[at]
    return shorter[at + 1 :] == longer[at + 1 :] or (
        swapped == longer[at : at + 2] and shorter[at + 2 :] == longer[at + 2 :]
    )
