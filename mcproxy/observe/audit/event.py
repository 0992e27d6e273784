"""An event of the audit log, in the form of a kube-apiserver. Pure.

Keys, their order and their omission follow k8s.io/apiserver's `audit/v1.Event`; the level is always Metadata (user,
resource and verb, without bodies). A line is put together from texts of JSON (`values`), because most requests of a
user share most of them, and the events of one request nearly all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mcproxy.observe.audit.values import json_object
from mcproxy.observe.log_values import bounded, json_id

if TYPE_CHECKING:
    from mcproxy.kube.requestinfo import RequestInfo

RECEIVED: Final = "RequestReceived"
"""Stage: the user is known, but authorization has not been decided."""
STARTED: Final = "ResponseStarted"
"""Stage: the response to a long-running request has begun, or authentication failed (the only event of a 401)."""
COMPLETE: Final = "ResponseComplete"
"""Stage: the response is complete or was aborted."""
PANIC: Final = "Panic"
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
) -> str:
    """Return the member annotations, which the proxy adds to an event; unknown values are None.

    `decision` is allow or forbid, if the server's authorizer has decided. `reason` is the access log's reason for the
    end of the request (`requests.reasons`).
    """
    known = {
        "authorization.k8s.io/decision": decision,
        "authorization.k8s.io/reason": None if decision_reason is None else bounded(decision_reason),
        "mcproxy.io/api-service": api_service,
        "mcproxy.io/cluster": cluster,
        "mcproxy.io/endpoint": endpoint,
        "mcproxy.io/policy": None if policy is None else bounded(policy),
        "mcproxy.io/process": process,
        "mcproxy.io/reason": reason,
        "mcproxy.io/server": server,
    }
    return f',"annotations":{json_object({key: value for key, value in known.items() if value is not None})}'


class AuditTrail:
    """The common content of the events of one request, and its present stage."""

    __slots__ = ("_arrived", "_audit_id", "_client", "_object_ref", "_subject", "info", "started")

    def __init__(
        self,
        info: RequestInfo | None,
        audit_id: str,
        uri: str,
        verb: str,
        user: str,
        client: str,
        object_ref: str,
        arrived: str,
    ) -> None:
        """`client` is its members sourceIPs and userAgent; `arrived` is the time of the request's arrival."""
        self.info = info
        self.started = False
        """ResponseStarted was written."""
        self._audit_id = json_id(audit_id)
        self._subject = f'"requestURI":{uri},"verb":{verb},"user":{user}'
        self._client = client
        self._object_ref = object_ref
        self._arrived = arrived

    def received(self) -> str:
        """Return the line of the first event."""
        return self._line(RECEIVED, "", "", self._arrived, "")

    def later(self, stage: str, impersonated: str, status: str, timestamp: str, annotations: str) -> str:
        """Return the line of a later event; `impersonated` is the object of a user, "" without impersonation."""
        impersonated = impersonated and f',"impersonatedUser":{impersonated}'
        return self._line(stage, impersonated, status, timestamp, annotations)

    def _line(self, stage: str, impersonated: str, status: str, timestamp: str, annotations: str) -> str:
        return (
            f'{{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":{self._audit_id},'
            f'"stage":"{stage}",{self._subject}{impersonated}{self._client}{self._object_ref}{status},'
            f'"requestReceivedTimestamp":"{self._arrived}","stageTimestamp":"{timestamp}"{annotations}}}\n'
        )
