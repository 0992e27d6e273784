"""Reads the section `servers`: virtual API servers, with their API services and CORS."""

from __future__ import annotations

import re

from mcproxy.config.model import (
    CORS,
    AggregateBackendConfig,
    APIService,
    Backend,
    ClusterBackend,
    ClusterConfig,
    ClustersBackend,
    ListenerConfig,
    Server,
    Serves,
    SessionsConfig,
    TunnelsBackend,
    UpstreamIdentity,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.reading.nodes import Sequence as List
from mcproxy.config.sections.authentication_section import NONE
from mcproxy.config.sections.dispatch_policies import build_dispatch
from mcproxy.config.sections.entries import ListSection, Sections, reference, references, server_names
from mcproxy.config.sections.model_reader import read
from mcproxy.config.server_names import is_ip, is_server_name
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES

# -- `apiServices` of a server: extension API servers, each for a group-version ----------------------------------------

_GROUPS_THAT_ARE_NONE = ("", "core", "v1")
_OWN_GROUP = "apiregistration.k8s.io"


def build_api_services(
    context: Context, server: Place, backend: Backend, clusters: ListSection[ClusterConfig]
) -> tuple[APIService, ...]:
    """Return the valid API services of the server at `server`; report invalid ones."""
    written = server.get("apiServices")
    if written is None:
        return ()
    entries = list(written.items())
    if entries and _serves_clusters_alone(server, backend):
        what = "is for a server of one cluster or an aggregate, and this one has no API at its root"
        context.error(written, what, "write backend: {cluster: NAME} or {aggregate: NAME}, or take it out")
        return ()
    by_name = clusters.by_name
    first: dict[tuple[str, str], Place] = {}
    found = []
    for place in entries:
        group, version, cluster = place.text("group"), place.text("version"), place.text("cluster")
        good = _check_group(context, place.get("group"))
        good = reference(context, place.get("cluster"), by_name, "cluster") is not None and good
        if group is None or version is None or cluster is None:
            continue  # reported
        before = first.setdefault((group, version), place)
        if before is not place:
            what = f"{group}/{version} has an owner already, cluster {before.text('cluster')} at {before.mark}"
            context.error(place, what, "keep one of the two: a group-version has one API server")
            continue
        if good:
            decides = authority(backend, by_name[cluster].value)
            found.append(read(context, place, APIService, authority=decides))
    return tuple(found)


def authority(backend: Backend, cluster: ClusterConfig | None) -> str:
    """Return `APIService.authority` for the API server `cluster` of a server with `backend`."""
    if cluster is None:
        return ""  # the cluster's entry has errors
    if cluster.identity is UpstreamIdentity.IMPERSONATE:
        return cluster.name
    if isinstance(backend, ClusterBackend):
        return backend.cluster
    if isinstance(backend, AggregateBackendConfig):
        return backend.primary or next(iter(backend.members), cluster.name)
    return cluster.name


def _serves_clusters_alone(server: Place, backend: Backend) -> bool:
    """Return whether the backend is several clusters. For an invalid backend (reported), its key decides."""
    written = server.get("backend")
    return isinstance(backend, ClustersBackend) and written is not None and written.has("clusters")


def _check_group(context: Context, place: Place | None) -> bool:
    """Return whether a group may be registered."""
    if place is None:
        return False
    if place.string in _GROUPS_THAT_ARE_NONE:
        what = f"{place.shown} is the core group, which is the backend's own: it has no path below /apis"
        context.error(place, what, "name the group that the API server has, such as metrics.k8s.io")
        return False
    if place.string == _OWN_GROUP:
        what = f"{place.shown} is what mcproxy itself shows API services with"
        context.error(place, what, "name the group that the API server has, such as metrics.k8s.io")
        return False
    if place.string in BUILT_IN_RESOURCES:
        what = (
            f"{place.shown} is a group of Kubernetes itself, which the backend serves: controllers and kubectl need it"
        )
        context.error(place, what, "name the group that the API server has, such as metrics.k8s.io")
        return False
    return True


# -- `cors` of a server: the origins of web pages that may use it (WHATWG Fetch; RFC 6454 for the form of an origin)

_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>\[[0-9a-f:.]+\]|[^:/?#@\[\]]+)(?::(?P<port>[0-9]{1,5}))?\Z"
)
_DEFAULT_PORTS = {"https": "443", "http": "80"}
_FORM = "write scheme://host or scheme://host:port, such as https://headlamp.example.com"


def cors(context: Context, place: Place | None) -> CORS | None:
    """Return the allowed origins in the form that browsers send; report malformed and duplicate origins."""
    if place is None:
        return None
    found: dict[str, Place] = {}
    for item in place.children("allowedOrigins"):
        origin = _origin(context, item)
        if origin is None:
            continue
        if origin in found:
            context.error(item, f"{item.shown} is in the list already, at {found[origin].mark}", "keep one of the two")
        else:
            found[origin] = item
    return CORS(tuple(found))


def _origin(context: Context, place: Place) -> str | None:
    text = (place.string or "").lower()
    if text == "*":
        context.error(place, '"*" would open the server to every web page', "list the origins")
        return None
    if text == "null":
        context.error(place, '"null" stands for any sandboxed page and local file', "list the origins")
        return None
    match = _ORIGIN.match(text)
    if match is None:
        stripped = text.rstrip("/")
        right = f"write {stripped}" if _ORIGIN.match(stripped) else _FORM
        context.error(place, f"{place.shown} is not an origin", right)
        return None
    scheme, host, port = match["scheme"], match["host"], match["port"]
    if not _is_host(host):
        star = "a wildcard that is not just its first label" if "*" in host else "an ill-formed host"
        context.error(place, f"{place.shown} has {star}", "write a host such as headlamp.example.com or *.example.com")
        return None
    if port is not None and not 0 < int(port) < 65536:
        context.error(place, f"{place.shown} has no usable port", "write a port from 1 to 65535, or none")
        return None
    if host.startswith("*.") and "." not in host[2:]:
        context.warn(
            place,
            "broad-origin",
            f"{place.shown} is every host in the zone {host[2:]}",
            "name the hosts, or a longer domain",
        )
    suffix = f":{int(port)}" if port is not None and port != _DEFAULT_PORTS.get(scheme) else ""
    return f"{scheme}://{host}{suffix}"


def _is_host(host: str) -> bool:
    if host.startswith("["):
        return is_ip(host[1:-1])
    return not host.endswith(".") and is_server_name(host)


# -- servers ----------------------------------------------------------------------------------------------------------


def _may_serve_api(listener: Place) -> bool:
    """Whether a listener has all servers by default; false if its `serves` is invalid (reported).

    A listener with dial has only servers that name it, so that hubs reach none by an oversight.
    """
    return not listener.has("dial") and (not listener.has("serves") or listener.text("serves") == Serves.API)


def _listeners(context: Context, server: Place, listeners: ListSection[ListenerConfig]) -> tuple[str, ...]:
    """Return the listeners of a server; report listeners that do not serve API."""
    written = server.get("listeners")
    if written is None:
        return tuple(name for name, listener in listeners.by_name.items() if _may_serve_api(listener.place))
    others = {
        Serves.ADMIN: "serves Admin, the state of the daemon, and no server can be on it",
        Serves.INGRESS: "serves Ingress, the ingresses, and no server can be on it",
    }
    serves = {name: listener.place.text("serves") for name, listener in listeners.by_name.items()}
    for item in written.items():
        for purpose, what in others.items():
            if serves.get(item.string or "") == purpose:
                context.error(item, f"{item.shown} {what}", "name a listener that serves API")
    return references(context, written, listeners.names, "listener")


def server(context: Context, place: Place, sections: Sections) -> Server:
    """Return the server written at `place`, with its references checked and resolved."""
    backend = _backend(context, place.get("backend"), sections)
    has_tunnels = isinstance(backend, TunnelsBackend)
    if has_tunnels:
        _check_keys_for_tunnels(context, place)
    services = build_api_services(context, place, backend, sections.clusters) if not has_tunnels else ()
    return read(
        context,
        place,
        Server,
        listeners=_listeners(context, place, sections.listeners),
        server_names=server_names(context, place.get("serverNames")),
        backend=backend,
        authentication=place.text("authentication") if place.text("authentication") != NONE else None,
        dispatch=build_dispatch(context, place, backend, sections.clusters, services) if not has_tunnels else None,
        cors=cors(context, place.get("cors")),
        sessions=_sessions(context, place),
        api_services=services,
    )


def _check_keys_for_tunnels(context: Context, server: Place) -> None:
    """Report keys of a server of tunnels that are about requests to API servers."""
    for key in ("authorization", "dispatch", "cors", "apiServices"):
        written = server.get(key)
        if written is None or (key == "apiServices" and isinstance(written.node, List) and not written.node.items):
            continue  # an empty list of API services says that there are none, as in a dump
        what = "is for servers of clusters, and this one has tunnels: the users of each tunnel decide who may open it"
        context.error(written, what, "take it out")


def _sessions(context: Context, server: Place) -> SessionsConfig:
    place = server.get("sessions")
    made = read(context, place, SessionsConfig)
    if place is not None and made.end_with_credential and server.text("authentication") in (None, NONE):
        what = "is about credentials, and this server has no authentication"
        context.warn(
            place.get("endWithCredential") or place, "no-effect", what, "take it out, or name a set in authentication"
        )
    return made


def _backend(context: Context, place: Place | None, sections: Sections) -> Backend:
    """Return the backend with checked names. An invalid backend has no clusters, so that other checks can continue."""
    clusters = sections.clusters.names
    one = place.get("cluster") if place is not None else None
    several = place.get("clusters") if place is not None else None
    if one is not None and one.string is not None:
        name = reference(context, one, clusters, "cluster")
        return ClusterBackend(name) if name is not None else ClustersBackend(())
    whole = place.get("aggregate") if place is not None else None
    if whole is not None:
        named = reference(
            context, whole, sections.aggregates.names, "aggregate", none="define it in the section aggregates"
        )
        found = sections.aggregates.valid_by_name.get(named or "")
        return (
            ClustersBackend(()) if found is None else AggregateBackendConfig(found.name, found.clusters, found.primary)
        )
    tunnels = place.get("tunnels") if place is not None else None
    if tunnels is not None:
        return _tunnels(context, tunnels, sections.tunnels.names)
    if several is None:
        return ClustersBackend(())
    if several.string == "*" or any(item.string == "*" for item in several.items()):
        return ClustersBackend(tuple(dict.fromkeys(clusters)))
    return ClustersBackend(references(context, several, clusters, "cluster"))


def _tunnels(context: Context, place: Place, known: list[str]) -> TunnelsBackend:
    if not known:
        context.error(place, "there is no tunnel that it could accept", "define one in the section tunnels")
    elif place.string != "*" and not any(item.string == "*" for item in place.items()):
        return TunnelsBackend(references(context, place, known, "tunnel"))
    return TunnelsBackend(tuple(dict.fromkeys(known)))
