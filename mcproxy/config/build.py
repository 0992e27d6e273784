"""From merged, checked places to the parts of the model, each kept with its place for the checks between parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mcproxy.config import authentication, authorization, pem
from mcproxy.config.clusters import build_cluster
from mcproxy.config.context import Context
from mcproxy.config.fields import Fields, duration_at
from mcproxy.config.merge import Merged
from mcproxy.config.model import (
    AccessLog,
    Authentication,
    Authorization,
    Bind,
    Certificate,
    Cluster,
    Daemon,
    Limits,
    Listener,
    ListenerTLS,
    Logging,
    UnixBind,
)
from mcproxy.config.names import covers, is_server_name
from mcproxy.config.nodes import Place
from mcproxy.config.urls import AddressError, parse_bind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Named(Generic[T]):
    """An entry of a list section. `value` is None where the entry has faults; its name can still be referred to."""

    name: str | None
    place: Place
    value: T | None


def build_all(
    context: Context, merged: Merged, section: str, build: Callable[[Context, Place], T | None]
) -> list[Named[T]]:
    return [Named(place.text("name"), place, build(context, place)) for place in merged.entries(section)]


def build_clusters(context: Context, merged: Merged) -> list[Named[Cluster]]:
    return build_all(context, merged, "clusters", build_cluster)


def build_authentication(context: Context, merged: Merged) -> list[Named[Authentication]]:
    clusters = names_of(merged, "clusters")
    return build_all(
        context, merged, "authentication", lambda context, place: authentication.build(context, place, clusters)
    )


def build_authorization(context: Context, merged: Merged) -> list[Named[Authorization]]:
    clusters = names_of(merged, "clusters")
    return build_all(
        context, merged, "authorization", lambda context, place: authorization.build(context, place, clusters)
    )


def names_of(merged: Merged, section: str) -> list[str]:
    """Return the names that a section defines, be their entries good or not."""
    return [name for place in merged.entries(section) if (name := place.text("name"))]


def build_listeners(context: Context, merged: Merged) -> list[Named[Listener]]:
    return build_all(context, merged, "listeners", _listener)


def build_certificates(context: Context, merged: Merged) -> list[Named[Certificate]]:
    return build_all(context, merged, "certificates", _certificate)


def build_daemon(context: Context, merged: Merged) -> Daemon:
    default = Daemon()
    socket = merged.setting("daemon", "controlSocket")
    return Daemon(
        control_socket=_control_socket(context, socket) if socket is not None else None,
        shutdown_delay=duration_at(merged.setting("daemon", "shutdownDelay"), default.shutdown_delay),
        drain_timeout=duration_at(merged.setting("daemon", "drainTimeout"), default.drain_timeout),
    )


def _control_socket(context: Context, place: Place) -> str | None:
    path = context.path(place)
    if path is not None and len(path.encode()) > 107:
        context.error(place, "is longer than the 107 bytes of a unix socket's path", "use a shorter path")
    return path


def build_logging(context: Context, merged: Merged) -> Logging:
    level, access = merged.setting("logging", "level"), merged.setting("logging", "access")
    log = None
    if access is not None:
        file = access.get("file")
        path = "-" if file is None or file.string == "-" else context.path(file)
        log = AccessLog(file=path or "-", format=Fields(access).text("format", AccessLog().format))
    return Logging(level=(level.string if level is not None else None) or Logging().level, access=log)


def _listener(context: Context, place: Place) -> Listener | None:
    fields = Fields(place)
    bind = _bind(context, place.get("bind"))
    proxy_protocol = place.get("proxyProtocol")
    networks = Fields(proxy_protocol).networks("from", context) if proxy_protocol is not None else None
    trusted = fields.networks("trustedProxies", context)
    if isinstance(bind, UnixBind):
        for key, named in (("proxyProtocol", networks), ("trustedProxies", trusted)):
            if named:
                what = f"{key} names networks, but nobody comes to a unix socket from a network"
                context.warn(place.get(key) or place, what, "take it out")
    tls = place.get("tls")
    name = place.text("name")
    if bind is None or name is None:
        return None
    return Listener(
        name=name,
        bind=bind,
        proxy_protocol_from=networks,
        trusted_proxies=trusted,
        tls=_listener_tls(tls) if tls is not None else None,
        limits=_limits(fields.sub("limits")),
    )


def _bind(context: Context, place: Place | None) -> Bind | None:
    if place is None:
        return None
    try:
        return parse_bind(place.string or "")
    except AddressError as error:
        context.error(place, error.what, error.right)
        return None


def _listener_tls(place: Place) -> ListenerTLS:
    names = tuple(name.string or "" for name in place.children("certificates"))
    default = ListenerTLS(certificates=names)
    return ListenerTLS(certificates=names, min_version=Fields(place).text("minVersion", default.min_version))


def _limits(fields: Fields) -> Limits:
    default = Limits()
    return Limits(
        connections=fields.integer("connections", default.connections),
        head_bytes=fields.size("headBytes", default.head_bytes),
        target_bytes=fields.size("targetBytes", default.target_bytes),
        headers=fields.integer("headers", default.headers),
        body_bytes=fields.size("bodyBytes", default.body_bytes),
        handshake_timeout=fields.duration("handshakeTimeout", default.handshake_timeout),
        head_timeout=fields.duration("headTimeout", default.head_timeout),
        idle_timeout=fields.duration("idleTimeout", default.idle_timeout),
    )


def _certificate(context: Context, place: Place) -> Certificate | None:
    cert_place, key_place = place.get("certFile"), place.get("keyFile")
    written = place.get("serverNames")
    names = server_names(context, written) if written is not None else None
    chain = pem.read_file(context, cert_place) if cert_place is not None else None
    key = pem.read_file(context, key_place) if key_place is not None else None
    name = place.text("name")
    if chain is None or key is None or cert_place is None or key_place is None:
        return None
    leaf = pem.pair(context, cert_place, chain, key_place, key)
    if leaf is None or name is None:
        return None
    in_certificate = pem.names_in(leaf)
    if names is None and not in_certificate:
        what = f"the certificate in {chain.path} has no server names"
        context.warn(cert_place, what, "clients will refuse it; make one with subjectAltName")
    for server_name in names or ():
        if written is not None and not any(covers(pattern, server_name) for pattern in in_certificate):
            what = f"the certificate in {chain.path} does not cover {server_name}"
            context.warn(written, what, f"it is for {', '.join(in_certificate) or 'no name at all'}")
    return Certificate(name=name, chain=chain, key=key, server_names=in_certificate if names is None else names)


def server_names(context: Context, places: Place) -> tuple[str, ...]:
    """Return the server names in a list, lower case, in order; ill-formed and doubled ones are reported."""
    found: dict[str, Place] = {}
    for place in places.items():
        name = (place.string or "").lower().rstrip(".")
        if not is_server_name(name):
            right = "write a DNS name, *. and a DNS name, or an IP address"
            context.error(place, f"{place.shown} is no server name", right)
        elif name in found:
            context.error(place, f"{place.shown} is in the list already, at {found[name].mark}", "keep one of the two")
        else:
            found[name] = place
    return tuple(found)
