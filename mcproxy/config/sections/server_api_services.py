"""`apiServices` of a server: extension API servers, each for a group-version."""

from __future__ import annotations

from collections.abc import Sequence

from mcproxy.config.model import (
    AggregateBackend,
    APIService,
    Backend,
    Cluster,
    ClusterBackend,
    ClustersBackend,
    UpstreamIdentity,
)
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Named
from mcproxy.config.sections.model_reader import read
from mcproxy.config.suggestions import suggest
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES

_GROUPS_THAT_ARE_NONE = ("", "core", "v1")
_OWN_GROUP = "apiregistration.k8s.io"


def build_api_services(
    context: Context, server: Place, backend: Backend, clusters: Sequence[Named[Cluster]]
) -> tuple[APIService, ...]:
    """Return the API services of the server at `server`, without those that are wrong (reported)."""
    written = server.get("apiServices")
    if written is None:
        return ()
    entries = list(written.items())
    if entries and _serves_clusters_alone(server, backend):
        what = "is for a server of one cluster or an aggregate, and this one has no API at its root"
        context.error(written, what, "write backend: {cluster: NAME} or {aggregate: NAME}, or take it out")
        return ()
    by_name = {cluster.name: cluster for cluster in clusters if cluster.name}
    first: dict[tuple[str, str], Place] = {}
    found = []
    for place in entries:
        group, version, cluster = place.text("group"), place.text("version"), place.text("cluster")
        good = _group(context, place.get("group"))
        good = _cluster(context, place.get("cluster"), by_name) and good
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


def authority(backend: Backend, cluster: Cluster | None) -> str:
    """Return `APIService.authority` for the API server of the entry `cluster`, on a server with `backend`."""
    if cluster is None:
        return ""  # its entry has errors
    if cluster.identity is UpstreamIdentity.IMPERSONATE:
        return cluster.name
    if isinstance(backend, ClusterBackend):
        return backend.cluster
    if isinstance(backend, AggregateBackend):
        return backend.primary or next(iter(backend.members), cluster.name)
    return cluster.name


def _serves_clusters_alone(server: Place, backend: Backend) -> bool:
    """Return whether the backend is several clusters; an invalid one, which was reported, counts by its key."""
    written = server.get("backend")
    return isinstance(backend, ClustersBackend) and written is not None and written.has("clusters")


def _group(context: Context, place: Place | None) -> bool:
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


def _cluster(context: Context, place: Place | None, known: dict[str, Named[Cluster]]) -> bool:
    if place is None or place.string is None:
        return False
    if place.string not in known:
        context.error(place, f"there is no cluster {place.shown}", suggest(place.string, known))
        return False
    return True
