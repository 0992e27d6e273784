"""Translates an Ingress, or Karmada's MultiClusterIngress, to an ingress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.config.reading.nodes import Place
from mcproxy.importing.fragment import Fragment
from mcproxy.importing.ingress.annotations import Annotated, Canary
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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects and options that ingresses refer to."""

    clusters: Sequence[str]
    providers: Mapping[tuple[str, str], Sequence[str]]
    """The clusters of a service that a MultiClusterService names, by namespace and name."""
    certificates: Mapping[tuple[str, str], str]
    """Names of certificates, by namespace and name of their Secret."""
    listeners: Sequence[str]
    """Named in each ingress; empty: none, so that it is on all that serve Ingress."""


def translate(found: PlacedObject, around: Surroundings) -> tuple[Fragment, Canary | None]:
    """Return the fragment for an object, and of what it is the canary. Raises PlacedError for one that is left out."""
    made = Fragment(found.origin, place=str(found.place.mark))
    spec = mapping(found.place, "spec")
    annotated = Annotated(found, made)
    for other in others(spec, "ingressClassName", "defaultBackend", "rules", "tls"):
        remark(made, found, other, "is not known to mcproxy")
    if spec is not None and (named := spec.get("ingressClassName")) is not None:
        remark(made, found, named, "is not carried over: the ingress is on the listeners that it names")
    maker = _Maker(found, made, annotated, around)
    entry: dict[str, Any] = {"name": f"{found.namespace}.{found.name}"}
    if around.listeners:
        entry["listeners"] = list(around.listeners)
    if tls := list(maker.tls(spec)):
        entry["tls"] = tls
    elif "redirectToTLS" in annotated.ingress:
        del annotated.ingress["redirectToTLS"]  # nothing is redirected without tls
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
    around: Surroundings

    def tls(self, spec: Place | None) -> Iterator[dict[str, Any]]:
        for entry in items(spec, "tls"):
            secret, hosts = text(entry, "secretName"), texts(entry, "hosts")
            certificate = self.around.certificates.get((self.found.namespace, secret))
            if not secret:
                self._note(entry, "is not carried over: without secretName the controller has a certificate of its own")
            elif certificate is None:
                whole = f"{self.found.namespace}/{secret}"
                what = "is not carried over, so these hosts are served without TLS"
                self._note(entry, f"{what}: the Secret {whole} is not there; add it to the files")
            else:
                yield {**({"hosts": hosts} if hosts else {}), "certificate": certificate}

    def whole_rules(self, spec: Place | None) -> Iterator[dict[str, Any]]:
        """Yield the rules with what annotations add: a redirect of the root, and of the host with or without www."""
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
        """Yield rules, one for each host: the object may have the paths of a host in several rules."""
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
            if self.annotated.routing.regex:  # ingress-nginx has the longest first
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
        clusters = self.around.providers.get((self.found.namespace, name)) or self.around.clusters
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
    """Return a pattern for whole paths: that of a location of nginx is for their beginning."""
    return path if path.endswith(("$", ".*", ".*)")) else f"{path}.*"
