"""Translates Karmada's Cluster and ResourceRegistry objects to clusters and an aggregate over them.

Source of the behaviour: Karmada's code, pkg/search and pkg/util.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.config.urls import AddressError, parse_endpoint, parse_http_proxy
from mcproxy.importing.fragment import Complete, Fragment, Note, is_cluster_name
from mcproxy.importing.http_proxies import proxy_entry
from mcproxy.importing.object_files import Fields, Object, UnusableError

CLUSTER = ("cluster.karmada.io", "v1alpha1", "clusters")
REGISTRY = ("search.karmada.io", "v1alpha1", "resourceregistries")
SOURCES = (CLUSTER, REGISTRY)
"""Group, version and plural of the imported kinds."""


# -- the plural of a kind, as it is in URLs ---------------------------------------------------------------------------
# The plurals of Kubernetes' own kinds are listed here. They do not come from a member cluster's status, by which a
# member could have its secrets cached as if they were pods. The plurals of other groups come from the members'
# status.apiEnablements.

_PLURAL = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?\Z")

_BUILT_IN = {
    "": "bindings componentstatuses configmaps endpoints events limitranges namespaces nodes persistentvolumeclaims "
    "persistentvolumes pods podtemplates replicationcontrollers resourcequotas secrets serviceaccounts services",
    "admissionregistration.k8s.io": "mutatingwebhookconfigurations validatingadmissionpolicies "
    "validatingadmissionpolicybindings validatingwebhookconfigurations",
    "apiextensions.k8s.io": "customresourcedefinitions",
    "apiregistration.k8s.io": "apiservices",
    "apps": "controllerrevisions daemonsets deployments replicasets statefulsets",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs jobs",
    "certificates.k8s.io": "certificatesigningrequests",
    "coordination.k8s.io": "leases",
    "discovery.k8s.io": "endpointslices",
    "events.k8s.io": "events",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "networking.k8s.io": "ingressclasses ingresses networkpolicies",
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets",
    "rbac.authorization.k8s.io": "clusterrolebindings clusterroles rolebindings roles",
    "scheduling.k8s.io": "priorityclasses",
    "storage.k8s.io": "csidrivers csinodes csistoragecapacities storageclasses volumeattachments",
}


def built_in(group: str, kind: str) -> str | None:
    """Return the plural of a built-in kind of Kubernetes, None for another kind."""
    lower = kind.lower()
    forms = (lower, f"{lower}s", f"{lower}es", f"{lower[:-1]}ies")
    known = _BUILT_IN.get(group, "").split()
    singular_is_plural = lower == "endpoints"
    return next((form for form in forms[0 if singular_is_plural else 1 :] if form in known), None)


def is_own_group(group: str) -> bool:
    """Return whether only `built_in` determines the kinds of a group."""
    return group in _BUILT_IN


def is_plural(name: str) -> bool:
    return _PLURAL.match(name) is not None


# -- which clusters a ClusterAffinity selects (karmada: pkg/util/selector.go, ClusterMatches) -------------------------

KEYS = ("labelSelector", "fieldSelector", "clusterNames", "exclude")


@dataclass(frozen=True, slots=True)
class ClusterProperties:
    """The properties of a cluster by which affinities select."""

    name: str
    labels: Mapping[str, str]
    provider: str
    region: str
    zones: Sequence[str]

    @classmethod
    def of(cls, cluster: Fields) -> ClusterProperties:
        metadata, spec = cluster.fields("metadata"), cluster.fields("spec")
        return cls(
            metadata.text("name"), metadata.labels("labels"), spec.text("provider"), spec.text("region"),
            spec.texts("zones"),
        )  # fmt: skip


Affinity = Callable[[ClusterProperties], bool]


def affinity(given: Fields) -> Affinity:
    """Return the test of an affinity; an empty affinity selects every cluster, as in Karmada.

    Raises UnusableError for unknown operators: without one, the test could select more clusters than intended.
    """
    excluded, names = frozenset(given.texts("exclude")), frozenset(given.texts("clusterNames"))
    tests = [*_labels(given.fields("labelSelector")), *_fields(given.fields("fieldSelector"))]

    def selects(cluster: ClusterProperties) -> bool:
        if cluster.name in excluded or (names and cluster.name not in names):
            return False
        return all(test(cluster) for test in tests)

    return selects


def _labels(selector: Fields) -> list[Affinity]:
    for other in selector.others("matchLabels", "matchExpressions"):
        raise UnusableError(f"{other}: is not known")
    equal = selector.labels("matchLabels")
    tests: list[Affinity] = [lambda cluster: all(cluster.labels.get(key) == value for key, value in equal.items())]
    for expression in selector.items("matchExpressions"):
        key = expression.text("key")
        tests.append(_test(expression, lambda cluster, key=key: _values(cluster.labels.get(key))))  # type: ignore[misc]
    return tests


def _fields(selector: Fields) -> list[Affinity]:
    for other in selector.others("matchExpressions"):
        raise UnusableError(f"{other}: is not known")
    tests = []
    for expression in selector.items("matchExpressions"):
        key = expression.text("key")
        if key == "zone":
            tests.append(_test(expression, lambda cluster: cluster.zones))
        elif key == "provider":
            tests.append(_test(expression, lambda cluster: _values(cluster.provider or None)))
        elif key == "region":
            tests.append(_test(expression, lambda cluster: _values(cluster.region or None)))
        else:
            raise UnusableError(f"{expression.at('key')}: is none of provider, region and zone")
    return tests


def _test(expression: Fields, values_of: Callable[[ClusterProperties], Sequence[str]]) -> Affinity:
    """Return the test of one expression. A cluster has one value for most keys, but several zones."""
    operator, wanted = expression.text("operator"), frozenset(expression.texts("values"))
    if operator in ("In", "NotIn") and not wanted:
        raise UnusableError(f"{expression.at('values')}: {operator} needs values")
    if operator == "In":
        return lambda cluster: not wanted.isdisjoint(values_of(cluster))
    if operator == "NotIn":
        return lambda cluster: wanted.isdisjoint(values_of(cluster))
    if operator == "Exists":
        return lambda cluster: bool(values_of(cluster))
    if operator == "DoesNotExist":
        return lambda cluster: not values_of(cluster)
    raise UnusableError(f"{expression.at('operator')}: is none of In, NotIn, Exists and DoesNotExist")


def _values(value: str | None) -> Sequence[str]:
    return () if value is None else (value,)


# -- member clusters (cluster.karmada.io Cluster) ---------------------------------------------------------------------

_SPEC = ("apiEndpoint", "secretRef", "insecureSkipTLSVerification", "proxyURL", "proxyHeader", "region", "provider",
          "zones", "id")  # fmt: skip
_OF_SCHEDULING = ("syncMode", "zone", "taints", "resourceModels")

Secrets = Mapping[tuple[str, str], Object]
"""Secrets by namespace and name."""


@dataclass(frozen=True, slots=True)
class KarmadaCluster:
    """A cluster with the properties by which registries select."""

    fragment: Fragment
    properties: ClusterProperties
    kinds: Mapping[tuple[str, str], str]
    """(apiVersion, kind) -> plural, of the kinds in the cluster's status."""
    complete: bool
    """Whether `kinds` has all kinds of the cluster (its condition CompleteAPIEnablements is True)."""

    @property
    def name(self) -> str:
        return self.properties.name

    def has(self, api_version: str, kind: str) -> bool:
        """Return whether Karmada would cache a kind of this member: the member has it, or its kinds are unknown."""
        return not self.complete or (api_version, kind) in self.kinds


def translate_member(found: Object, secrets: Secrets) -> KarmadaCluster:
    """Return a member. Raises UnusableError for an unusable member; Karmada cannot reach most of these either."""
    if not is_cluster_name(found.name):
        raise UnusableError("metadata.name: is no DNS name, so it cannot be the name of a cluster")
    spec, made = found.fields.fields("spec"), Fragment(f"Cluster {found.name}")
    for other in spec.others(*_SPEC, *_OF_SCHEDULING, "impersonatorSecretRef"):
        made.note(other, "is not known to mcproxy")
    url = _url(spec)
    proxy = _proxy(spec, made, found.name)
    secret = _secret(spec, secrets)
    tls: dict[str, Any] = {}
    if spec.boolean("insecureSkipTLSVerification"):
        tls["insecureSkipVerify"] = True
        what = "INSECURE: carried over: the certificates of the API server are not verified at all"
        made.note("spec.insecureSkipTLSVerification", what)
    else:
        authorities = secret.data("caBundle")
        if not authorities:
            raise UnusableError("spec.secretRef: the Secret has no caBundle, and the cluster is to be verified")
        tls["caFile"] = made.file(found.name, "ca.crt", authorities)
    token = secret.data("token")
    if not token:
        raise UnusableError("spec.secretRef: the Secret has no token")
    if spec.has("impersonatorSecretRef"):
        what = "is not carried over: the token of secretRef reads and impersonates; see mcproxy rbac for its rights"
        made.note("spec.impersonatorSecretRef", what)
    entry = {
        "name": found.name,
        "labels": found.fields.fields("metadata").labels("labels"),
        "endpoints": [{"url": url}],
        "tls": tls,
        "credentials": {"tokenFile": made.file(found.name, "token", token)},
        **({"proxy": proxy} if proxy else {}),
    }
    made.add("clusters", entry)
    kinds, complete = _kinds(found.fields.fields("status"))
    return KarmadaCluster(made, ClusterProperties.of(found.fields), kinds, complete)


def plural(member: KarmadaCluster, api_version: str, kind: str) -> str | None:
    """Return the plural of a kind in this member; None if unknown."""
    group = api_version.rpartition("/")[0]
    return built_in(group, kind) if is_own_group(group) else member.kinds.get((api_version, kind))


def _url(spec: Fields) -> str:
    written = spec.text("apiEndpoint")
    if not written:
        raise UnusableError("spec.apiEndpoint: is missing, so that nobody can connect to it (sync mode Pull?)")
    try:
        return parse_endpoint(written if "://" in written else f"https://{written}").url
    except AddressError as error:
        raise UnusableError(f"spec.apiEndpoint: {error.what}") from None


def _proxy(spec: Fields, made: Fragment, name: str) -> dict[str, Any]:
    """Return the value of `proxy` for proxyURL, empty if there is none."""
    written = spec.text("proxyURL")
    if not written:
        return {}
    if spec.has("proxyHeader"):
        raise UnusableError("spec.proxyHeader: mcproxy sends an HTTP proxy no further header fields")
    try:
        entry = proxy_entry(made, name, parse_http_proxy(written, default_port=80))
    except AddressError as error:
        raise UnusableError(f"spec.proxyURL: {error.what}") from None
    if entry is None:
        raise UnusableError("spec.proxyURL: has an empty user name or password")
    return entry


def _secret(spec: Fields, secrets: Secrets) -> Fields:
    reference = spec.fields("secretRef")
    namespace, name = reference.text("namespace"), reference.text("name")
    if not name:
        raise UnusableError("spec.secretRef: names no Secret, so there is no credential")
    found = secrets.get((namespace, name))
    if found is None:
        raise UnusableError(f"spec.secretRef: the Secret {namespace}/{name} is not there; add it to the files")
    return found.fields.fields("data")


def _kinds(status: Fields) -> tuple[dict[tuple[str, str], str], bool]:
    kinds: dict[tuple[str, str], str] = {}
    for enablement in status.items("apiEnablements"):
        version = enablement.text("groupVersion")
        for resource in enablement.items("resources"):
            name, kind = resource.text("name"), resource.text("kind")
            if kind and is_plural(name):
                kinds.setdefault((version, kind), name)
    conditions = {each.text("type"): each.text("status") for each in status.items("conditions")}
    return kinds, bool(kinds) and conditions.get("CompleteAPIEnablements") == "True"


# -- the resources that all ResourceRegistries cache; Karmada has one cache for all of them ---------------------------

_GROUP = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?\Z")
_VERSION = re.compile(r"[a-z][a-z0-9-]{0,62}\Z")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")

Resource = tuple[str, str, str]
"""A resource: group, version, plural."""


class CacheScope:
    """The cached namespaces of each resource of each member; None means all namespaces."""

    def __init__(self) -> None:
        self._scope: dict[Resource, dict[str, set[str] | None]] = {}

    def add(self, resource: Resource, member: str, namespace: str) -> None:
        members = self._scope.setdefault(resource, {})
        known = members.setdefault(member, set())
        if not namespace:
            members[member] = None
        elif known is not None:
            known.add(namespace)

    def entries(self, present: Sequence[str]) -> tuple[list[str], list[dict[str, Any]]]:
        """Return the members that are in `present`, and the entries of the aggregate's cache.

        An empty list would mean all members, so such entries are omitted.
        """
        used = {name for members in self._scope.values() for name in members}
        names = [name for name in present if name in used]
        entries: list[dict[str, Any]] = []
        for (group, version, resource), members in self._scope.items():
            by_namespaces: dict[tuple[str, ...] | None, list[str]] = {}
            for name in names:
                if name in members:
                    wanted = members[name]
                    by_namespaces.setdefault(None if wanted is None else tuple(sorted(wanted)), []).append(name)
            for namespaces, clusters in by_namespaces.items():
                entry: dict[str, Any] = {"group": group, "version": version, "resource": resource}
                if namespaces is not None:
                    entry["namespaces"] = list(namespaces)
                if clusters != names:
                    entry["clusters"] = clusters
                entries.append(entry)
        return names, entries


def add_registry(found: Object, members: Sequence[KarmadaCluster], scope: CacheScope, made: Fragment) -> None:
    """Add the resources that a registry caches to `scope`, and notes to `made`. Raises UnusableError."""
    spec = found.fields.fields("spec")
    for other in spec.others("targetCluster", "resourceSelectors", "backendStore"):
        made.note(other, "is not known to mcproxy")
    if spec.has("backendStore"):
        made.note("spec.backendStore", "is not carried over: mcproxy keeps its caches in memory")
    target = spec.fields("targetCluster")
    for other in target.others(*KEYS):
        made.note(other, "is not known to mcproxy, so the registry is left out: it might select fewer clusters")
        return
    selects = affinity(target)
    selected = [member for member in members if selects(member.properties)]
    if not selected:
        made.note("spec.targetCluster", "selects none of the clusters that are carried over")
        return
    names = ", ".join(member.name for member in selected[:20]) + (", …" if len(selected) > 20 else "")
    made.note("spec.targetCluster", f"is carried over as the clusters that it selects now: {names}")
    for selector in spec.items("resourceSelectors"):
        _add_selector(selector, selected, scope, made)


def _add_selector(selector: Fields, selected: Sequence[KarmadaCluster], scope: CacheScope, made: Fragment) -> None:
    for other in selector.others("apiVersion", "kind", "namespace"):
        made.note(other, "is not known to mcproxy, so the selector is left out: it might select fewer objects")
        return
    api_version, kind, namespace = selector.text("apiVersion"), selector.text("kind"), selector.text("namespace")
    group, _, version = api_version.rpartition("/")
    if not (_GROUP.match(group) and _VERSION.match(version) and kind):
        made.note(selector.path, "is left out: it names no kind of a version")
        return
    if namespace and not _NAMESPACE.match(namespace):
        made.note(selector.at("namespace"), "is no namespace; the selector is left out")
        return
    having = [member for member in selected if member.has(api_version, kind)]
    if without := [member.name for member in selected if member not in having]:
        made.note(
            selector.path, f"{kind} of {api_version} is not served by {', '.join(without[:20])}, as their status says"
        )
    if not having:
        return
    names = {member.name: plural(member, api_version, kind) for member in having}
    known = next(filter(None, names.values()), None)
    if known is None:
        made.note(
            selector.path,
            f"is left out: nothing says what {kind} of {api_version} is called in URLs; add it to cache.resources",
        )
        return
    for name, resource in names.items():
        scope.add((group, version, resource or known), name, namespace)


# -- clusters, registries and the aggregate over them -----------------------------------------------------------------

_VERSIONS = {"Cluster": "/".join(CLUSTER[:2]), "ResourceRegistry": "/".join(REGISTRY[:2]), "Secret": "v1"}


def translate_all(objects: Iterable[Object], name: str) -> tuple[list[Fragment], list[Note], Complete]:
    """Return clusters, notes on omissions, and a function that adds the aggregate `name` over the clusters that load.

    Raises UnusableError if there is no Cluster.
    """
    found: dict[str, list[Object]] = {kind: [] for kind in _VERSIONS}
    left_out: list[Note] = []
    for each in objects:
        if _VERSIONS.get(each.kind) != each.api_version:
            what = "left out: it is no Cluster, ResourceRegistry or Secret of a known version"
            left_out.append(Note(_origin(each), "", what))
        else:
            found[each.kind].append(each)
    secrets = {(each.namespace, each.name): each for each in found["Secret"]}
    members: dict[str, KarmadaCluster] = {}
    for each in found["Cluster"]:
        try:
            if each.name in members:
                raise UnusableError("there is another of this name before it")
            members[each.name] = translate_member(each, secrets)
        except UnusableError as error:
            left_out.append(Note(_origin(each), "", f"left out: {error}"))
    if not found["Cluster"]:
        raise UnusableError("there is no Cluster (cluster.karmada.io/v1alpha1) in what was read")
    scope, notes = CacheScope(), Fragment("")
    for each in found["ResourceRegistry"]:
        made = Fragment(_origin(each))
        try:
            add_registry(each, tuple(members.values()), scope, made)
        except UnusableError as error:
            left_out.append(Note(_origin(each), "", f"left out: {error}"))
        notes.notes += made.notes
    return [member.fragment for member in members.values()], left_out, _complete(name, scope, notes)


def _complete(name: str, scope: CacheScope, notes: Fragment) -> Complete:
    def complete(fragments: Sequence[Fragment]) -> Sequence[Fragment]:
        present = [entry["name"] for each in fragments for entry in each.sections.get("clusters", ())]
        members, resources = scope.entries(present)
        made = Fragment(f"aggregate {name}", notes=list(notes.notes))
        if resources:
            made.add(
                "aggregates",
                {
                    "name": name,
                    "clusters": members,
                    "unavailable": "Partial",  # as in Karmada, which drops the objects of a cluster that is not ready
                    "cache": {"resources": resources},
                },
            )
            made.note("create", "has no rules, so that objects are not created through it; see mcproxy.yaml(5)")
            made.note("primary", "is not set: what no registry names is a 404; Karmada's control plane answered it")
            made.note(
                "",
                "add a server with its backend, its names and its authentication; Karmada's users are not known here",
            )
        else:
            made.note("", "is not made: no registry selects a resource of a cluster that is carried over")
        return [*fragments, made]

    return complete


def _origin(found: Object) -> str:
    return f"{found.kind} {found.name}"[:150]
