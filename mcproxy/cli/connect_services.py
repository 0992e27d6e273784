"""The checks of API services by `check --connect`: do they serve their group-versions, and what do they hide?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mcproxy.config import model
from mcproxy.kube.builtin_resources import BUILT_IN_RESOURCES

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.control import ControlResponse

_WITHIN = 10.0
"""Timeout of a request (seconds)."""
_MAX_BODY = 16 * 1024 * 1024


def owned_by(config: model.Config, cluster: str) -> tuple[str, ...]:
    """Return the group-versions for which a cluster is registered, each once."""
    services = (service for server in config.servers for service in server.api_services)
    return tuple(dict.fromkeys(service.group_version for service in services if service.cluster == cluster))


def hidden_in(config: model.Config, cluster: str) -> Iterator[tuple[model.Server, model.APIService]]:
    """Yield the API services that would hide a group-version of a cluster behind the same server.

    `config.checks.api_service_warnings` checks Kubernetes' own groups, without a connection.
    """
    for server in config.servers:
        for service in server.api_services if cluster in server.clusters else ():
            if service.cluster != cluster and service.group not in BUILT_IN_RESOURCES:
                yield server, service


async def answer(cluster: Cluster, group_version: str) -> ControlResponse:
    """Request the discovery document of a group-version from a ready endpoint; return the response.

    Raises ConnectError, ControlError and CredentialError.
    """
    endpoint = cluster.pick()
    assert endpoint is not None
    path, accept = f"/apis/{group_version}", (("accept", "application/json"),)
    asking = cluster.control.request(endpoint, "GET", path, headers=accept, timeout=_WITHIN, max_body=_MAX_BODY)
    return await asking


def unreadable(response: ControlResponse, group_version: str) -> str:
    """Return the reason why a response is not the discovery document of a group-version; "" if it is."""
    from mcproxy.kube.discovery import DiscoveryError, read_resources

    group, _, version = group_version.partition("/")
    try:
        read_resources(response.body, group, version)
    except DiscoveryError as error:
        return str(error)
    return ""


def describe_hidden(loaded: Loaded, server: model.Server, service: model.APIService, cluster: str) -> str:
    """Describe the hidden group-version, with the positions of both entries."""
    owner = loaded.location("servers", server.name, f"apiServices[{service.group_version}]")
    backend = loaded.location("clusters", cluster)
    assert owner is not None
    assert backend is not None
    return (
        f"{owner.mark}: {owner.key}: cluster {cluster} ({backend.mark}) serves {service.group_version} itself, "
        f"and server {server.name} hides that"
    )
