"""What an API server publishes at /bootstrap/<group>: RBAC objects of its own group are taken, others refused. Pure.

The text is hostile: it is read within bounds, and a new object is made of what has been checked. Nothing is taken
that grants more than rights on resources of the API server's own group, but for the two bindings by which it may ask
the cluster about users; and nothing that would replace a role of Kubernetes' own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mcproxy.apiservices.roles.delegation import DELEGATOR, READER, READER_NAMESPACE
from mcproxy.apiservices.roles.role_rules import RefusedError, checked_rules, refuse_built_in
from mcproxy.apiservices.roles.template import RBAC, Part, quoted
from mcproxy.identity.strict_json import json_object
from mcproxy.kube import yaml_nodes
from mcproxy.kube.user import ANONYMOUS_NAME, UNAUTHENTICATED

MAX_BYTES = 256 * 1024
MAX_OBJECTS = 100
MAX_SUBJECTS = 100
_DEPTH = 16
_EVENTS = 20_000
_VERSION = f"{RBAC}/v1"
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.:]{0,251}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"(?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_USER = re.compile(r"[!-~][ -~]{0,252}")
_RESERVED = ("system:", "kubeadm:", "mcproxy:")
_DEFAULTS = frozenset({"cluster-admin", "admin", "edit", "view"})
_EVERYBODY = frozenset({ANONYMOUS_NAME, UNAUTHENTICATED})
_DELEGATIONS = {"ClusterRole": DELEGATOR, "Role": READER}


def read(text: bytes) -> list[Mapping[str, Any]] | None:
    """Return the objects of a text, JSON or YAML, `List`s opened; None if it is no such thing. Raises RefusedError."""
    if len(text) > MAX_BYTES:
        raise RefusedError(f"it publishes more than {MAX_BYTES // 1024} KiB")
    try:
        documents = [json_object(text)] if text.lstrip()[:1] == b"{" else list(_yaml_documents(text.decode()))
    except yaml_nodes.Refused as error:
        raise RefusedError(f"what it publishes is not read: {error}") from None
    except (ValueError, yaml.YAMLError):
        return None
    found: list[Any] = []
    for document in documents:
        items = document.get("items") if isinstance(document, Mapping) else None
        opened = isinstance(items, list) and str(document.get("kind")).endswith("List")
        found += items if opened and items is not None else [document]
    if not all(isinstance(each, Mapping) and isinstance(each.get("kind"), str) for each in found):
        return None
    if len(found) > MAX_OBJECTS:
        raise RefusedError(f"it publishes more than {MAX_OBJECTS} objects")
    return found


def roles(objects: list[Mapping[str, Any]], group: str) -> tuple[tuple[Part, ...], tuple[str, ...]]:
    """Return the objects that are taken, in their order, and a sentence for each other one. Raises RefusedError."""
    refuse_built_in(group)
    taken: list[Part] = []
    refused: list[str] = []
    own: set[tuple[str, str, str]] = set()
    names: set[tuple[str, str, str]] = set()
    # Bindings name roles, which may stand behind them.
    for each in sorted(objects, key=lambda each: str(each["kind"]).endswith("Binding")):
        try:
            made = _object(each, group, own)
            kind, metadata = str(made["kind"]), made["metadata"]
            key = (kind, metadata.get("namespace", ""), metadata["name"])
            if key in names:
                raise RefusedError("it is there twice")
        except RefusedError as error:
            refused.append(f"{_described(each)}: {error}")
            continue
        names.add(key)
        if not kind.endswith("Binding"):
            own.add(key)
        taken.append(Part((), made))
    return tuple(taken), tuple(refused)


def has_delegation(parts: tuple[Part, ...]) -> bool:
    """Whether one of the bindings lets the API server ask the cluster about users."""
    contents = (part.content for part in parts if part.content is not None)
    return any("roleRef" in each and each["roleRef"]["name"] == DELEGATOR for each in contents)


def _yaml_documents(text: str) -> Iterator[Any]:
    for root in yaml_nodes.compose_all(text, documents=MAX_OBJECTS, depth=_DEPTH, events=_EVENTS):
        found = yaml_nodes.plain(root)
        if found != "":  # `---` twice
            yield found


def _object(content: Mapping[str, Any], group: str, own: set[tuple[str, str, str]]) -> dict[str, Any]:
    kind = content["kind"]
    if kind == "APIService":
        raise RefusedError("mcproxy has the registration, in its file")
    if content.get("apiVersion") != _VERSION or kind not in (
        "ClusterRole",
        "Role",
        "ClusterRoleBinding",
        "RoleBinding",
    ):
        raise RefusedError(f"only roles and bindings of {_VERSION} are taken")
    made: dict[str, Any] = {"apiVersion": _VERSION, "kind": kind, "metadata": _metadata(content, kind)}
    if kind.endswith("Binding"):
        return {**made, **_binding(content, made["metadata"].get("namespace", ""), own)}
    if content.get("aggregationRule"):
        raise RefusedError("its aggregationRule would take in rules of other roles")
    return {**made, "rules": checked_rules(content.get("rules"), group)}


def _metadata(content: Mapping[str, Any], kind: str) -> dict[str, Any]:
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(metadata, Mapping) or not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RefusedError("it has no name that is one")
    if name in _DEFAULTS or name.startswith(_RESERVED):
        raise RefusedError("its name is reserved: it would replace one that the cluster has")
    labels = metadata.get("labels") or {}
    if not isinstance(labels, Mapping) or len(labels) > 20:
        raise RefusedError("it has no labels that are some")
    for key, value in labels.items():
        if not (isinstance(value, str) and len(key) <= 317 and _LABEL.fullmatch(key) and _VALUE.fullmatch(value)):
            raise RefusedError(f"it has a label {quoted(key)} that is none")
    made: dict[str, Any] = {"name": name, **({"labels": dict(labels)} if labels else {})}
    if kind.startswith("Cluster"):
        return made
    namespace = metadata.get("namespace")
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise RefusedError("it has no namespace that is one")
    return {"namespace": namespace, **made}


def _binding(content: Mapping[str, Any], namespace: str, own: set[tuple[str, str, str]]) -> dict[str, Any]:
    reference = content.get("roleRef")
    kind, name = (reference.get("kind"), reference.get("name")) if isinstance(reference, Mapping) else (None, None)
    if not isinstance(reference, Mapping) or not isinstance(kind, str) or not isinstance(name, str):
        raise RefusedError("it has no roleRef")
    if reference.get("apiGroup", RBAC) != RBAC:
        raise RefusedError("its roleRef is of another group")
    is_own = (kind, namespace if kind == "Role" else "", name) in own
    delegates = (
        _DELEGATIONS.get(kind) == name
        and (kind == "ClusterRole") == (not namespace)
        and namespace in ("", READER_NAMESPACE)
    )
    if not is_own and not delegates:
        raise RefusedError(f"it binds {kind[:20]} {quoted(name)}, which is none of the roles that were taken here")
    subjects = content.get("subjects")
    if not isinstance(subjects, list) or not subjects or len(subjects) > MAX_SUBJECTS:
        raise RefusedError(f"it has no list of 1 to {MAX_SUBJECTS} subjects")
    made = [_subject(each, delegates=delegates) for each in subjects]
    return {"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": made}


def _subject(content: Any, *, delegates: bool) -> dict[str, str]:
    kind, name = (content.get("kind"), content.get("name")) if isinstance(content, Mapping) else (None, None)
    if not isinstance(name, str) or not _USER.fullmatch(name):
        raise RefusedError("it has a subject without a name that is one")
    if kind == "ServiceAccount":
        namespace = content.get("namespace")
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace) or not _NAME.fullmatch(name):
            raise RefusedError(f"it has a service account {quoted(name)} that is none")
        return {"kind": kind, "namespace": namespace, "name": name}
    if kind not in ("User", "Group") or content.get("apiGroup", RBAC) != RBAC:
        raise RefusedError(f"it has a subject {quoted(name)} that is no user, group or service account")
    if delegates:
        raise RefusedError(
            f"it lets {kind.lower()} {quoted(name)} ask about users: only a service account may get that"
        )
    if name in _EVERYBODY:
        raise RefusedError(f"it gives rights to {quoted(name)}, who has no credential")
    return {"kind": kind, "apiGroup": RBAC, "name": name}


def _described(content: Mapping[str, Any]) -> str:
    metadata = content.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{quoted(content['kind'], 40)} {quoted(name) if isinstance(name, str) else 'without a name'}"
