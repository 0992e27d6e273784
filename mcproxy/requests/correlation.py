"""Reads the fields that correlate a request in several systems: its Audit-ID, and the W3C trace context. Pure.

A client's well-formed values are used and passed on unchanged. Malformed values are dropped, so that the systems behind
the proxy do not have to handle them.

Sources: k8s.io/apiserver `pkg/endpoints/filters/audit_init.go` (a kube-apiserver accepts any Audit-ID; the proxy
accepts printable ASCII of at most 64 characters, as many as a kube-apiserver logs); W3C Trace Context, level 2.
"""

from __future__ import annotations

import os
import re

MAX_TRACESTATE = 1024
"""Maximum bytes of a `tracestate` that is passed on; W3C Trace Context requires at least 512."""
_MOST_MEMBERS = 32  # maximum list members of a tracestate (W3C Trace Context 3.3.1.1)
_IDS_AT_ONCE = 64  # Audit-IDs for which random bytes are read
_MAX_TRACEPARENT = 128  # maximum bytes; a traceparent of version 00 has 55

_NAMED = re.compile(rb"\n(audit-id|traceparent|tracestate|user-agent):([^\n]*)\r")
_AUDIT_ID = re.compile(rb"[!-~]{1,64}")
_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
_MEMBER = re.compile(rb"[ \t]*(?:[a-z0-9][a-z0-9_\-*/@]{0,255}=[ -+\--<>-~]{0,256})?[ \t]*")


class TraceContext:
    """A well-formed `traceparent` with its `tracestate`."""

    __slots__ = ("flags", "parent_id", "state", "trace_id")

    def __init__(self, trace_id: bytes, parent_id: bytes, flags: int, state: bytes) -> None:
        """Ids are hexadecimal; bit 0 of `flags` is "sampled"."""
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.flags = flags
        self.state = state


class Correlation:
    """The correlation fields in a block of request fields."""

    __slots__ = ("audit_id", "fields", "trace", "untraced", "user_agent")

    def __init__(self, fields: bytes) -> None:
        self.fields = fields
        """The block without malformed correlation fields."""
        self.untraced = fields
        """The block without a trace context, so that the proxy can add its own."""
        self.audit_id = b""
        """The client's Audit-ID; b"" if absent or malformed."""
        self.trace: TraceContext | None = None
        self.user_agent = ""


def correlate(fields: bytes) -> Correlation:
    """Return the correlation fields in a block of fields (as in `RequestHead.fields`)."""
    result = Correlation(fields)
    spans: dict[bytes, list[tuple[int, int]]] = {}
    values: dict[bytes, list[bytes]] = {}
    # The searched bytes begin one byte before the block, and a line ends one byte after its match.
    for match in _NAMED.finditer(b"\n" + fields.lower()):
        value = fields[match.start(2) - 1 : match.end(2) - 1].strip(b" \t")
        values.setdefault(match[1], []).append(value)
        spans.setdefault(match[1], []).append(match.span())
    if not values:
        return result
    if agents := values.get(b"user-agent"):
        result.user_agent = agents[0].decode("latin-1")
    dropped: list[tuple[int, int]] = []
    if identifiers := values.get(b"audit-id"):
        if _AUDIT_ID.fullmatch(identifiers[0]):
            result.audit_id = identifiers[0]
            dropped += spans[b"audit-id"][1:]
        else:
            dropped += spans[b"audit-id"]
    parents, states = values.get(b"traceparent", []), values.get(b"tracestate", [])
    traced = [*spans.get(b"traceparent", ()), *spans.get(b"tracestate", ())]
    if traced:
        result.untraced = _without(fields, [*dropped, *traced])
        state = _state(states)
        result.trace = _context(parents, state)
        if result.trace is None:
            dropped += traced
        elif not state:
            dropped += spans.get(b"tracestate", [])
    elif dropped:
        result.untraced = _without(fields, dropped)
    if dropped:
        result.fields = _without(fields, dropped)
    return result


def audit_id_of(fields: bytes) -> bytes:
    """Return the Audit-ID of a request with these fields: the client's, else a new one."""
    return correlate(fields).audit_id or new_audit_id()


class _AuditIds:
    """Makes Audit-IDs from random bytes that are read for many at once: each read is a system call."""

    __slots__ = ("_random", "_used")

    def __init__(self) -> None:
        self._random = ""
        self._used = 0

    def next(self) -> bytes:
        start = self._used
        if start >= len(self._random):
            self._random, start = os.urandom(15 * _IDS_AT_ONCE).hex(), 0
        self._used = start + 30
        text = self._random[start : start + 30]
        return f"{text[:8]}-{text[8:12]}-4{text[12:15]}-a{text[15:18]}-{text[18:]}".encode()


_IDS = _AuditIds()


def new_audit_id() -> bytes:
    """Return a new Audit-ID: a UUID of version 4 (120 of its bits are random)."""
    return _IDS.next()


def _context(parents: list[bytes], state: bytes) -> TraceContext | None:
    if len(parents) != 1 or len(parents[0]) > _MAX_TRACEPARENT:
        return None
    match = _TRACEPARENT.fullmatch(parents[0])
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    if not trace_id.strip(b"0") or not parent_id.strip(b"0"):
        return None
    return TraceContext(trace_id, parent_id, int(flags, 16), state)


def _state(values: list[bytes]) -> bytes:
    """Return the members of a trace state as one value; b"" if they are malformed or too many."""
    joined = b",".join(values)
    if len(joined) > MAX_TRACESTATE:
        return b""
    members = joined.split(b",")
    if len(members) > _MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return b""
    return joined.strip(b" \t")


def _without(fields: bytes, spans: list[tuple[int, int]]) -> bytes:
    """Return a block without the lines at `spans`."""
    kept, position = [], 0
    for begin, end in sorted(spans):
        kept.append(fields[position:begin])
        position = end
    kept.append(fields[position:])
    return b"".join(kept)
