"""Decodes and encodes the Lease of leader election, and reads and writes it. Source: client-go's resourcelock.

Anyone with the right to write Leases can write any values, so every value is checked before its use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from twisted.internet.interfaces import IReactorTime

from mcproxy.config.model import LeaseName
from mcproxy.kube.numbers import json_float
from mcproxy.net.causes import code_of_status
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.remedies import remedy

MAX_LEASE_BODY = 32 * 1024
"""Maximum of bytes of a response; a Lease has a few hundred."""
_MAX_TEXT = 256  # maximum of characters of a holder or a version
_MAX_DURATION = 300  # seconds; a longer duration in a Lease counts as this one
_MAX_TRANSITIONS = 2**31 - 1  # int32
_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=json_float)
_encoder = msgspec.json.Encoder()


class MalformedLeaseError(ValueError):
    """The response of a cluster is no valid Lease; the message gives the reason."""


class LeaseConflictError(Exception):
    """Another client has written, created or removed the Lease meanwhile."""


class LeaseUnavailableError(Exception):
    """The Lease cannot be read or written: `cause` and `todo` are for operators."""

    def __init__(self, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease in a cluster."""

    holder: str
    """holderIdentity; "" if the Lease is free."""
    duration: float
    """leaseDurationSeconds."""
    transitions: int
    acquired: str
    """acquireTime as written; it is not compared with a clock."""
    renewed: str
    """renewTime as written; it is not compared with a clock."""
    uid: str
    resource_version: str
    whole: dict[str, Any] = field(repr=False, compare=False)
    """The whole object, because an update keeps its other fields."""

    @property
    def record(self) -> tuple[object, ...]:
        """The fields of the election without metadata; a renewal changes them."""
        return (self.holder, self.duration, self.transitions, self.acquired, self.renewed)


def parse_lease(body: bytes) -> Lease:
    """Return the Lease in a response. Raises `MalformedLeaseError`."""
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
    """The fields of a Lease that the candidate writes."""

    holder: str
    duration: int
    transitions: int
    acquired: str
    renewed: str


def lease_body(record: Record, namespace: str, name: str, current: Lease | None) -> bytes:
    """Return the body of a creation, or with `current` of an update that changes only the record.

    An update names uid and resourceVersion, so it fails if the Lease was written or deleted since.
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
    return {key: value for key, value in metadata.items() if key != "managedFields"}  # the API server keeps them


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


# -- the Lease in its cluster ---------------------------------------------------------------------------------
#
# Reads and writes the Lease in its cluster, by the proxy's own requests (`upstream.control`).


_HEADERS = (("content-type", "application/json"), ("accept", "application/json"))


class LeaseLock:
    """Access to the Lease of a cluster. `timeout` is in seconds; all methods raise `LeaseUnavailableError`."""

    def __init__(self, cluster: Callable[[], Cluster], clock: IReactorTime, where: LeaseName) -> None:
        """`cluster` returns the current cluster, which a reload can replace."""
        self._where = where
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{where.namespace}/leases"
        self._path = f"{self._collection}/{where.name}"
        self._cluster = cluster
        self._clock = clock

    async def get(self, timeout: float) -> Lease | None:
        """Read the Lease; return None if there is none."""
        answer = await self._send("GET", self._path, b"", timeout)
        if answer.status == 404:
            return None
        return self._lease(answer)

    async def create(self, record: Record, timeout: float) -> Lease:
        """Create the Lease. Raises `LeaseConflictError`."""
        return self._lease(await self._send("POST", self._collection, lease_body(record, *self._names, None), timeout))

    async def update(self, lease: Lease, record: Record, timeout: float) -> Lease:
        """Replace the Lease if it is still `lease`. Raises `LeaseConflictError` if it has changed."""
        body = lease_body(record, *self._names, lease)
        return self._lease(await self._send("PUT", self._path, body, timeout))

    @property
    def _names(self) -> tuple[str, str]:
        return self._where.namespace, self._where.name

    def _lease(self, answer: ControlResponse) -> Lease:
        if answer.status == 409:
            raise LeaseConflictError
        if answer.status not in (200, 201):
            raise self._refused(answer.status)
        try:
            return parse_lease(answer.body)
        except MalformedLeaseError as error:
            todo = f"see what answers there, and remove the Lease {self._where.text} if it is broken"
            raise LeaseUnavailableError(f"the response for the lease is invalid: {error}", todo) from None

    def _refused(self, status: int) -> LeaseUnavailableError:
        cluster = self._cluster()
        if status in (401, 403):
            todo = (
                "let the proxy get, create and update leases of coordination.k8s.io in"
                f" {self._where.namespace} (`mcproxy rbac`)"
            )
            return LeaseUnavailableError(f"answered {status} for the lease", todo)
        if status == 404:
            todo = f"see that the cluster serves coordination.k8s.io/v1 and has the namespace {self._where.namespace}"
            return LeaseUnavailableError("answered 404 when the lease was created", todo)
        keys = cluster.endpoints[0].keys
        return LeaseUnavailableError(f"answered {status} for the lease", remedy(code_of_status(status), keys))

    async def _send(self, method: str, path: str, body: bytes, timeout: float) -> ControlResponse:
        """Send a request to the endpoints in turn until one answers, all within `timeout`."""
        cluster = self._cluster()
        deadline = self._clock.seconds() + timeout
        share = timeout if len(cluster.endpoints) == 1 else timeout / 2  # leaves time if the first endpoint hangs
        tried: list[Endpoint] = []
        failure: LeaseUnavailableError | None = None
        while True:
            endpoint = cluster.pick(tried)
            left = deadline - self._clock.seconds()
            if endpoint is None or left <= 0:
                break
            tried.append(endpoint)
            try:
                answer = await cluster.control.request(
                    endpoint,
                    method,
                    path,
                    headers=_HEADERS,
                    body=body,
                    timeout=max(0.1, round(min(left, share), 1)),
                    max_body=MAX_LEASE_BODY,
                )
            except CredentialError as error:
                raise LeaseUnavailableError(error.cause, f"give cluster {cluster.name} a usable credential") from None
            except ConnectError as error:
                endpoint.request_check()
                failure = LeaseUnavailableError(error.cause, remedy(error.cause, endpoint.keys))
            except ControlError as error:
                failure = LeaseUnavailableError(error.cause, remedy(error.cause, endpoint.keys))
                if method != "GET":
                    break  # the write can have succeeded, so it is not repeated: only a read shows the result
            else:
                if answer.status < 500 and answer.status != 429:
                    return answer
                cause = f"{endpoint.name} answered {answer.status}"
                failure = LeaseUnavailableError(cause, remedy(code_of_status(answer.status), endpoint.keys))
        if failure is None:
            failure = LeaseUnavailableError(
                cluster.unavailable_message(times=False), "see that the cluster's API server runs and can be reached"
            )
        raise failure
