"""Reads the sections `listeners` (addresses, protocols, limits) and `certificates`.

`dial` of a listener is read in `sections.tunnels_section`.
"""

from __future__ import annotations

import grp
from dataclasses import replace

from mcproxy.config.files import pem
from mcproxy.config.model import (
    ADMIN_PATHS,
    Bind,
    Certificate,
    HTTPProtocol,
    Limits,
    ListenerConfig,
    Serves,
    SystemdBind,
    TCPBind,
    UnixBind,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Sections, server_names
from mcproxy.config.sections.model_reader import read, read_over, texts
from mcproxy.config.sections.tunnels_section import PROTOCOLS, dial
from mcproxy.config.server_names import covers, names_in
from mcproxy.config.urls import AddressError, parse_bind


def listener(context: Context, place: Place, sections: Sections) -> ListenerConfig | None:
    """Return the listener written at `place`."""
    dials = place.has("dial")
    protocols = PROTOCOLS if dials else _protocols(context, place)
    bind = _bind(context, place) if not dials else None
    made = read(
        context,
        place,
        ListenerConfig,
        bind=bind,
        dial=dial(context, place),
        protocols=protocols,
        limits=_limits(context, place.get("limits"), protocols),
        paths=tuple(dict.fromkeys(texts(place, "paths"))) or ADMIN_PATHS,
    )
    if isinstance(bind, UnixBind):
        for key, named in (("proxyProtocol", made.proxy_protocol_from), ("trustedProxies", made.trusted_proxies)):
            if named:
                what = f"{key} names networks, but clients of a unix socket have no network address"
                context.warn(place.get(key) or place, "no-effect", what, "take it out")
    _check_goaway_chance(context, place.get("goawayChance"), protocols)
    tls = place.get("tls")
    if tls is not None and not dials and not tls.has("certificates") and place.text("serves") != Serves.INGRESS:
        context.error(tls, "has no certificates", "add certificates")
    if made.serves is not Serves.ADMIN:
        _refuse_admin_keys(context, place, made.serves)
    if dials:
        is_good = made.dial is not None and made.serves is Serves.API
        return replace(made, tls=None, proxy_protocol_from=None, trusted_proxies=()) if is_good and made.name else None
    return made if bind is not None and made.name else None


def _refuse_admin_keys(context: Context, place: Place, serves: Serves) -> None:
    for key in ("paths", "authentication", "authorization"):
        if place.has(key) and (not place.has("serves") or place.get("serves") is not None):
            named = f"name it in the {key} of the servers" if key != "paths" and serves is Serves.API else "take it out"
            what = f"is for a listener that serves Admin, and this one serves {serves}"
            context.error(place.get(key) or place, what, f"{named}, or write serves: Admin")


def _protocols(context: Context, listener: Place) -> tuple[HTTPProtocol, ...]:
    """Return the protocols, best first."""
    has_tls = listener.has("tls")
    is_ingress = listener.text("serves") == Serves.INGRESS
    written = listener.get("protocols")
    if written is None or written.is_broken:
        return (HTTPProtocol.HTTP2, HTTPProtocol.HTTP1) if has_tls else (HTTPProtocol.HTTP1,)
    found: dict[HTTPProtocol, Place] = {}
    for item in written.items():
        protocol = HTTPProtocol(item.string or "")
        first = found.setdefault(protocol, item)
        if first is not item:
            context.error(item, f"{item.shown} is in the list already, at {first.mark}", "keep one of the two")
        elif protocol is HTTPProtocol.HTTP2 and not has_tls and not is_ingress:
            what = "is HTTP2, which is spoken over TLS alone, and this listener has no tls"
            context.error(item, what, "write protocols: [HTTP1], or add tls: {certificates: [NAME]}")
    if tuple(found) == (HTTPProtocol.HTTP2,) and has_tls and not is_ingress:
        what = "is HTTP2 alone, and kubectl exec, attach, cp and port-forward are HTTP/1.1: they would not connect"
        context.warn(written, "no-http1", what, "write [HTTP2, HTTP1]")
    return tuple(found)


def _check_goaway_chance(context: Context, place: Place | None, protocols: tuple[HTTPProtocol, ...]) -> None:
    if place is not None and place.value and HTTPProtocol.HTTP2 not in protocols:
        what = "is about HTTP/2 connections, and this listener speaks HTTP/1.1 alone"
        context.error(place, what, "take it out, or let protocols have HTTP2 (and the listener tls)")


def _limits(context: Context, place: Place | None, protocols: tuple[HTTPProtocol, ...]) -> Limits:
    limits, default = read(context, place, Limits), Limits().streams
    if place is None or limits.streams == default or HTTPProtocol.HTTP2 in protocols:
        return limits
    what = "limits HTTP/2 connections, and this listener speaks HTTP/1.1 alone"
    right = "take it out, or let protocols have HTTP2 (and the listener tls)"
    context.warn(place.get("streams") or place, "no-effect", what, right)
    return replace(limits, streams=default)


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
    made = read_over(context, listener, bind)
    return replace(made, group=_group(context, listener.get("group"))) if isinstance(made, UnixBind) else made


def _check_kind(context: Context, listener: Place, bind: Bind) -> None:
    """Report keys that do not apply to this kind of socket."""
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


# -- the section `certificates` ----------------------------------------------------------------------------------------


def certificate(context: Context, place: Place, sections: Sections) -> Certificate | None:
    cert_place, key_place = place.get("certFile"), place.get("keyFile")
    written = place.get("serverNames")
    names = server_names(context, written) if written is not None else None
    chain = pem.read_file(context, cert_place) if cert_place is not None else None
    key = pem.read_key(context, key_place) if key_place is not None else None
    name = place.text("name")
    if chain is None or key is None or cert_place is None or key_place is None:
        return None
    if context.offline:
        return Certificate(name=name, chain=chain, key=key, server_names=names or ()) if name is not None else None
    leaf = pem.pair(context, cert_place, chain, key_place, key)
    if leaf is None or name is None:
        return None
    if not pem.is_for_servers(leaf):
        what = f"the certificate in {chain.path} is for clients only (extendedKeyUsage)"
        context.warn(cert_place, "certificate-usage", what, "clients will refuse it; make one with serverAuth")
    in_certificate = names_in(leaf)
    if names is None and not in_certificate:
        what = f"the certificate in {chain.path} has no server names"
        context.warn(cert_place, "certificate-names", what, "clients will refuse it; make one with subjectAltName")
    for server_name in names or ():
        if written is not None and not any(covers(pattern, server_name) for pattern in in_certificate):
            what = f"the certificate in {chain.path} does not cover {server_name}"
            context.warn(
                written, "certificate-names", what, f"it is for {', '.join(in_certificate) or 'no name at all'}"
            )
    return Certificate(name=name, chain=chain, key=key, server_names=in_certificate if names is None else names)
