"""The section `servers`: virtual API servers."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import (
    Aggregate,
    AggregateBackend,
    Backend,
    Cluster,
    ClusterBackend,
    ClustersBackend,
    Listener,
    Server,
    Serves,
    Sessions,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.allowed_origins import cors
from mcproxy.config.sections.authentication_section import NONE
from mcproxy.config.sections.dispatch_policies import build_dispatch
from mcproxy.config.sections.entries import Merged, Named, references, server_names
from mcproxy.config.sections.model_reader import read
from mcproxy.config.sections.server_api_services import build_api_services
from mcproxy.config.suggestions import nearest, suggest


def build_servers(
    context: Context,
    merged: Merged,
    listeners: Sequence[Named[Listener]],
    clusters: Sequence[Named[Cluster]],
    aggregates: Sequence[Named[Aggregate]],
) -> list[Named[Server]]:
    """Return the servers, with their references checked and resolved."""
    serving = [listener.name for listener in listeners if listener.name and _may_serve_api(listener.place)]
    every = [listener.name for listener in listeners if listener.name]
    for place in merged.entries("servers"):
        _refuse_other_listeners(context, place, listeners)
    return [
        Named(place.text("name"), place, _server(context, place, serving, every, clusters, aggregates))
        for place in merged.entries("servers")
    ]


def _may_serve_api(listener: Place) -> bool:
    """Whether servers are on a listener by default; not on one for something unknown (reported)."""
    return not listener.has("serves") or listener.text("serves") == Serves.API


def _refuse_other_listeners(context: Context, server: Place, listeners: Sequence[Named[Listener]]) -> None:
    others = {
        Serves.ADMIN: "serves Admin, the state of the daemon, and no server can be on it",
        Serves.INGRESS: "serves Ingress, the ingresses, and no server can be on it",
    }
    serves = {listener.name: listener.place.text("serves") for listener in listeners if listener.name}
    for item in server.children("listeners"):
        for purpose, what in others.items():
            if serves.get(item.string or "") == purpose:
                context.error(item, f"{item.shown} {what}", "name a listener that serves API")


def _server(
    context: Context,
    place: Place,
    serving: list[str],
    every: list[str],
    clusters: Sequence[Named[Cluster]],
    aggregates: Sequence[Named[Aggregate]],
) -> Server:
    chosen, named = place.get("listeners"), place.get("serverNames")
    listeners = references(context, chosen, every, "listener") if chosen is not None else tuple(serving)
    found = server_names(context, named) if named is not None else ()
    backend = _backend(
        context, place.get("backend"), [cluster.name for cluster in clusters if cluster.name], aggregates
    )
    services = build_api_services(context, place, backend, clusters)
    misspelt = any(nearest(key, ("serverNames", "default")) for key in place.reported_keys())
    if not place.has("serverNames") and not place.has("default") and not misspelt:
        what = "has neither serverNames nor default: true, so no request finds it"
        context.warn(place, "unreachable-server", what, "add serverNames: [NAME], or default: true")
    return read(
        context,
        place,
        Server,
        listeners=listeners,
        server_names=found,
        backend=backend,
        authentication=place.text("authentication") if place.text("authentication") != NONE else None,
        dispatch=build_dispatch(context, place, backend, clusters, services),
        cors=cors(context, place.get("cors")),
        sessions=_sessions(context, place),
        api_services=services,
    )


def _sessions(context: Context, server: Place) -> Sessions:
    place = server.get("sessions")
    made = read(context, place, Sessions)
    if place is not None and made.end_with_credential and server.text("authentication") in (None, NONE):
        what = "is about credentials, and this server has no authentication"
        context.warn(
            place.get("endWithCredential") or place, "no-effect", what, "take it out, or name a set in authentication"
        )
    return made


def _backend(
    context: Context, place: Place | None, clusters: list[str], aggregates: Sequence[Named[Aggregate]]
) -> Backend:
    """Return the backend with its names checked; without clusters if it is wrong, so that other checks continue."""
    one = place.get("cluster") if place is not None else None
    several = place.get("clusters") if place is not None else None
    if one is not None and one.string is not None:
        if one.string not in clusters:
            context.error(one, f"there is no cluster {one.shown}", suggest(one.string, clusters))
            return ClustersBackend(())
        return ClusterBackend(one.string)
    whole = place.get("aggregate") if place is not None else None
    if whole is not None:
        return _aggregate(context, whole, aggregates)
    if several is None:
        return ClustersBackend(())
    if several.string == "*" or any(item.string == "*" for item in several.items()):
        return ClustersBackend(tuple(dict.fromkeys(clusters)))
    return ClustersBackend(references(context, several, clusters, "cluster"))


def _aggregate(context: Context, place: Place, aggregates: Sequence[Named[Aggregate]]) -> Backend:
    known = {aggregate.name: aggregate.value for aggregate in aggregates if aggregate.name}
    if place.string not in known:
        right = suggest(place.string or "", known) if known else "define it in the section aggregates"
        context.error(place, f"there is no aggregate {place.shown}", right)
        return ClustersBackend(())
    found = known[place.string]
    return ClustersBackend(()) if found is None else AggregateBackend(found.name, found.clusters, found.primary)
