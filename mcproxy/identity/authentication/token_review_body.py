"""The body of a TokenReview: encoding of the request, and decoding of the response.

Source: the authentication.k8s.io API, whose v1 and v1beta1 have the same fields, and apiserver's webhook token
authenticator (`plugin/pkg/authenticator/token/webhook`): audiences are checked before anything else, and only if some
were requested.
"""

from __future__ import annotations

import json
from typing import Any

from mcproxy.config.model import ReviewVersion
from mcproxy.identity.authentication.token_authenticator import Accepted, Refused
from mcproxy.identity.reviewer_log import UnavailableError, shown
from mcproxy.identity.strict_json import json_object, strings
from mcproxy.kube.user import Extra, UserInfo

GROUP = "authentication.k8s.io"
_API_VERSIONS = tuple(f"{GROUP}/{version}" for version in ReviewVersion)
_LONGEST_REASON = 200  # characters of a server's reason that are shown
_SECRET_PART = 8  # consecutive characters of a token that must not be shown
_NO_REVIEW = (
    "see what answers there: it must speak TokenReview of authentication.k8s.io in the `version` that it is asked in"
)


def encode_review(token: str, audiences: tuple[str, ...], version: ReviewVersion = ReviewVersion.V1) -> bytes:
    """Return the body of a review of `token`; without audiences it is for the server's own."""
    spec: dict[str, Any] = {"token": token}
    if audiences:
        spec["audiences"] = audiences
    review = {"apiVersion": f"{GROUP}/{version}", "kind": "TokenReview", "spec": spec}
    return json.dumps(review, separators=(",", ":")).encode()


def decode_review(body: bytes, token: str, audiences: tuple[str, ...]) -> Accepted | Refused:
    """Parse the body of a successful response; raises `UnavailableError` if it is no TokenReview of either version."""
    try:
        review = json_object(body)
        if review.get("kind") != "TokenReview" or review.get("apiVersion") not in _API_VERSIONS:
            raise ValueError("is no TokenReview of authentication.k8s.io/v1 or v1beta1")
        return _status(_part(review, "status"), token, audiences)
    except ValueError as error:
        raise UnavailableError("answer", f"its answer {error}", _NO_REVIEW) from None


def _status(status: dict[str, Any], token: str, audiences: tuple[str, ...]) -> Accepted | Refused:
    good = status.get("authenticated", False)
    if not isinstance(good, bool):
        raise ValueError("says neither yes nor no")
    if not good:
        return Refused(_why(status.get("error"), token))
    if audiences and not set(audiences).intersection(strings(status.get("audiences"))):
        return Refused("the token is for other audiences")
    return Accepted(_user(_part(status, "user")))


def _user(user: dict[str, Any]) -> UserInfo:
    name, uid = user.get("username"), user.get("uid", "")
    if not isinstance(name, str) or not name:
        raise ValueError("has no user name")
    if not isinstance(uid, str):
        raise ValueError("has a uid that is no string")
    return UserInfo(name, strings(user.get("groups")), uid, _extra(_part(user, "extra")))


def _extra(extra: dict[str, Any]) -> Extra:
    """Return the extra with keys in lower case, as they would arrive by impersonation; equal keys are merged."""
    values: dict[str, tuple[str, ...]] = {}
    for key, value in extra.items():
        lower = key.lower()
        values[lower] = tuple(dict.fromkeys((*values.get(lower, ()), *strings(value))))
    return tuple(sorted(values.items()))


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ValueError(f"has a {name} that is no object")
    return part


def _why(error: object, token: str) -> str:
    """Return the server's reason for refusing a token, unless it repeats a part of the token."""
    if not isinstance(error, str) or not error:
        return "the token is not valid"
    said = error[:_LONGEST_REASON]
    begins = range(len(said) - _SECRET_PART + 1)
    if token in error or any(said[begin : begin + _SECRET_PART] in token for begin in begins):
        return "the token is not valid (the reason given repeats it)"
    return shown(said)
