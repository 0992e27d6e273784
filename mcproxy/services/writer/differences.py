"""Computes the writes that bring a cluster from its cached state to the desired state. Pure.

Objects are written by server-side apply with the field manager ``mcproxy``, in two ways that are safe against
concurrent writes:

- A new object is applied with a resourceVersion that no object has. If an object of that name was created meanwhile,
  the response is 409 and nothing has changed. (Kubernetes 1.23 and later ignore the version if the object does not
  exist: issue 106745 of kubernetes/kubernetes.)
- A managed object is applied with the uid and resourceVersion under which it was seen with mcproxy's label. If it was
  replaced, or the label removed, the response is 409 (422 for another uid).

No apply is forced: fields that another manager has set in a managed object stay, and are reported. An annotation
contains a hash of the applied configuration: without it, a field to remove would not show as a difference.

An owned object (`Desired.owners`) is written after its owner, with a reference to it, so that the cluster's garbage
collector removes it with the owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from mcproxy.kube.numbers import json_float
from mcproxy.services.api_types import SERVICES, SLICES
from mcproxy.services.exports.conflict_resolution import with_transition_times
from mcproxy.services.exports.export_types import Desired
from mcproxy.services.exports.object_keys import ObjectKey
from mcproxy.services.service_caches import object_json

if TYPE_CHECKING:
    from mcproxy.aggregate.cache.cached_object import CachedObject


APPLIED_HASH = "mcproxy.io/applied-hash"
"""The annotation with the hash of the applied configuration."""
NO_VERSION = "1"
"""A resourceVersion that no object has, because etcd's first revision is that of its empty store."""

_decode = msgspec.json.Decoder(dict[str, Any], float_hook=json_float).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


@dataclass(frozen=True, slots=True)
class Observed:
    """An object in the cache of its cluster."""

    uid: str
    version: int
    ours: bool
    """Whether the object has mcproxy's managed-by label."""
    item: CachedObject = field(repr=False)
    """The object as JSON, with the label and the annotation that the cache adds."""

    def decoded(self) -> dict[str, Any]:
        """Return the decoded object."""
        return _decode(object_json(self.item))


class Verb(Enum):
    """The kind of a write."""

    CREATE = "create"
    APPLY = "apply"
    DELETE = "delete"
    STATUS = "status"


@dataclass(frozen=True, slots=True)
class PlannedWrite:
    """One write."""

    verb: Verb
    key: ObjectKey
    uid: str = ""
    version: str = ""
    """The precondition of the write: uid and version of the object."""
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    """The apply configuration, without uid and resourceVersion."""
    digest: str = ""
    """Digest of the applied configuration."""


def changes(
    desired: Desired,
    observed: Mapping[ObjectKey, Observed],
    mutations: MutationCache,
    wall: str,
    owners: Mapping[ObjectKey, str] = {},
) -> list[PlannedWrite]:
    """Return the writes for one service: objects, then their status, then deletions.

    `observed`: the objects with names of desired ones, and all managed objects of this service, in the clusters of
    known state; other clusters are not written to. `wall`: the date (RFC 3339). `owners`: the uids of existing
    owners.
    """
    return [*_applied(desired, observed, mutations, owners), *_statuses(desired, observed, mutations, wall),
            *_deleted(desired, observed, mutations)]  # fmt: skip


def owner_uid(place: ObjectKey, seen: Observed | None, mutations: MutationCache) -> str | None:
    """Return the uid of an owner in the cluster, or of its last write; None if it does not exist."""
    written = mutations.ahead_of(place, None if seen is None else (seen.uid, seen.version))
    if written is not None:
        return None if written.gone else written.uid
    return None if seen is None else seen.uid


def _owned(wanted: dict[str, Any], owner: ObjectKey, uid: str) -> dict[str, Any]:
    reference = {
        "apiVersion": f"{owner.group}/{owner.version}" if owner.group else owner.version,
        "kind": _KINDS[owner.resource],
        "name": owner.name,
        "uid": uid,
    }
    return {**wanted, "metadata": {**wanted["metadata"], "ownerReferences": [reference]}}


def _applied(
    desired: Desired,
    observed: Mapping[ObjectKey, Observed],
    mutations: MutationCache,
    owners: Mapping[ObjectKey, str],
) -> Iterator[PlannedWrite]:
    for key, plain in desired.objects.items():
        wanted, owner = plain, desired.owners.get(key)
        if owner is not None:
            if owner not in owners:
                continue  # it waits for its owner: without an owner reference the cluster would never remove it
            wanted = _owned(wanted, owner, owners[owner])
        seen = observed.get(key)
        if seen is not None and not seen.ours:
            continue  # the object is foreign: the desired state reports this as a problem
        digest = _digest(wanted)
        written = mutations.ahead_of(key, None if seen is None else (seen.uid, seen.version))
        if written is not None:
            change = _after(key, wanted, digest, written)
        elif seen is None:
            change = PlannedWrite(Verb.CREATE, key, "", NO_VERSION, _with_hash(wanted, digest), digest)
        else:
            change = _over(key, wanted, digest, seen, mutations)
        if change is not None:
            yield change


def _after(key: ObjectKey, wanted: Mapping[str, Any], digest: str, written: UnseenWrite) -> PlannedWrite | None:
    """Return the next write of an object whose last write the cache does not show yet."""
    if written.gone or written.digest == digest:
        return None
    return PlannedWrite(Verb.APPLY, key, written.uid, str(written.version), _with_hash(wanted, digest), digest)


def _over(
    key: ObjectKey, wanted: Mapping[str, Any], digest: str, seen: Observed, mutations: MutationCache
) -> PlannedWrite | None:
    if mutations.has_result(key, seen.uid, seen.version, digest):
        return None
    has = seen.decoded()
    if (has.get("metadata") or {}).get("deletionTimestamp"):
        return None  # the object is created again after its deletion
    if must_be_replaced(key.resource, wanted, has):
        return PlannedWrite(Verb.DELETE, key, seen.uid, str(seen.version))
    applied = ((has.get("metadata") or {}).get("annotations") or {}).get(APPLIED_HASH)
    if applied == digest and _contains(has, wanted):
        mutations.note_result(key, seen.uid, seen.version, digest)
        return None
    return PlannedWrite(Verb.APPLY, key, seen.uid, str(seen.version), _with_hash(wanted, digest), digest)


def _deleted(
    desired: Desired, observed: Mapping[ObjectKey, Observed], mutations: MutationCache
) -> Iterator[PlannedWrite]:
    for key, seen in observed.items():
        if not seen.ours or key in desired.objects or key in desired.kept:
            continue
        written = mutations.ahead_of(key, (seen.uid, seen.version))
        if written is None:
            if not (seen.decoded().get("metadata") or {}).get("deletionTimestamp"):
                yield PlannedWrite(Verb.DELETE, key, seen.uid, str(seen.version))
        elif not written.gone:
            yield PlannedWrite(Verb.DELETE, key, written.uid, str(written.version))


def _statuses(
    desired: Desired, observed: Mapping[ObjectKey, Observed], mutations: MutationCache, wall: str
) -> Iterator[PlannedWrite]:
    for key, wanted in desired.statuses.items():
        seen = observed.get(key)
        if seen is None or (key in desired.objects and not seen.ours):
            continue
        place = status_place(key)
        if any(mutations.ahead_of(each, (seen.uid, seen.version)) is not None for each in (key, place)):
            continue  # the cache does not show the last write yet: its event will cause another comparison
        digest = _digest(wanted)
        if mutations.has_result(place, seen.uid, seen.version, digest):
            continue
        status = seen.decoded().get("status")
        complete = with_transition_times(wanted, status if isinstance(status, dict) else None, wall)
        if _contains(status, complete):
            mutations.note_result(place, seen.uid, seen.version, digest)
            continue
        body = {"apiVersion": f"{key.group}/{key.version}", "kind": _KINDS[key.resource], "status": complete}
        yield PlannedWrite(Verb.STATUS, key, seen.uid, str(seen.version), body, digest)


_KINDS = {"services": "Service", "serviceexports": "ServiceExport", "serviceimports": "ServiceImport"}


def status_place(key: ObjectKey) -> ObjectKey:
    """Return the key under which mutations and queue keep the status of an object."""
    return key._replace(resource=f"{key.resource}/status")


def _digest(wanted: Mapping[str, Any]) -> str:
    return hashlib.sha256(_encode(wanted)).hexdigest()[:32]


def _with_hash(wanted: Mapping[str, Any], digest: str) -> dict[str, Any]:
    metadata = wanted["metadata"]
    annotations = {**(metadata.get("annotations") or {}), APPLIED_HASH: digest}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def _contains(has: object, wanted: object, name: str = "") -> bool:
    """Whether an object has the wanted fields; further fields are allowed, further items of lists are not."""
    if isinstance(wanted, Mapping):
        if not wanted and not has:
            return True
        return isinstance(has, Mapping) and all(
            _contains(has.get(key), value, key) for key, value in wanted.items() if key not in ("apiVersion", "kind")
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not wanted and not has:
            return True
        if not isinstance(has, list) or len(has) != len(wanted):
            return False
        if name == "ports":  # a map by port and protocol, in the order of the first apply
            has, wanted = sorted(has, key=_port), sorted(wanted, key=_port)
        return all(_contains(one, other) for one, other in zip(has, wanted, strict=True))
    if type(has) is not type(wanted):
        return not has and not wanted and wanted is not False and wanted != 0
    return has == wanted


def _port(port: object) -> tuple[str, str, str]:
    if not isinstance(port, Mapping):
        return ("", "", str(port))
    return (str(port.get("port")), str(port.get("protocol", "TCP")), str(port.get("name", "")))


def must_be_replaced(resource: str, desired: Mapping[str, Any], observed: Mapping[str, Any]) -> bool:
    """Whether an API server would refuse to change the observed object into the desired one.

    Source: kubernetes `pkg/apis/core/validation` (ValidateServiceClusterIPsRelatedFields) and
    `pkg/apis/discovery/validation` (addressType is immutable).
    """
    if resource == SLICES:
        return bool(desired.get("addressType") != observed.get("addressType"))
    if resource != SERVICES:
        return False
    wanted, found = desired.get("spec", {}), observed.get("spec", {})
    if (wanted.get("clusterIP") == "None") != (found.get("clusterIP") == "None"):
        return True
    first, present = wanted.get("ipFamilies"), found.get("ipFamilies")
    return bool(first and present and first[0] != present[0])


# -- writes that the cache does not show yet ------------------------------------------------------------------
#
# Remembers this process's last writes to one cluster until the cache shows them. No I/O.
#
# The response to a write can arrive before the watch event. A comparison of cache and desired state in between would
# repeat the write. With this class, the next write is based on the result of the last one.


CACHE_PATIENCE = 10.0
"""Seconds for which the response to a write has precedence over an older or missing object in the cache.

After this time the writer compares again: the cache may never have shown the object, because somebody else deleted it
soon after the write."""


@dataclass(frozen=True, slots=True)
class UnseenWrite:
    """The state of an object after mcproxy's last write."""

    uid: str
    version: int
    digest: str
    gone: bool
    at: float


class MutationCache:
    """The last write of each written object."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now` returns the reactor's time in seconds."""
        self._now = now
        self._written: dict[ObjectKey, UnseenWrite] = {}
        self._results: dict[ObjectKey, tuple[str, int, str]] = {}

    def wrote(self, place: ObjectKey, uid: str, version: int, digest: str) -> None:
        """Note that an apply has succeeded, with the object's new version."""
        self._written[place] = UnseenWrite(uid, version, digest, False, self._now())
        self.note_result(place, uid, version, digest)

    def note_result(self, place: ObjectKey, uid: str, version: int, digest: str) -> None:
        """Note that this version of an object is the result of applying this digest."""
        self._results[place] = (uid, version, digest)

    def removed(self, place: ObjectKey, uid: str) -> None:
        """Note that a deletion has succeeded."""
        self._written[place] = UnseenWrite(uid, 0, "", True, self._now())
        self._results.pop(place, None)

    def ahead_of(self, place: ObjectKey, seen: tuple[str, int] | None) -> UnseenWrite | None:
        """Return the last write if the cache does not show it yet. `seen`: the cached uid and version; None: no object.

        Otherwise, and after `CACHE_PATIENCE`, the write is forgotten. The API server refuses a later write that names
        an old version.
        """
        written = self._written.get(place)
        if written is None:
            return None
        if written.gone:
            behind = seen is not None and seen[0] == written.uid
        else:
            behind = seen is None or (seen[0] == written.uid and seen[1] < written.version)
        if behind and self._now() - written.at < CACHE_PATIENCE:
            return written
        del self._written[place]
        return None

    def has_result(self, place: ObjectKey, uid: str, version: int, digest: str) -> bool:
        """Whether this version is the result of applying this digest, so that another apply would change nothing.

        An API server or a webhook can change an object when it is applied.
        """
        return self._results.get(place) == (uid, version, digest)

    def forget(self, place: ObjectKey) -> None:
        """Forget the last write of an object, because a later write was refused."""
        self._written.pop(place, None)

    def prune(self, present: Callable[[ObjectKey], bool]) -> None:
        """Forget the writes of objects that do not exist any more."""
        for place in [place for place in self._results if not present(place)]:
            del self._results[place]
        for place in [each for each, written in self._written.items() if self._now() - written.at >= CACHE_PATIENCE]:
            del self._written[place]
