"""The `reason` field of the access log: a word for the way in which a request ended. Pure.

The words are part of the public interface. The manual lists them, and a test keeps both lists equal.
"""

from __future__ import annotations

from enum import Enum, auto
from types import MappingProxyType


class Step(Enum):
    """The step of request processing in which a request was refused. It determines the reason of the refusal."""

    ROUTING = auto()
    AUTHENTICATION = auto()
    IMPERSONATION = auto()
    POLICY = auto()
    FLOW_CONTROL = auto()
    AUTHORIZATION = auto()
    FORWARDING = auto()
    AGGREGATE = auto()


#: The meaning of each reason.
REASONS = MappingProxyType(
    {
        "ok": "the response was sent whole; what the cluster itself answered is in the status",
        "client_closed": "the client went away before the response was complete",
        "client_stalled": "the client read no byte of the response, or sent none of the body, for limits.stallTimeout",
        "bad_request": "400: the path or an identity header is ambiguous",
        "unauthenticated": "401: no authenticator of the server accepted the client's credentials",
        "forbidden": "403: the server's authorizer does not allow the request",
        "no_policy": "403: no dispatch policy of the server matches",
        "impersonation_refused": "403: the client may not impersonate the requested user",
        "foreign_account": "403: a system: user authenticated by another cluster, valid for that cluster only",
        "cross_site": "403: a cross-site request from a web page",
        "rejected": "refused by a dispatch policy, with its status",
        "no_server": "404: no server has the requested name",
        "no_rule": "404: no rule of an ingress matches the host and the path",
        "no_cluster": "404: the path names no cluster of the server",
        "misdirected": "421: the TLS server name and the Host header name different servers, or the connection's "
        "certificate does not cover the Host",
        "flow_control": "429: over the limit of a flow control",
        "internal_error": "500: a bug; its traceback is in the log",
        "upstream_closed": "502: the endpoint closed the connection without a response",
        "upstream_malformed": "502: the endpoint's response violates the protocol",
        "upstream_redirect": "502: an API server sends clients elsewhere (3xx with Location), which none may",
        "upstream_broken": "the endpoint broke off a response that had begun, and the client's connection was aborted",
        "api_service_unavailable": "503: the probes of the API service fail (servers[].apiServices)",
        "upstream_unreachable": "503 (an ingress: 502, 504): no endpoint is ready, or none could be connected to",
        "no_endpoint": "503: the service of an ingress has no endpoint in any of its clusters; 500: none of them has "
        "it",
        "upstream_refused": "503: the endpoint refused the HTTP/2 stream unprocessed, and it could not be sent again",
        "no_credential": "503: the proxy's own credential for the cluster cannot be obtained",
        "credential_refused": "503: the cluster does not accept the proxy's own credential",
        "impersonation_not_granted": "503: the cluster does not permit the proxy to impersonate users",
        "authenticator_unavailable": "503: the token reviewer is unavailable",
        "authorizer_unavailable": "503: the access reviewer is unavailable",
        "draining": "503: the proxy is shutting down and opens no new tunnels",
        "upstream_timeout": "504: no response within responseTimeout, or the request's own timeout",
        "upstream_silent": "504: the endpoint became silent and was declared out; a write may have taken effect",
        "upstream_closed_watch": "the endpoint ended a watch between two events; it ended cleanly for the client too",
        "session_expired": "a watch, followed log or tunnel reached sessions.maxAge",
        "credential_ended": "the credential that opened a watch, followed log or tunnel is no longer accepted",
        "redirected": "a redirect: that of an ingress' rule, or 308 of a request without TLS to https",
        "drained": "ended by a shutdown, or by a reload that removed what it used",
        "refused": "any other refusal",
    }
)

_REFUSALS = {
    (Step.ROUTING, 404): "no_server",
    (Step.ROUTING, 421): "misdirected",
    (Step.AUTHENTICATION, 401): "unauthenticated",
    (Step.AUTHENTICATION, 503): "authenticator_unavailable",
    (Step.IMPERSONATION, 403): "impersonation_refused",
    (Step.IMPERSONATION, 503): "authorizer_unavailable",
    (Step.POLICY, 403): "impersonation_refused",
    (Step.POLICY, 503): "authorizer_unavailable",
    (Step.FLOW_CONTROL, 429): "flow_control",
    (Step.AUTHORIZATION, 403): "forbidden",
    (Step.AUTHORIZATION, 503): "authorizer_unavailable",
    (Step.FORWARDING, 503): "upstream_unreachable",
    (Step.AGGREGATE, 403): "forbidden",
    (Step.AGGREGATE, 429): "flow_control",
    (Step.AGGREGATE, 503): "upstream_unreachable",
}


def refusal_reason(step: Step, code: int) -> str:
    """Return the reason of a request that was refused in `step` with a status code."""
    if code == 400:
        return "bad_request"
    return _REFUSALS.get((step, code), "refused")
