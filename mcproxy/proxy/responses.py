"""The headers of responses: those of the proxy itself, and changes in those of a cluster. Pure."""

from __future__ import annotations

import re
from email.utils import formatdate

from mcproxy.kube.status import StatusError

# What a kube-apiserver sends with a refusal (recorded): with nosniff only if it is 403.
_OWN_FIELDS = b"Audit-Id: %b\r\nCache-Control: %b\r\n%bDate: %b\r\n"
_STATUS_FIELDS = b"Content-Type: application/json\r\n"
_FORBIDDEN_FIELDS = _STATUS_FIELDS + b"X-Content-Type-Options: nosniff\r\n"

_LOCATION = re.compile(rb"(?im)^((?:Content-)?Location:[ \t]*)/(?!/)")


def own_fields(
    identifier: bytes, now: float, more: bytes = b"", *, cache_control: bytes = b"no-cache, private"
) -> bytes:
    """Return the fields of a response of our own, as a block; `now` is seconds since 1970."""
    return _OWN_FIELDS % (identifier, cache_control, more, formatdate(now, usegmt=True).encode())


def refusal_fields(refusal: StatusError, identifier: bytes, now: float) -> bytes:
    """Return the fields of a response that carries a Status, as a block."""
    more = b"".join([b"%b: %b\r\n" % field for field in refusal.headers])
    return own_fields(identifier, now, (_FORBIDDEN_FIELDS if refusal.code == 403 else _STATUS_FIELDS) + more)


def with_audit_id(fields: bytes, identifier: bytes) -> bytes:
    """Return a cluster's response fields with the Audit-ID of the request, unless they have one."""
    return fields if b"audit-id:" in fields.lower() else fields + b"Audit-Id: %b\r\n" % identifier


def restore_prefix(fields: bytes, prefix: bytes) -> bytes:
    """Return a cluster's response fields with the path prefix that routing removed put back into redirects.

    Only a path that begins with exactly one slash is relative to the server's root (RFC 3986 4.2): `//` begins a host.
    """
    return _LOCATION.sub(lambda match: match[1] + prefix + b"/", fields)
