"""JSON Web Tokens in compact form (RFC 7515, 7519): parsing, and checking of signatures.

Keys that a token names itself (`jwk`, `jku`, `x5u`, `x5c`) are never used, and a header with `crit` or `b64`, which
would change how it is interpreted, is refused.
"""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple

from mcproxy.identity.authentication.oidc.jwks import ALGORITHMS, KeySet
from mcproxy.identity.strict_json import json_object

_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")


class InvalidTokenError(Exception):
    """The token is invalid; `cause` is for the log and shows nothing secret."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Unverified(NamedTuple):
    """A parsed token. Its contents are untrusted before `check_signature` and the check of the claims."""

    header: dict[str, Any]
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


def read(token: bytes) -> Unverified | None:
    """Parse a token; None if it is not a JWT. The limit of a request's head bounds it."""
    parts = _COMPACT.fullmatch(token)
    if parts is None:
        return None
    try:
        header, claims, signature = (_decoded(part) for part in parts.groups())
        return Unverified(json_object(header), json_object(claims), token[: parts.end(2)], signature)
    except ValueError:
        return None


def algorithm_of(token: Unverified) -> tuple[str, str | None]:
    """Return the signature's algorithm and the id of its key; raises `InvalidTokenError` for others."""
    header = token.header
    if "crit" in header or "b64" in header:
        raise InvalidTokenError("its header has crit or b64")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidTokenError(
            "its signature is of no algorithm that is accepted (RS, ES and PS with 256, 384 and 512)"
        )
    if not isinstance(key_id, str | None):
        raise InvalidTokenError("its key id is no string")
    return algorithm, key_id


def check_signature(token: Unverified, keys: KeySet) -> bool:
    """Check the token's signature with the keys that it may be of; False if there is no such key.

    Raises `InvalidTokenError` if there is one and the signature is wrong.
    """
    algorithm, key_id = algorithm_of(token)
    candidates = keys.matching(key_id, algorithm)
    if not candidates:
        return False
    if not any(_signed_by(token.signed, token.signature, candidate.key, algorithm) for candidate in candidates):
        raise InvalidTokenError("its signature is wrong")
    return True


def _signed_by(signed: bytes, signature: bytes, key: Any, algorithm: str) -> bool:
    from joserfc.errors import JoseError
    from joserfc.jws import JWSRegistry

    verifier = JWSRegistry(algorithms=[algorithm]).get_alg(algorithm)
    try:
        verifier.check_key(key)
        return verifier.verify(signed, signature, key)
    except (JoseError, ValueError):
        return False


def _decoded(part: bytes) -> bytes:
    """Decode base64url without padding (RFC 7515 2); raises ValueError for anything but the one right spelling."""
    value = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(value).rstrip(b"=") != part:
        raise ValueError
    return value
