"""Reads the section `clusters`: endpoints, credentials, and how users are conveyed to a cluster."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from mcproxy.config import credential_checks
from mcproxy.config.files import pem
from mcproxy.config.kubeconfig_reader import Access, read_access
from mcproxy.config.model import (
    ClusterConfig,
    ClusterTLS,
    Connections,
    Credentials,
    EndpointConfig,
    ExecPlugin,
    FrontProxy,
    HealthCheck,
    Secret,
    UpstreamIdentity,
    UpstreamProtocol,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Mapping, Place
from mcproxy.config.sections.entries import Sections, reference, unique_names
from mcproxy.config.sections.http_proxy import http_proxy
from mcproxy.config.sections.model_reader import read, read_over
from mcproxy.config.server_names import is_server_name
from mcproxy.config.urls import AddressError, check_path, parse_endpoint, parse_path

# -- `identity` of a cluster, related keys, and the requirements of each value -----------------------------------------


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    identity: UpstreamIdentity | None  # None: the value is invalid (reported)
    extras: tuple[str, ...]
    front_proxy: FrontProxy | None


def build_identity(context: Context, place: Place) -> ClusterIdentity:
    """Return how users are conveyed to the cluster at `place`."""
    written = place.text("identity")
    front = place.get("frontProxy")
    pair = pem.read_pair(context, front) if front is not None else None
    return ClusterIdentity(
        identity=UpstreamIdentity(written or UpstreamIdentity.IMPERSONATE)
        if written or not place.has("identity")
        else None,
        extras=_impersonate_extras(context, place),
        front_proxy=FrontProxy(*pair) if pair is not None else None,
    )


def _impersonate_extras(context: Context, place: Place) -> tuple[str, ...]:
    """Return the extra keys, which Kubernetes has in lower case only."""
    found: dict[str, Place] = {}
    for item in place.children("impersonateExtras"):
        key = item.string or ""
        if "*" in key and key != "*":
            context.error(
                item, f"{item.shown} is not a key, and keys have no patterns", 'list the keys, or write "*" for all'
            )
        elif not key.isascii() or not key.isprintable() or " " in key:
            context.error(item, f"{item.shown} is not an extra key", "write one such as scopes or example.com/team")
        elif key != key.lower():
            context.error(item, f"{item.shown} has capitals, and extra keys have none", f"write {key.lower()}")
        elif key in found:
            context.error(item, f"{item.shown} is in the list already, at {found[key].mark}", "keep one of the two")
        else:
            found[key] = item
    if "*" in found and len(found) > 1:
        other = next(item for key, item in found.items() if key != "*")
        context.warn(
            other, "no-effect", f'{other.shown} has no effect with "*", which passes on all', "keep one of the two"
        )
        return ("*",)
    return tuple(found)


def check_identity(context: Context, place: Place, settings: ClusterIdentity, access: Access) -> None:
    """Check that the cluster has the keys that its identity needs, and warn of keys that it does not use."""
    identity = settings.identity
    if identity is None:
        return
    tunnels_alone = _are_tunnels(place)
    missing = credential_checks.are_missing(place, access.credentials)
    where = place.get("identity") or place
    if identity is UpstreamIdentity.IMPERSONATE and missing:
        setting = "identity: Impersonate" if place.has("identity") else "identity: Impersonate (the default)"
        what = f"has {setting} but no credentials, which impersonation requires"
        right = "add credentials that may impersonate, or write identity: Passthrough (the client's own credentials)"
        if tunnels_alone:
            right = "write identity: RequestHeader, so that the edge impersonates, or add credentials for it"
        context.error(place, what, right)
    elif identity is UpstreamIdentity.PROXY and missing and tunnels_alone:
        what = "has identity: Proxy but no credentials: at the end of the tunnel every user is the edge's hubUser"
        context.warn(place, "no-credentials", what, "write identity: RequestHeader, or add credentials")
    elif identity is UpstreamIdentity.PROXY and missing:
        what = "has identity: Proxy but no credentials: every request is anonymous to the cluster"
        context.warn(place, "no-credentials", what, "add credentials")
    elif identity is UpstreamIdentity.REQUEST_HEADER and not place.has("frontProxy") and not tunnels_alone:
        what = "has identity: RequestHeader but no frontProxy, and without its certificate X-Remote-* is not trusted"
        context.error(place, what, "add frontProxy: {certFile: …, keyFile: …}")
    if identity is not UpstreamIdentity.REQUEST_HEADER and place.has("frontProxy"):
        what = f"belongs to identity: RequestHeader, and this is identity: {identity}"
        context.warn(
            place.get("frontProxy") or where, "no-effect", what, "take it out, or write identity: RequestHeader"
        )
    if identity is not UpstreamIdentity.IMPERSONATE and settings.extras:
        what = f"belongs to identity: Impersonate, and this is identity: {identity}"
        right = "take it out" + ("" if identity is UpstreamIdentity.PASSTHROUGH else ", or write identity: Impersonate")
        context.warn(place.get("impersonateExtras") or where, "no-effect", what, right)
    if identity is UpstreamIdentity.REQUEST_HEADER and settings.front_proxy is not None:
        _check_secure(context, place, access)


def _are_tunnels(cluster: Place) -> bool:
    """Whether every endpoint is behind a tunnel, valid or not."""
    endpoints = list(cluster.children("endpoints"))
    return bool(endpoints) and all(endpoint.has("tunnel") for endpoint in endpoints)


_WITHOUT_TUNNELS = {
    "tls": "the edge has dialled, and its listener says what it trusts",
    "proxy": "the edge dials, and has the key proxy in its dial",
    "frontProxy": "the edge believes X-Remote-* without a certificate (requestHeader.listeners)",
}
"""Keys of a cluster that are for endpoints with a url alone, with the reason."""


def _check_tunnels(context: Context, place: Place, access: Access, identity: ClusterIdentity) -> None:
    """Warn of keys that are without effect if every endpoint is behind a tunnel."""
    if not _are_tunnels(place):
        return
    for key, reason in _WITHOUT_TUNNELS.items():
        written = place.get(key)
        empty = written is not None and isinstance(written.node, Mapping) and _is_default(key, access)
        other = key == "frontProxy" and identity.identity is not UpstreamIdentity.REQUEST_HEADER  # warned of already
        if written is not None and not empty and not other:
            what = f"is for endpoints with a url, and all of these are tunnels: {reason}"
            context.warn(written, "no-effect", what, "take it out")
    credentials = place.get("credentials")
    certificate = credentials.get("certFile") if credentials is not None else None
    if certificate is not None:
        what = "is a client certificate, and all endpoints are tunnels: over one none can be shown"
        context.warn(certificate, "no-effect", what, "use a token, tokenFile or exec")


def _is_default(key: str, access: Access) -> bool:
    """Whether `tls` has no value that differs from its default, as in a dump."""
    return key == "tls" and access.tls == ClusterTLS()


def _check_secure(context: Context, place: Place, access: Access) -> None:
    plain = next((endpoint for endpoint in access.endpoints if endpoint.scheme == "http"), None)
    if plain is not None:
        what = f"has identity: RequestHeader, and the certificate in frontProxy cannot be shown to {plain.url}"
        if access.stays_here(plain):
            context.warn(place, "in-clear", what, "use https")
        else:
            context.error(place, what, "use https")


# -- clusters ---------------------------------------------------------------------------------------------------------


def cluster(context: Context, place: Place, sections: Sections) -> ClusterConfig | None:
    """Return the cluster at `place`, or None if a required value is missing or wrong (reported)."""
    access = _access(context, place, sections.tunnels.names)
    health_check = _health_check(context, place.get("healthCheck"))
    connections = read(context, place.get("connections"), Connections)
    identity = build_identity(context, place)
    if access is not None:
        _check_protocol(context, place.get("connections"), connections, access)
        _check_exposure(context, place, access)
        check_identity(context, place, identity, access)
        _check_tunnels(context, place, access, identity)
    if access is None or not access.endpoints or place.text("name") is None or identity.identity is None:
        return None
    return read(
        context,
        place,
        ClusterConfig,
        endpoints=access.endpoints,
        tls=access.tls,
        credentials=access.credentials,
        identity=identity.identity,
        impersonate_extras=identity.extras,
        front_proxy=identity.front_proxy,
        health_check=health_check,
        connections=connections,
        proxy=access.proxy,
        kubeconfig=access.kubeconfig,
    )


def _access(context: Context, place: Place, tunnels: Collection[str]) -> Access | None:
    if place.has("kubeconfig"):
        reference = place.get("kubeconfig")
        access = read_access(context, reference) if reference is not None else None
        if access is not None and reference is not None:
            for endpoint in access.endpoints:
                check_path(context, reference, endpoint.path)
        return access
    if not place.has("endpoints"):
        return None
    unique_names(context, place.children("endpoints"))
    endpoints = tuple(_endpoint(context, entry, tunnels) for entry in place.children("endpoints"))
    good = tuple(endpoint for endpoint in endpoints if endpoint is not None)
    _check_doubled_urls(context, place)
    _check_doubled_tunnels(context, place)
    if good and all(endpoint.disabled for endpoint in good):
        what = "are all disabled, so every request gets 503"
        context.warn(place.get("endpoints") or place, "endpoints-disabled", what, "leave one of them enabled")
    return Access(
        endpoints=good if len(good) == len(endpoints) else (),
        tls=_tls(context, place.get("tls")),
        credentials=_credentials(context, place.get("credentials")),
        proxy=http_proxy(context, place.get("proxy")),
    )


def _endpoint(context: Context, place: Place, tunnels: Collection[str]) -> EndpointConfig | None:
    if place.has("tunnel"):
        return _behind_tunnel(context, place, tunnels)
    url = place.get("url")
    if url is None and context.offline and place.has("url"):
        return parse_endpoint("https://variable.invalid", place.text("name"))
    if url is None:
        return None
    try:
        endpoint = parse_endpoint(url.string or "", place.text("name"))
    except AddressError as error:
        context.error(url, error.what, error.right)
        return None
    check_path(context, url, endpoint.path)
    return read_over(context, place, endpoint)


def _behind_tunnel(context: Context, place: Place, tunnels: Collection[str]) -> EndpointConfig | None:
    written, path_place = place.get("tunnel"), place.get("path")
    name = reference(context, written, tunnels, "tunnel", none="define it in the section tunnels")
    if written is None and context.offline:
        name = "variable"
    path = ""
    if path_place is not None:
        try:
            path = parse_path(path_place.string or "")
        except AddressError as error:
            context.error(path_place, error.what, error.right)
            return None
        check_path(context, path_place, path)
    if name is None:
        return None
    endpoint = EndpointConfig(name="", scheme="tunnel", host=name, port=0, path=path, tunnel=name)
    return read_over(context, place, replace(endpoint, name=place.text("name") or endpoint.url))


def _check_doubled_tunnels(context: Context, place: Place) -> None:
    first: dict[tuple[str, str], Place] = {}
    for entry in place.children("endpoints"):
        tunnel = entry.get("tunnel")
        if tunnel is None or tunnel.string is None:
            continue
        known = first.setdefault((tunnel.string, (entry.text("path") or "").rstrip("/")), tunnel)
        if known is not tunnel:
            what = f"is an endpoint of this cluster already, with this path, at {known.mark}"
            context.error(tunnel, what, "keep one of the two")


def _check_doubled_urls(context: Context, place: Place) -> None:
    first: dict[str, Place] = {}
    for entry in place.children("endpoints"):
        url = entry.get("url")
        if url is None or url.string is None:
            continue
        known = first.setdefault(url.string.lower().rstrip("/"), url)
        if known is not url:
            context.error(url, f"is an endpoint of this cluster already, at {known.mark}", "keep one of the two")


def _tls(context: Context, place: Place | None) -> ClusterTLS:
    if place is None:
        return ClusterTLS()
    ca_place, name = place.get("caFile"), place.get("serverName")
    ca = pem.read_file(context, ca_place) if ca_place is not None else None
    if ca_place is not None and ca is not None:
        pem.authorities(context, ca_place, ca)
    credential_checks.check_verification(context, place.get("insecureSkipVerify"), ca, "caFile")
    verified = server_name(context, name) if name is not None else None
    return read(context, place, ClusterTLS, ca=ca, server_name=verified)


def server_name(context: Context, place: Place) -> str | None:
    """Return the name that a cluster's certificate must have, in lower case."""
    name = (place.string or "").lower().rstrip(".")
    if is_server_name(name) and not name.startswith("*"):
        return name
    context.error(
        place, f"{place.shown} is not a name that a certificate could have", "write a DNS name or an IP address"
    )
    return None


def _credentials(context: Context, place: Place | None) -> Credentials:
    if place is None:
        return Credentials()
    token, token_file, plugin = place.get("token"), place.get("tokenFile"), place.get("exec")
    secret = token.string if token is not None else None
    if token is None and context.offline and place.has("token"):
        secret = ""  # the secret comes from a variable
    if token is not None and secret is not None:
        credential_checks.check_token(context, token, secret)
    cert_place, key_place = place.get("certFile"), place.get("keyFile")
    certificate = pem.read_file(context, cert_place) if cert_place is not None else None
    key = pem.read_key(context, key_place) if key_place is not None else None
    if certificate is not None and key is not None and cert_place is not None and key_place is not None:
        pem.pair(context, cert_place, certificate, key_place, key)
    return Credentials(
        token=Secret(secret) if secret is not None else None,
        token_file=credential_checks.token_file(context, token_file) if token_file is not None else None,
        certificate=certificate,
        key=key,
        exec=_exec(context, plugin) if plugin is not None else None,
    )


def _exec(context: Context, place: Place) -> ExecPlugin | None:
    command = place.get("command")
    found = (
        credential_checks.command(context, command, place.text("installHint") or "") if command is not None else None
    )
    return read(context, place, ExecPlugin, command=found) if found is not None else None


def _health_check(context: Context, place: Place | None) -> HealthCheck:
    check = read(context, place, HealthCheck)
    for key, value in (("interval", check.interval), ("timeout", check.timeout)):
        written = place.get(key) if place is not None else None
        if written is not None and value == 0:
            context.error(written, "is 0", "write a duration such as 5s")
    return check


def _check_protocol(context: Context, place: Place | None, connections: Connections, access: Access) -> None:
    """If HTTP/2 is the only protocol, check that all endpoints can use it."""
    written = place.get("protocol") if place is not None else None
    plain = [endpoint for endpoint in access.endpoints if endpoint.scheme == "http"]
    if written is not None and connections.protocol is UpstreamProtocol.HTTP2 and plain:
        what = f"is HTTP2, which is spoken over TLS alone, and the endpoint {plain[0].url} is http"
        context.error(written, what, "write Auto or HTTP1, or use https")


def _check_exposure(context: Context, place: Place, access: Access) -> None:
    """Check that no credentials or users are sent to endpoints without TLS."""
    in_clear = [e for e in access.endpoints if e.scheme == "http" and not access.stays_here(e)]
    has_credentials = credential_checks.has_any(access.credentials)
    if in_clear and has_credentials:
        what = f"credentials would go to {in_clear[0].url} in clear"
        context.error(place, what, "use https, or take the credentials out")
    elif in_clear:
        context.warn(place, "in-clear", f"requests go to {in_clear[0].url} in clear, tokens in them too", "use https")
    if access.endpoints and all(endpoint.scheme == "http" for endpoint in access.endpoints):
        _check_tls_unused(context, place, access)


def _check_tls_unused(context: Context, place: Place, access: Access) -> None:
    """Warn of TLS settings if no endpoint uses TLS."""
    unused = [
        name
        for name, given in (
            ("tls settings", access.tls != ClusterTLS()),
            ("a client certificate", access.credentials.certificate is not None),
        )
        if given
    ]
    for name in unused:
        what = f"has {name}, but every endpoint is http, where that means nothing"
        context.warn(place, "no-effect", what, "use https, or take it out")
