"""Translates all Ingresses and multi-cluster services of the input, with the certificates and listeners they need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mcproxy.config.reading.nodes import Place
from mcproxy.importing.fragment import STUBS, Complete, Fragment, Note, is_cluster_name
from mcproxy.importing.ingress.annotations import Annotated, Canary, join_canaries
from mcproxy.importing.ingress.placed_objects import (
    PlacedError,
    PlacedObject,
    integer,
    items,
    mapping,
    others,
    remark,
    text,
    texts,
)
from mcproxy.importing.ingress.service_exports import (
    POLICIES,
    is_kind,
    pairs,
    service_providers,
    translate_import,
    translate_service,
)
from mcproxy.importing.object_files import Fields, UnusableError

# -- an Ingress, or Karmada's MultiClusterIngress ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImportContext:
    """The objects and options that ingresses refer to."""

    clusters: Sequence[str]
    providers: Mapping[tuple[str, str], Sequence[str]]
    """By namespace and name of a service: the clusters that its MultiClusterService names."""
    certificates: Mapping[tuple[str, str], str]
    """By namespace and name of a Secret: the name of the certificate."""
    listeners: Sequence[str]
    """The listeners to write in each ingress; empty: all listeners that serve Ingress."""


def translate(found: PlacedObject, context: ImportContext) -> tuple[Fragment, Canary | None]:
    """Return the fragment for an object, and its canary rule if it is a canary. Raises PlacedError for an object that
    is left out.
    """
    made = Fragment(found.origin, place=str(found.place.mark))
    spec = mapping(found.place, "spec")
    annotated = Annotated(found, made)
    for other in others(spec, "ingressClassName", "defaultBackend", "rules", "tls"):
        remark(made, found, other, "is not known to mcproxy")
    if spec is not None and (named := spec.get("ingressClassName")) is not None:
        remark(made, found, named, "is not carried over: the ingress is on the listeners that it names")
    maker = _Maker(found, made, annotated, context)
    entry: dict[str, Any] = {"name": f"{found.namespace}.{found.name}"}
    if context.listeners:
        entry["listeners"] = list(context.listeners)
    if tls := list(maker.tls(spec)):
        entry["tls"] = tls
    elif "redirectToTLS" in annotated.ingress:
        del annotated.ingress["redirectToTLS"]  # without `tls` no request is redirected
    entry.update(annotated.ingress)
    default = mapping(spec, "defaultBackend")
    if default is not None and (backend := maker.backend(default)) is not None:
        entry["defaultBackend"] = backend
    if rules := list(maker.whole_rules(spec)):
        entry["rules"] = rules
    if "rules" not in entry and "defaultBackend" not in entry:
        raise PlacedError(found.place, "nothing of it can be carried over: it has no rule and no default backend")
    made.add("ingresses", entry)
    return made, annotated.routing.canary


@dataclass(frozen=True, slots=True)
class _Maker:
    found: PlacedObject
    made: Fragment
    annotated: Annotated
    context: ImportContext

    def tls(self, spec: Place | None) -> Iterator[dict[str, Any]]:
        for entry in items(spec, "tls"):
            secret, hosts = text(entry, "secretName"), texts(entry, "hosts")
            certificate = self.context.certificates.get((self.found.namespace, secret))
            if not secret:
                self._note(entry, "is not carried over: without secretName the controller has a certificate of its own")
            elif certificate is None:
                whole = f"{self.found.namespace}/{secret}"
                what = "is not carried over, so these hosts are served without TLS"
                self._note(entry, f"{what}: the Secret {whole} is not there; add it to the files")
            else:
                yield {**({"hosts": hosts} if hosts else {}), "certificate": certificate}

    def whole_rules(self, spec: Place | None) -> Iterator[dict[str, Any]]:
        """Yield the rules of the object and those of annotations: a redirect of the root path, and of the host with or
        without www.
        """
        routing = self.annotated.routing
        made = list(self.rules(spec))
        hosts = {rule.get("host", "") for rule in made}
        for rule in made:
            if routing.app_root:
                root = {"path": "/", "pathType": "Exact", "filters": {"redirect": {"path": routing.app_root}}}
                rule["paths"] = [each for each in rule["paths"] if (each["path"], each["pathType"]) != ("/", "Exact")]
                rule["paths"].insert(0, root)
            yield rule
            host = rule.get("host", "")
            other = host.removeprefix("www.") if host.startswith("www.") else f"www.{host}"
            if routing.www and host and not host.startswith("*") and other not in hosts:
                away = {"path": "/", "pathType": "Prefix", "filters": {"redirect": {"host": host, "code": 308}}}
                yield {"host": other, "paths": [away]}

    def rules(self, spec: Place | None) -> Iterator[dict[str, Any]]:
        """Yield one rule for each host; the object can have the paths of a host in several rules."""
        by_host: dict[str, list[dict[str, Any]]] = {}
        for rule in items(spec, "rules"):
            http = mapping(rule, "http")
            if http is None:
                self._note(rule, "has no http, so its host is for the default backend, as any other is")
                continue
            found = list(self._paths(http))
            if found:
                by_host.setdefault(text(rule, "host"), []).extend(found)
        for host, paths in by_host.items():
            if self.annotated.routing.regex:  # ingress-nginx tries the longest pattern first
                paths.sort(key=lambda each: -len(each["path"]))
            yield {**({"host": host} if host else {}), "paths": paths}

    def _paths(self, http: Place) -> Iterator[dict[str, Any]]:
        for entry in items(http, "paths"):
            kind, path = text(entry, "pathType"), text(entry, "path")
            if kind not in ("Exact", "Prefix", "ImplementationSpecific"):
                raise PlacedError(entry, f"the pathType {kind or 'that is missing'} is not known")
            routing, path = self.annotated.routing, path or "/"
            filters = dict(routing.filters)
            if routing.redirect is not None:
                filters = {"redirect": routing.redirect}
            if routing.regex:
                kind, path = "Regex", _whole(path)
                if routing.rewrite:
                    filters["rewritePath"] = routing.rewrite
            elif kind == "ImplementationSpecific":
                self._note(entry, "ImplementationSpecific is carried over as Prefix, as ingress-nginx has it")
                kind = "Prefix"
            made: dict[str, Any] = {"path": path, "pathType": kind, **({"filters": filters} if filters else {})}
            if routing.redirect is not None:
                yield made
                continue
            target = mapping(entry, "backend")
            backend = self.backend(target) if target is not None else None
            if backend is not None:
                yield {**made, "backend": backend}

    def backend(self, place: Place) -> dict[str, Any] | None:
        service = mapping(place, "service")
        if service is None:
            self._note(place, "is not carried over: it is no service")
            return None
        name, port = text(service, "name"), mapping(service, "port")
        number = integer(port, "number") if port is not None else 0
        clusters = self.context.providers.get((self.found.namespace, name)) or self.context.clusters
        if not clusters:
            raise PlacedError(service, f"nothing says which clusters have the service {name}: give --cluster NAME")
        return {
            "namespace": self.found.namespace,
            "service": name,
            "port": number or text(port, "name"),
            "clusters": list(clusters),
            **self.annotated.backend,
        }

    def _note(self, place: Place, what: str) -> None:
        remark(self.made, self.found, place, what)


def _whole(path: str) -> str:
    """Return a pattern for whole paths, because the pattern of an nginx location matches only the beginning."""
    return path if path.endswith(("$", ".*", ".*)")) else f"{path}.*"


_INGRESSES = {("networking.k8s.io/v1", "Ingress"), ("networking.karmada.io/v1alpha1", "MultiClusterIngress")}
_SERVICES = {("networking.karmada.io/v1alpha1", "MultiClusterService")}
_SECRETS = {("v1", "Secret")}
_BESIDE = {("v1", "Service"), ("v1", "Namespace"), ("networking.k8s.io/v1", "IngressClass")}
"""Kinds that are often in the same file, and that are ignored."""

_LOST = "certificates that were left out are not carried over"


@dataclass(frozen=True, slots=True)
class IngressOptions:
    clusters: Sequence[str] = ()
    """The clusters of services without a MultiClusterService."""
    listeners: Sequence[str] = ()
    """Names of listeners in the operator's own file; empty: listeners are created."""


@dataclass(slots=True)
class _Read:
    fragments: list[Fragment] = field(default_factory=list)
    left_out: list[Note] = field(default_factory=list)
    canaries: list[tuple[Fragment, Canary]] = field(default_factory=list)


def translate_all(
    found: Sequence[PlacedObject], options: IngressOptions
) -> tuple[list[Fragment], list[Note], Complete]:
    """Return a fragment for each object, the notes on omissions, and a function that adds the entries they need.

    Raises UnusableError if the input has no object to translate.
    """
    read = _Read()
    services = list(pairs(found))
    paired = {id(each) for pair in services for each in pair}
    policies = [each for each in found if is_kind(each, POLICIES)]
    for each in found:
        known = _INGRESSES | _SERVICES | _SECRETS | _BESIDE | POLICIES
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
            read.fragments.append(translate_import(exported, imported, policies, options.clusters))
        except PlacedError as error:
            read.left_out.append(imported.note(error.place, f"left out: {error}"))
    certificates = _certificates(found, wanted, read)
    providers: dict[tuple[str, str], Sequence[str]] = {}
    for each in wanted:
        if (each.api_version, each.kind) in _SERVICES:
            try:
                providers[each.namespace, each.name] = service_providers(each)
                read.fragments.append(translate_service(each, options.clusters))
            except PlacedError as error:
                read.left_out.append(each.note(error.place, f"left out: {error}"))
    context = ImportContext(options.clusters, providers, certificates, options.listeners)
    for each in wanted:
        if (each.api_version, each.kind) in _INGRESSES:
            try:
                made, canary = translate(each, context)
            except PlacedError as error:
                read.left_out.append(each.note(error.place, f"left out: {error}"))
                continue
            if canary is None:
                read.fragments.append(made)
            else:
                read.canaries.append((made, canary))
    read.left_out += join_canaries(read.fragments, read.canaries)
    return read.fragments, read.left_out, lambda fragments: _complete(fragments, options)


def _certificates(
    found: Sequence[PlacedObject], wanted: Sequence[PlacedObject], read: _Read
) -> dict[tuple[str, str], str]:
    """Make certificates from the Secrets that Ingresses name, and return the certificates' names."""
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


def _complete(fragments: Sequence[Fragment], options: IngressOptions) -> Sequence[Fragment]:
    """Add listeners if the options name none, and stubs of the entries in the operator's file."""
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
    """Return an ingress without certificates that were left out; `certificates` are the remaining ones."""
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
