"""The public keys of an OIDC issuer (RFC 7517), and which of them may check a signature.

A set may hold other keys: for encryption, or of kinds that we do not accept. They are ignored, and so are weak or
invalid ones, so that one bad key does not affect the others.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

from mcproxy.identity.strict_json import json_object

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

#: Accepted algorithms, and the key that each takes: the type, and for EC the curve (RFC 7518 3.1). Neither `none` nor
#: symmetric ones (HS256 and so on).
ALGORITHMS = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
}

_MAX_KEYS = 100
_RSA_BITS = (2048, 8192)  # NIST SP 800-131A; above, a check costs milliseconds
_TRIED = 64  # keys for one signature at most: a token without kid may be of any


class Key(NamedTuple):
    """One key. `algorithm` is the only one that it is for, "" if it has none."""

    id: str | None
    type: str
    curve: str
    algorithm: str
    key: RSAKey | ECKey


class KeySet:
    """A set of keys, as it was read."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def matching(self, key_id: str | None, algorithm: str) -> tuple[Key, ...]:
        """Return the keys that may have made a signature of `algorithm`, with this id or, for None, with any."""
        kind = ALGORITHMS.get(algorithm)
        found = (
            key
            for key in self._keys
            if (key.type, key.curve) == kind
            and key.algorithm in ("", algorithm)
            and (key_id is None or key.id == key_id)
        )
        return tuple(found)[:_TRIED]


def parse_keys(data: bytes) -> KeySet:
    """Read a JWK set; raises ValueError, with a sentence that can follow its place, if no key in it can be used."""
    entries = json_object(data).get("keys")
    if not isinstance(entries, list):
        raise ValueError("is no JWK set")
    keys = tuple(key for entry in entries[:_MAX_KEYS] if (key := _key(entry)) is not None)
    if not keys:
        raise ValueError("has no key to check signatures with (RSA of 2048 bits or more, or EC P-256, P-384, P-521)")
    return KeySet(keys)


def _key(entry: object) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or not _verifies(entry.get("key_ops")):
        return None
    key_id, algorithm = entry.get("kid"), entry.get("alg", "")
    if not isinstance(key_id, str | None) or not isinstance(algorithm, str):
        return None
    if algorithm and algorithm not in ALGORITHMS:
        return None
    if entry.get("kty") == "RSA":
        return _rsa(entry, key_id, algorithm)
    if entry.get("kty") == "EC":
        return _ec(entry, key_id, algorithm)
    return None


def _verifies(operations: object) -> bool:
    return operations is None or (isinstance(operations, list) and "verify" in operations)


def _rsa(entry: dict[str, Any], key_id: str | None, algorithm: str) -> Key | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import RSAKey

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the size, which is checked here
            key = RSAKey.import_key({"kty": "RSA", "n": entry["n"], "e": entry["e"]})
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    low, high = _RSA_BITS
    return Key(key_id, "RSA", "", algorithm, key) if low <= key.public_key.key_size <= high else None


def _ec(entry: dict[str, Any], key_id: str | None, algorithm: str) -> Key | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey

    try:
        key = ECKey.import_key({name: entry[name] for name in ("kty", "crv", "x", "y")})
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return Key(key_id, "EC", key.curve_name, algorithm, key)
