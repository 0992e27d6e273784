"""Checks that listeners, certificates and servers fit together: addresses, TLS, server names, default servers."""

from __future__ import annotations

from mcproxy.config.model import (
    ClusterBackend,
    ClustersBackend,
    Dial,
    Server,
    Serves,
    SystemdBind,
    TCPBind,
    TunnelsBackend,
    UnixBind,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, Sections, references
from mcproxy.config.server_names import covers
from mcproxy.config.suggestions import nearest
from mcproxy.config.urls import is_open


def check_listeners(context: Context, sections: Sections) -> None:
    """Check bind, certificates and TLS of each listener, and that a server or ingress uses it."""
    known, servers = sections.certificates.names, sections.servers
    control_socket = sections.merged.setting("daemon", "controlSocket")
    used = {name for server in servers.values for name in server.listeners}
    # A server with invalid listeners can be meant for any of them.
    complete = all(server.listeners or not place.has("listeners") for place, server in servers.valid)
    taken: dict[str, Place] = {}
    dialled: dict[str, tuple[Place, Dial]] = {}
    if control_socket is not None and (path := context.path(control_socket)) is not None:
        taken[str(UnixBind(path))] = control_socket
    for listener in sections.listeners:
        place = listener.place
        tls = place.get("tls")
        references(context, tls.get("certificates") if tls is not None else None, known, "certificate")
        if listener.value is None or (place.has("serves") and place.get("serves") is None):  # reported
            continue
        bind, address = listener.value.bind, listener.value.address
        if listener.value.dial is not None:
            _check_dial(context, place, listener.value.dial, dialled)
            if complete and listener.name not in used:
                context.warn(place, "unused", "no server is on this listener", "name it in the listeners of a server")
            continue
        where = place.get("bind") or place
        is_api = listener.value.serves is Serves.API  # `checks.admin_exposure` checks Admin listeners
        if is_api and not place.has("tls") and is_open(bind) and not isinstance(bind, SystemdBind):
            what = f"listens on {address} without tls, open beyond this machine"
            context.error(place, what, "add tls: {certificates: [NAME]}, or bind it to 127.0.0.1 or a unix socket")
        if address in taken:
            what = f"{address} is bound already, at {taken[address].mark}"
            context.error(where, what, "bind one of the two elsewhere")
        elif not (isinstance(bind, TCPBind) and bind.port == 0):
            taken[address] = where
        if is_api and complete and listener.name not in used:
            context.warn(place, "unused", "no server is on this listener", "name it in the listeners of a server")


def _check_dial(context: Context, listener: Place, dial: Dial, dialled: dict[str, tuple[Place, Dial]]) -> None:
    """Report a tunnel of two listeners: they are known by the tunnel, and its hub has a connection of each."""
    where = listener.get("dial") or listener
    first, other = dialled.setdefault(dial.tunnel, (where, dial))
    if first is where:
        return
    common = next((url for url in dial.urls if url in other.urls), None)
    whose = f"to {common} " if common is not None else ""
    what = f"the tunnel {dial.tunnel} {whose}is dialled already, at {first.mark}"
    right = "take one of the two out" if common is not None else "write all hubs into the urls of one listener"
    context.error(where.get("tunnel") or where, what, right)


def check_servers(context: Context, sections: Sections) -> None:
    """Check that requests find each server: a listener, a server name of its own, and at most one default.

    A hub sends no server name, so of several servers on a listener with dial one must be the default.
    """
    claims: dict[tuple[str, str], Place] = {}
    on: dict[str, list[Server]] = {}
    for server in sections.servers.values:
        for name in server.listeners:
            on.setdefault(name, []).append(server)
    dialling = {listener.name for listener in sections.listeners if listener.name and listener.place.has("dial")}
    for listener in sections.listeners:
        found = on.get(listener.name or "", [])
        if listener.name in dialling and len(found) > 1 and not any(server.default for server in found):
            what = f"serves {', '.join(server.name for server in found)}, and a hub sends no server name to choose by"
            context.error(listener.place, what, "write default: true to one of them, or leave one of them here")
    for place, server in sections.servers.valid:
        if server.listeners and all(name in dialling for name in server.listeners):
            _check_behind_tunnels(context, place, server, on)
        elif dialling and not server.listeners and not place.has("listeners") and _no_other(sections):
            what = "is on no listener: one with dial has only the servers that name it"
            context.warn(place, "no-listener", what, f"write listeners: [{next(iter(sorted(dialling)))}]")
        else:
            _check_reachable(context, place)
            if all(listener.value and listener.value.serves is not Serves.API for listener in sections.listeners):
                context.warn(place, "no-listener", "there is no listener for it", "add a listener")
        _claims(context, place, server, claims)
    _check_default(context, sections.servers)


def _no_other(sections: Sections) -> bool:
    """Whether no listener but those with dial serves API, or may serve it."""
    others = [listener.value for listener in sections.listeners if not listener.place.has("dial")]
    return all(listener is not None and listener.serves is not Serves.API for listener in others)


def _check_behind_tunnels(context: Context, place: Place, server: Server, on: dict[str, list[Server]]) -> None:
    """Warn of a server on listeners with dial alone that has names, or that another server hides on each of them."""
    names = place.get("serverNames")
    if names is not None and any(names.items()):
        what = "name nothing here: a hub sends no server name"
        context.warn(names, "no-effect", what, "take them out, or add a listener with bind to listeners")
    if not server.default and all(any(other.default for other in on[name]) for name in server.listeners):
        what = "is on listeners with dial alone, and another server is the default there, so no request finds it"
        context.warn(place, "unreachable-server", what, "take it out, or give it a listener of its own")


def _check_reachable(context: Context, place: Place) -> None:
    misspelt = any(nearest(key, ("serverNames", "default")) for key in place.reported_keys())
    if not place.has("serverNames") and not place.has("default") and not misspelt:
        what = "has neither serverNames nor default: true, so no request finds it"
        context.warn(place, "unreachable-server", what, "add serverNames: [NAME], or default: true")


def _check_default(context: Context, servers: ListSection[Server]) -> None:
    """Warn of a default server for one cluster on a listener with servers of other clusters.

    A client that connects by address, without a TLS server name, reaches it instead of the intended cluster.
    """
    for place, server in servers.valid:
        backend = server.backend
        if not server.default or isinstance(backend, ClustersBackend | TunnelsBackend):
            continue
        for listener in server.listeners:
            others = [other for other in servers.values if other is not server and listener in other.listeners]
            differing = [
                other
                for other in others
                if other.clusters != server.clusters and not isinstance(other.backend, TunnelsBackend)
            ]
            if differing:
                reached = (
                    f"cluster {backend.cluster}"
                    if isinstance(backend, ClusterBackend)
                    else f"aggregate {backend.aggregate}"
                )
                what = f"a client of {differing[0].name} that sends no TLS server name silently reaches {reached}"
                right = "write default: false, or let the default serve several clusters under /clusters/NAME"
                context.warn(place.get("default") or place, "default-server", what, right)
                break


def _claims(context: Context, place: Place, server: Server, claims: dict[tuple[str, str], Place]) -> None:
    written = place.get("serverNames")
    places = {(item.string or "").lower().rstrip("."): item for item in written.items()} if written is not None else {}
    if server.default:
        places[""] = place.get("default") or place
    for listener in server.listeners:
        for name, where in places.items():
            first = claims.setdefault((listener, name), where)
            if first is where:
                continue
            if name:
                what = f"{where.shown} is a name of another server on listener {listener} already, at {first.mark}"
                context.error(where, what, "keep it at one of the two")
            else:
                what = f"listener {listener} has a default server already, at {first.mark}"
                context.error(where, what, "keep one of the two")


def check_coverage(context: Context, sections: Sections) -> None:
    """Warn of server names that no certificate of a listener covers, unless a certificate has errors.

    Offline only the certificate names in the configuration are known.
    """
    tls = {listener.name: listener.tls for listener in sections.listeners.values}
    patterns = {
        certificate.name: certificate.server_names
        for place, certificate in sections.certificates.valid
        if place.has("serverNames") or not context.offline
    }
    for server_place, server in sections.servers.valid:
        written = server_place.get("serverNames")
        if written is None:
            continue
        for name in server.listeners:
            settings = tls.get(name)
            if settings is None or not all(certificate in patterns for certificate in settings.certificates):
                continue
            offered = [pattern for certificate in settings.certificates for pattern in patterns[certificate]]
            for place in written.items():
                wanted = (place.string or "").lower().rstrip(".")
                if not any(covers(pattern, wanted) for pattern in offered):
                    what = f"no certificate of listener {name} covers {wanted}"
                    context.warn(
                        place, "certificate-names", what, "clients will refuse the connection; add a certificate for it"
                    )
