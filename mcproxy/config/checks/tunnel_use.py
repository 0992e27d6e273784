"""Checks tunnels together with the servers that accept them and the endpoints that use them."""

from __future__ import annotations

from mcproxy.config.model import HTTPProtocol, ListenerConfig, Server, TunnelsBackend
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.authentication_section import NONE
from mcproxy.config.sections.entries import Named, Sections


def check_tunnels(context: Context, sections: Sections) -> None:
    """Report every error and warning that concerns tunnels and other sections of a hub."""
    listeners = sections.listeners.by_name
    for place, server in sections.servers.valid:
        if isinstance(server.backend, TunnelsBackend):
            _authentication(context, place)
            _on_listeners(context, place, server, listeners)
    _unused(context, sections)


def _authentication(context: Context, place: Place) -> None:
    """Require a set of authenticators, on loopback too: whoever opens a tunnel answers in the name of a cluster."""
    written = place.get("authentication")
    if written is not None and written.string != NONE:
        return  # an unknown set is reported by `checks.server_exposure`
    if written is None and place.has("authentication"):
        return  # the value was reported
    what = "has no authentication, and tunnels need to know who dials"
    context.error(written or place, what, "name a set of authenticators in authentication")


def _on_listeners(context: Context, place: Place, server: Server, listeners: dict[str, Named[ListenerConfig]]) -> None:
    """Check that edges can open a tunnel at each listener, by an upgrade of HTTP/1.1 (RFC 9110 7.8)."""
    written = {item.string: item for item in place.children("listeners")}
    for name in server.listeners:
        found = listeners.get(name)
        where = written.get(name, place)
        if found is not None and found.place.has("dial"):
            what = f"listener {name} dials, and no edge can connect to it to open a tunnel"
            context.error(where, what, "name a listener with bind")
        elif found is not None and found.value is not None and HTTPProtocol.HTTP1 not in found.value.protocols:
            what = f"listener {name} speaks HTTP/2 alone, and a tunnel is opened by an upgrade of HTTP/1.1"
            context.error(where, what, "let its protocols have HTTP1, or name another listener")


def _unused(context: Context, sections: Sections) -> None:
    """Warn of tunnels that no server accepts, or no endpoint uses; not if a faulty entry may name them."""
    names = set(sections.tunnels.names)
    backends = [server.place.get("backend") for server in sections.servers]
    accepting = [item for backend in backends if backend is not None for item in backend.children("tunnels")]
    known = {name for server in sections.servers.values for name in _accepted(server)}
    complete = all(backend is not None and not backend.is_broken for backend in backends)
    complete = complete and {item.string for item in accepting} <= {*names, "*"}
    endpoints = [endpoint for cluster in sections.clusters for endpoint in cluster.place.children("endpoints")]
    used = {endpoint.text("tunnel") for endpoint in endpoints}
    whole = used <= {*names, None} and not any(endpoint.is_broken for endpoint in endpoints)
    for tunnel in sections.tunnels:
        if tunnel.name and complete and tunnel.name not in known:
            what = "no server accepts it, so no edge can open it"
            context.warn(tunnel.place, "unused", what, 'add a server with backend: {tunnels: "*"}')
        if tunnel.name and whole and tunnel.name not in used:
            what = "no endpoint of a cluster uses it, so no request goes through it"
            context.warn(tunnel.place, "unused", what, f"add an endpoint {{tunnel: {tunnel.name}}} to a cluster")


def _accepted(server: Server) -> tuple[str, ...]:
    return server.backend.tunnels if isinstance(server.backend, TunnelsBackend) else ()
