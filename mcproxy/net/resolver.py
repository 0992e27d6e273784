"""Looks names up without ever blocking the reactor, and remembers the last addresses of each.

The C library's getaddrinfo(3) is asked, so that /etc/hosts, search domains and nsswitch.conf hold as for every other
program. It blocks, for half a minute if the name server is dead: so it runs in separate threads, never in the
reactor's pool, which has other work; one look-up for a name is shared by all who wait for it.

A name server that fails, or is slow, is no reason to lose a cluster that was reached a moment ago: the last known
addresses stay in use for as long. A name server that answers, and says that there is no such name, ends their use: the
address may be somebody else's by now. An answer is used for `FRESH` seconds; who changes a name waits that long.
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
"""Seconds that a connection waits for a look-up where it could use the last known addresses."""
MAX_THREADS = 16
"""Look-ups at the same time; further ones wait for a thread."""
MAX_NAMES = 4096
"""Names that are remembered; beyond, the one that was not asked for the longest time is forgotten."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
"""What getaddrinfo(3) says where a name server has answered that there is no such name, or no address of it."""

LookUp = Callable[[str], Sequence[str]]
"""Returns addresses, blocking. Raises OSError."""
Start = Callable[[Callable[[], None]], object]
"""Calls a function in a thread."""


def system_look_up(host: str) -> Sequence[str]:
    """Ask getaddrinfo(3). Raises OSError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that cannot be written in IDNA
        raise OSError(f"it is no host name: {error}") from None
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))


def start_thread(work: Callable[[], None]) -> None:
    """Start a thread that does not keep the process from exiting."""
    threading.Thread(target=work, name="look-up", daemon=True).start()


class _Name:
    """What is known of one name."""

    __slots__ = ("addresses", "at", "failing", "running", "waiting")

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = ()
        self.at = float("-inf")
        """When they were looked up."""
        self.failing = ""
        """Why the last look-up failed; "" if it did not."""
        self.running = False
        self.waiting: list[Deferred[None]] = []


@implementer(IHostResolution)
class _Resolution:
    """What Twisted's interface wants to know of a look-up."""

    def __init__(self, name: str) -> None:
        self.name = name

    def cancel(self) -> None:
        """A look-up cannot be cancelled; its result is remembered."""


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
        """Return the addresses of a name. Raises OSError where it has none and never had."""
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
                waiter.addTimeout(PATIENCE, self._reactor, onTimeoutCancel=_no_longer)
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
        except RuntimeError as error:  # no further thread can be had now
            self._done(host, name, (), str(error))

    def _done(self, host: str, name: _Name, found: tuple[str, ...], cause: str, exists: bool = True) -> None:
        self._threads -= 1
        name.running = False
        if not exists:
            name.addresses = ()
        if found:
            name.addresses, name.at = found, self._reactor.seconds()
        self._tell(host, name, cause)
        name.failing = cause
        waiting, name.waiting = name.waiting, []
        for waiter in waiting:
            waiter.callback(None)
        if self._queue:
            self._begin(*self._queue.pop(0))

    def _tell(self, host: str, name: _Name, cause: str) -> None:
        """Log the beginning and the end of a failure, where addresses are known; else the connection's error does."""
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


def _no_longer(result: Any, timeout: float) -> None:
    """Go on with what is known."""


def _bug(failure: Any) -> None:
    log.failure("a DNS lookup failed unexpectedly", event="internal_error", failure=failure)
