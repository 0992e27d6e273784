"""Virtual servers, and everything that must fit between them, listeners, certificates and clusters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mcproxy.config.authentication import NONE
from mcproxy.config.build import Named, server_names
from mcproxy.config.context import Context
from mcproxy.config.dispatch import build_dispatch
from mcproxy.config.fields import Fields
from mcproxy.config.merge import Merged
from mcproxy.config.model import (
    Backend,
    Bind,
    Certificate,
    Cluster,
    ClusterBackend,
    ClustersBackend,
    Listener,
    Server,
    SystemdBind,
    TCPBind,
    UnixBind,
)
from mcproxy.config.names import covers, suggest
from mcproxy.config.nodes import Place
from mcproxy.config.urls import is_open


def build_servers(
    context: Context, merged: Merged, listeners: Sequence[Named[Listener]], clusters: Sequence[Named[Cluster]]
) -> list[Named[Server]]:
    """Return the servers, their references checked and spelt out."""
    serving = [listener.name for listener in listeners if listener.name and not _other_purpose(listener.place)]
    every = [listener.name for listener in listeners if listener.name]
    return [
        Named(place.text("name"), place, _server(context, place, serving, every, clusters))
        for place in merged.entries("servers")
    ]


def _other_purpose(place: Place) -> bool:
    """Whether a listener is for something that is not built yet (reported): servers are not on it by default."""
    return place.has("serves") and place.get("serves") is None


def _server(
    context: Context, place: Place, serving: list[str], every: list[str], clusters: Sequence[Named[Cluster]]
) -> Server:
    fields = Fields(place)
    chosen, named = place.get("listeners"), place.get("serverNames")
    listeners = references(context, chosen, every, "listener") if chosen is not None else tuple(serving)
    found = server_names(context, named) if named is not None else ()
    backend = _backend(context, place.get("backend"), [cluster.name for cluster in clusters if cluster.name])
    if not place.has("serverNames") and not place.has("default"):
        what = "has neither serverNames nor default: true, so no request finds it"
        context.warn(place, what, "add serverNames: [NAME], or default: true")
    return Server(
        name=place.text("name") or "",
        listeners=listeners,
        server_names=found,
        default=fields.boolean("default", False),
        backend=backend,
        authentication=place.text("authentication") if place.text("authentication") != NONE else None,
        authorization=place.text("authorization"),
        dispatch=build_dispatch(context, place, backend, clusters),
        access_log=fields.boolean("accessLog", True),
    )


def references(context: Context, places: Place, known: Iterable[str], kind: str) -> tuple[str, ...]:
    """Return the names in a list, each once; unknown and doubled ones are reported."""
    right = list(known)
    found: dict[str, Place] = {}
    for place in places.items():
        name = place.string
        if name is None:
            continue
        if name in found:
            context.error(place, f"{place.shown} is in the list already, at {found[name].mark}", "keep one of the two")
        elif name not in right:
            context.error(place, f"there is no {kind} {place.shown}", suggest(name, right))
        else:
            found[name] = place
    return tuple(found)


def _backend(context: Context, place: Place | None, clusters: list[str]) -> Backend:
    """Return the backend with its names checked; no clusters where it is wrong, so that other checks go on."""
    one = place.get("cluster") if place is not None else None
    several = place.get("clusters") if place is not None else None
    if one is not None and one.string is not None:
        if one.string not in clusters:
            context.error(one, f"there is no cluster {one.shown}", suggest(one.string, clusters))
            return ClustersBackend(())
        return ClusterBackend(one.string)
    if several is None:
        return ClustersBackend(())
    if several.string == "*" or any(item.string == "*" for item in several.items()):
        return ClustersBackend(tuple(dict.fromkeys(clusters)))
    return ClustersBackend(references(context, several, clusters, "cluster"))


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
    # A server whose listeners are wrong may have meant any of them.
    complete = all(server.value.listeners or not server.place.has("listeners") for server in servers if server.value)
    taken: dict[Bind, Place] = {}
    if control_socket is not None and (path := context.path(control_socket)) is not None:
        taken[UnixBind(path)] = control_socket
    for listener in listeners:
        place = listener.place
        tls = place.get("tls")
        names = tls.get("certificates") if tls is not None else None
        if names is not None:
            references(context, names, known, "certificate")
        if listener.value is None or _other_purpose(place):
            continue
        bind = listener.value.bind
        where = place.get("bind") or place
        if not place.has("tls") and is_open(bind) and not isinstance(bind, SystemdBind):
            what = f"listens on {bind} without tls, open beyond this machine"
            context.error(place, what, "add tls: {certificates: [NAME]}, or bind it to 127.0.0.1 or a unix socket")
        if bind in taken:
            what = f"{bind} is bound already, at {taken[bind].mark}"
            context.error(where, what, "bind one of the two elsewhere")
        elif not (isinstance(bind, TCPBind) and bind.port == 0):
            taken[bind] = where
        if complete and listener.name not in used:
            context.warn(place, "no server is on this listener", "name it in the listeners of a server")


def check_servers(
    context: Context,
    servers: Sequence[Named[Server]],
    listeners: Sequence[Named[Listener]],
) -> None:
    """Check that no two servers claim the same."""
    claims: dict[tuple[str, str], Place] = {}
    for server in servers:
        value = server.value
        if value is None:
            continue
        if not listeners:
            context.warn(server.place, "there is no listener for it", "add a listener")
        _claims(context, server.place, value, claims)


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
    """Warn of server names that no certificate of a listener covers; passed over where a certificate has faults."""
    tls = {listener.name: listener.value.tls for listener in listeners if listener.value is not None}
    patterns = {c.name: c.value.server_names for c in certificates if c.value is not None}
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
                    context.warn(place, what, "clients will refuse the connection; add a certificate for it")
