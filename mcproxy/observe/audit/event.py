"""An event of the audit log, in the form of a kube-apiserver. Pure.

Keys, their order and their omission follow k8s.io/apiserver's `audit/v1.Event`. Values that are objects are kept as
JSON (`msgspec.Raw`), because most requests of a user share them. The value `UNSET` omits a key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from mcproxy.observe.audit.values import text

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo

KIND = "Event"
API_VERSION = "audit.k8s.io/v1"
METADATA = "Metadata"
"""The audit level: user, resource and verb of the request, without bodies."""

RECEIVED = "RequestReceived"
"""Stage: the user is known, but authorization has not been decided."""
STARTED = "ResponseStarted"
"""Stage: the response to a long-running request has begun, or authentication failed (the only event of a 401)."""
COMPLETE = "ResponseComplete"
"""Stage: the response is complete or was aborted."""
PANIC = "Panic"
"""Stage: a bug ended the request with 500."""


def annotations_of(
    decision: str | None = None,
    decision_reason: str | None = None,
    cluster: str | None = None,
    endpoint: str | None = None,
    policy: str | None = None,
    process: str | None = None,
    reason: str | None = None,
    server: str | None = None,
    api_service: str | None = None,
) -> msgspec.Raw:
    """Return the annotations that the proxy adds to an event; unknown values are None.

    `decision` is allow or forbid, if the server's authorizer has decided. `reason` is the access log's reason for the
    end of the request (`requests.reasons`).
    """
    known = {
        "authorization.k8s.io/decision": decision,
        "authorization.k8s.io/reason": None if decision_reason is None else text(decision_reason),
        "mcproxy.io/api-service": api_service,
        "mcproxy.io/cluster": cluster,
        "mcproxy.io/endpoint": endpoint,
        "mcproxy.io/policy": None if policy is None else text(policy),
        "mcproxy.io/process": process,
        "mcproxy.io/reason": reason,
        "mcproxy.io/server": server,
    }
    return msgspec.Raw(msgspec.json.encode({key: value for key, value in known.items() if value is not None}))


class AuditEvent(msgspec.Struct, gc=False, rename="camel"):
    """An event: one stage of one request. Non-ASCII strings are also `Raw`."""

    kind: str
    api_version: str
    level: str
    audit_id: str = msgspec.field(name="auditID")
    stage: str
    request_uri: Any = msgspec.field(name="requestURI")
    verb: Any
    user: msgspec.Raw
    impersonated_user: msgspec.Raw | UnsetType
    source_ips: msgspec.Raw | UnsetType = msgspec.field(name="sourceIPs")
    user_agent: Any
    object_ref: msgspec.Raw | UnsetType
    response_status: msgspec.Raw | UnsetType
    request_received_timestamp: str
    stage_timestamp: str
    annotations: msgspec.Raw | UnsetType


class AuditTrail(msgspec.Struct, gc=False):
    """The common content of the events of one request, and its present stage."""

    first: AuditEvent
    info: RequestInfo | None
    started: bool = False
    """ResponseStarted was written."""


def received(
    audit_id: str,
    uri: object,
    verb: object,
    user: msgspec.Raw,
    source_ips: msgspec.Raw | UnsetType,
    user_agent: object,
    object_ref: msgspec.Raw | UnsetType,
    timestamp: str,
) -> AuditEvent:
    """Return the first event of a request; `timestamp` is the time of its arrival."""
    return AuditEvent(
        KIND,
        API_VERSION,
        METADATA,
        audit_id,
        RECEIVED,
        uri,
        verb,
        user,
        UNSET,
        source_ips,
        user_agent,
        object_ref,
        UNSET,
        timestamp,
        timestamp,
        UNSET,
    )
