"""The whole configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mcproxy.config.model.aggregates import Aggregate
from mcproxy.config.model.authentication import Authentication, Authorization
from mcproxy.config.model.clusters import Cluster
from mcproxy.config.model.daemon import Daemon, Logging
from mcproxy.config.model.dispatch import FlowControl
from mcproxy.config.model.ingresses import Ingress
from mcproxy.config.model.keys import NOT_A_KEY
from mcproxy.config.model.listeners import Certificate, Listener
from mcproxy.config.model.servers import Server
from mcproxy.config.model.services import ServiceDiscovery, ServiceExport


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One loaded configuration. Sections keep the order of the file."""

    daemon: Daemon = Daemon()
    listeners: tuple[Listener, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    clusters: tuple[Cluster, ...] = ()
    authentication: tuple[Authentication, ...] = ()
    authorization: tuple[Authorization, ...] = ()
    flow_controls: tuple[FlowControl, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    servers: tuple[Server, ...] = ()
    service_exports: tuple[ServiceExport, ...] = ()
    service_discovery: ServiceDiscovery = ServiceDiscovery()
    ingresses: tuple[Ingress, ...] = ()
    logging: Logging = Logging()
    files: Annotated[tuple[str, ...], NOT_A_KEY] = ()  # every YAML file read, main file first
