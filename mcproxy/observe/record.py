"""The record of a finished request, and the recorders that receive it.

When a response, watch or tunnel has ended, the pipeline makes an `AccessRecord` and passes it to its `Recorder`
(`Recorders`). Metrics get every record, the access log the records that its policies select.

`AccessLine` is a line of the access log in JSON. Neither class is compiled, because mypyc drops the keywords of a
class and the texts of its annotations, which msgspec reads.
"""

from __future__ import annotations

from typing import Any

import msgspec


class AccessRecord(msgspec.Struct, gc=False):
    """A finished request. An empty string, 0 or None means "unknown" and is omitted from the log.

    It is created for every request, so the class is implemented in C: creating a named tuple costs three times as much,
    a frozen dataclass ten times. Create it with keywords (except in `Request`, where their cost matters), read
    it by attribute, and never change it.
    """

    time: float
    """Time of the arrival of the request's head (seconds since the epoch)."""
    client: str
    """Address of the client, without port; "unix:" for a client of a unix socket."""
    method: str
    uri: str
    """Request target as received; the writers mask secrets in its query."""
    status: int
    """Status code of the response; 0 if the client disconnected before a response."""
    reason: str = "ok"
    """The reason for its end: "ok", client_closed, refused, upstream_unreachable, upstream_timeout …"""
    server: str = ""
    cluster: str = ""
    """The target cluster. For a response of an aggregate, the members that contributed, joined by commas."""
    endpoint: str = ""
    user: str = ""
    """The authenticated user."""
    groups: int = 0
    """The number of groups of the effective user of the request."""
    impersonated: str = ""
    """The impersonated user, if the client requested impersonation."""
    policy: str = ""
    """The matching dispatch policy."""
    verb: str = ""
    """Kubernetes verb (list, watch, …)."""
    resource: str = ""
    """Kubernetes resource with its group and subresource (deployments.apps/scale)."""
    long_running: bool = False
    """Whether it is a watch, followed log, exec, attach, port-forward, or a request below `proxy`."""
    request_id: str = ""
    """The Audit-ID, which is also in the upstream's audit log."""
    trace_id: str = ""
    """The trace id of the request's span (32 hexadecimal digits), if it is sampled."""
    user_agent: str = ""
    bytes_in: int = 0
    """Body bytes from the client (tunnel bytes after an upgrade)."""
    bytes_out: int = 0
    """Body bytes to the client (tunnel bytes after an upgrade)."""
    first_byte: float | None = None
    """Seconds from the head's arrival until the first byte of the response was sent."""
    upstream: float | None = None
    """Seconds from the first attempt at an endpoint to the end of its response; None without an attempt."""
    upstream_status: int = 0
    """Status code of the endpoint's response."""
    attempts: int = 0
    """The number of times that the request was sent to an endpoint."""
    total: float = 0.0
    """Seconds from the head's arrival to the end."""
    upgraded: bool = False
    """Whether the connection became a tunnel (exec, attach, port-forward)."""
    cached: bool | None = None
    """Whether an aggregate answered from its caches; None for other requests."""
    protocol: str = "HTTP/1.1"
    """The client's HTTP version: HTTP/1.0, HTTP/1.1 or HTTP/2.0."""
    authenticator: str = ""
    """The key of `authentication` that accepted the user; if no credential was accepted, the credential's kind."""
    api_service: str = ""
    """Group and version (metrics.k8s.io/v1beta1) of the requested API service."""
    ingress: str = ""
    """The name of the requested ingress. Then `cluster` and `endpoint` are those of a pod."""
    rule: str = ""
    """Host and path of that ingress's rule; "default" for its default backend."""
    service: str = ""
    """Namespace and name of the rule's service."""
    host: str = ""
    """The Host of a request to an Ingress listener."""


class AccessLine(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """A line in JSON, in the order of its keys, without keys that are None.

    Strings that must be escaped are `msgspec.Raw`.
    """

    ts: str
    client: Any
    method: Any
    protocol: str
    server: Any
    cluster: Any
    endpoint: Any
    user: Any
    reason: str
    uri: Any
    status: int
    bytes_in: int
    bytes_out: int
    total_seconds: float
    upgraded: bool
    process: str | None = None
    groups: int | None = None
    impersonated_user: Any = None
    policy: Any = None
    verb: Any = None
    resource: Any = None
    user_agent: Any = None
    request_id: Any = None
    trace_id: str | None = None
    cached: bool | None = None
    api_service: str | None = None
    first_byte_seconds: float | None = None
    upstream_seconds: float | None = None
    upstream_status: int | None = None
    attempts: int | None = None
    ingress: Any = None
    rule: Any = None
    service: Any = None
    host: Any = None


TEXTS = tuple(
    name for name in AccessLine.__struct_fields__
    if name not in ("ts", "protocol", "reason", "process", "trace_id") and AccessLine.__annotations__[name] == "Any"
)  # fmt: skip
"""The fields that can contain non-ASCII characters."""
