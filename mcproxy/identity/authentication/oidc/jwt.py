"""Parses and verifies ID tokens: JSON Web Tokens in compact form (RFC 7515, 7519), their claims, and their user.

Keys in the token itself (`jwk`, `jku`, `x5u`, `x5c`) are never used. A header with `crit` or `b64`, which would change
the interpretation of the token, is refused. Claims are validated as in kube-apiserver and go-oidc.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.key_source import ALGORITHMS, KeySet
from mcproxy.identity.strict_json import json_object, strings
from mcproxy.kube.user import UserInfo

_COMPACT = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)")


class InvalidTokenError(Exception):
    """The token is invalid; `cause` is for the log and contains no secrets."""

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
    """Parse a token; None if it is not a JWT. The limit of a request's head limits its size."""
    parts = _COMPACT.fullmatch(token)
    if parts is None:
        return None
    try:
        header, claims, signature = (_decoded(part) for part in parts.groups())
        return Unverified(json_object(header), json_object(claims), token[: parts.end(2)], signature)
    except ValueError:
        return None


def algorithm_of(token: Unverified) -> tuple[str, str | None]:
    """Return the signature's algorithm and the id of its key; raises `InvalidTokenError` for other algorithms."""
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
    """Check the token's signature with the keys that can have made it; return False if there is no such key.

    Raises `InvalidTokenError` if there is such a key but the signature is wrong.
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
    """Decode base64url without padding (RFC 7515 2); raises ValueError for anything but the canonical encoding."""
    value = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))
    if base64.urlsafe_b64encode(value).rstrip(b"=") != part:
        raise ValueError
    return value


# Validation of the claims of an ID token, and the user that they name.
#
# Source: OpenID Connect Core 3.1.3.7 and apiserver's OIDC authenticator (`plugin/pkg/authenticator/token/oidc`) with
# go-oidc 2.5: any of the audiences is sufficient; with `email` as the user name, `email_verified` must not be false.
# `exp` has no leeway, `nbf` has one minute of leeway, and `iat` is only parsed.
#
# A claim can be distributed: `_claim_names` names its entry in `_claim_sources` (OpenID Connect Core 5.6.2; directories
# use this for users with many groups). A kube-apiserver fetches the claim there or refuses the token. Nothing is
# fetched here: if the configuration uses such a claim, the token is refused, since the user would otherwise seem to
# have no groups.

_NOT_BEFORE_LEEWAY = 60.0  # seconds by which the issuer's clock can be ahead of the proxy's clock
_LATEST = 2**63 - 1 - 62135596800  # seconds since 1970; later times overflow Go's time.Time (seconds since the year 1)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)  # of JSON
_LONGEST_NUMBER = 64  # characters
_TEXTS = ("sub", "nonce", "at_hash")  # claims that must be strings wherever they occur, as in go-oidc

_SOURCE = ("endpoint", "access_token", "JWT")
_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


def check_claims(claims: dict[str, Any], config: model.OIDC, now: float) -> float:
    """Check the claims and return the token's expiry; raises `InvalidTokenError`. Times are seconds since 1970."""
    if claims.get("iss") != config.issuer:
        raise InvalidTokenError("it is of another issuer")
    if not _is_for(claims, config.audiences):
        raise InvalidTokenError("it is for another audience")
    for name in _TEXTS:
        if not isinstance(claims.get(name), str | None):
            raise InvalidTokenError(f"its {name} is no string")
    end, begin, _ = _time(claims, "exp"), _time(claims, "nbf"), _time(claims, "iat")
    if end is None:
        raise InvalidTokenError("it has no exp")
    if end > _LATEST:
        raise InvalidTokenError("its exp is too late to be a time")
    if now > end:
        raise InvalidTokenError(f"it expired {now - end:.0f} s ago")
    if begin is not None and now + _NOT_BEFORE_LEEWAY < begin:
        raise InvalidTokenError(f"its nbf is {begin - now:.0f} s in the future")
    if config.distributed_claims is model.DistributedClaims.REFUSE:
        _check_distributed(claims, config)
    for name, value in config.required_claims:
        if not _has_value(claims.get(name), value):
            raise InvalidTokenError(f"its claim {name} is not {value}, which is required")
    return end


def _check_distributed(claims: dict[str, Any], config: model.OIDC) -> None:
    """Raise `InvalidTokenError` for a used claim that is distributed, and for references that a kube-apiserver cannot
    parse.

    As in a kube-apiserver, a claim in the token itself takes precedence over `_claim_names`.
    """
    names, sources = claims.get("_claim_names"), claims.get("_claim_sources")
    problem = "could not expand distributed claims: "
    if sources is not None and not (isinstance(sources, dict) and all(map(_is_source, sources.values()))):
        raise InvalidTokenError(f"{problem}_claim_sources is no object of sources")
    if names is None:
        return
    if not isinstance(names, dict) or not all(source and isinstance(source, str) for source in names.values()):
        raise InvalidTokenError(f"{problem}_claim_names is no object of names of sources")
    if not all(source in (sources or {}) for source in names.values()):
        raise InvalidTokenError(f"{problem}_claim_names names a source that _claim_sources has not")
    for name in _read_claims(config):
        if name in names and claims.get(name) is None:
            raise InvalidTokenError(
                f"{problem}its claim {name} is elsewhere (_claim_names), as a directory does for users of many groups; "
                "have the issuer put it into the token, or write distributedClaims: Ignore"
            )


def _is_source(source: object) -> bool:
    return isinstance(source, dict) and all(isinstance(source.get(key), str | None) for key in _SOURCE)


def _read_claims(config: model.OIDC) -> Iterator[str]:
    """Yield the names of the claims that determine the user, or whether the token is accepted."""
    yield config.username_claim
    if config.username_claim == "email":
        yield "email_verified"
    if config.groups_claim is not None:
        yield config.groups_claim
    for name, _ in config.required_claims:
        yield name


def _has_value(claim: object, value: str) -> bool:
    """Whether a claim is a string with this value, or a list of strings that contains the value."""
    if isinstance(claim, list):
        return value in claim and all(isinstance(item, str) for item in claim)
    return claim == value


def _is_for(claims: dict[str, Any], audiences: tuple[str, ...]) -> bool:
    """Return whether the token is for one of the audiences; its `aud` can be a string or a list of strings."""
    audience = claims.get("aud")
    own = audience if isinstance(audience, list) else [audience]
    return all(isinstance(one, str) for one in own) and any(one in audiences for one in own)


def user_of(claims: dict[str, Any], config: model.OIDC) -> UserInfo:
    """Return the user that verified claims name; raises `InvalidTokenError`."""
    name = claims.get(config.username_claim)
    if not isinstance(name, str) or not name:
        raise InvalidTokenError(f"its claim {config.username_claim} is no user name")
    if config.username_claim == "email" and claims.get("email_verified", True) is not True:
        raise InvalidTokenError("its email is not verified")
    return UserInfo(config.username_prefix + name, _groups(claims, config), "", _extra(claims))


def _groups(claims: dict[str, Any], config: model.OIDC) -> tuple[str, ...]:
    if config.groups_claim is None:
        return ()
    value = claims.get(config.groups_claim)
    try:
        groups = (value,) if isinstance(value, str) else strings(value)
    except ValueError:
        raise InvalidTokenError(f"its claim {config.groups_claim} is neither a string nor a list of strings") from None
    return tuple(config.groups_prefix + group for group in groups)


def _extra(claims: dict[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    token_id = claims.get("jti")
    return ((_CREDENTIAL_ID, (f"JTI={token_id}",)),) if isinstance(token_id, str) and token_id else ()


def _time(claims: dict[str, Any], name: str) -> float | None:
    """Return a time claim in whole seconds; None if it is missing. As in go-oidc, it can be a number in a string."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTokenError(f"its {name} is no time")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise InvalidTokenError(f"its {name} is no time")
    return float(math.trunc(seconds))
