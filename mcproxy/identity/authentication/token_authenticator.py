"""The interface of authenticators for bearer tokens, and the results that they return.

An unavailable authenticator (its server is down) returns `Unavailable` instead of a refusal: after a 401, a client
discards its token and logs in again; after a 503, it retries. The union (`token_union`) calls the authenticators one
after the other, caches their results, and decides which `system:` names are accepted.
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
    """The token is valid, at most until `until` (seconds since 1970; None: unknown).

    `user` has the authenticator's names, without the group system:authenticated.
    """

    user: UserInfo
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The authenticator refuses the token. `cause` is for the log: it never contains the token, and of the token's
    claims only issuer and key.

    `own`: the token clearly belongs to this authenticator (by its issuer or its line), so it is refused even if another
    authenticator is unavailable.
    """

    cause: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Unavailable:
    """This authenticator is unavailable now. `cause` is a sentence for operators."""

    cause: str


TokenResult = Accepted | Refused | Unavailable


class CacheTimes(NamedTuple):
    """Seconds for which results are cached; 0: they are not cached."""

    success: float
    failure: float


class TokenAuthenticator(Protocol):
    """One authenticator of tokens. It does not cache results; the union does."""

    @property
    def name(self) -> str:
        """The authenticator's name in log lines: "tokenReview by cluster east"."""

    @property
    def cache_times(self) -> CacheTimes:
        """The times for which the union caches the authenticator's results."""

    @property
    def cluster(self) -> str:
        """The reviewing cluster, whose `system:` names are valid only for itself; "" for another server."""

    def authenticate(self, token: bytes) -> OrPending[TokenResult]:
        """Return the result, immediately if no server has to be asked. It never raises, with any token."""

    def start(self) -> None:
        """Prepare for the first token. It can be called several times."""

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
