"""A backend of an ingress: a Service in several clusters, and how its pods are reached."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config import credential_checks
from mcproxy.config.files import pem
from mcproxy.config.model import (
    Affinity,
    BackendHealthCheck,
    BackendProtocol,
    BackendTLS,
    IngressBackend,
    PEMFile,
    Strategy,
    Via,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.clusters_section import server_name
from mcproxy.config.sections.entries import references
from mcproxy.config.sections.model_reader import integer_at, read
from mcproxy.config.sections.services_section import pod_networks
from mcproxy.config.suggestions import suggest


def ingress_backend(context: Context, place: Place, clusters: Sequence[str]) -> IngressBackend | None:
    """Return the backend written at `place`, or None if something required is missing (reported)."""
    written = place.get("clusters")
    chosen = references(context, written, clusters, "cluster") if written is not None else ()
    backend = read(
        context,
        place,
        IngressBackend,
        clusters=chosen,
        weights=_weights(context, place.get("weights"), chosen, written),
        tls=_tls(context, place.get("tls")),
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
        elif clusters and cluster not in named:  # one that is wrong there is reported there
            context.error(weight, f"{cluster} is not in clusters", suggest(cluster, clusters))
    if clusters and all(weights.get(cluster, 1) == 0 for cluster in clusters):
        what = "are all 0, so every request gets 503"
        context.warn(place, "endpoints-disabled", what, "give one cluster a weight")
    return tuple(weights.items())


def _tls(context: Context, place: Place | None) -> BackendTLS | None:
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
    """Report settings of the choice of an endpoint that have no effect beside each other."""
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
    """Report settings that an API server cannot apply: it chooses the pod itself and connects to it by HTTP/1.1."""
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
