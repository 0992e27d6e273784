"""Writes the RBAC objects that an API server needs (a role template) as YAML, with remarks in comments. Pure.

All text from other servers is written as JSON strings (one line, ASCII), also in comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES

RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True)
class RoleObject:
    """One object, or only a remark if `content` is None. `is_example`: it is printed as a comment for completion."""

    about: tuple[str, ...]
    content: Mapping[str, Any] | None = None
    is_example: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """The template of one group-version; `refused` has a sentence for each refused object."""

    title: str
    parts: tuple[RoleObject, ...]
    refused: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The YAML documents."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"# {self.title}"
        for sentence in self.refused:
            yield f"# Refused: {sentence}."
        for part in self.parts:
            if part.content is not None and not part.is_example:
                yield "---"
            for sentence in part.about:
                yield f"# {sentence}"
            if part.content is not None:
                mark = "# " if part.is_example else ""
                if part.is_example:
                    yield "# ---"
                for line in _yaml(part.content):
                    yield mark + line


def quoted(value: object, most: int = 100) -> str:
    """Return a value as a JSON string of at most about `most` characters."""
    text = value if isinstance(value, str) else type(value).__name__
    return json.dumps(text if len(text) <= most else f"{text[:most]}…")


def cluster_role(name: str, rules: Sequence[Mapping[str, Any]], labels: Mapping[str, str] | None = None) -> Any:
    """Return a ClusterRole."""
    metadata = {"name": name, **({"labels": dict(labels)} if labels else {})}
    return {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": list(rules)}


def _yaml(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield block YAML, with lists of strings and subjects in one line each."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield f"{key}:"
            yield from (f"  {line}" for line in _yaml(value))
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield f"{key}:"
            for item in value:
                for number, line in enumerate(_yaml(item)):
                    yield f"{'  ' if number else '- '}{line}"
        else:
            yield f"{key}: {json.dumps(value)}"


# -- allowed rules --------------------------------------------------------------------------------------------
#
# The allowed rules in a role of an API server: verbs on named resources of the API server's group. Pure.


MAX_RULES = 200
"""Maximum number of rules in one role."""
MAX_ITEMS = 500
"""Maximum number of items in one list of a rule."""

RESOURCE = re.compile(r"[a-z][-a-z0-9.]{0,252}(?:/[a-z][-a-z0-9/]{0,252})?")
VERB = re.compile(r"[a-z][-a-z]{0,62}")
_NAME = re.compile(r"[!-~]{1,253}")
_LISTS = ("apiGroups", "resources", "verbs", "resourceNames")
_ESCALATING = re.compile(r"escalate|bind|impersonate.*")
"""Verbs of privilege escalation, with those of KEP-5284 (`impersonate-on:…`)."""


class RefusedError(Exception):
    """An object is refused; the exception's text is the cause, without a full stop."""


def refuse_built_in(group: str) -> None:
    """Raise RefusedError for a group of Kubernetes itself, whose rights only the cluster grants."""
    if group in BUILT_IN_RESOURCES:
        raise RefusedError(f"the group {quoted(group)} is one of Kubernetes itself, whose rights the cluster has")


def checked_rules(rules: Any, group: str) -> list[dict[str, list[str]]]:
    """Return copies of rules that grant nothing beyond `group`. Raises RefusedError for other rules."""
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
            raise RefusedError(f"{where} has the verb {quoted(verb)}, which escalates privileges")
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


# -- rights in the cluster of the users -----------------------------------------------------------------------
#
# The rights of an API server in the cluster that authenticates its users: two roles of Kubernetes itself, and a role to
# watch the configuration of the API server's admission and flow control. Pure.
#
# Sources: the documentation of the aggregation layer, "Extension apiserver authorizes the request"; the requests at the
# start of a server that is based on k8s.io/apiserver 1.36 (recorded: golden/aggregator, A28): if it cannot read the
# policies, its /readyz keeps failing.


DELEGATOR = "system:auth-delegator"
READER = "extension-apiserver-authentication-reader"
READER_NAMESPACE = "kube-system"
FOLLOWED: Mapping[str, tuple[str, ...]] = {
    "": ("namespaces",),
    "admissionregistration.k8s.io": (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "validatingwebhookconfigurations",
    ),
    "flowcontrol.apiserver.k8s.io": ("flowschemas", "prioritylevelconfigurations"),
}
"""The resources that an API server lists and watches in the cluster, by API group."""
_EXAMPLE = "system:serviceaccount:NAMESPACE:NAME"


def account_of(url: str) -> str | None:
    """Return the user name that an API server at `url` has by convention; None if the URL is not that of a Service.

    By this convention, the user is the service account with the name and namespace of the Service.
    """
    labels = (urlsplit(url).hostname or "").split(".")
    if len(labels) < 3 or labels[2] != "svc" or not all(labels):
        return None
    return f"system:serviceaccount:{labels[1]}:{labels[0]}"


def bindings(name: str, user: str | None, because: str) -> tuple[RoleObject, ...]:
    """Return the role for the followed resources and the three bindings of `user`, named after `name`.

    The bindings are examples if the user is unknown.
    """
    from mcproxy.kube.user import service_account

    account = service_account(user or _EXAMPLE)
    subject: Mapping[str, Any] = (
        {"kind": "User", "apiGroup": RBAC, "name": user}
        if account is None
        else {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
    )
    if user is None:
        whose = ("Its user is not known: say which with --user, or complete this.",)
    else:
        whose = (f"The user is {because}.",)
    delegator = _binding("ClusterRoleBinding", {"name": f"{name}:{DELEGATOR}"}, "ClusterRole", DELEGATOR, subject)
    metadata = {"namespace": READER_NAMESPACE, "name": f"{name}:{READER}"}
    reader = _binding("RoleBinding", metadata, "Role", READER, subject)
    informers = f"{name}:informers"
    rules = [{"apiGroups": [of], "resources": [*names], "verbs": ["list", "watch"]} for of, names in FOLLOWED.items()]
    following = _binding("ClusterRoleBinding", {"name": informers}, "ClusterRole", informers, subject)
    asks = "It asks who has a token and what a user may do (TokenReview, SubjectAccessReview), the cluster or mcproxy;"
    return (
        RoleObject((asks, "not needed if it trusts the front proxy alone.", *whose),
             delegator, user is None),
        RoleObject(("It reads there which front proxies to trust, unless it is told by its own options.",),
             reader, user is None),
        RoleObject(("It follows these there, if it is made with k8s.io/apiserver.",),
             cluster_role(informers, rules), user is None),
        RoleObject((), following, user is None),
    )  # fmt: skip


def _binding(kind: str, metadata: Mapping[str, str], role_kind: str, role: str, subject: Mapping[str, Any]) -> Any:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [subject],
    }
