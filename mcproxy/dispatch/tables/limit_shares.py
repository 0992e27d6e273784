"""Types for limits over replicas: limits, shares of this machine and demands, and the hashes of keys. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple

from mcproxy.config import model

Kind = Literal["bucket", "short", "long", "connections"]


class LimitId(NamedTuple):
    """The id of a limit. A MaxRequestsInflight flow control has two limits: for short and long-running requests."""

    name: str  # the name of the flow control, or the address of a listener
    kind: Kind
    per: model.Per


@dataclass(frozen=True, slots=True)
class Share:
    """The share of this machine for one key of a limit: rate and burst of a token bucket, or a maximum in flight."""

    rate: float = 0.0
    burst: float = 0.0  # below 1 no request is admitted
    maximum: int | None = None


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand for one key of a limit on this machine."""

    key: int  # `key_hash`
    taken: int  # requests admitted since the last call of `demands`
    refused: int  # requests refused by the limit since the last call of `demands`
    in_flight: int  # requests in flight now


def key_hash(limit: LimitId, key: str) -> int:
    """Return the 64-bit hash of a key of a limit (name of a user or cluster, or ""), the same on all replicas."""
    return hash_after(prefix_of(limit), key)


def prefix_of(limit: LimitId) -> blake2b:
    """Return the hash state of a limit, before the key is added. It has no secret; colliding keys share a limit."""
    return blake2b("\0".join((*limit, "")).encode(), digest_size=8, person=b"mcproxy-limit")


def hash_after(prefix: blake2b, key: str) -> int:
    """Return `key_hash` of a key, from a reusable prefix."""
    digest = prefix.copy()
    digest.update(key.encode(errors="surrogatepass"))
    return int.from_bytes(digest.digest(), "big")


def overflow_hash(limit: LimitId) -> int:
    """Return the 64-bit hash of the slot that keys without room share; no key has this hash."""
    digest = blake2b("\0".join(limit).encode(), digest_size=8, person=b"mcproxy-overflow")
    return int.from_bytes(digest.digest(), "big")


def identity_hash(limit: LimitId, shared: bool) -> int:
    """Return the 64-bit hash by which processes find a limit; it differs for a limit over replicas (`shared`)."""
    digest = blake2b("\0".join(limit).encode(), digest_size=8, person=b"mcproxy-shared" if shared else b"mcproxy-table")
    return int.from_bytes(digest.digest(), "big") or 1
