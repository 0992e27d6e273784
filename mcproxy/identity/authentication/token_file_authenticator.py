"""The authenticator `tokenFile`: tokens of a CSV file with token, user, uid, groups.

Only keyed hashes of the tokens are kept. So the time of a look-up does not reveal how much of a guessed token is right,
and no token is in a core dump. Source: Kubernetes "Static token file".
"""

from __future__ import annotations

from hashlib import blake2b

from mcproxy.config.model import TokenFileConfig
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, TokenResult
from mcproxy.kube.user import UserInfo

_UNKNOWN = Refused("it is not in the token file")


class TokenFileAuthenticator:
    """The token file's contents when the configuration was loaded; results are always immediate."""

    #: The union's cache is faster than this look-up. It is never stale, since a changed file makes a new union.
    cache_times = CacheTimes(3600.0, 0.0)
    cluster = ""

    def __init__(self, config: TokenFileConfig, key: bytes) -> None:
        """`key` has 16 to 64 random bytes. Of several lines with the same token the last counts, as in Kubernetes."""
        self.name = f"tokenFile {config.path}"
        self._key = key
        self._answers = {
            self._digest(line.token.reveal().encode()): Accepted(
                UserInfo(line.user, tuple(dict.fromkeys(line.groups)), line.uid)
            )
            for line in config.tokens
        }

    def authenticate(self, token: bytes) -> TokenResult:
        return self._answers.get(self._digest(token), _UNKNOWN)

    def start(self) -> None:
        """Do nothing."""

    def stop(self, successors: object) -> None:
        """Do nothing."""

    def _digest(self, token: bytes) -> bytes:
        return blake2b(token, key=self._key, digest_size=16).digest()
