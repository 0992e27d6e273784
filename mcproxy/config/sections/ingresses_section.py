"""Reads the section `ingresses`, with the backends of their rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mcproxy.config import credential_checks
from mcproxy.config.files import pem
from mcproxy.config.model import (
    Affinity,
    BackendHealthCheck,
    BackendProtocol,
    BackendTLS,
    Certificate,
    Ingress,
    IngressBackend,
    IngressPath,
    IngressRule,
    IngressTLS,
    ListenerConfig,
    PathType,
    PEMFile,
    Serves,
    Strategy,
    Via,
    WeightedBackend,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.clusters_section import server_name
from mcproxy.config.sections.entries import ListSection, Sections, reference, references, server_names
from mcproxy.config.sections.model_reader import integer_at, read
from mcproxy.config.sections.route_filters import header_conditions, pattern, route_filters
from mcproxy.config.sections.services_section import pod_networks
from mcproxy.config.server_names import is_ip, is_server_name
from mcproxy.config.suggestions import suggest

# -- A backend of an ingress: a Service in several clusters, and how its pods are reached ------------------------------


def _ingress_backend(context: Context, place: Place | None, clusters: Sequence[str]) -> IngressBackend | None:
    """Return the backend written at `place`, or None if something required is missing (reported)."""
    if place is None:
        return None
    written = place.get("clusters")
    chosen = references(context, written, clusters, "cluster")
    backend = read(
        context,
        place,
        IngressBackend,
        clusters=chosen,
        weights=_weights(context, place.get("weights"), chosen, written),
        tls=_backend_tls(context, place.get("tls")),
        health_check=_health_check(context, place.get("healthCheck")),
        allowed_cidrs=pod_networks(context, place.get("allowedCIDRs"), reached_here=True),
    )
    connect = place.get("connectTimeout")
    if connect is not None and not backend.connect_timeout:
        context.error(connect, "is 0", "write a duration such as 5s")
    _check_choice(context, place, backend)
    if backend.via is Via.API_SERVER:
        _check_via_api_server(context, place, backend)
    return backend if backend.namespace and backend.service and backend.port and chosen else None


def _weights(
    context: Context, place: Place | None, clusters: Sequence[str], written: Place | None
) -> tuple[tuple[str, int], ...]:
    if place is None:
        return ()
    named = {item.string for item in written.items()} if written is not None else set()
    weights: dict[str, int] = {}
    for cluster, weight in place.entries():
        if cluster in clusters:
            weights[cluster] = integer_at(weight, 1)
        elif clusters and cluster not in named:  # a wrong name is reported in `clusters`
            context.error(weight, f"{cluster} is not in clusters", suggest(cluster, clusters))
    if clusters and all(weights.get(cluster, 1) == 0 for cluster in clusters):
        what = "are all 0, so every request gets 503"
        context.warn(place, "endpoints-disabled", what, "give one cluster a weight")
    return tuple(weights.items())


def _backend_tls(context: Context, place: Place | None) -> BackendTLS | None:
    if place is None:
        return None
    ca_place, name = place.get("caFile"), place.get("serverName")
    ca: PEMFile | None = pem.read_file(context, ca_place) if ca_place is not None else None
    if ca_place is not None and ca is not None:
        pem.authorities(context, ca_place, ca)
    credential_checks.check_verification(
        context, place.get("insecureSkipVerify"), ca, "caFile", "the certificates of pods are"
    )
    verified = server_name(context, name) if name is not None else None
    return read(context, place, BackendTLS, ca=ca, server_name=verified)


def _health_check(context: Context, place: Place | None) -> BackendHealthCheck | None:
    if place is None:
        return None
    check = read(context, place, BackendHealthCheck)
    for key, value in (("interval", check.interval), ("timeout", check.timeout)):
        written = place.get(key)
        if written is not None and value == 0:
            context.error(written, "is 0", "write a duration such as 5s")
    return check


def _check_choice(context: Context, place: Place, backend: IngressBackend) -> None:
    """Report endpoint selection settings that have no effect in combination."""
    cookie = place.get("cookie")
    age = cookie.get("maxAge") if cookie is not None else None
    if age is not None and backend.cookie is not None and backend.cookie.max_age % 1:
        context.error(age, f"{age.shown} is no number of whole seconds", "write a duration such as 1h")
    hashes = backend.strategy is Strategy.CONSISTENT_HASH
    pointless = (
        ("cookie", backend.affinity is not Affinity.COOKIE, "is about affinity: Cookie, and affinity is None"),
        ("hashBy", not hashes, f"is about strategy: ConsistentHash, and strategy is {backend.strategy}"),
        ("slowStart", hashes and backend.slow_start > 0, "is about turns, and with ConsistentHash there are none"),
    )
    for key, without_effect, what in pointless:
        written = place.get(key)
        if written is not None and without_effect:
            context.warn(written, "no-effect", what, "take it out")


def _check_via_api_server(context: Context, place: Place, backend: IngressBackend) -> None:
    """Report settings that have no effect via an API server, which itself chooses the pod and uses HTTP/1.1."""
    tls, protocol = place.get("tls"), place.get("protocol")
    if tls is not None and backend.tls != BackendTLS(insecure_skip_verify=True):
        what = "says how pods are verified, and API servers speak TLS to them without verifying anything"
        context.error(tls, what, "write tls: {insecureSkipVerify: true} alone, or via: PortForward")
    if protocol is not None and backend.protocol in (BackendProtocol.HTTP2, BackendProtocol.GRPC):
        what = f"is {backend.protocol}, and API servers pass requests on as HTTP/1.1"
        context.error(protocol, what, "take it out, or write via: PortForward")
    without_effect = (
        ("strategy", backend.strategy is not Strategy.ROUND_ROBIN),
        ("healthCheck", backend.health_check is not None),
        ("allowedCIDRs", bool(backend.allowed_cidrs)),
        ("slowStart", backend.slow_start > 0 and backend.strategy is not Strategy.CONSISTENT_HASH),
        ("ipFamily", backend.ip_family is not None),
    )
    for key, given in without_effect:
        written = place.get(key)
        if written is not None and given:
            what = "is about the choice of a pod, and with via: APIServer the cluster's API server makes it"
            context.warn(written, "no-effect", what, "take it out, or write via: PortForward")


# -- ingresses --------------------------------------------------------------------------------------------------------

_NOT_IN_PATHS = ("//", "/./", "/../", "%2f", "%2F")
"""Substrings that Kubernetes refuses in paths of Ingresses."""


def ingress(context: Context, place: Place, sections: Sections) -> Ingress | None:
    """Return the ingress written at `place`, with its references checked and resolved."""
    clusters = sections.clusters.names
    tls = (_tls(context, entry, sections.certificates.names) for entry in place.children("tls"))
    made = read(
        context,
        place,
        Ingress,
        listeners=_listeners(context, place.get("listeners"), sections.listeners),
        tls=tuple(entry for entry in tls if entry is not None),
        default_backend=_ingress_backend(context, place.get("defaultBackend"), clusters),
        rules=tuple(_rule(context, entry, clusters) for entry in place.children("rules")),
    )
    return made if made.name else None


def _listeners(context: Context, written: Place | None, listeners: ListSection[ListenerConfig]) -> tuple[str, ...]:
    serves = {name: each.place.text("serves") or Serves.API for name, each in listeners.by_name.items()}
    if written is None:
        return tuple(name for name, purpose in serves.items() if purpose == Serves.INGRESS)
    found = references(context, written, serves, "listener")
    broken = {each.name for each in listeners if each.place.has("serves") and each.place.get("serves") is None}
    for item in written.items():
        purpose = serves.get(item.string or "")
        if purpose not in (None, Serves.INGRESS) and item.string not in broken:
            what = f"{item.shown} serves {purpose}, and no ingress can be on it"
            context.error(item, what, "name a listener that serves Ingress")
    return found


def _tls(context: Context, place: Place, certificates: Sequence[str]) -> IngressTLS | None:
    names, right = server_names(context, place.get("hosts")), "define it in the section certificates"
    certificate = reference(context, place.get("certificate"), certificates, "certificate", none=right)
    return IngressTLS(hosts=names, certificate=certificate) if certificate is not None else None


def _rule(context: Context, place: Place, clusters: Sequence[str]) -> IngressRule:
    host = place.get("host")
    found = (_path(context, entry, clusters) for entry in place.children("paths"))
    return IngressRule(
        host=_host(context, host) if host is not None else "",
        paths=tuple(path for path in found if path is not None),
    )


def _host(context: Context, place: Place) -> str:
    """Return the host in lower case; an address or a port is an error, as in Kubernetes."""
    name = (place.string or "").lower().rstrip(".")
    if name and (is_ip(name) or not is_server_name(name)):
        context.error(place, f"{place.shown} is not a host", "write a DNS name, or *. and a DNS name, without a port")
    return name


def _path(context: Context, place: Place, clusters: Sequence[str]) -> IngressPath | None:
    path, several = place.get("path"), place.get("backends")
    written = place.text("pathType")
    kind = PathType(written) if written else None
    groups = 0
    if path is not None and kind is PathType.REGEX:
        compiled = pattern(context, path)
        groups = 9 if compiled is None else compiled.groups
    elif path is not None:
        _check_path(context, path)
    filters = route_filters(context, place.get("filters"), kind, groups)
    built = _ingress_backend(context, place.get("backend"), clusters)
    shares = [_share(context, entry, clusters) for entry in several.items()] if several is not None else []
    _check_backends(context, place)
    if several is not None and shares and all(share is not None and not share.weight for share in shares):
        context.warn(several, "endpoints-disabled", "have no weight, so every request gets 500", "give one a weight")
    if path is None or kind is None or (built is None and not all(shares)):
        return None
    made = read(
        context,
        place,
        IngressPath,
        headers=header_conditions(context, place.get("headers")),
        filters=filters,
        backend=built,
        backends=tuple(share for share in shares if share is not None),
    )
    return made if made.shares or (filters is not None and filters.redirect is not None) else None


def _share(context: Context, place: Place, clusters: Sequence[str]) -> WeightedBackend | None:
    built = _ingress_backend(context, place.get("backend"), clusters)
    return None if built is None else WeightedBackend(weight=integer_at(place.get("weight"), 1), backend=built)


def _check_backends(context: Context, place: Place) -> None:
    """Require exactly one of backend, backends and redirect; report settings that have no effect without backends."""
    filters, spill = place.get("filters"), place.get("spill")
    redirect = filters.get("redirect") if filters is not None else None
    several = place.get("backends")
    written = [each for each in (place.get("backend"), several, redirect) if each is not None]
    if several is not None and not list(several.items()) and not place.is_broken:
        context.error(several, "is empty", "write [{weight: 1, backend: {…}}], or backend")
    elif len(written) > 1:
        what = "conflicts with another answer: a path has one of backend, backends and filters.redirect"
        context.error(written[1], what, "take one of the two out")
    elif not written and not place.is_broken:
        what = "has no backend"
        context.error(place, what, "add backend: {namespace: NAME, service: NAME, port: PORT, clusters: [NAME]}")
    if spill is not None and spill.value and several is None:
        context.warn(spill, "no-effect", "is about several services, and there is one", "take it out")


def _check_path(context: Context, place: Place) -> None:
    """Report paths that no request can have, by Kubernetes' rules for Ingresses."""
    path = place.string or ""
    wrong = next((part for part in _NOT_IN_PATHS if part in path), None)
    wrong = wrong or next((end for end in ("/.", "/..") if path.endswith(end)), None)
    if wrong is not None:
        context.error(place, f"{place.shown} has {wrong}", "write a plain path: no // and no dots between slashes")
    elif "?" in path or "#" in path:
        context.error(place, f"{place.shown} is more than a path", "leave out what begins with ? or #")
    elif not path.isascii() or not path.isprintable() or " " in path:
        what = f"{place.shown} has characters that no request line has"
        context.error(place, what, "write them as clients send them, percent-encoded")


def with_certificates(sections: Sections) -> ListSection[ListenerConfig]:
    """Return the listeners, with the certificates by host from the `tls` of their ingresses."""
    certificates = sections.certificates.valid_by_name
    return ListSection(
        listener
        if listener.value is None or listener.value.tls is None or listener.value.serves is not Serves.INGRESS
        else replace(listener, value=_with_certificates(listener.value, sections.ingresses.values, certificates))
        for listener in sections.listeners
    )


def _with_certificates(
    listener: ListenerConfig, ingresses: Sequence[Ingress], certificates: Mapping[str, Certificate]
) -> ListenerConfig:
    assert listener.tls is not None
    entries = [entry for ingress in ingresses if listener.name in ingress.listeners for entry in ingress.tls]
    by_host: dict[str, str] = {}
    for entry in entries:
        covered = certificates[entry.certificate].server_names if entry.certificate in certificates else ()
        for host in entry.hosts or covered:
            by_host.setdefault(host, entry.certificate)
    default = listener.tls.certificates or tuple(entry.certificate for entry in entries[:1])
    return replace(listener, tls=replace(listener.tls, certificates=default, hosts=tuple(by_host.items())))
