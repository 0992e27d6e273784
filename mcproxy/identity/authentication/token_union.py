"""The union of the authenticators for bearer tokens of one set: their order, and the cache of their results.

The order is tokenFile, oidc, tokenReview, webhook; the first authenticator that accepts decides. An acceptance is
cached as long as its authenticator allows. Refusals are cached separately for each authenticator, with its configured
lifetime; unavailability is not cached. All requests that wait for the same token share one authentication, which
continues if one of them is cancelled.

Accepted and refused tokens have separate caches, so that invalid tokens never evict accepted tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.identity.authentication.authenticated_user import (
    AuthenticatedUser,
    authenticated,
    is_limited,
    without_system_names,
)
from mcproxy.identity.authentication.token_authenticator import (
    Accepted,
    Refused,
    TokenAuthenticator,
    TokenResult,
    Unavailable,
    claimed_issuer,
)
from mcproxy.identity.authentication.token_cache import TokenCache, TokenHash, cached_until
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError, shown
from mcproxy.identity.singleflight import FairSemaphore, ReviewLoad, SingleFlight, SingleFlightError
from mcproxy.kube.status import StatusError, retry_after
from mcproxy.kube.user import UserInfo
from mcproxy.net.client_table import network
from mcproxy.net.wall_time import wall_clock
from mcproxy.observe.metrics.families import CACHE_LOOKUPS
from mcproxy.requests.coroutines import OrPending
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from mcproxy.identity.review_client import LiveCluster

log = Logger(__name__)

_MAX_ACCEPTED = 65536
_MAX_REFUSED = 16384
_MAX_BYTES = 64 * 1024 * 1024  # for each of the two caches
_REFUSAL_SIZE = 1500  # approximate bytes; the causes are short
_PLACES = 256  # maximum number of tokens under review
_SHARE = _PLACES // 4  # maximum number for one client address
_MAX_WAITING = 960  # maximum number of waiting tokens; 1,024 including the 64 tokens of one address under review
_TIMEOUT = 30.0  # maximum seconds for one token, including the wait
_RETRY_AFTER = 1  # seconds

_OVERLOAD_TODO = "see that the reviewers answer quickly, and which client sends the tokens (access log)"
_UNAUTHORIZED = "Unauthorized"


class _Held(NamedTuple):
    """One authenticator's refusal, and the end of its caching."""

    refused: Refused
    until: float


class _Known(NamedTuple):
    """The user of an accepted token."""

    caller: AuthenticatedUser
    expires: float | None
    """When the token itself expires (wall clock, seconds since 1970); None: unknown."""


_Refusals = list[_Held | None]
"""The refusals of a token, in the authenticators' order; None: the authenticator has no current refusal of it."""


class UnionTokenAuthenticator:
    """The authenticators for tokens of one set, and the cache of their results."""

    def __init__(
        self,
        authenticators: tuple[TokenAuthenticator, ...],
        *,
        allow_system_names: bool,
        share_service_accounts: bool,
        shared: UpstreamContext,
        random_bytes: Callable[[int], bytes] = os.urandom,
        key: Hashable = None,
    ) -> None:
        """`key` is compared at reloads: unions with the same key return the same result for every token."""
        self.key = key
        self._authenticators = authenticators
        self._allow_system = allow_system_names
        self._share = share_service_accounts
        self._clock = shared.reactor
        self._wall_seconds = wall_clock(shared.reactor)
        self.key_of: Callable[[bytes], bytes] = TokenHash(random_bytes(32))
        self._accepted: TokenCache[_Known] = TokenCache(max_entries=_MAX_ACCEPTED, max_bytes=_MAX_BYTES)
        self._refused: TokenCache[tuple[_Held | None, ...]] = TokenCache(max_entries=_MAX_REFUSED, max_bytes=_MAX_BYTES)
        self._hits = shared.metrics.counts.series(CACHE_LOOKUPS, ("tokens", "hit"))
        self._misses = shared.metrics.counts.series(CACHE_LOOKUPS, ("tokens", "miss"))
        self._log = ReviewerLog("the token authenticators")
        self._places = FairSemaphore(_PLACES, share=_SHARE, max_waiting=_MAX_WAITING, seconds=shared.reactor.seconds)
        self._singleflight: SingleFlight[bytes, AuthenticatedUser] = SingleFlight(
            shared.reactor, self._places, timeout=_TIMEOUT
        )

    @property
    def load(self) -> ReviewLoad:
        """The number of tokens that are being authenticated, and of cached acceptances and refusals."""
        calls, cached = self._singleflight, len(self._accepted) + len(self._refused)
        return ReviewLoad(
            waiting=calls.waiting,
            running=len(calls) - calls.waiting,
            cached=cached,
            places=self._places.places,
            largest_share=self._places.largest_share,
        )

    @classmethod
    def build(
        cls,
        config: model.Authentication,
        *,
        cluster: model.ClusterConfig | None,
        live: LiveCluster | None,
        shared: UpstreamContext,
        previous: UnionTokenAuthenticator | None = None,
    ) -> UnionTokenAuthenticator | None:
        """Return the union of a set, or `previous` itself if its configuration is unchanged; None for a set without an
        authenticator for tokens.

        `cluster` is the cluster that reviews tokens, and `live` returns it in its present state; both are None without
        `config.token_review`. Raises `CredentialError` for a webhook's unusable credential.
        """
        key = _key(config, cluster)
        if previous is not None and previous.key == key:
            return previous
        earlier = () if previous is None else previous._authenticators
        authenticators = _authenticators(config, cluster, live, shared, earlier)
        if not authenticators:
            return None
        return cls(
            authenticators,
            allow_system_names=config.allow_system_names,
            share_service_accounts=config.share_service_accounts,
            shared=shared,
            key=key,
        )

    def start(self) -> None:
        """Prepare the authenticators before the first token arrives. It can be called several times."""
        for authenticator in self._authenticators:
            authenticator.start()

    def stop(self, successor: UnionTokenAuthenticator | None = None) -> None:
        """End idle connections and fetches of keys, except those that `successor` has taken over."""
        if successor is self:
            return
        successors = () if successor is None else successor._authenticators
        for authenticator in self._authenticators:
            authenticator.stop(successors)

    def authenticate(
        self, token: bytes, client: str = "", key: bytes | None = None, server: str = ""
    ) -> OrPending[AuthenticatedUser]:
        """Return the user of this token, immediately if it is cached.

        `client` is the client's address, "" for a unix socket; `key` is `key_of(token)`, if the caller has it; `server`
        is the server's name, for the log.

        Raises StatusError: 401 for a token that no authenticator accepts, with kube-apiserver's message; 503 if an
        authenticator that might accept it is unavailable. The returned coroutine can be cancelled while other requests
        wait for the same token. Client addresses take turns, since no user is known yet, and one client's tokens must
        not block the tokens of others.
        """
        if key is None:
            key = self.key_of(token)
        now = self._clock.seconds()
        held = self._accepted.get(key, now)
        if held is not None and (held.expires is None or self._wall_seconds() < held.expires):
            self._hits[0] += 1
            return held.caller
        if not token:
            _log_refusal(token, client, server, "it is empty")
            raise StatusError(401, _UNAUTHORIZED)
        refusals = self._held(key, now)
        for index, authenticator in enumerate(self._authenticators):
            if refusals[index] is None:
                result = authenticator.authenticate(token)
                if isinstance(result, Coroutine):
                    result.close()
                    self._keep(key, refusals)
                    return self._in_turn(token, key, client, server)
                caller = self._cache_result(index, result, key, refusals)
                if caller is not None:
                    return caller
        raise self._refusal(token, key, refusals, client, server)

    async def _in_turn(self, token: bytes, key: bytes, client: str, server: str) -> AuthenticatedUser:
        turn = network(client)
        self._misses[0] += 1
        try:
            user = await self._singleflight.join(key, lambda: self._reviewed(token, key, client, server), turn=turn)
        except SingleFlightError as error:
            raise self._overloaded(str(error)) from None
        self._log.works()
        return user

    async def _reviewed(self, token: bytes, key: bytes, client: str, server: str) -> AuthenticatedUser:
        """Review the token, and count the result for the client's address, even if the client disconnects before."""
        turn = network(client)
        try:
            user = await self._ask(token, key, client, server)
        except StatusError as error:
            if error.code == 401:
                self._places.record(turn, failed=True)
            raise
        self._places.record(turn, failed=False)
        return user

    async def _ask(self, token: bytes, key: bytes, client: str, server: str) -> AuthenticatedUser:
        refusals = self._held(key, self._clock.seconds())
        for index, authenticator in enumerate(self._authenticators):
            if refusals[index] is None:
                result = authenticator.authenticate(token)
                if isinstance(result, Coroutine):
                    result = await result
                caller = self._cache_result(index, result, key, refusals)
                if caller is not None:
                    return caller
        raise self._refusal(token, key, refusals, client, server)

    def _held(self, key: bytes, now: float) -> _Refusals:
        """Return the cached refusals of a token that have not expired."""
        kept = self._refused.get(key, now)
        if kept is None:
            return [None] * len(self._authenticators)
        return [None if held is None or held.until <= now else held for held in kept]

    def _cache_result(
        self, index: int, result: TokenResult, key: bytes, refusals: _Refusals
    ) -> AuthenticatedUser | None:
        """Handle one authenticator's result: if it accepts, cache and return the user, else record the refusal."""
        if isinstance(result, Unavailable):
            return None
        authenticator, now = self._authenticators[index], self._clock.seconds()
        outcome = self._with_valid_names(authenticator, result.user) if isinstance(result, Accepted) else result
        if isinstance(outcome, Refused):
            refusals[index] = _Held(outcome, now + authenticator.cache_times.failure)
            return None
        expires = result.until if isinstance(result, Accepted) else None
        until = cached_until(now, authenticator.cache_times, expires, self._wall_seconds)
        if until > now:
            self._accepted.put(key, _Known(outcome, expires), until, _size(outcome))
        self._refused.drop(key)
        return outcome

    def _with_valid_names(self, authenticator: TokenAuthenticator, user: UserInfo) -> AuthenticatedUser | Refused:
        """Return the user with the names that this authenticator may use.

        A cluster's `system:` names are valid for this cluster. `system:` names from other authenticators are refused (a
        user name) or dropped (a group), unless `allowSystemNames` is on.
        """
        kind = authenticator.name.partition(" ")[0]
        if authenticator.cluster:
            cluster = authenticator.cluster if is_limited(user) else ""
            share = self._share and bool(cluster)
            return AuthenticatedUser(authenticated(user), cluster, share, by_token=True, authenticator=kind)
        cleared = user if self._allow_system else without_system_names(user)
        if cleared is None:
            return Refused(f"it names the user {shown(user.name)}, and allowSystemNames is off", own=True)
        return AuthenticatedUser(authenticated(cleared), by_token=True, authenticator=kind)

    def _refusal(self, token: bytes, key: bytes, refusals: _Refusals, client: str, server: str) -> StatusError:
        """Cache the refusals; return the error (401 or 503). `client` (address) and `server` (name) are for the log."""
        self._keep(key, refusals)
        held = [one for one in refusals if one is not None]
        if len(held) < len(refusals) and not any(one.refused.own for one in held):
            return _unavailable()
        said = zip(self._authenticators, refusals, strict=True)
        causes = [f"{authenticator.name}: {one.refused.cause}" for authenticator, one in said if one is not None]
        _log_refusal(token, client, server, "; ".join(causes))
        return StatusError(401, _UNAUTHORIZED)

    def _keep(self, key: bytes, refusals: _Refusals) -> None:
        until = max((one.until for one in refusals if one is not None), default=0.0)
        if until > self._clock.seconds():
            self._refused.put(key, tuple(refusals), until, _REFUSAL_SIZE)

    def _overloaded(self, cause: str) -> StatusError:
        self._log.fails(
            UnavailableError("overload", cause, _OVERLOAD_TODO), "clients with tokens that are not cached get 503"
        )
        return _unavailable()


def _log_refusal(token: bytes, client: str, server: str, cause: str) -> None:
    log.info(
        "a bearer token is refused",
        event="token_refused",
        server=server,
        client=client,
        issuer=claimed_issuer(token),
        cause=cause,
        todo="the client needs a token that an authenticator of the server accepts",
    )


def _unavailable() -> StatusError:
    return retry_after(503, "the token cannot be checked now; try again later", _RETRY_AFTER)


def _size(caller: AuthenticatedUser) -> int:
    """Return the approximate size of a user in memory, in bytes."""
    user = caller.user
    size = 600 + len(user.name) + len(user.uid) + sum(60 + len(group) for group in user.groups)
    for key, values in user.extra:
        size += 200 + len(key) + sum(60 + len(value) for value in values)
    return size


def _authenticators(
    config: model.Authentication,
    cluster: model.ClusterConfig | None,
    live: LiveCluster | None,
    shared: UpstreamContext,
    previous: Sequence[TokenAuthenticator],
) -> tuple[TokenAuthenticator, ...]:
    """Return a set's authenticators for tokens, in order; `_key` must contain everything on which they depend.

    `previous` are the authenticators before a reload. Each is imported only if it is configured: all imports together
    would take 50 ms of a daemon's start.
    """
    made: list[TokenAuthenticator] = []
    if config.token_file is not None:
        from mcproxy.identity.authentication.token_file_authenticator import TokenFileAuthenticator

        made.append(TokenFileAuthenticator(config.token_file, os.urandom(32)))
    if config.oidc:
        from mcproxy.identity.authentication.oidc.oidc_authenticator import OIDCAuthenticator

        made.append(OIDCAuthenticator(config.oidc, shared, previous))
    if config.token_review is not None:
        from mcproxy.identity.authentication.token_review import token_review_authenticator

        assert cluster is not None
        assert live is not None
        made.append(token_review_authenticator(config.token_review, cluster.name, live, shared.reactor))
    if config.webhook is not None:
        from mcproxy.identity.authentication.token_review import webhook

        made.append(webhook(config.webhook, shared))
    return tuple(made)


def _key(config: model.Authentication, cluster: model.ClusterConfig | None) -> Hashable:
    """Return everything on which results depend, including the cluster's addresses, since another cluster with the same
    name has other tokens.
    """
    reviewer = None if cluster is None else (cluster.name, cluster.tls, tuple(one.url for one in cluster.endpoints))
    return (
        (config.token_file, config.oidc, config.webhook),
        (config.token_review, None if config.token_review is None else reviewer),
        (config.allow_system_names, config.share_service_accounts),
    )
