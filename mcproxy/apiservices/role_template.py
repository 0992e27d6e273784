"""The roles that an API server needs, for an administrator to review and apply.

By the design proposal "Aggregated API Servers", an API server publishes them at `/bootstrap/<group>`, since an API
server with the right to create roles could destroy the cluster. Published roles count as hostile: only rules within the
API server's group are accepted. If it publishes no roles, they are made from its discovery document."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import yaml

from mcproxy.apiservices.role_objects import (
    DELEGATOR,
    RBAC,
    READER,
    READER_NAMESPACE,
    RESOURCE,
    RefusedError,
    RoleObject,
    Template,
    account_of,
    bindings,
    checked_rules,
    cluster_role,
    quoted,
    refuse_built_in,
)
from mcproxy.identity.strict_json import json_object
from mcproxy.kube import yaml_nodes
from mcproxy.kube.user import ANONYMOUS_NAME, UNAUTHENTICATED
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint

MAX_DISCOVERY = 1024 * 1024
"""Maximum bytes of a discovery document."""
ROLES_TIMEOUT = 5.0
"""Maximum seconds for one request to one endpoint."""
_MAX_ENDPOINTS = 3
YAML_OR_JSON = "application/json, application/yaml;q=0.9"


class FetchedAnswer(NamedTuple):
    """The response of an API server."""

    status: int
    body: bytes


Ask = Callable[[str, str, int], Awaitable[FetchedAnswer]]
"""``(path, accept, most)``: a GET with the proxy's own identity and at most `most` bytes. Raises AskError."""


class AskError(Exception):
    """An API server is unreachable, or its response is unusable; the exception's text is the cause."""


async def template(
    ask: Ask, group: str, version: str, *, user: str | None = None, because: str = "", urls: Sequence[str] = ()
) -> Template:
    """Return the template. `user` is the API server's user in the cluster; None: derived from its `urls`.

    Raises AskError; RefusedError if no object can be accepted.
    """
    if user is None:
        user = next((found for url in urls if (found := account_of(url)) is not None), None)
        because = "that of its Service by custom: correct it if it runs as another"
    name = f"{version}.{group}"
    remarks: list[str] = []
    for path in (f"/bootstrap/{group}", "/bootstrap/rbac"):
        status, body = await ask(path, YAML_OR_JSON, MAX_PUBLISHED)
        objects = read_published(body) if status == 200 else None
        if status == 200 and objects is None:
            remarks.append(f"What it answers at {path} is no list of Kubernetes objects.")
        elif status in (401, 403):
            remarks.append(f"It does not let mcproxy read {path} ({status}).")
        if objects:
            parts, refused = published_roles(objects, group)
            more = () if has_delegation(parts) else bindings(name, user, because)
            title = f"API service {name}: what its API server publishes at {path}."
            return Template(title, (*parts, *more), refused)
    parts, refused = discovered_roles(await _discovery(ask, group, version), group, version)
    title = f"API service {name}: made of its discovery, since its API server publishes no roles."
    about = (RoleObject(tuple(remarks)),) if remarks else ()
    return Template(title, (*about, *parts, *bindings(name, user, because)), refused)


async def _discovery(ask: Ask, group: str, version: str) -> dict[str, object]:
    path = f"/apis/{group}/{version}"
    status, body = await ask(path, "application/json", MAX_DISCOVERY)
    if status != 200:
        raise AskError(f"its API server answered {status} on {quoted(path)}")
    try:
        return json_object(body)
    except ValueError as error:
        raise AskError(f"what its API server answered on {quoted(path)} {error}") from None


__all__ = ["Ask", "AskError", "FetchedAnswer", "RefusedError", "template"]


def asker(cluster: Cluster) -> Ask:
    """Return a function that sends requests with the proxy's own identity to any endpoint of `cluster`."""

    async def ask(path: str, accept: str, most: int) -> FetchedAnswer:
        tried: list[Endpoint] = []
        cause = ""
        while len(tried) < _MAX_ENDPOINTS and (endpoint := cluster.pick(tried)) is not None:
            tried.append(endpoint)
            try:
                response = await cluster.control.request(
                    endpoint, "GET", path, headers=(("accept", accept),), timeout=ROLES_TIMEOUT, max_body=most
                )
            except CredentialError as error:
                raise AskError(
                    f"the proxy has no usable credential for cluster {cluster.name}: {error.cause}"
                ) from None
            except (ConnectError, ControlError) as error:
                cause = error.cause
                continue
            return FetchedAnswer(response.status, response.body)
        raise AskError(cause or cluster.unavailable_message())

    return ask


# -- published roles ------------------------------------------------------------------------------------------
#
# Parses the RBAC objects at /bootstrap/<group>: objects of the API server's group are accepted, others refused. Pure.
#
# The text counts as hostile: parsing is bounded, and new objects are made from the checked fields. Accepted are only
# rights on resources of the API server's group, and the two bindings for delegated authentication and authorization at
# the cluster. An object that would replace a role of Kubernetes itself is refused.


MAX_PUBLISHED = 256 * 1024
MAX_OBJECTS = 100
MAX_SUBJECTS = 100
_DEPTH = 16
_EVENTS = 20_000
_VERSION = f"{RBAC}/v1"
_OBJECT_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.:]{0,251}[A-Za-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"(?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_USER = re.compile(r"[!-~][ -~]{0,252}")
_RESERVED = ("system:", "kubeadm:", "mcproxy:")
_DEFAULTS = frozenset({"cluster-admin", "admin", "edit", "view"})
_EVERYBODY = frozenset({ANONYMOUS_NAME, UNAUTHENTICATED})
_DELEGATIONS = {"ClusterRole": DELEGATOR, "Role": READER}


def read_published(text: bytes) -> list[Mapping[str, Any]] | None:
    """Return the objects in JSON or YAML, including those in `List`s; None if it is neither. Raises RefusedError."""
    if len(text) > MAX_PUBLISHED:
        raise RefusedError(f"it publishes more than {MAX_PUBLISHED // 1024} KiB")
    try:
        documents = [json_object(text)] if text.lstrip()[:1] == b"{" else list(_yaml_documents(text.decode()))
    except yaml_nodes.YAMLLimitExceeded as error:
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


def published_roles(objects: list[Mapping[str, Any]], group: str) -> tuple[tuple[RoleObject, ...], tuple[str, ...]]:
    """Return the accepted objects, in their order, and a sentence for each refused object. Raises RefusedError."""
    refuse_built_in(group)
    taken: list[RoleObject] = []
    refused: list[str] = []
    own: set[tuple[str, str, str]] = set()
    names: set[tuple[str, str, str]] = set()
    # A binding can name a role that follows later.
    for each in sorted(objects, key=lambda each: str(each["kind"]).endswith("Binding")):
        try:
            made = _object(each, group, own)
            kind, metadata = str(made["kind"]), made["metadata"]
            key = (kind, metadata.get("namespace", ""), metadata["name"])
            if key in names:
                raise RefusedError("it is published twice")
        except RefusedError as error:
            refused.append(f"{_described(each)}: {error}")
            continue
        names.add(key)
        if not kind.endswith("Binding"):
            own.add(key)
        taken.append(RoleObject((), made))
    return tuple(taken), tuple(refused)


def has_delegation(parts: tuple[RoleObject, ...]) -> bool:
    """Whether a binding gives the API server delegated authentication and authorization at the cluster."""
    contents = (part.content for part in parts if part.content is not None)
    return any("roleRef" in each and each["roleRef"]["name"] == DELEGATOR for each in contents)


def _yaml_documents(text: str) -> Iterator[Any]:
    for root in yaml_nodes.compose_all(text, documents=MAX_OBJECTS, depth=_DEPTH, events=_EVENTS):
        found = yaml_nodes.plain(root)
        if found != "":  # two consecutive `---` give an empty document
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
    if not isinstance(metadata, Mapping) or not isinstance(name, str) or not _OBJECT_NAME.fullmatch(name):
        raise RefusedError("it has no valid name")
    if name in _DEFAULTS or name.startswith(_RESERVED):
        raise RefusedError("its name is reserved: it would replace one that the cluster has")
    labels = metadata.get("labels") or {}
    if not isinstance(labels, Mapping) or len(labels) > 20:
        raise RefusedError("it has no valid labels")
    for key, value in labels.items():
        if not (isinstance(value, str) and len(key) <= 317 and _LABEL.fullmatch(key) and _VALUE.fullmatch(value)):
            raise RefusedError(f"it has a label {quoted(key)} that is invalid")
    made: dict[str, Any] = {"name": name, **({"labels": dict(labels)} if labels else {})}
    if kind.startswith("Cluster"):
        return made
    namespace = metadata.get("namespace")
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise RefusedError("it has no valid namespace")
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
        raise RefusedError("it has a subject without a valid name")
    if kind == "ServiceAccount":
        namespace = content.get("namespace")
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace) or not _OBJECT_NAME.fullmatch(name):
            raise RefusedError(f"it has a service account {quoted(name)} that is invalid")
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


# -- roles from discovery -------------------------------------------------------------------------------------
#
# Roles made from the discovery document of a group-version (APIResourceList). Pure.
#
# The roles follow Kubernetes' view, edit and admin. Viewers read objects. Editors write namespaced objects, and read
# and write their subresources (one can be a shell). Only controllers write a status. Only administrators write
# cluster-scoped objects, so their role is not aggregated: an admin of a namespace must not get it.


MAX_RESOURCES = 1000
_READS = ("get", "list", "watch")
_WRITES = ("create", "update", "patch", "delete", "deletecollection")
_STATUS = "status"
_HARMLESS = (_STATUS, "scale", "log")
"""Subresources of pods and workloads that Kubernetes' ClusterRole view may read."""


class _Resource(NamedTuple):
    name: str
    namespaced: bool
    verbs: frozenset[str]

    @property
    def is_status(self) -> bool:
        return self.name.endswith(f"/{_STATUS}")

    @property
    def is_viewed(self) -> bool:
        _, slash, subresource = self.name.partition("/")
        return not slash or subresource in _HARMLESS


def discovered_roles(
    document: Mapping[str, Any], group: str, version: str
) -> tuple[tuple[RoleObject, ...], tuple[str, ...]]:
    """Return the roles, and a sentence for each resource that was left out. Raises RefusedError."""
    refuse_built_in(group)
    resources, left_out = _resources(document, f"{group}/{version}")
    name = f"{version}.{group}"
    written = [each for each in resources if not each.is_status]
    viewed = _rules(group, (each for each in resources if each.is_viewed), _READS)
    hidden = _rules(group, (each for each in written if not each.is_viewed and each.namespaced), _READS)
    unspaced = _rules(group, (each for each in written if not each.is_viewed and not each.namespaced), _READS)
    edited = _rules(group, (each for each in written if each.namespaced), _WRITES)
    administered = _rules(group, (each for each in written if not each.namespaced), _WRITES)
    controlled = _rules(group, (each for each in resources if each.is_status), _WRITES)
    found = []
    for kind, about, aggregated, rules in (
        ("view", "Added to the roles view, edit and admin: reads objects.", ("view", "edit", "admin"), viewed),
        (
            "edit",
            "Added to the roles edit and admin: writes what is in a namespace.",
            ("edit", "admin"),
            hidden + edited,
        ),
        ("admin", "Added to none, bind it by hand: writes what is in no namespace.", (), unspaced + administered),
        ("controller", "Added to none, for its controllers: writes the status.", (), controlled),
    ):
        if rules:
            labels = {f"{RBAC}/aggregate-to-{role}": "true" for role in aggregated}
            found.append(RoleObject((about,), cluster_role(f"{name}:{kind}", rules, labels)))
    if not found:
        found.append(RoleObject(("It has no resources that anybody could read or write.",)))
    return tuple(found), left_out


def _resources(document: Mapping[str, Any], group_version: str) -> tuple[list[_Resource], tuple[str, ...]]:
    if document.get("kind") != "APIResourceList" or document.get("groupVersion") != group_version:
        raise RefusedError(f"its discovery is no APIResourceList of {quoted(group_version)}")
    listed = document.get("resources") or []
    if not isinstance(listed, list) or len(listed) > MAX_RESOURCES:
        raise RefusedError(f"its discovery has no list of at most {MAX_RESOURCES} resources")
    found: dict[str, _Resource] = {}
    left_out: dict[str, None] = {}
    for entry in listed:
        name = entry.get("name") if isinstance(entry, Mapping) else None
        verbs = entry.get("verbs") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not RESOURCE.fullmatch(name) or not isinstance(verbs, list):
            left_out[f"its discovery has a resource {quoted(name)}, which is none"] = None
            continue
        known = frozenset(verb for verb in verbs if isinstance(verb, str)).intersection((*_READS, *_WRITES))
        found.setdefault(name, _Resource(name, entry.get("namespaced") is True, known))
    return list(found.values()), tuple(left_out)[:20]


def _rules(group: str, resources: Iterable[_Resource], verbs: Iterable[str]) -> list[dict[str, list[str]]]:
    """Return one rule for each distinct subset of `verbs` that resources support."""
    by_verbs: dict[tuple[str, ...], list[str]] = {}
    for resource in resources:
        if granted := tuple(verb for verb in verbs if verb in resource.verbs):
            by_verbs.setdefault(granted, []).append(resource.name)
    return [
        {"apiGroups": [group], "resources": sorted(names), "verbs": list(granted)}
        for granted, names in sorted(by_verbs.items(), key=lambda item: min(item[1]))
    ]
