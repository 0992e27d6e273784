"""Resolves names without blocking the reactor, and caches the last addresses of each name.

It uses the C library's getaddrinfo(3), so that /etc/hosts, search domains and nsswitch.conf apply as for every other
program. That function blocks, for 30 s if the name server is dead. So it runs in separate threads, not in the reactor's
pool, which has other work. Concurrent requests for a name share one look-up.

While a name server fails or is slow, the last known addresses stay in use, so that a reachable cluster is not lost.
The answer that a name does not exist ends their use, because the addresses can belong to other hosts by then. An answer
is used for `FRESH` seconds. Then a change of the name's addresses takes effect.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Literal

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IHostnameResolver, IHostResolution
from twisted.logger import Logger
from zope.interface import implementer

log = Logger(__name__)

FRESH = 5.0
"""Seconds for which an answer is used without a further look-up."""
PATIENCE = 1.0
"""Seconds that a connection waits for a look-up before it uses the last known addresses."""
MAX_THREADS = 16
"""Limit of concurrent look-ups; further look-ups wait for a thread."""
MAX_NAMES = 4096
"""Limit of cached names; the least recently used name is dropped."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""Errors of getaddrinfo(3) if a name server answers that the name, or an address of it, does not exist."""

LookUp = Callable[[str], Sequence[str]]
"""Returns the addresses of a name, blocking. Raises OSError."""
Start = Callable[[Callable[[], None]], object]
"""Calls a function in a thread."""


def system_look_up(host: str) -> Sequence[str]:
    """Call getaddrinfo(3). Raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that IDNA cannot encode
        raise OSError(f"it is no host name: {error}") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def start_thread(work: Callable[[], None]) -> None:
    """Start a daemon thread."""
    threading.Thread(target=work, name="look-up", daemon=True).start()


class _Name:
    """The state of one name."""

    __slots__ = ("addresses", "at", "failing", "running", "waiting")

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.at = float("-inf")
        """The time of the last look-up."""
        self.failing = ""
        """The cause of the last look-up's failure, or ""."""
        self.running = False
        self.waiting: list[Deferred[None]] = []


@implementer(IHostResolution)
class _Resolution:
    """A look-up for Twisted's interface."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """Do nothing: a look-up cannot be cancelled, and its result is cached."""


@implementer(IHostnameResolver)
class Resolver:
    """The resolver of one reactor (`reactor.installNameResolver`)."""

    def __init__(self, reactor: Any, look_up: LookUp = system_look_up, start: Start = start_thread) -> None:
        self._reactor = reactor
        self._look_up = look_up
        self._start = start
        self._names: OrderedDict[str, _Name] = OrderedDict()
        self._threads = 0
        self._queue: list[tuple[str, _Name]] = []

    def resolveHostName(
        self,
        resolutionReceiver: Any,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Any = None,
        transportSemantics: str = "TCP",
    ) -> Any:
        resolution = _Resolution(hostName)
        semantics: Literal["TCP", "UDP"] = "UDP" if transportSemantics == "UDP" else "TCP"
        resolutionReceiver.resolutionBegan(resolution)

        async def resolve() -> None:
            try:
                for address in await self.addresses(hostName):
                    kind = IPv6Address if ":" in address else IPv4Address
                    if addressTypes is None or kind in addressTypes:
                        resolutionReceiver.addressResolved(kind(semantics, address, portNumber))
            except OSError as error:
                failed = getattr(resolutionReceiver, "resolution_failed", None)
                if failed is not None:
                    failed(str(error))
            resolutionReceiver.resolutionComplete()

        Deferred.fromCoroutine(resolve()).addErrback(_bug)
        return resolution

    async def addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a name. Raises OSError without any, including old ones."""
        name = self._names.get(host)
        if name is None:
            name = self._names[host] = _Name()
            while len(self._names) > MAX_NAMES:
                self._names.popitem(last=False)
        else:
            self._names.move_to_end(host)
        if self._reactor.seconds() - name.at < FRESH:
            return name.addresses
        if not name.running:
            self._begin(host, name)
        if name.running:
            waiter: Deferred[None] = Deferred(name.waiting.remove)
            name.waiting.append(waiter)
            if name.addresses:
                waiter.addTimeout(PATIENCE, self._reactor, onTimeoutCancel=_stop_waiting)
            await waiter
        if name.addresses:
            return name.addresses
        raise OSError(name.failing or "it has no address")

    def _begin(self, host: str, name: _Name) -> None:
        name.running = True
        if self._threads >= MAX_THREADS:
            self._queue.append((host, name))
            return
        self._threads += 1

        def work() -> None:
            found: tuple[str, ...] = ()
            cause, exists = "", True
            try:
                found = tuple(self._look_up(host))
            except socket.gaierror as error:
                cause, exists = error.strerror or str(error), error.errno not in _NO_SUCH_NAME
            except OSError as error:
                cause = error.strerror or str(error)
            except Exception as error:
                cause = f"{type(error).__name__}: {error}"
            cause = cause or ("" if found else "it has no address")
            self._reactor.callFromThread(self._done, host, name, found, cause, exists)

        try:
            self._start(work)
        except RuntimeError as error:  # no thread can be started
            self._done(host, name, (), str(error))

    def _done(self, host: str, name: _Name, found: tuple[str, ...], cause: str, exists: bool = True) -> None:
        self._threads -= 1
        name.running = False
        if not exists:
            name.addresses = ()
        if found:
            name.addresses, name.at = found, self._reactor.seconds()
        self._log_change(host, name, cause)
        name.failing = cause
        waiting, name.waiting = name.waiting, []
        for waiter in waiting:
            waiter.callback(None)
        if self._queue:
            self._begin(*self._queue.pop(0))

    def _log_change(self, host: str, name: _Name, cause: str) -> None:
        """Log the beginning and the end of a failure while addresses are known. Otherwise the connection reports it."""
        if cause and not name.failing and name.addresses:
            log.warn(
                "the name {host} cannot be resolved; its last known addresses stay in use",
                event="name_not_resolved",
                host=host,
                addresses=", ".join(name.addresses),
                cause=cause,
                todo="see that the name servers of /etc/resolv.conf answer, and that the name exists",
                log_subject=("name", host),
            )
        elif not cause and name.failing:
            log.info(
                "the name {host} can be resolved again",
                event="name_resolved",
                host=host,
                addresses=", ".join(name.addresses),
                log_subject=("name", host),
            )


def _stop_waiting(result: Any, timeout: float) -> None:
    """Stop waiting, and use the known addresses."""


def _bug(failure: Any) -> None:
    log.failure("a DNS lookup failed unexpectedly", event="internal_error", failure=failure)
