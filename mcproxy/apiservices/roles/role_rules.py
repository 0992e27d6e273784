"""What a rule of an API server's own role may say: verbs on resources of the API server's own group, by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mcproxy.apiservices.roles.template import quoted
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES

MAX_RULES = 200
"""Of one role."""
MAX_ITEMS = 500
"""Of one list of a rule."""

RESOURCE = re.compile(r"[a-z][-a-z0-9.]{0,252}(?:/[a-z][-a-z0-9/]{0,252})?")
VERB = re.compile(r"[a-z][-a-z]{0,62}")
_NAME = re.compile(r"[!-~]{1,253}")
_LISTS = ("apiGroups", "resources", "verbs", "resourceNames")
_ESCALATING = re.compile(r"escalate|bind|impersonate.*")
"""Verbs by which a user becomes more than it is; `impersonate-on:…` and the like (KEP-5284) too."""


class RefusedError(Exception):
    """An object is not taken; str() says why, without an end."""


def refuse_built_in(group: str) -> None:
    """Raise RefusedError for a group of Kubernetes itself: rights on it are the cluster's own matter."""
    if group in BUILT_IN_RESOURCES:
        raise RefusedError(f"the group {quoted(group)} is one of Kubernetes itself, whose rights the cluster has")


def checked_rules(rules: Any, group: str) -> list[dict[str, list[str]]]:
    """Return new rules that grant nothing beyond `group`. Raises RefusedError for anything else."""
    if not isinstance(rules, list) or not rules or len(rules) > MAX_RULES:
        raise RefusedError(f"it has no list of 1 to {MAX_RULES} rules")
    return [_checked(rule, group, f"rule {number}") for number, rule in enumerate(rules, 1)]


def _checked(rule: Any, group: str, where: str) -> dict[str, list[str]]:
    if not isinstance(rule, Mapping):
        raise RefusedError(f"{where} is none")
    for key, value in rule.items():
        if key not in _LISTS and value:
            what = "nonResourceURLs, which are in no group" if key == "nonResourceURLs" else f"a key {quoted(key)}"
            raise RefusedError(f"{where} has {what}")
    lists = {key: _strings(rule.get(key), f"{where}, {key}") for key in _LISTS}
    for key in ("apiGroups", "resources", "verbs"):
        if not lists[key]:
            raise RefusedError(f"{where} has no {key}")
        if "*" in lists[key]:
            raise RefusedError(f"{where} has * in {key}")
    for other in lists["apiGroups"]:
        if other != group:
            raise RefusedError(f"{where} is about the group {quoted(other)}, not {quoted(group)}")
    for resource in lists["resources"]:
        if not RESOURCE.fullmatch(resource):
            raise RefusedError(f"{where} has a resource {quoted(resource)}")
    for verb in lists["verbs"]:
        if _ESCALATING.fullmatch(verb):
            raise RefusedError(f"{where} has the verb {quoted(verb)}, by which a user becomes more than it is")
        if not VERB.fullmatch(verb):
            raise RefusedError(f"{where} has a verb {quoted(verb)}")
    for name in lists["resourceNames"]:
        if not _NAME.fullmatch(name):
            raise RefusedError(f"{where} has a resource name {quoted(name)}")
    return {key: items for key, items in lists.items() if items}


def _strings(value: Any, where: str) -> list[str]:
    items = [] if value is None else value
    if not isinstance(items, list) or len(items) > MAX_ITEMS or not all(isinstance(item, str) for item in items):
        raise RefusedError(f"{where} is no list of at most {MAX_ITEMS} strings")
    return list(dict.fromkeys(items))
