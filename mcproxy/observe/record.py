"""The record of a finished request, for metrics, the access log and spans.

When a response, watch or tunnel has ended, the pipeline makes an `AccessRecord` and passes it to its `Recorder`
(`recorders`). Metrics get every record, the access log the records that its policies select.
"""

from __future__ import annotations


class AccessRecord:
    """A finished request. An empty string, 0 or None means "unknown" and is omitted from the log.

    It is made once for every request, by code that is compiled; only `ServedBy.added_to` changes it.
    """

    __slots__ = (
        "api_service",
        "attempts",
        "authenticator",
        "bytes_in",
        "bytes_out",
        "cached",
        "client",
        "cluster",
        "endpoint",
        "first_byte",
        "groups",
        "host",
        "impersonated",
        "ingress",
        "long_running",
        "method",
        "policy",
        "protocol",
        "reason",
        "request_id",
        "resource",
        "rule",
        "server",
        "service",
        "status",
        "time",
        "total",
        "trace_id",
        "upgraded",
        "upstream",
        "upstream_status",
        "uri",
        "user",
        "user_agent",
        "verb",
    )

    def __init__(
        self,
        time: float,
        client: str,
        method: str,
        uri: str,
        status: int,
        reason: str = "ok",
        server: str = "",
        cluster: str = "",
        endpoint: str = "",
        user: str = "",
        groups: int = 0,
        impersonated: str = "",
        policy: str = "",
        verb: str = "",
        resource: str = "",
        long_running: bool = False,
        request_id: str = "",
        trace_id: str = "",
        user_agent: str = "",
        bytes_in: int = 0,
        bytes_out: int = 0,
        first_byte: float | None = None,
        upstream: float | None = None,
        upstream_status: int = 0,
        attempts: int = 0,
        total: float = 0.0,
        upgraded: bool = False,
        cached: bool | None = None,
        protocol: str = "HTTP/1.1",
        authenticator: str = "",
        api_service: str = "",
        ingress: str = "",
        rule: str = "",
        service: str = "",
        host: str = "",
    ) -> None:
        self.time = time
        """Time of the arrival of the request's head (seconds since the epoch)."""
        self.client = client
        """Address of the client, without port; "unix:" for a client of a unix socket."""
        self.method = method
        self.uri = uri
        """Request target as received; the writers mask secrets in its query."""
        self.status = status
        """Status code of the response; 0 if the client disconnected before a response."""
        self.reason = reason
        """The reason for its end: "ok", client_closed, refused, upstream_unreachable, upstream_timeout …"""
        self.server = server
        self.cluster = cluster
        """The target cluster. For a response of an aggregate, the members that contributed, joined by commas."""
        self.endpoint = endpoint
        self.user = user
        """The authenticated user."""
        self.groups = groups
        """The number of groups of the effective user of the request."""
        self.impersonated = impersonated
        """The impersonated user, if the client requested impersonation."""
        self.policy = policy
        """The matching dispatch policy."""
        self.verb = verb
        """Kubernetes verb (list, watch, …)."""
        self.resource = resource
        """Kubernetes resource with its group and subresource (deployments.apps/scale)."""
        self.long_running = long_running
        """Whether it is a watch, followed log, exec, attach, port-forward, or a request below `proxy`."""
        self.request_id = request_id
        """The Audit-ID, which is also in the upstream's audit log."""
        self.trace_id = trace_id
        """The trace id of the request's span (32 hexadecimal digits), if it is sampled."""
        self.user_agent = user_agent
        self.bytes_in = bytes_in
        """Body bytes from the client (tunnel bytes after an upgrade)."""
        self.bytes_out = bytes_out
        """Body bytes to the client (tunnel bytes after an upgrade)."""
        self.first_byte = first_byte
        """Seconds from the head's arrival until the first byte of the response was sent."""
        self.upstream = upstream
        """Seconds from the first attempt at an endpoint to the end of its response; None without an attempt."""
        self.upstream_status = upstream_status
        """Status code of the endpoint's response."""
        self.attempts = attempts
        """The number of times that the request was sent to an endpoint."""
        self.total = total
        """Seconds from the head's arrival to the end."""
        self.upgraded = upgraded
        """Whether the connection became a tunnel (exec, attach, port-forward)."""
        self.cached = cached
        """Whether an aggregate answered from its caches; None for other requests."""
        self.protocol = protocol
        """The client's HTTP version: HTTP/1.0, HTTP/1.1 or HTTP/2.0."""
        self.authenticator = authenticator
        """The key of `authentication` that accepted the user; if no credential was accepted, the credential's kind."""
        self.api_service = api_service
        """Group and version (metrics.k8s.io/v1beta1) of the requested API service."""
        self.ingress = ingress
        """The name of the requested ingress. Then `cluster` and `endpoint` are those of a pod."""
        self.rule = rule
        """Host and path of that ingress's rule; "default" for its default backend."""
        self.service = service
        """Namespace and name of the rule's service."""
        self.host = host
        """The Host of a request to an Ingress listener."""
