"""Translates all ingresses and services of the input, with their certificates and the listeners that they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mcproxy.importing.fragment import Fragment, Note, is_cluster_name
from mcproxy.importing.ingress import canaries, ingress_objects, multi_cluster_services, service_imports
from mcproxy.importing.ingress.annotations import Canary
from mcproxy.importing.ingress.placed_objects import PlacedError, PlacedObject, mapping, text
from mcproxy.importing.object_files import Fields, UnusableError
from mcproxy.importing.output import STUBS, Complete

_INGRESSES = {("networking.k8s.io/v1", "Ingress"), ("networking.karmada.io/v1alpha1", "MultiClusterIngress")}
_SERVICES = {("networking.karmada.io/v1alpha1", "MultiClusterService")}
_SECRETS = {("v1", "Secret")}
_BESIDE = {("v1", "Service"), ("v1", "Namespace"), ("networking.k8s.io/v1", "IngressClass")}
"""Kinds that are often in the same file, and are ignored."""

_LOST = "certificates that were left out are not carried over"


@dataclass(frozen=True, slots=True)
class Options:
    clusters: Sequence[str] = ()
    """Of services without a MultiClusterService."""
    listeners: Sequence[str] = ()
    """Of the operator's own file; empty: listeners are made."""


@dataclass(slots=True)
class _Read:
    fragments: list[Fragment] = field(default_factory=list)
    left_out: list[Note] = field(default_factory=list)
    canaries: list[tuple[Fragment, Canary]] = field(default_factory=list)


def translate_all(found: Sequence[PlacedObject], options: Options) -> tuple[list[Fragment], list[Note], Complete]:
    """Return a fragment for each object, what was left out, and a function that adds what these need.

    Raises UnusableError where there is nothing to translate.
    """
    read = _Read()
    services = list(service_imports.pairs(found))
    paired = {id(each) for pair in services for each in pair}
    policies = [each for each in found if service_imports.is_kind(each, service_imports.POLICIES)]
    for each in found:
        known = _INGRESSES | _SERVICES | _SECRETS | _BESIDE | service_imports.POLICIES
        if (each.api_version, each.kind) not in known and id(each) not in paired:
            what = "left out: it is no Ingress, MultiClusterIngress or MultiClusterService of a known version"
            if each.api_version.startswith("multicluster.x-k8s.io/"):
                what = "left out: serviceDiscovery: {enabled: true} follows it in the clusters themselves"
            read.left_out.append(each.note(None, what))
    wanted = [each for each in found if (each.api_version, each.kind) in _INGRESSES | _SERVICES]
    if not wanted and not services:
        kinds = "Ingress, MultiClusterIngress, MultiClusterService or ServiceImport with its ServiceExport"
        raise UnusableError(f"there is no {kinds} in what was read")
    for exported, imported in services:
        try:
            read.fragments.append(service_imports.translate(exported, imported, policies, options.clusters))
        except PlacedError as error:
            read.left_out.append(imported.note(error.place, f"left out: {error}"))
    certificates = _certificates(found, wanted, read)
    providers: dict[tuple[str, str], Sequence[str]] = {}
    for each in wanted:
        if (each.api_version, each.kind) in _SERVICES:
            try:
                providers[each.namespace, each.name] = multi_cluster_services.providers(each)
                read.fragments.append(multi_cluster_services.translate(each, options.clusters))
            except PlacedError as error:
                read.left_out.append(each.note(error.place, f"left out: {error}"))
    around = ingress_objects.Surroundings(options.clusters, providers, certificates, options.listeners)
    for each in wanted:
        if (each.api_version, each.kind) in _INGRESSES:
            try:
                made, canary = ingress_objects.translate(each, around)
            except PlacedError as error:
                read.left_out.append(each.note(error.place, f"left out: {error}"))
                continue
            if canary is None:
                read.fragments.append(made)
            else:
                read.canaries.append((made, canary))
    read.left_out += canaries.join(read.fragments, read.canaries)
    return read.fragments, read.left_out, lambda fragments: _complete(fragments, options)


def _certificates(
    found: Sequence[PlacedObject], wanted: Sequence[PlacedObject], read: _Read
) -> dict[tuple[str, str], str]:
    """Make certificates from the Secrets that ingresses name, and return their names."""
    named = set()
    for each in wanted:
        spec = each.place.get("spec")
        for entry in spec.children("tls") if spec is not None else ():
            named.add((each.namespace, entry.text("secretName")))
    names: dict[tuple[str, str], str] = {}
    for each in found:
        key = (each.namespace, each.name)
        if (each.api_version, each.kind) not in _SECRETS or key not in named or key in names:
            continue
        try:
            name, data = f"{each.namespace}.{each.name}", mapping(each.place, "data")
            content = Fields({"crt": text(data, "tls.crt"), "key": text(data, "tls.key")}, "data")
            chain, secret = content.data("crt"), content.data("key")
            if not chain or not secret or not is_cluster_name(name):
                raise UnusableError("it has no tls.crt and tls.key")
        except (PlacedError, UnusableError) as error:
            read.left_out.append(each.note(None, f"left out: {error}"))
            continue
        made = Fragment(each.origin, place=str(each.place.mark))
        files = {"certFile": made.file(name, "tls.crt", chain), "keyFile": made.file(name, "tls.key", secret)}
        made.add("certificates", {"name": name, **files})
        read.fragments.append(made)
        names[key] = name
    return names


def _complete(fragments: Sequence[Fragment], options: Options) -> Sequence[Fragment]:
    """Add listeners, where none are named, and stubs of the entries that are in the operator's file."""
    certificates = {each["name"] for fragment in fragments for each in fragment.sections.get("certificates", ())}
    good = [_with_certificates(fragment, certificates) for fragment in fragments]
    entries = [entry for fragment in good for entry in fragment.sections.get("ingresses", ())]
    has_tls = any(entry.get("tls") for entry in entries)
    stubs, made = Fragment(STUBS), Fragment("listeners")
    for name in dict.fromkeys(_named_clusters(good)):
        stubs.add(
            "clusters", {"name": name, "endpoints": [{"url": "https://stub.invalid"}], "credentials": {"token": "t"}}
        )
    for name in options.listeners if entries else ():
        stubs.add("listeners", {"name": name, "serves": "Ingress", "bind": "127.0.0.1:0"})
    if entries and not options.listeners:
        made.add("listeners", {"name": "web", "serves": "Ingress", "bind": "0.0.0.0:80"})
        if has_tls:
            made.add("listeners", {"name": "web-tls", "serves": "Ingress", "bind": "0.0.0.0:443", "tls": {}})
    return [*([made] if made.sections else ()), *good, *([stubs] if stubs.sections else ())]


def _with_certificates(fragment: Fragment, certificates: set[str]) -> Fragment:
    """Return an ingress without those certificates that were left out."""
    kept = []
    for entry in fragment.sections.get("ingresses", ()):
        tls = [each for each in entry.get("tls", ()) if each["certificate"] in certificates]
        rest = {key: value for key, value in entry.items() if key != "tls"}
        if not tls:
            rest.pop("redirectToTLS", None)
        kept.append({**rest, **({"tls": tls} if tls else {})})
    if kept == fragment.sections.get("ingresses", []):
        return fragment
    notes = [*fragment.notes, Note(fragment.origin, "spec.tls", _LOST, fragment.place)]
    return replace(fragment, sections={**fragment.sections, "ingresses": kept}, notes=notes)


def _named_clusters(fragments: Sequence[Fragment]) -> list[str]:
    found: list[str] = []
    for fragment in fragments:
        for export in fragment.sections.get("serviceExports", ()):
            found += [*export["from"], *export["to"]]
        for entry in fragment.sections.get("ingresses", ()):
            for backend in _backends(entry):
                found += backend["clusters"]
    return found


def _backends(entry: dict[str, Any]) -> list[dict[str, Any]]:
    paths = [path for rule in entry.get("rules", ()) for path in rule["paths"]]
    backends = [path["backend"] for path in paths if "backend" in path]
    backends += [share["backend"] for path in paths for share in path.get("backends", ())]
    return backends + ([entry["defaultBackend"]] if "defaultBackend" in entry else [])
