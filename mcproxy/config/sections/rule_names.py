"""Reports names in rules that no request can have.

Such names are resources and subresources that Kubernetes does not have, or has in another group, regular expressions
instead of names, and names with invalid characters. In a rejecting rule, or inverted in an authorizing rule, such a
name was meant as a protection but has no effect. So there it is an error, which a comment on its line can allow. In
other rules it is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.kube.builtin_resources import (
    BUILT_IN_RESOURCES,
    CORE_RESOURCES,
    SUBRESOURCES,
    groups_of,
    singular,
    subresources_of,
)
from mcproxy.kube.constrained_impersonation import GROUP, MODES, verb_of

_NAMESPACE = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?|[a-z0-9][a-z0-9-]*\*")
_GROUP = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_EXPRESSION = re.compile(r"^\^|\$$|[.\])][*+?]|\[[^\]]*\]|\\[.dwsb]|\([^)]*\|[^)]*\)")
"""Syntax of regular expressions that cannot occur in names of users, groups and objects."""
_ACCOUNT = "system:serviceaccount:"
_ACCOUNT_GROUP = re.compile(r"system:serviceaccounts(:.*)?")
_GROUPS = frozenset(("system:authenticated", "system:masters", "system:nodes", "system:unauthenticated"))
"""Groups of Kubernetes that are often mistaken for users."""
_LOWER_CASE = frozenset(("apiGroups", "resources", "namespaces"))
_EXPRESSION_BEGINS = re.compile(r"[][\\^$.*+?(){}|]")

_VERBS_OF_MODES = frozenset(map(verb_of, MODES))
_RESOURCES_OF_MODES = ("users", "groups", "uids", "serviceaccounts", "nodes", "userextras")

Fault = tuple[str, str]


@dataclass(frozen=True, slots=True)
class RuleReport:
    """Reports items of a rule that cannot match.

    `rejects`: requests that match are refused; `authorizes`: they are allowed. If such an item lets requests pass that
    should be refused, it is an error, which a comment on its line can allow.
    """

    context: Context
    rejects: bool = False
    authorizes: bool = False

    def rule(self, place: Place, what: str, right: str) -> None:
        """Report that a rule, or a half of it, matches nothing."""
        if self.rejects:
            self.context.error_unless_allowed(place, "matches-nothing", what, right)
        else:
            self.context.warn(place, "matches-nothing", what, right)

    def item(self, item: Place, what: str, right: str) -> None:
        """Report an item of a list that no request matches."""
        inverted = (item.string or "").startswith("-")
        if inverted:
            right = re.sub('^(did you mean "|write "(?=":))', r"\1-", right)
        what = f"{item.shown} {what}"
        if (self.rejects and not inverted) or (self.authorizes and inverted):
            self.context.error_unless_allowed(item, "matches-nothing", f"{what}, so it keeps nothing back", right)
        else:
            self.context.warn(item, "matches-nothing", what, right)


def check_rule_names(report: RuleReport, rule: Place) -> None:
    """Report the names in a rule that no request can have."""
    groups = [item.string or "" for item in rule.children("apiGroups")]
    verbs = [item.string or "" for item in rule.children("verbs")]
    in_modes = bool(verbs) and _VERBS_OF_MODES.issuperset(verbs)
    of_resources = _fault_of_modes if in_modes else _resource_fault
    faults: dict[str, Callable[[str], Fault | None]] = {
        "apiGroups": _group_fault,
        "resources": lambda name: of_resources(name, groups),
        "namespaces": _namespace_fault,
        "users": _user_fault,
        "userGroups": _user_group_fault,
        "resourceNames": _expression_fault,
        "nonResourceURLs": _url_fault,
    }
    for key, fault in faults.items():
        for item in rule.children(key):
            name = (item.string or "").removeprefix("-")
            found = fault(name.lower()) or _capitals(name, key) if key in _LOWER_CASE else fault(name)
            if found is not None and not item.is_broken:
                report.item(item, *found)


def check_cached_resource(context: Context, entry: Place) -> None:
    """Warn of names in an entry of `cache.resources` that no list request can have."""
    group, resource = entry.get("group"), entry.get("resource")
    if group is None or resource is None or group.is_broken or resource.is_broken:
        return
    report, groups, name = RuleReport(context), [group.string or ""], resource.string or ""
    if found := _group_fault(groups[0]):
        report.item(group, *found)
    elif found := _resource_fault(name, groups) or _unlisted(name, groups):
        what, right = found
        report.item(resource, what, re.sub(r'apiGroups: \[("[^"]+")\]', r"group: \1", right))


def _unlisted(name: str, groups: list[str]) -> Fault | None:
    if groups == [""] and name not in ("*", *CORE_RESOURCES):
        return "cannot be listed, so no cache has it", "take it out"
    return None


def _capitals(name: str, key: str) -> Fault | None:
    if name == name.lower():
        return None
    return f"has capital letters, and {key} have none", f'did you mean "{name.lower()}"?'


def _group_fault(group: str) -> Fault | None:
    if group in ("core", "v1"):
        return "is not a group of Kubernetes", 'write "": the name of the core group is empty'
    if group in ("", *BUILT_IN_RESOURCES) or "*" in group or "/" in group:
        return None  # good, or reported as another mistake
    if not _GROUP.fullmatch(group):
        return "cannot be an API group: these are domain names", 'write the group, or "*" for all'
    near = [known for known in BUILT_IN_RESOURCES if known.startswith(f"{group}.")] or list(
        _similar_names(group, BUILT_IN_RESOURCES)
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
    if resource == "*":
        return _subresource_fault(resource, subresource, every_group=True)
    rest = slash + subresource
    plain = [group for group in groups if not group.startswith("-") and group != "*"]
    every_group = "*" in groups or not plain
    if not resource or "*" in resource:
        return None
    if not every_group and not all(group in BUILT_IN_RESOURCES for group in plain):
        return None  # a group of another API server can have it
    searched = list(BUILT_IN_RESOURCES) if every_group else plain
    if any(resource in BUILT_IN_RESOURCES[group] for group in searched):
        return _subresource_fault(resource, subresource, every_group=every_group)
    if homes := groups_of(resource):
        shown = " and ".join(f'"{group}"' for group in plain)
        return f"is not in the API group {shown}", f'write apiGroups: ["{homes[0]}"] for it'
    meant = _by_other_name(resource, searched) or _by_other_name(resource, BUILT_IN_RESOURCES)
    if meant:
        return "is not the plural, by which requests name resources", f'did you mean "{meant}{rest}"?'
    plurals = [plural for group in searched for plural in BUILT_IN_RESOURCES[group]]
    if near := next(_similar_names(resource, plurals), None):
        return "is no resource of Kubernetes", f'did you mean "{near}{rest}"?'
    if every_group:
        return None  # a custom resource
    return "is no resource of these API groups", "see `kubectl api-resources`, and write the plural"


def _fault_of_modes(name: str, groups: list[str]) -> Fault | None:
    """Return the mistake in a resource of a rule with verbs of constrained impersonation (KEP-5284) on users."""
    if name.partition("/")[0] not in ("*", *_RESOURCES_OF_MODES):
        return "cannot be impersonated", f"write {', '.join(_RESOURCES_OF_MODES[:-1])} or userextras/KEY"
    if not groups or any(group in ("*", GROUP) or group.startswith("-") for group in groups):
        return None
    return f'is in the API group "{GROUP}" for these verbs', f'write apiGroups: ["{GROUP}"] for it'


def _subresource_fault(resource: str, subresource: str, *, every_group: bool) -> Fault | None:
    """Return the mistake in the part after the slash; `resource` is a built-in resource or a star."""
    known = SUBRESOURCES if resource == "*" else subresources_of(resource)
    if subresource in ("", *known) or "*" in subresource or "/" in subresource or resource == "userextras":
        return None  # good, or reported as another mistake
    if near := next(_similar_names(subresource, known), None):
        return "is no subresource of Kubernetes", f'did you mean "{resource}/{near}"?'
    if every_group:
        return None  # a resource of another API server can have this subresource
    shown = " or ".join(f'"{resource}/{each}"' for each in known)
    return f"is not a subresource of {resource}", f"write the subresource that is meant, as in {shown}"


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
    if name in ("", "*") or _NAMESPACE.fullmatch(name):
        return None
    if "*" in name[:-1]:
        return _expression_fault(name)
    return _expression_fault(name) or (
        "cannot be the name of a namespace",
        "write lower-case letters, digits and dashes, or a beginning of these with a star at its end",
    )


def _user_fault(name: str) -> Fault | None:
    if name in _GROUPS or _ACCOUNT_GROUP.fullmatch(name):
        return "is a group, and no user", f'write userGroups: ["{name}"] for it'
    if name.startswith(_ACCOUNT) and name.count(":") != 3 and not name.endswith("*"):
        right = f"write {_ACCOUNT}NAMESPACE:NAME, or use serviceAccounts"
        return "cannot be the user of a service account", right
    return _expression_fault(name)


def _user_group_fault(name: str) -> Fault | None:
    if name == "system:anonymous" or name.startswith(_ACCOUNT):
        return "is a user, and no group", f'write users: ["{name}"] for it'
    return _expression_fault(name)


def _url_fault(path: str) -> Fault | None:
    parts = path.removesuffix("*").strip("/").split("/")
    if len(parts) > {"api": 2, "apis": 3}.get(parts[0], len(parts)):
        return "is the path of a resource, which URLs do not match", "use apiGroups and resources"
    return _expression_fault(path)


def _expression_fault(name: str) -> Fault | None:
    if not _EXPRESSION.search(name):
        return None
    literal = _EXPRESSION_BEGINS.split(name.removeprefix("^"), maxsplit=1)[0]
    right = f'did you mean "{literal}*"?' if literal else "write whole names, or beginnings with a star at their end"
    return "is compared as it is written, not as a regular expression", right


def _similar_names(name: str, known: Iterable[str]) -> Iterator[str]:
    """Yield names with the same first letter and one letter changed, added, omitted, or swapped with the next."""
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
