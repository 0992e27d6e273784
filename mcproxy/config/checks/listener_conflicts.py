"""Checks between listeners, certificates and servers."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import (
    Certificate,
    ClusterBackend,
    ClustersBackend,
    Listener,
    Server,
    Serves,
    SystemdBind,
    TCPBind,
    UnixBind,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Named, references
from mcproxy.config.server_names import covers
from mcproxy.config.urls import is_open


def check_listeners(
    context: Context,
    listeners: Sequence[Named[Listener]],
    certificates: Sequence[Named[Certificate]],
    servers: Sequence[Named[Server]],
    control_socket: Place | None,
) -> None:
    """Check binds, certificates and TLS of each listener, and that something is served on it."""
    known = [certificate.name for certificate in certificates if certificate.name]
    used = {name for server in servers if server.value for name in server.value.listeners}
    # A server with invalid listeners may have been meant for any of them.
    complete = all(server.value.listeners or not server.place.has("listeners") for server in servers if server.value)
    taken: dict[str, Place] = {}
    if control_socket is not None and (path := context.path(control_socket)) is not None:
        taken[str(UnixBind(path))] = control_socket
    for listener in listeners:
        place = listener.place
        tls = place.get("tls")
        names = tls.get("certificates") if tls is not None else None
        if names is not None:
            references(context, names, known, "certificate")
        if listener.value is None or (place.has("serves") and place.get("serves") is None):  # reported
            continue
        bind = listener.value.bind
        where = place.get("bind") or place
        is_api = listener.value.serves is Serves.API  # what Admin needs: `checks.admin`
        if is_api and not place.has("tls") and is_open(bind) and not isinstance(bind, SystemdBind):
            what = f"listens on {bind} without tls, open beyond this machine"
            context.error(place, what, "add tls: {certificates: [NAME]}, or bind it to 127.0.0.1 or a unix socket")
        if str(bind) in taken:
            what = f"{bind} is bound already, at {taken[str(bind)].mark}"
            context.error(where, what, "bind one of the two elsewhere")
        elif not (isinstance(bind, TCPBind) and bind.port == 0):
            taken[str(bind)] = where
        if is_api and complete and listener.name not in used:
            context.warn(place, "unused", "no server is on this listener", "name it in the listeners of a server")


def check_servers(
    context: Context,
    servers: Sequence[Named[Server]],
    listeners: Sequence[Named[Listener]],
) -> None:
    """Check that no two servers of a listener have the same server name, and that at most one is its default."""
    claims: dict[tuple[str, str], Place] = {}
    for server in servers:
        value = server.value
        if value is None:
            continue
        if not any(_may_serve_api(listener) for listener in listeners):
            context.warn(server.place, "no-listener", "there is no listener for it", "add a listener")
        _claims(context, server.place, value, claims)
    _check_default(context, servers)


def _may_serve_api(listener: Named[Listener]) -> bool:
    return listener.value is None or listener.value.serves is Serves.API


def _check_default(context: Context, servers: Sequence[Named[Server]]) -> None:
    """Warn of a default server for one cluster on a listener with servers of other clusters.

    A client that sends no TLS server name and connects by address reaches it instead of the cluster it means.
    """
    for server in servers:
        value = server.value
        if value is None or not value.default or isinstance(value.backend, ClustersBackend):
            continue
        for listener in value.listeners:
            others = [other.value for other in servers if other.value is not None and other.value is not value]
            beside = [other for other in others if listener in other.listeners and other.clusters != value.clusters]
            if beside:
                backend = value.backend
                reached = (
                    f"cluster {backend.cluster}"
                    if isinstance(backend, ClusterBackend)
                    else f"aggregate {backend.aggregate}"
                )
                what = f"a client of {beside[0].name} that sends no TLS server name silently reaches {reached}"
                right = "write default: false, or let the default serve several clusters under /clusters/NAME"
                context.warn(server.place.get("default") or server.place, "default-server", what, right)
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


def check_coverage(
    context: Context,
    servers: Sequence[Named[Server]],
    listeners: Sequence[Named[Listener]],
    certificates: Sequence[Named[Certificate]],
) -> None:
    """Warn of server names that no certificate of a listener covers; skipped where a certificate has errors.

    Offline only the names that the file gives for a certificate are known.
    """
    tls = {listener.name: listener.value.tls for listener in listeners if listener.value is not None}
    good = [c for c in certificates if c.value is not None and (c.place.has("serverNames") or not context.offline)]
    patterns = {c.name: c.value.server_names for c in good if c.value is not None}
    for server in servers:
        written = server.place.get("serverNames")
        if server.value is None or written is None:
            continue
        for name in server.value.listeners:
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
