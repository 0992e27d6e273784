"""An event of the audit log, as a kube-apiserver writes it. Pure.

Keys, their order and what is left out are those of k8s.io/apiserver's `audit/v1.Event`. Values that are objects are
kept as JSON (`msgspec.Raw`), since most requests of a user share them. `UNSET` leaves a key out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

KIND = "Event"
API_VERSION = "audit.k8s.io/v1"
METADATA = "Metadata"
"""The level: who asked for what, with no body."""

RECEIVED = "RequestReceived"
"""The user is known, and nothing is decided yet."""
STARTED = "ResponseStarted"
"""The response to a long-running request has begun; or (of a 401, its only event) authentication has failed."""
COMPLETE = "ResponseComplete"
"""The response is complete, or was broken off."""
PANIC = "Panic"
"""A bug has ended the request, with 500."""
STAGES = (RECEIVED, STARTED, COMPLETE, PANIC)


class Annotations(
    msgspec.Struct,
    gc=False,
    omit_defaults=True,
    rename={
        "decision": "authorization.k8s.io/decision",
        "decision_reason": "authorization.k8s.io/reason",
        "cluster": "mcproxy.io/cluster",
        "endpoint": "mcproxy.io/endpoint",
        "policy": "mcproxy.io/policy",
        "process": "mcproxy.io/process",
        "reason": "mcproxy.io/reason",
        "server": "mcproxy.io/server",
    },
):
    """What the proxy adds to an event. A value is None if it is not known."""

    decision: str | None = None
    """allow or forbid, where the server's authorizer has decided."""
    decision_reason: Any = None
    cluster: Any = None
    endpoint: Any = None
    policy: Any = None
    process: str | None = None
    reason: str | None = None
    """How the request ended (`proxy.reasons`), as in the access log."""
    server: Any = None


class Event(msgspec.Struct, gc=False, rename="camel"):
    """One stage of one request. Texts that are not ASCII are `Raw`, too."""

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
    annotations: Annotations | UnsetType


def received(
    audit_id: str,
    uri: object,
    verb: object,
    user: msgspec.Raw,
    source_ips: msgspec.Raw | UnsetType,
    user_agent: object,
    object_ref: msgspec.Raw | UnsetType,
    timestamp: str,
) -> Event:
    """Return the first event of a request; `timestamp` is that of its arrival."""
    return Event(
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


def later(
    first: Event,
    stage: str,
    impersonated: msgspec.Raw | UnsetType,
    status: msgspec.Raw,
    timestamp: str,
    annotations: Annotations,
) -> Event:
    """Return a later event of the request whose first event is `first`."""
    return Event(
        KIND,
        API_VERSION,
        METADATA,
        first.audit_id,
        stage,
        first.request_uri,
        first.verb,
        first.user,
        impersonated,
        first.source_ips,
        first.user_agent,
        first.object_ref,
        status,
        first.request_received_timestamp,
        timestamp,
        annotations,
    )
