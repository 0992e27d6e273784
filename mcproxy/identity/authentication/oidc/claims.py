"""Validation of the claims of an ID token, and the user that they name.

Source: OpenID Connect Core 3.1.3.7 and apiserver's OIDC authenticator (`plugin/pkg/authenticator/token/oidc`): any of
the audiences is sufficient; with `email` as the user name, `email_verified` must not be false.
"""

from __future__ import annotations

import math
from typing import Any

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.jwt import InvalidTokenError
from mcproxy.identity.strict_json import strings
from mcproxy.kube.user import UserInfo

LEEWAY = 10.0  # seconds that the issuer's clock and ours may differ by

_CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


def check_claims(claims: dict[str, Any], config: model.OIDC, now: float) -> float:
    """Return when the token ends, leeway included; raises `InvalidTokenError`. Times are seconds since 1970."""
    if claims.get("iss") != config.issuer:
        raise InvalidTokenError("it is of another issuer")
    if not _is_for(claims, config.audiences):
        raise InvalidTokenError("it is for another audience")
    end = _time(claims, "exp")
    if end is None:
        raise InvalidTokenError("it has no exp")
    if now >= end + LEEWAY:
        raise InvalidTokenError(f"it expired {now - end:.0f} s ago")
    for name in ("nbf", "iat"):
        begin = _time(claims, name)
        if begin is not None and now < begin - LEEWAY:
            raise InvalidTokenError(f"its {name} is {begin - now:.0f} s in the future")
    for name, value in config.required_claims:
        if not _has_value(claims.get(name), value):
            raise InvalidTokenError(f"its claim {name} is not {value}, which is required")
    return end + LEEWAY


def _has_value(claim: object, value: str) -> bool:
    """Whether a claim is a string of this value, or a list of strings with it."""
    if isinstance(claim, list):
        return value in claim and all(isinstance(item, str) for item in claim)
    return claim == value


def _is_for(claims: dict[str, Any], audiences: tuple[str, ...]) -> bool:
    """Return whether the token is for one of the audiences; its own may be a string or a list."""
    audience = claims.get("aud")
    return any(one in audiences for one in (audience if isinstance(audience, list) else (audience,)))


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
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidTokenError(f"its {name} is no time")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise InvalidTokenError(f"its {name} is no time")
    return seconds
