"""The interface of authenticators for bearer tokens, and the results that they return.

An authenticator that is unavailable (its server is down) returns that instead of a refusal: a client that gets 401
discards its token and logs in again, one that gets 503 retries. The union (`token_union`) calls one after the other,
caches their results, and decides which `system:` names are accepted.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mcproxy.identity.reviewer_log import shown
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending


@dataclass(frozen=True, slots=True)
class Accepted:
    """The token is valid, at most `until` (seconds since 1970; None: unknown).

    The user has the authenticator's names, without the group system:authenticated.
    """

    user: UserInfo
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The token is not valid here. `cause` is for the log: it never has the token, and of its claims only issuer and
    key.

    `own`: the token is evidently meant for this authenticator (its issuer, its line), so it is refused even if another
    authenticator is down.
    """

    cause: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Unavailable:
    """This authenticator is unavailable now. `cause` is a sentence for operators."""

    cause: str


TokenResult = Accepted | Refused | Unavailable


class CacheTimes(NamedTuple):
    """Seconds for which a result is cached; 0: not at all."""

    success: float
    failure: float


class TokenAuthenticator(Protocol):
    """One authenticator of tokens. It caches no results itself: the union does."""

    @property
    def name(self) -> str:
        """Its name in log lines: "tokenReview by cluster east"."""

    @property
    def cache_times(self) -> CacheTimes:
        """How long its results are cached."""

    @property
    def cluster(self) -> str:
        """The cluster that answers, whose `system:` names are valid for itself; "" for another server."""

    def authenticate(self, token: bytes) -> OrPending[TokenResult]:
        """Return the result, at once if no server has to be asked. It raises nothing, whatever the token is."""

    def start(self) -> None:
        """Prepare for the first token. It may be called again."""

    def stop(self, successors: Sequence[TokenAuthenticator]) -> None:
        """End idle connections and fetches, except those that one of `successors` has taken over; reviews continue."""


_LONGEST_PAYLOAD = 256 * 1024
"""The longest payload that is decoded (bytes)."""


def claimed_issuer(token: bytes) -> str:
    """Return the issuer that a JWT claims, bounded and printable; "" for any other token."""
    parts = token.split(b".")
    if len(parts) != 3 or not 0 < len(parts[1]) <= _LONGEST_PAYLOAD:
        return ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return ""
    issuer = claims.get("iss") if isinstance(claims, dict) else None
    return shown(issuer) if isinstance(issuer, str) else ""
