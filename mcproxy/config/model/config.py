"""The whole configuration."""

from __future__ import annotations

from dataclasses import dataclass

from mcproxy.config.model.aggregates import Aggregate
from mcproxy.config.model.authentication import Authentication
from mcproxy.config.model.authorization import Authorization
from mcproxy.config.model.certificates import Certificate
from mcproxy.config.model.clusters import Cluster
from mcproxy.config.model.daemon import Daemon
from mcproxy.config.model.flow_controls import FlowControl
from mcproxy.config.model.listeners import Listener
from mcproxy.config.model.logging import Logging
from mcproxy.config.model.servers import Server


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
    logging: Logging = Logging()
    files: tuple[str, ...] = ()  # every YAML file read, main file first
