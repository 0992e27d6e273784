"""The configuration as immutable objects, with every default filled in and every file name absolute.

Only the loader (`config.load`) and tests create them. They hold no live objects: `daemon.runtime` builds those from a
`Config`. Equality is by value, so that a reload finds what did not change; files that are read (certificates, tokens)
are compared by their contents, which is why the bytes are part of the model.

Units: durations are seconds (float), sizes are bytes (int), 0 is "no limit" wherever a limit stands.
"""

from __future__ import annotations

from mcproxy.config.model.aggregates import (
    TO_LABEL,
    TO_PRIMARY,
    Aggregate,
    Cache,
    CachedResource,
    CreateRule,
    ReadAuthorization,
    Reads,
    ResourceVersions,
    Unavailable,
)
from mcproxy.config.model.authentication import (
    OIDC,
    Anonymous,
    Authentication,
    JWKSFile,
    RequestHeader,
    StaticToken,
    TokenFile,
    TokenReview,
    Webhook,
)
from mcproxy.config.model.authorization import Authorization, SubjectAccessReview
from mcproxy.config.model.certificates import Certificate
from mcproxy.config.model.clusters import (
    Cluster,
    ClusterTLS,
    Connections,
    Credentials,
    Endpoint,
    ExecPlugin,
    FrontProxy,
    HealthCheck,
    Identity,
    KubeconfigReference,
    UpstreamProtocol,
)
from mcproxy.config.model.common import IPNetwork, Mark, PEMFile, Secret
from mcproxy.config.model.config import Config
from mcproxy.config.model.daemon import AUTO, MAX_WORKERS, Daemon
from mcproxy.config.model.dispatch import ClusterBackend, Policy, Reject, Strategy
from mcproxy.config.model.flow_controls import FlowControl, FlowControlType, Per, Queue
from mcproxy.config.model.listeners import (
    ADMIN_PATHS,
    HARMLESS_PATHS,
    Bind,
    HTTPProtocol,
    Limits,
    Listener,
    ListenerTLS,
    Serves,
    SystemdBind,
    TCPBind,
    UnixBind,
)
from mcproxy.config.model.logging import AccessLog, AuditLog, Logging
from mcproxy.config.model.rules import Rule
from mcproxy.config.model.servers import CORS, AggregateBackend, Backend, ClustersBackend, Server, Sessions
from mcproxy.config.model.shared_state import Redis, SharedState

__all__ = [
    "ADMIN_PATHS",
    "AUTO",
    "CORS",
    "HARMLESS_PATHS",
    "MAX_WORKERS",
    "OIDC",
    "TO_LABEL",
    "TO_PRIMARY",
    "AccessLog",
    "Aggregate",
    "AggregateBackend",
    "Anonymous",
    "AuditLog",
    "Authentication",
    "Authorization",
    "Backend",
    "Bind",
    "Cache",
    "CachedResource",
    "Certificate",
    "Cluster",
    "ClusterBackend",
    "ClusterTLS",
    "ClustersBackend",
    "Config",
    "Connections",
    "CreateRule",
    "Credentials",
    "Daemon",
    "Endpoint",
    "ExecPlugin",
    "FlowControl",
    "FlowControlType",
    "FrontProxy",
    "HTTPProtocol",
    "HealthCheck",
    "IPNetwork",
    "Identity",
    "JWKSFile",
    "KubeconfigReference",
    "Limits",
    "Listener",
    "ListenerTLS",
    "Logging",
    "Mark",
    "PEMFile",
    "Per",
    "Policy",
    "Queue",
    "ReadAuthorization",
    "Reads",
    "Redis",
    "Reject",
    "RequestHeader",
    "ResourceVersions",
    "Rule",
    "Secret",
    "Server",
    "Serves",
    "Sessions",
    "SharedState",
    "StaticToken",
    "Strategy",
    "SubjectAccessReview",
    "SystemdBind",
    "TCPBind",
    "TokenFile",
    "TokenReview",
    "Unavailable",
    "UnixBind",
    "UpstreamProtocol",
    "Webhook",
]
