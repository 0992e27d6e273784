"""A line of the access log in JSON."""

from __future__ import annotations

from typing import Any

import msgspec


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
