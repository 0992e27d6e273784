"""Checks of exported services with their source and importing clusters."""

from __future__ import annotations

from collections.abc import Iterable

from mcproxy.config import credential_checks
from mcproxy.config.model import ClusterConfig, IPNetwork, ServiceDiscovery, ServiceExport
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import ListSection, Named, Sections


def check_services(context: Context, sections: Sections, discovery: ServiceDiscovery) -> None:
    """Report every error and warning about exported services together with clusters."""
    by_name, merged = sections.clusters.by_name, sections.merged
    for export in sections.exports:
        for place in export.place.children("from"):
            warn_of_anonymous_reading(context, place, place.string or "", by_name)
        for place in export.place.children("to"):
            _writer(context, place, place.string or "", by_name)
    _overlaps(context, sections.exports)
    enabled = merged.setting("serviceDiscovery", "enabled")
    if enabled is None or not discovery.enabled:
        return
    written = merged.setting("serviceDiscovery", "clusters")
    places = {item.string: item for item in written.items()} if written is not None else {}
    for name in discovery.clusters:
        _writer(context, places.get(name, enabled), name, by_name)
    if len(discovery.clusters) < 2 and not (written is not None and written.is_broken):
        what = "takes in fewer than two clusters, so nothing is imported anywhere"
        context.warn(written or enabled, "no-effect", what, "name the clusters of the cluster set, or take it out")


def warn_of_anonymous_reading(
    context: Context, place: Place, name: str, clusters: dict[str, Named[ClusterConfig]]
) -> None:
    """Warn of a cluster whose Services and EndpointSlices the proxy would read as an anonymous user."""
    if _is_anonymous(name, clusters):
        what = f"cluster {name} has no credentials: the proxy reads it as an anonymous user"
        right = f"give cluster {name} credentials that may list and watch services and endpointslices"
        context.warn(place, "no-credentials", what, right)


def _writer(context: Context, place: Place, name: str, clusters: dict[str, Named[ClusterConfig]]) -> None:
    if _is_anonymous(name, clusters):
        what = f"cluster {name} has no credentials, and imported services are written to it"
        context.error(place, what, f"give cluster {name} credentials; mcproxy rbac prints the rights that they need")


def _is_anonymous(name: str, clusters: dict[str, Named[ClusterConfig]]) -> bool:
    cluster = clusters.get(name)
    if cluster is None or cluster.value is None:
        return False
    return credential_checks.is_anonymous(cluster.place, cluster.value)


def _overlaps(context: Context, exports: ListSection[ServiceExport]) -> None:
    """Warn of two clusters whose pod networks overlap, according to the networks that their exports allow.

    In overlapping networks the same address belongs to different pods in different clusters.
    """
    only: dict[str, list[tuple[IPNetwork, Place]]] = {}
    for export_place, export in exports.valid:
        if len(export.from_clusters) == 1:  # otherwise it is unknown which network belongs to which cluster
            networks = zip(export.allowed_cidrs, export_place.children("allowedCIDRs"), strict=False)
            only.setdefault(export.from_clusters[0], []).extend(networks)
    names = list(only)
    for number, name in enumerate(names):
        for network, place in only[name]:
            found = _overlap(network, ((other, each) for other in names[:number] for each in only[other]))
            if found is not None:
                other, (theirs, where) = found
                what = f"{network} of cluster {name} has addresses of {theirs} of cluster {other}, at {where.mark}"
                right = "give the clusters pod networks of their own, or narrow the two lists"
                context.warn(place, "overlapping-networks", what, right)


def _overlap(
    network: IPNetwork, others: Iterable[tuple[str, tuple[IPNetwork, Place]]]
) -> tuple[str, tuple[IPNetwork, Place]] | None:
    for other, (theirs, place) in others:
        if theirs.version == network.version and theirs.overlaps(network):
            return other, (theirs, place)
    return None
