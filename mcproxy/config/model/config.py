"""The whole configuration as one object: a field for each section of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.aggregates import Aggregate
from mcproxy.config.model.authentication import Authentication, Authorization
from mcproxy.config.model.clusters import ClusterConfig
from mcproxy.config.model.daemon import DaemonConfig, Logging
from mcproxy.config.model.dispatch import FlowControl
from mcproxy.config.model.ingresses import Ingress
from mcproxy.config.model.keys import NOT_A_KEY
from mcproxy.config.model.listeners import Certificate, ListenerConfig
from mcproxy.config.model.servers import Server
from mcproxy.config.model.services import ServiceDiscovery, ServiceExport
from mcproxy.config.model.tunnels import Tunnel


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One loaded configuration. Sections keep the order of the file."""

    daemon: DaemonConfig = DaemonConfig()
    """Settings of the process."""
    listeners: tuple[ListenerConfig, ...] = ()
    """The sockets that clients connect to."""
    certificates: tuple[Certificate, ...] = ()
    """Certificates with their keys, for listeners to name."""
    clusters: tuple[ClusterConfig, ...] = ()
    """The Kubernetes clusters behind the proxy, each by endpoints, tls and credentials, or by a kubeconfig."""
    authentication: tuple[Authentication, ...] = ()
    """Named sets of authenticators, for servers to name. Authenticators are tried in the order of the keys listed here;
    the first that accepts a credential decides."""
    authorization: tuple[Authorization, ...] = ()
    """Named authorizers, for servers to name."""
    flow_controls: tuple[FlowControl, ...] = ()
    """Limits, for clusters and dispatch policies to name."""
    aggregates: tuple[Aggregate, ...] = ()
    """Several clusters as one API, for servers to name: objects of all members are listed, watched and written as if
    they were in one cluster."""
    servers: tuple[Server, ...] = ()
    """Virtual API servers, found by TLS server name, else by Host."""
    service_exports: tuple[ServiceExport, ...] = ()
    """Services of some clusters that other clusters can use: their EndpointSlices are written to the latter, together
    with a Service derived-NAME. Pod networks must be routable between the clusters, and their addresses must not
    overlap."""
    service_discovery: ServiceDiscovery = ServiceDiscovery()
    """ServiceExport and ServiceImport objects (multicluster.x-k8s.io) in the clusters themselves: a service that one of
    them exports is imported by all, as KEP-1645 says."""
    ingresses: tuple[Ingress, ...] = ()
    """HTTP from outside to services in several clusters, as the Ingress objects of Kubernetes do for one cluster: rules
    by host and path, on listeners that serve Ingress."""
    tunnels: tuple[Tunnel, ...] = ()
    """Tunnels of clusters that cannot be dialled and dial out instead, for endpoints and servers to name."""
    logging: Logging = Logging()
    """What is logged, and where. Events go to stderr."""
    files: Annotated[tuple[str, ...], NOT_A_KEY] = ()  # all YAML files that were read, the main file first
