"""What is common to all judges of bearer tokens: the answers they give and the shape they have.

A judge that cannot tell (its server is down) says so instead of refusing: a client that is told 401 throws its token
away and logs in anew, one that is told 503 comes back. The chain (`token_chain`) asks one judge after the other, keeps
the answers, and decides which `system:` names are believed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mcproxy.kube.user import UserInfo


@dataclass(frozen=True, slots=True)
class Accepted:
    """The token is good. `until`: when that ends at the latest, by the reactor's clock; None: the judge does not say.

    The user is as the judge names it, without the group system:authenticated.
    """

    user: UserInfo
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The token is not good here. `cause` is for the log: never the token, nor a claim of it but issuer and key.

    `own` is true where the token is plainly meant for this judge (its issuer, its line): then the token is refused
    even if another judge is down.
    """

    cause: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Unavailable:
    """This judge cannot tell now. `cause` is a sentence for operators."""

    cause: str


TokenResult = Accepted | Refused | Unavailable


class CacheTimes(NamedTuple):
    """Seconds for which an answer is kept; 0: not at all."""

    success: float
    failure: float


class TokenAuthenticator(Protocol):
    """One judge of tokens. It keeps no answers itself: that is the chain's."""

    @property
    def name(self) -> str:
        """What log lines call it: "tokenReview by cluster east"."""

    @property
    def cache_times(self) -> CacheTimes:
        """How long its answers are kept."""

    @property
    def cluster(self) -> str:
        """The cluster that answers, whose `system:` names are believed; "" for a judge that is no cluster."""

    def known(self, token: bytes) -> TokenResult | None:
        """Answer at once, from what is known here; None if `judge` must be asked. Raises nothing."""

    async def authenticate(self, token: bytes) -> TokenResult:
        """Answer; raises nothing, whatever is in the token."""

    def close(self) -> None:
        """End idle connections; questions under way go on."""
