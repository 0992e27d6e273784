"""The current public keys of an issuer (RFC 7517): read from a file, or fetched over HTTPS and kept up to date.

Keys are fetched from the configured URL, else from the URL in the issuer's discovery document.

Fetched keys are used for 5 minutes. After that, a token starts a fetch in the background; after 15 minutes, a token
waits for the fetch, so that a revoked key does not stay valid where tokens are rare. While the issuer is unavailable,
the last known keys stay in use. A token with an unknown key also starts a fetch. There is at most one fetch in 10
seconds, however many tokens clients send.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError, shown
from mcproxy.identity.strict_json import json_object
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.external_server import ExternalServer, split_url
from mcproxy.upstream.remedies import Keys, remedy
from mcproxy.upstream.upstream_context import UpstreamContext

if TYPE_CHECKING:
    from joserfc.jwk import ECKey, RSAKey

# The public keys of an OIDC issuer (RFC 7517), and the choice of the keys for a signature.
#
# A set can contain other keys: for encryption, or of types that are not accepted. They are ignored. Weak or invalid
# keys are ignored, too, so that one bad key does not affect the others.
#
#: Accepted algorithms, and the key type of each, for EC with the curve (RFC 7518 3.1). `none` and symmetric algorithms
#: (HS256 and so on) are not accepted.
ALGORITHMS = {
    "RS256": ("RSA", ""),
    "RS384": ("RSA", ""),
    "RS512": ("RSA", ""),
    "PS256": ("RSA", ""),
    "PS384": ("RSA", ""),
    "PS512": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
}

_MAX_KEYS = 100
_RSA_BITS = (2048, 8192)  # minimum from NIST SP 800-131A; above the maximum, a check takes milliseconds
_TRIED = 64  # maximum number of keys that are tried for a signature, since a token without kid can use any key


class JSONWebKey(NamedTuple):
    """One key. `algorithm` is the only algorithm for which it may be used; "" for any."""

    id: str | None
    type: str
    curve: str
    algorithm: str
    key: RSAKey | ECKey


class KeySet:
    """The usable keys of a JWK set."""

    def __init__(self, keys: tuple[JSONWebKey, ...]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def matching(self, key_id: str | None, algorithm: str) -> tuple[JSONWebKey, ...]:
        """Return the keys that can have made a signature with `algorithm`, with this id (None: any)."""
        kind = ALGORITHMS.get(algorithm)
        found = (
            key
            for key in self._keys
            if (key.type, key.curve) == kind
            and key.algorithm in ("", algorithm)
            and (key_id is None or key.id == key_id)
        )
        return tuple(found)[:_TRIED]


def parse_keys(data: bytes) -> KeySet:
    """Parse a JWK set. Raises ValueError if it has no usable key; the message is a predicate ("is no JWK set")."""
    entries = json_object(data).get("keys")
    if not isinstance(entries, list):
        raise ValueError("is no JWK set")
    keys = tuple(key for entry in entries[:_MAX_KEYS] if (key := _key(entry)) is not None)
    if not keys:
        raise ValueError("has no key to check signatures with (RSA of 2048 bits or more, or EC P-256, P-384, P-521)")
    return KeySet(keys)


def _key(entry: object) -> JSONWebKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or not _verifies(entry.get("key_ops")):
        return None
    key_id, algorithm = entry.get("kid"), entry.get("alg", "")
    if not isinstance(key_id, str | None) or not isinstance(algorithm, str):
        return None
    if algorithm and algorithm not in ALGORITHMS:
        return None
    if entry.get("kty") == "RSA":
        return _rsa(entry, key_id, algorithm)
    if entry.get("kty") == "EC":
        return _ec(entry, key_id, algorithm)
    return None


def _verifies(operations: object) -> bool:
    return operations is None or (isinstance(operations, list) and "verify" in operations)


def _rsa(entry: dict[str, Any], key_id: str | None, algorithm: str) -> JSONWebKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import RSAKey

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about the key size, which is checked here
            key = RSAKey.import_key({"kty": "RSA", "n": entry["n"], "e": entry["e"]})
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    low, high = _RSA_BITS
    return JSONWebKey(key_id, "RSA", "", algorithm, key) if low <= key.public_key.key_size <= high else None


def _ec(entry: dict[str, Any], key_id: str | None, algorithm: str) -> JSONWebKey | None:
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey

    try:
        key = ECKey.import_key({name: entry[name] for name in ("kty", "crv", "x", "y")})
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return JSONWebKey(key_id, "EC", key.curve_name, algorithm, key)


log = Logger(__name__)

_REFRESH_AFTER = 300.0  # seconds for which fetched keys are used without another fetch
_WAIT_AFTER = 900.0  # from this age on, tokens wait for the fetch
_MIN_INTERVAL = 10.0  # seconds between two attempts
_SLOW = 1.0  # seconds; after a failed attempt that took longer, tokens do not wait for the next one
_NO_WAIT_AFTER_SLOW_FAILURE = 30.0  # seconds for which tokens then do not wait; by that time the next attempt has ended


class KeySource(Protocol):
    """The source of one issuer's keys."""

    def cached(self) -> KeySet | None:
        """Return the keys if they are available without waiting."""

    async def get(self) -> KeySet:
        """Return the keys; raises `UnavailableError` if no keys are known yet."""

    async def refreshed(self) -> KeySet:
        """Fetch the keys again, since a token's key was missing, and return them; raises `UnavailableError`."""

    def start(self) -> None:
        """Fetch the keys before the first token arrives."""

    def stop(self) -> None:
        """Cancel the fetch; its waiters get `UnavailableError`."""


class FileKeys:
    """The keys in a file at the time when the configuration was loaded."""

    def __init__(self, config: model.JWKSFile, issuer: str) -> None:
        try:
            self._keys = parse_keys(config.data)
        except ValueError as error:
            self._keys = KeySet(())
            log.warn(
                "the key file of an issuer cannot be used: none of its tokens is accepted",
                event="oidc_keys_unreadable",
                file=config.path,
                cause=f"it {error}",
                issuer=issuer,
                todo="put the issuer's JWK set into the file",
                log_subject=("keys", config.path, issuer),
            )

    def cached(self) -> KeySet | None:
        return self._keys

    async def get(self) -> KeySet:
        return self._keys

    async def refreshed(self) -> KeySet:
        return self._keys

    def start(self) -> None:
        """Do nothing: the keys are known."""

    def stop(self) -> None:
        """Do nothing: there is no fetch."""


class FetchedKeys:
    """Keys that `fetch` returns. All waiters share one fetch at a time; it continues if a waiter is cancelled."""

    def __init__(self, issuer: str, fetch: Callable[[], Awaitable[KeySet]], clock: IReactorTime) -> None:
        """`fetch` returns, or raises `UnavailableError`, within a limited time."""
        self._fetch = fetch
        self._clock = clock
        self._log = ReviewerLog(f"oidc issuer {shown(issuer)}")
        self._keys: KeySet | None = None
        self._fetched = 0.0  # when the current keys were fetched
        self._tried = -_MIN_INTERVAL  # when the last attempt ended
        self._error: UnavailableError | None = None  # the error of the last attempt
        self._took = 0.0  # seconds that the last attempt took, if it failed
        self._waiting: list[Deferred[None]] | None = None  # the waiters for the running attempt
        self._running: Deferred[None] | None = None

    def cached(self) -> KeySet | None:
        if self._keys is None:
            return None
        age = self._clock.seconds() - self._fetched
        if age >= _REFRESH_AFTER:
            self._try()
            if age >= _WAIT_AFTER and self._waiting is not None and not self._is_slow():
                return None
        return self._keys

    async def get(self) -> KeySet:
        keys = self.cached()
        if keys is not None:
            return keys
        self._try()
        if not self._is_slow():
            await self._end_of_try()
        if self._keys is None:
            assert self._error is not None
            raise self._error
        return self._keys

    async def refreshed(self) -> KeySet:
        self._try()
        if not self._is_slow():
            await self._end_of_try()
        if self._error is not None:
            raise self._error
        assert self._keys is not None
        return self._keys

    def start(self) -> None:
        if self._keys is None:
            self._try()

    def stop(self) -> None:
        if self._waiting is not None and self._running is not None:
            self._running.cancel()

    def _is_slow(self) -> bool:
        """Whether the last attempt failed recently and slowly (e.g. an issuer behind a firewall). Then tokens do not
        wait for the next attempt: each would occupy a slot of the union that tokens for other authenticators need.
        """
        return self._took >= _SLOW and self._clock.seconds() < self._tried + _NO_WAIT_AFTER_SLOW_FAILURE

    async def _end_of_try(self) -> None:
        if self._waiting is not None:
            waiter: Deferred[None] = Deferred(self._waiting.remove)
            self._waiting.append(waiter)
            await waiter

    def _try(self) -> None:
        """Begin an attempt, unless one is running or ended recently."""
        if self._waiting is not None or self._clock.seconds() < self._tried + _MIN_INTERVAL:
            return
        self._waiting = []
        self._running = Deferred.fromCoroutine(self._run())

    async def _run(self) -> None:
        begun = self._clock.seconds()
        try:
            self._keys = await self._fetch()
        except UnavailableError as error:
            self._fails(error)
        except CancelledError:
            self._error = UnavailableError("stopped", "this configuration is no longer in use", "nothing")
        except Exception:
            log.failure("fetching the keys of an issuer failed unexpectedly", event="internal_error")
            self._fails(UnavailableError("unexpected", "fetching its keys failed", "see the traceback in the log"))
        else:
            self._error = None
            self._fetched = self._clock.seconds()
            self._log.works()
        finally:
            self._tried = self._clock.seconds()
            self._took = 0.0 if self._error is None else self._tried - begun
            waiting, self._waiting = self._waiting or [], None
            while waiting:  # calling one waiter can cancel another
                waiting.pop(0).callback(None)

    def _fails(self, error: UnavailableError) -> None:
        self._error = error
        self._log.fails(error, "its clients get 503" if self._keys is None else "the last known keys stay in use")


_KEYS = Keys("the issuer", ca="`oidc[].caFile`")
_WITHIN = 10.0  # maximum seconds for one document
_MAX_DOCUMENT = 1024 * 1024  # maximum bytes of one document


async def fetch_keys(config: model.OIDC, shared: UpstreamContext) -> KeySet:
    """Return the issuer's current keys; raises `UnavailableError`."""
    url = config.jwks_url or await _discovered(config, shared)
    document = await _get(url, config, shared)
    try:
        return parse_keys(document)
    except ValueError as error:
        raise _bad(url, error) from None


async def _discovered(config: model.OIDC, shared: UpstreamContext) -> str:
    url = config.issuer.rstrip("/") + "/.well-known/openid-configuration"
    try:
        document = json_object(await _get(url, config, shared))
        issuer, keys = document.get("issuer"), document.get("jwks_uri")
        if issuer != config.issuer:
            raise ValueError("is of another issuer than the configured one, byte for byte")
        if not isinstance(keys, str):
            raise ValueError("names no jwks_uri")
    except ValueError as error:
        raise _bad(url, error) from None
    return keys


async def _get(url: str, config: model.OIDC, shared: UpstreamContext) -> bytes:
    try:
        endpoint, target = split_url(url)
    except ValueError as error:
        raise _bad("the URL of the keys", error) from None
    server = ExternalServer("of the issuer", endpoint, tls=model.ClusterTLS(ca=config.ca), context=shared)
    try:
        response = await server.request(
            "GET", target, headers=(("accept", "application/json"),), timeout=_WITHIN, max_body=_MAX_DOCUMENT
        )
    except (ConnectError, ControlError) as error:
        raise UnavailableError("connection", error.cause, f"{remedy(error.cause, _KEYS)}; or give a jwksFile") from None
    finally:
        server.close()
    if response.status != 200:
        redirect = "; redirects are not followed" if 300 <= response.status < 400 else ""
        raise UnavailableError("status", f"{url} answered {response.status}{redirect}", f"see what answers at {url}")
    return response.body


def _bad(place: str, error: ValueError) -> UnavailableError:
    return UnavailableError(
        "document", f"{place} {error}", "see what the issuer publishes, and that `issuer` is written as there"
    )
