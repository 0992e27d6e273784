"""The current keys of an issuer: read from a file, or fetched and kept up to date.

Fetched keys are used for 5 minutes. After that a token causes a fetch in the background; after 15 minutes it waits for
the fetch, so that a key that the issuer revoked does not stay valid where tokens are rare. While the issuer is
unavailable, the last known keys stay in use. A token with an unknown key causes a fetch too, but there is at most one
attempt in 10 seconds, whatever clients send.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.jwks import KeySet, parse_keys
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError, shown

log = Logger(__name__)

_REFRESH_AFTER = 300.0  # seconds for which fetched keys are used without another fetch
_WAIT_AFTER = 900.0  # from this age on, tokens wait for the fetch
_MIN_INTERVAL = 10.0  # seconds between two attempts
_SLOW = 1.0  # seconds; after a failed attempt that took longer, tokens do not wait for the next one
_NO_WAIT_AFTER_SLOW_FAILURE = 30.0  # seconds for which they do not; by then the next attempt has ended


class KeySource(Protocol):
    """Where the keys of one issuer come from."""

    def cached(self) -> KeySet | None:
        """Return the keys if they are available without waiting."""

    async def get(self) -> KeySet:
        """Return the keys; raises `UnavailableError` if there are none yet."""

    async def refreshed(self) -> KeySet:
        """Fetch the keys again because one was not among them, and return them; raises `UnavailableError`."""

    def start(self) -> None:
        """Fetch the keys before the first token comes."""

    def stop(self) -> None:
        """Cancel the fetch; its waiters get `UnavailableError`."""


class FileKeys:
    """Keys of a file, as it was when the configuration was loaded."""

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
        """Nothing to fetch."""

    def stop(self) -> None:
        """Nothing to cancel."""


class FetchedKeys:
    """Keys that `fetch` returns. One fetch at a time, shared by all waiters; it continues if one is cancelled."""

    def __init__(self, issuer: str, fetch: Callable[[], Awaitable[KeySet]], clock: IReactorTime) -> None:
        """`fetch` raises `UnavailableError` within bounded time."""
        self._fetch = fetch
        self._clock = clock
        self._log = ReviewerLog(f"oidc issuer {shown(issuer)}")
        self._keys: KeySet | None = None
        self._fetched = 0.0  # when the current keys were fetched
        self._tried = -_MIN_INTERVAL  # when the last attempt ended
        self._error: UnavailableError | None = None  # of the last attempt
        self._took = 0.0  # seconds that the last attempt took, if it failed
        self._waiting: list[Deferred[None]] | None = None  # of the attempt in progress
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
        """Whether an attempt failed slowly a moment ago (an issuer behind a firewall). Then tokens do not wait for the
        next one: each would hold a place of the union, and tokens of other authenticators need places too.
        """
        return self._took >= _SLOW and self._clock.seconds() < self._tried + _NO_WAIT_AFTER_SLOW_FAILURE

    async def _end_of_try(self) -> None:
        if self._waiting is not None:
            waiter: Deferred[None] = Deferred(self._waiting.remove)
            self._waiting.append(waiter)
            await waiter

    def _try(self) -> None:
        """Begin an attempt, unless one is in progress or ended a moment ago."""
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
            while waiting:  # one that is called may cancel another
                waiting.pop(0).callback(None)

    def _fails(self, error: UnavailableError) -> None:
        self._error = error
        self._log.fails(error, "its clients get 503" if self._keys is None else "the last known keys stay in use")
