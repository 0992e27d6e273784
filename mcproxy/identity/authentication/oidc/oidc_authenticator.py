"""The authenticator for ID tokens of OIDC issuers, which verifies them with the issuers' public keys.

The `iss` claim names the issuer of a token. A token of an unknown issuer is refused immediately, without a check of its
signature or a fetch of keys. Cheap checks come first: a token causes a fetch of keys only if everything else in it is
valid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.jwt import (
    InvalidTokenError,
    Unverified,
    algorithm_of,
    check_claims,
    check_signature,
    read,
    user_of,
)
from mcproxy.identity.authentication.oidc.key_source import FetchedKeys, FileKeys, KeySet, KeySource, fetch_keys
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, TokenResult, Unavailable
from mcproxy.identity.reviewer_log import UnavailableError, shown
from mcproxy.net.wall_time import wall_seconds
from mcproxy.requests.coroutines import OrPending
from mcproxy.upstream.upstream_context import UpstreamContext

_NOT_A_JWT = Refused("it is no JWT")
_NOT_OURS = Refused("it is of no issuer in the file")
_CACHE = CacheTimes(120.0, 10.0)  # tokens with a revoked key are refused after this time at the latest


class _Issuer:
    """One issuer: the requirements for its tokens, and its keys."""

    def __init__(self, config: model.OIDC, keys: KeySource) -> None:
        self.config = config
        self.keys = keys


class OIDCAuthenticator:
    """The authenticator for all issuers of one set of authenticators."""

    name = "oidc"
    cluster = ""
    cache_times = _CACHE

    def __init__(self, configs: Sequence[model.OIDC], shared: UpstreamContext, previous: Iterable[object] = ()) -> None:
        """Take over the keys of issuers from an authenticator in `previous` with the same key source.

        So a reload also works while the issuers are unavailable.
        """
        self._clock = shared.reactor
        known = {_source(one.config): one.keys for one in _issuers_of(previous)}
        self._issuers: dict[str, _Issuer] = {
            config.issuer: _Issuer(config, known.get(_source(config)) or _key_source(config, shared))
            for config in configs
        }

    def authenticate(self, token: bytes) -> OrPending[TokenResult]:
        unverified = read(token)
        if unverified is None:
            return _NOT_A_JWT
        issuer = self._issuer_of(unverified)
        if issuer is None:
            return _NOT_OURS
        return self._result(unverified, issuer, issuer.keys.cached()) or self._authenticate(unverified, issuer)

    def start(self) -> None:
        """Fetch missing keys, so that the first clients do not have to wait."""
        for issuer in self._issuers.values():
            issuer.keys.start()

    def stop(self, successors: Iterable[object]) -> None:
        """Cancel fetches, except those of keys that one of `successors` has taken over."""
        kept = [issuer.keys for issuer in _issuers_of(successors)]
        for issuer in self._issuers.values():
            if issuer.keys not in kept:
                issuer.keys.stop()

    def _issuer_of(self, token: Unverified) -> _Issuer | None:
        name = token.claims.get("iss")
        return self._issuers.get(name) if isinstance(name, str) else None

    async def _authenticate(self, token: Unverified, issuer: _Issuer) -> TokenResult:
        try:
            result = self._result(token, issuer, issuer.keys.cached())
            if result is None:
                result = self._result(token, issuer, await issuer.keys.get())
            if result is None:
                result = self._result(token, issuer, await issuer.keys.refreshed())
        except UnavailableError as error:
            return Unavailable(error.cause)
        return result or _refused(token, "its key is not among those of the issuer")

    def _result(self, token: Unverified, issuer: _Issuer, keys: KeySet | None) -> TokenResult | None:
        """Return the result with these keys; None without keys, or if the token's key is not among them."""
        try:
            algorithm_of(token)
            until = check_claims(token.claims, issuer.config, wall_seconds(self._clock))
            if keys is None or not check_signature(token, keys):
                return None
            return Accepted(user_of(token.claims, issuer.config), until)
        except InvalidTokenError as error:
            return _refused(token, error.cause)


def _issuers_of(authenticators: Iterable[object]) -> list[_Issuer]:
    return [
        issuer for each in authenticators if isinstance(each, OIDCAuthenticator) for issuer in each._issuers.values()
    ]


def _key_source(config: model.OIDC, shared: UpstreamContext) -> KeySource:
    if config.jwks is not None:
        return FileKeys(config.jwks, config.issuer)
    return FetchedKeys(config.issuer, partial(fetch_keys, config, shared), shared.reactor)


def _source(config: model.OIDC) -> tuple[Any, ...]:
    return (config.issuer, config.jwks, config.jwks_url, config.ca)


def _refused(token: Unverified, cause: str) -> Refused:
    key_id = token.header.get("kid")
    which = f" (kid {shown(key_id)[:64]})" if isinstance(key_id, str) else ""
    return Refused(f"token of {shown(str(token.claims.get('iss')))}{which}: {cause}", own=True)
