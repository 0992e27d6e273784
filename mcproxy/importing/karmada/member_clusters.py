"""Translates a member cluster of Karmada (cluster.karmada.io Cluster) to a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcproxy.config.urls import AddressError, parse_endpoint
from mcproxy.importing.fragment import Fragment, is_cluster_name
from mcproxy.importing.karmada.cluster_affinity import Facts
from mcproxy.importing.karmada.kinds import built_in, is_own_group, is_plural
from mcproxy.importing.object_files import Fields, Object, UnusableError

_KNOWN = ("apiEndpoint", "secretRef", "insecureSkipTLSVerification", "proxyURL", "proxyHeader", "region", "provider",
          "zones", "id")  # fmt: skip
_OF_SCHEDULING = ("syncMode", "zone", "taints", "resourceModels")

Secrets = Mapping[tuple[str, str], Object]
"""By namespace and name."""


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster with the properties that registries select by."""

    fragment: Fragment
    facts: Facts
    kinds: Mapping[tuple[str, str], str]
    """(apiVersion, kind) -> plural, of the kinds in the cluster's status."""
    complete: bool
    """Whether it has nothing else."""

    @property
    def name(self) -> str:
        return self.facts.name

    def has(self, api_version: str, kind: str) -> bool:
        """Return whether Karmada would cache a kind of this cluster: the member has it, or its kinds are unknown."""
        return not self.complete or (api_version, kind) in self.kinds


def translate(found: Object, secrets: Secrets) -> Member:
    """Return a member. Raises UnusableError for one that cannot be used: Karmada itself cannot reach most of those."""
    if not is_cluster_name(found.name):
        raise UnusableError("metadata.name: is no DNS name, so it cannot be the name of a cluster")
    spec, made = found.fields.fields("spec"), Fragment(f"Cluster {found.name}")
    for other in spec.others(*_KNOWN, *_OF_SCHEDULING, "impersonatorSecretRef"):
        made.note(other, "is not known to mcproxy")
    if spec.text("proxyURL"):
        raise UnusableError("spec.proxyURL: mcproxy connects to clusters directly; make its API server reachable")
    url = _url(spec)
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
    }
    made.add("clusters", entry)
    kinds, complete = _kinds(found.fields.fields("status"))
    return Member(made, Facts.of(found.fields), kinds, complete)


def plural(member: Member, api_version: str, kind: str) -> str | None:
    """Return the resource of a kind in this member; None where it is unknown."""
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
