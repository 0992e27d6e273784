"""A Lease as leader election reads and writes it. Pure. Source: coordination.k8s.io/v1, client-go's resourcelock.

Who may write Leases of a cluster may write anything into one, so every value is checked before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

MAX_BODY = 32 * 1024
"""Bytes of an answer that are read: a Lease has a few hundred. Numbers like 1e300 take 1.7 us a byte."""
_MAX_TEXT = 256  # characters of a holder or a version that are taken
_MAX_DURATION = 300  # seconds; a longer one in a Lease counts as this
_MAX_TRANSITIONS = 2**31 - 1  # int32
_decoder = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


class MalformedLeaseError(ValueError):
    """What a cluster answered is no Lease; the text says why."""


class LeaseConflictError(Exception):
    """Somebody else has written, created or removed the Lease meanwhile."""


class LeaseUnavailableError(Exception):
    """The Lease cannot be read or written: `cause` and `todo` are for operators."""

    def __init__(self, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease that a cluster has. Two are `same_record` if nobody renewed it in between."""

    holder: str
    """holderIdentity; "" if it is free."""
    duration: float
    """leaseDurationSeconds."""
    transitions: int
    acquired: str
    """acquireTime, as written: nobody compares it with a clock."""
    renewed: str
    """renewTime, likewise."""
    uid: str
    resource_version: str
    whole: dict[str, Any] = field(repr=False, compare=False)
    """The object, whose other fields an update keeps."""

    @property
    def record(self) -> tuple[object, ...]:
        """What is compared to see whether someone has renewed the Lease: the election's fields, and no metadata."""
        return (self.holder, self.duration, self.transitions, self.acquired, self.renewed)


def parse(body: bytes) -> Lease:
    """Return the Lease in an answer. Raises `MalformedLeaseError`."""
    try:
        whole = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedLeaseError("it is no JSON object") from None
    metadata, spec = whole.get("metadata"), whole.get("spec") or {}
    if whole.get("kind") != "Lease" or not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise MalformedLeaseError("it is no Lease")
    uid, version = metadata.get("uid"), metadata.get("resourceVersion")
    if not _is_text(uid) or not _is_text(version) or not uid or not version:
        raise MalformedLeaseError("it has no uid or no resourceVersion")
    holder, acquired, renewed = (spec.get(key) or "" for key in ("holderIdentity", "acquireTime", "renewTime"))
    duration, transitions = (spec.get(key) or 0 for key in ("leaseDurationSeconds", "leaseTransitions"))
    if not (_is_text(holder) and _is_text(acquired) and _is_text(renewed)):
        raise MalformedLeaseError("holderIdentity, acquireTime or renewTime is no text, or very long")
    if not (_is_count(duration) and _is_count(transitions)):
        raise MalformedLeaseError("leaseDurationSeconds or leaseTransitions is no number")
    return Lease(
        holder, float(min(duration, _MAX_DURATION)), min(transitions, _MAX_TRANSITIONS), acquired, renewed, uid,
        version, whole,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Record:
    """What is to be written."""

    holder: str
    duration: int
    transitions: int
    acquired: str
    renewed: str


def body_of(record: Record, namespace: str, name: str, current: Lease | None) -> bytes:
    """Return the object to create, or with `current` the one to update it with: as it is but for the record.

    The update names uid and resourceVersion, so it fails if anybody has written, or removed, the Lease since.
    """
    whole = {} if current is None else current.whole
    spec = {
        **(whole.get("spec") or {}),
        "holderIdentity": record.holder,
        "leaseDurationSeconds": record.duration,
        "leaseTransitions": record.transitions,
        "acquireTime": record.acquired,
        "renewTime": record.renewed,
    }
    metadata = {"name": name, "namespace": namespace} if current is None else _without_managed_fields(current)
    return _encoder.encode(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        }
    )


def _without_managed_fields(current: Lease) -> dict[str, Any]:
    metadata: dict[str, Any] = current.whole["metadata"]
    return {key: value for key, value in metadata.items() if key != "managedFields"}  # without them the server's stay


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
