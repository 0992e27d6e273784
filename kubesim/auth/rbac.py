"""The RBAC authorizer, which reads the Role and Binding objects in the store, and the roles that every cluster has.

The authorizer follows kubernetes' plugin/pkg/auth/authorizer/rbac: members of system:masters are allowed, then the
first rule that matches allows; there are no rules that deny. Messages and reasons are the real ones. The roles are
those of kubernetes' bootstrap policy that clients and tests rely on; view, edit and admin have the common resources
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubesim.apimachinery.resources import JSONDict, names
from kubesim.apimachinery.status import APIError, StatusError, details, qualified
from kubesim.apimachinery.user import User
from kubesim.cluster import SimulatedCluster
from kubesim.request.call import RequestInfo

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"


@dataclass(frozen=True)
class Attributes:
    """Authorization attributes. A non-resource request has only `verb` and `path`."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @classmethod
    def of(cls, info: RequestInfo) -> Attributes:
        if not info.is_resource:
            return cls(info.verb, path=info.path)
        return cls(info.verb, info.group, info.resource, info.subresource, info.namespace, info.name)

    @property
    def combined(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True)
class Decision:
    """An authorizer's decision; `reason` names the binding that allowed, or errors such as a missing role."""

    allowed: bool
    reason: str = ""


@dataclass(frozen=True)
class Grant:
    """A rule that a user has by one binding; `reason_text` is the reason for the decision."""

    rule: Mapping[str, Any]
    reason_text: str


def decide(cluster: SimulatedCluster, user: User, wanted: Attributes, *, starting: bool = False) -> Decision:
    """Return whether RBAC allows it. An endpoint that is `starting` has read no roles yet, so it refuses everything."""
    if MASTERS in user.groups:
        return Decision(True)
    if starting:
        return Decision(False)
    problems: list[str] = []
    for grant in _grants(cluster, user, wanted.namespace, problems):
        if _matches(grant.rule, wanted):
            return Decision(True, f"RBAC: allowed by {grant.reason_text}")
    if not problems:
        return Decision(False)
    joined = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
    return Decision(False, f"RBAC: {joined}")


def check(cluster: SimulatedCluster, user: User, wanted: Attributes, *, starting: bool = False) -> None:
    """Authorize, and raise APIError 403 if it is refused."""
    decision = decide(cluster, user, wanted, starting=starting)
    if not decision.allowed:
        raise forbidden_error(user, wanted, decision.reason)


def authorize(cluster: SimulatedCluster, user: User, info: RequestInfo, *, starting: bool = False) -> None:
    """Authorize a request; this precedes any look-up of the object. Raises APIError 403."""
    check(cluster, user, Attributes.of(info), starting=starting)


def forbidden_error(user: User, wanted: Attributes, reason: str = "") -> StatusError:
    """Return the 403 with the message of k8s.io/apiserver's responsewriters.Forbidden."""
    headers = [("X-Content-Type-Options", "nosniff")]
    tail = f": {reason}" if reason else ""
    if wanted.path:
        text = f'forbidden: User "{user.name}" cannot {wanted.verb} path "{wanted.path}"{tail}'
        return APIError(403, "Forbidden", text, {}, headers=headers)
    scope = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
    what = qualified(wanted.group, wanted.resource) + (f' "{wanted.name}"' if wanted.name else "")
    text = (
        f'{what} is forbidden: User "{user.name}" cannot {wanted.verb} resource "{wanted.combined}" '
        f'in API group "{wanted.group}" {scope}{tail}'
    )
    return APIError(403, "Forbidden", text, details(wanted.name, wanted.group, wanted.resource), headers=headers)


def rules_for(cluster: SimulatedCluster, user: User, namespace: str) -> list[Mapping[str, Any]]:
    """Return all rules of a user in a namespace, for SelfSubjectRulesReview."""
    rules: list[Mapping[str, Any]] = []
    if MASTERS in user.groups:
        rules.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
        rules.append({"verbs": ["*"], "nonResourceURLs": ["*"]})
    return rules + [grant.rule for grant in _grants(cluster, user, namespace, [])]


def _objects(cluster: SimulatedCluster, plural: str) -> Iterator[tuple[tuple[str, str], JSONDict]]:
    collection = cluster.store.collection((GROUP, plural))
    ordered = collection.keys()
    return ((key, collection.objects[key]) for key in ordered)


def _grants(cluster: SimulatedCluster, user: User, namespace: str, problems: list[str]) -> Iterator[Grant]:
    for (_, name), binding in _objects(cluster, "clusterrolebindings"):
        subject = _subject(binding, user, "")
        if subject:
            role = binding.get("roleRef", {}).get("name", "")
            reason_text = f'ClusterRoleBinding "{name}" of ClusterRole "{role}" to {subject}'
            yield from _with_reason(_cluster_role(cluster, role, problems), reason_text)
    if not namespace:
        return
    for (found, name), binding in _objects(cluster, "rolebindings"):
        subject = _subject(binding, user, namespace) if found == namespace else ""
        if subject:
            reference = binding.get("roleRef", {})
            kind, role = reference.get("kind", ""), reference.get("name", "")
            reason_text = f'RoleBinding "{name}/{namespace}" of {kind} "{role}" to {subject}'
            if kind == "Role":
                yield from _with_reason(_role(cluster, namespace, role, problems), reason_text)
            else:
                yield from _with_reason(_cluster_role(cluster, role, problems), reason_text)


def _with_reason(rules: Sequence[Mapping[str, Any]], reason_text: str) -> Iterator[Grant]:
    for rule in rules:
        yield Grant(rule, reason_text)


def _subject(binding: Mapping[str, Any], user: User, namespace: str) -> str:
    """Return the subject of a binding that matches the user, as reasons name it; "" when none does."""
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name", "")
        if (kind == "User" and name == user.name) or (kind == "Group" and name in user.groups):
            return f'{kind} "{name}"'
        if kind == "ServiceAccount":
            home = subject.get("namespace") or namespace
            if home and user.name == f"system:serviceaccount:{home}:{name}":
                return f'ServiceAccount "{name}/{home}"'
    return ""


def _role(cluster: SimulatedCluster, namespace: str, name: str, problems: list[str]) -> Sequence[Mapping[str, Any]]:
    role = cluster.store.get((GROUP, "roles"), namespace, name)
    if role is None:
        problems.append(f'role.{GROUP} "{name}" not found')
        return ()
    return role.get("rules") or ()


def _cluster_role(cluster: SimulatedCluster, name: str, problems: list[str]) -> Sequence[Mapping[str, Any]]:
    role = cluster.store.get((GROUP, "clusterroles"), "", name)
    if role is None:
        problems.append(f'clusterrole.{GROUP} "{name}" not found')
        return ()
    rules: list[Mapping[str, Any]] = list(role.get("rules") or ())
    for selector in (role.get("aggregationRule") or {}).get("clusterRoleSelectors") or ():
        wanted = (selector.get("matchLabels") or {}).items()
        for _, other in _objects(cluster, "clusterroles"):
            if other is not role and wanted <= (other["metadata"].get("labels") or {}).items():
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules


def _has(values: Sequence[str] | None, wanted: str) -> bool:
    return bool(values) and (wanted in values or "*" in values)  # type: ignore[operator]


def _matches(rule: Mapping[str, Any], wanted: Attributes) -> bool:
    if not _has(rule.get("verbs"), wanted.verb):
        return False
    if wanted.path:
        return any(_path_matches(pattern, wanted.path) for pattern in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames")
    return (
        _has(rule.get("apiGroups"), wanted.group)
        and _resource_matches(rule.get("resources") or (), wanted)
        and (not names or wanted.name in names)
    )


def _resource_matches(resources: Sequence[str], wanted: Attributes) -> bool:
    if "*" in resources or wanted.combined in resources:
        return True
    return bool(wanted.subresource) and f"*/{wanted.subresource}" in resources


def _path_matches(pattern: str, path: str) -> bool:
    if pattern == "*" or pattern == path:
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))


READ = ["get", "list", "watch"]
WRITE = ["create", "delete", "deletecollection", "patch", "update"]
CORE = names(
    "configmaps endpoints events limitranges persistentvolumeclaims pods pods/log pods/status replicationcontrollers "
    "resourcequotas serviceaccounts services"
)
CORE_WRITE = ["configmaps", "endpoints", "persistentvolumeclaims", "pods", "replicationcontrollers", "services"]
APPS = ["controllerrevisions", "daemonsets", "deployments", "deployments/scale", "replicasets", "statefulsets"]
APPS_WRITE = APPS[1:]
BATCH = ["cronjobs", "jobs"]
NETWORKING = ["ingresses", "networkpolicies"]
STREAMS = ["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "services/proxy"]
HEALTH = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
DISCOVERY = ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz"]


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> JSONDict:
    return {"verbs": verbs, "apiGroups": groups, "resources": resources}


def _view() -> list[JSONDict]:
    return [
        _rule([""], [*CORE, "namespaces"], READ),
        _rule(["apps"], APPS, READ),
        _rule(["batch"], BATCH, READ),
        _rule(["networking.k8s.io"], NETWORKING, READ),
        _rule(["autoscaling"], ["horizontalpodautoscalers"], READ),
        _rule(["policy"], ["poddisruptionbudgets"], READ),
        _rule(["discovery.k8s.io"], ["endpointslices"], READ),
    ]


def _edit() -> list[JSONDict]:
    return [
        _rule([""], STREAMS, [*READ, *WRITE]),
        _rule([""], ["secrets"], READ),
        _rule([""], [*CORE_WRITE, "secrets", "serviceaccounts", "pods/eviction"], WRITE),
        _rule([""], ["serviceaccounts"], ["impersonate"]),
        _rule([""], ["serviceaccounts/token"], ["create"]),
        _rule(["apps"], APPS_WRITE, WRITE),
        _rule(["batch"], BATCH, WRITE),
        _rule(["networking.k8s.io"], NETWORKING, WRITE),
        _rule(["autoscaling"], ["horizontalpodautoscalers"], WRITE),
        _rule(["policy"], ["poddisruptionbudgets"], WRITE),
        *_view(),
    ]


def _admin() -> list[JSONDict]:
    return [
        _rule(["authorization.k8s.io"], ["localsubjectaccessreviews"], ["create"]),
        _rule([GROUP], ["rolebindings", "roles"], [*READ, *WRITE]),
        *_edit(),
    ]


def _roles() -> dict[str, list[JSONDict]]:
    reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    return {
        "cluster-admin": [_rule(["*"], ["*"], ["*"]), {"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "admin": _admin(),
        "edit": _edit(),
        "view": _view(),
        "system:basic-user": [
            _rule(["authorization.k8s.io"], reviews, ["create"]),
            _rule(["authentication.k8s.io"], ["selfsubjectreviews"], ["create"]),
        ],
        "system:discovery": [{"verbs": ["get"], "nonResourceURLs": [*DISCOVERY, "/version", "/version/"]}],
        "system:public-info-viewer": [{"verbs": ["get"], "nonResourceURLs": HEALTH}],
        "system:service-account-issuer-discovery": [
            {"verbs": ["get"], "nonResourceURLs": ["/.well-known/openid-configuration", "/openid/v1/jwks"]}
        ],
    }


BINDINGS = {
    "cluster-admin": ["system:masters"],
    "system:basic-user": ["system:authenticated"],
    "system:discovery": ["system:authenticated"],
    "system:public-info-viewer": ["system:authenticated", "system:unauthenticated"],
    "system:service-account-issuer-discovery": ["system:serviceaccounts"],
}


def default_objects() -> list[JSONDict]:
    """Return the ClusterRole and ClusterRoleBinding objects, without uid, time and version."""
    labels = {"kubernetes.io/bootstrapping": "rbac-defaults"}
    objects: list[JSONDict] = []
    for name, rules in _roles().items():
        metadata = {"name": name, "labels": dict(labels)}
        objects.append({"kind": "ClusterRole", "apiVersion": f"{GROUP}/v1", "metadata": metadata, "rules": rules})
    for name, groups in BINDINGS.items():
        objects.append(
            {
                "kind": "ClusterRoleBinding",
                "apiVersion": f"{GROUP}/v1",
                "metadata": {"name": name, "labels": dict(labels)},
                "subjects": [{"kind": "Group", "apiGroup": GROUP, "name": group} for group in groups],
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
            }
        )
    return objects


def add_default_roles(cluster: SimulatedCluster) -> None:
    """Store the default objects that the cluster does not have."""
    for obj in default_objects():
        plural = "clusterroles" if obj["kind"] == "ClusterRole" else "clusterrolebindings"
        if cluster.store.get((GROUP, plural), "", obj["metadata"]["name"]) is None:
            obj["metadata"] |= {"uid": cluster.uid(), "creationTimestamp": cluster.timestamp()}
            cluster.store.put((GROUP, plural), obj)
