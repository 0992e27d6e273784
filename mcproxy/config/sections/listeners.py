"""The section `listeners`."""

from __future__ import annotations

import grp
from dataclasses import replace

from mcproxy.config.context import Context
from mcproxy.config.model import (
    ADMIN_PATHS,
    Bind,
    HTTPProtocol,
    Limits,
    Listener,
    ListenerTLS,
    Serves,
    SystemdBind,
    TCPBind,
    UnixBind,
)
from mcproxy.config.reading.merge import Merged
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.fields import Fields, texts
from mcproxy.config.sections.section import Named, build_all
from mcproxy.config.urls import AddressError, parse_bind


def build_listeners(context: Context, merged: Merged) -> list[Named[Listener]]:
    return build_all(context, merged, "listeners", _listener)


def _listener(context: Context, place: Place) -> Listener | None:
    fields = Fields(place)
    bind = _bind(context, place)
    proxy_protocol = place.get("proxyProtocol")
    networks = Fields(proxy_protocol).networks("from", context) if proxy_protocol is not None else None
    trusted = fields.networks("trustedProxies", context)
    if isinstance(bind, UnixBind):
        for key, named in (("proxyProtocol", networks), ("trustedProxies", trusted)):
            if named:
                what = f"{key} names networks, but clients of a unix socket have no network address"
                context.warn(place.get(key) or place, "no-effect", what, "take it out")
    tls = place.get("tls")
    protocols = _protocols(context, place)
    limits = place.get("limits")
    name = place.text("name")
    serves = Serves(fields.text("serves", Serves.API))
    if serves is not Serves.ADMIN:
        _refuse_admin_keys(context, place)
    if bind is None or name is None:
        return None
    return Listener(
        name=name,
        bind=bind,
        serves=serves,
        proxy_protocol_from=networks,
        trusted_proxies=trusted,
        tls=_listener_tls(tls) if tls is not None else None,
        protocols=protocols,
        goaway_chance=_goaway_chance(context, place.get("goawayChance"), protocols),
        limits=_limits(Fields(limits), _streams(context, limits, protocols)),
        paths=tuple(dict.fromkeys(texts(place, "paths"))) or ADMIN_PATHS,
        authentication=place.text("authentication"),
        authorization=place.text("authorization"),
    )


def _refuse_admin_keys(context: Context, place: Place) -> None:
    for key, right in (
        ("paths", "take it out, or write serves: Admin"),
        ("authentication", "name it in the authentication of the servers, or write serves: Admin"),
        ("authorization", "name it in the authorization of the servers, or write serves: Admin"),
    ):
        if place.has(key) and (not place.has("serves") or place.get("serves") is not None):
            context.error(
                place.get(key) or place, "is for a listener that serves Admin, and this one serves API", right
            )


def _protocols(context: Context, listener: Place) -> tuple[HTTPProtocol, ...]:
    """Return what is spoken, best first."""
    has_tls = listener.has("tls")
    written = listener.get("protocols")
    if written is None or written.is_broken:
        return (HTTPProtocol.HTTP2, HTTPProtocol.HTTP1) if has_tls else (HTTPProtocol.HTTP1,)
    found: dict[HTTPProtocol, Place] = {}
    for item in written.items():
        protocol = HTTPProtocol(item.string or "")
        first = found.setdefault(protocol, item)
        if first is not item:
            context.error(item, f"{item.shown} is in the list already, at {first.mark}", "keep one of the two")
        elif protocol is HTTPProtocol.HTTP2 and not has_tls:
            what = "is HTTP2, which is spoken over TLS alone, and this listener has no tls"
            context.error(item, what, "write protocols: [HTTP1], or add tls: {certificates: [NAME]}")
    if tuple(found) == (HTTPProtocol.HTTP2,) and has_tls:
        what = "is HTTP2 alone, and kubectl exec, attach, cp and port-forward are HTTP/1.1: they would not connect"
        context.warn(written, "no-http1", what, "write [HTTP2, HTTP1]")
    return tuple(found)


def _goaway_chance(context: Context, place: Place | None, protocols: tuple[HTTPProtocol, ...]) -> float:
    if place is None or not isinstance(place.value, int | float):
        return 0.0
    if place.value and HTTPProtocol.HTTP2 not in protocols:
        what = "is about HTTP/2 connections, and this listener speaks HTTP/1.1 alone"
        context.error(place, what, "take it out, or let protocols have HTTP2 (and the listener tls)")
    return float(place.value)


def _streams(context: Context, limits: Place | None, protocols: tuple[HTTPProtocol, ...]) -> int:
    default = Limits().streams
    written = limits.get("streams") if limits is not None else None
    streams = Fields(limits).integer("streams", default)
    if written is not None and streams != default and HTTPProtocol.HTTP2 not in protocols:
        what = "limits HTTP/2 connections, and this listener speaks HTTP/1.1 alone"
        context.warn(written, "no-effect", what, "take it out, or let protocols have HTTP2 (and the listener tls)")
        return default
    return streams


def _bind(context: Context, listener: Place) -> Bind | None:
    place = listener.get("bind")
    if place is None:
        return None
    try:
        bind = parse_bind(place.string or "")
    except AddressError as error:
        context.error(place, error.what, error.right)
        return None
    _check_kind(context, listener, bind)
    fields = Fields(listener)
    if isinstance(bind, UnixBind):
        mode = int(fields.text("mode", "600"), 8) if listener.get("mode") is not None else bind.mode
        return replace(bind, mode=mode, group=_group(context, listener.get("group")))
    if isinstance(bind, TCPBind):
        return replace(bind, free_bind=fields.boolean("freeBind", False))
    return bind


def _check_kind(context: Context, listener: Place, bind: Bind) -> None:
    """Report keys that are for another kind of socket."""
    for key, kind, needed in (("mode", UnixBind, "unix"), ("group", UnixBind, "unix"), ("freeBind", TCPBind, "TCP")):
        written = listener.get(key)
        if written is not None and written.value is not False and not isinstance(bind, kind):
            right = "take it out"
            if isinstance(bind, SystemdBind):
                right += ", and set it in the socket unit of systemd"
            context.error(written, f"is for {needed} sockets, and this listener binds {bind}", right)


def _group(context: Context, place: Place | None) -> str | None:
    if place is None or place.string is None or context.offline:
        return place.string if place is not None else None
    try:
        grp.getgrnam(place.string)
    except KeyError:
        context.error(place, f"there is no group {place.shown} on this machine", "create it, or name another one")
    return place.string


def _listener_tls(place: Place) -> ListenerTLS:
    names = tuple(name.string or "" for name in place.children("certificates"))
    default = ListenerTLS(certificates=names)
    return ListenerTLS(certificates=names, min_version=Fields(place).text("minVersion", default.min_version))


def _limits(fields: Fields, streams: int) -> Limits:
    default = Limits()
    return Limits(
        connections_per_client=fields.integer("connectionsPerClient", default.connections_per_client),
        stall_timeout=fields.duration("stallTimeout", default.stall_timeout),
        connections=fields.integer("connections", default.connections),
        head_bytes=fields.size("headBytes", default.head_bytes),
        target_bytes=fields.size("targetBytes", default.target_bytes),
        headers=fields.integer("headers", default.headers),
        body_bytes=fields.size("bodyBytes", default.body_bytes),
        handshake_timeout=fields.duration("handshakeTimeout", default.handshake_timeout),
        head_timeout=fields.duration("headTimeout", default.head_timeout),
        idle_timeout=fields.duration("idleTimeout", default.idle_timeout),
        streams=streams,
    )
