"""Connects to the first address of a host that accepts a connection (RFC 8305, Happy Eyeballs).

The addresses are tried in the resolver's order, with alternating families (section 4). The next attempt begins after a
failure, or after DELAY without an answer (section 5). Earlier attempts continue; the first connection wins, and the
others are cancelled. An address that was silent while a later one answered is tried last for MEMORY seconds, so that
other connections do not wait for it. An address that refuses a connection is not remembered, since the refusal costs no
time and the server can recover soon.
"""

from __future__ import annotations

import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.python.failure import Failure

from mcproxy.net.reactor_interface import Reactor

SocketAddress = tuple[int, Any]
"""The address family, and the address for connect(2)."""

DELAY: Final = 0.25
"""Seconds until the next address is tried (the Connection Attempt Delay of RFC 8305 5)."""
MEMORY: Final = 600.0
"""Seconds for which a silent address is tried last (RFC 6555 4.2: on the order of 10 minutes)."""
_MOST_AT_ONCE = 8  # limit of concurrent attempts; a further one ends the oldest
_MOST_TRIED = 64  # limit of tried addresses per host; a name server can return thousands
_MOST_REMEMBERED = 1024  # limit of silent addresses


class SilentAddresses:
    """The addresses of all hosts that were silent recently."""

    def __init__(self) -> None:
        self._until: OrderedDict[SocketAddress, float] = OrderedDict()

    def note(self, address: SocketAddress, now: float) -> None:
        """Note that an address did not answer while another one did; `now` in seconds."""
        self._until[address] = now + MEMORY
        self._until.move_to_end(address)
        if len(self._until) > _MOST_REMEMBERED:
            self._until.popitem(last=False)

    def forget(self, address: SocketAddress) -> None:
        """Note that an address has answered."""
        self._until.pop(address, None)

    def is_silent(self, address: SocketAddress, now: float) -> bool:
        """Return whether an address was noted as silent within the last MEMORY seconds."""
        return now < self._until.get(address, now)


SILENT: Final = SilentAddresses()
"""The silent addresses known to this process."""


def in_order(addresses: Sequence[SocketAddress], silent: Callable[[SocketAddress], bool]) -> list[SocketAddress]:
    """Return the addresses in the order of attempts: alternating families, silent addresses last."""
    first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    turns = [each for each in chain.from_iterable(zip_longest(first, others)) if each is not None]
    return sorted(turns, key=silent)


class Race:
    """The attempts for one connection. `won` fires with the socket and its address, or fails as the last attempt."""

    def __init__(
        self,
        reactor: Reactor,
        addresses: Sequence[SocketAddress],
        connect: Callable[[SocketAddress], Deferred[socket.socket]],
        silent: SilentAddresses = SILENT,
    ) -> None:
        """`connect` opens a connection; its cancellation closes the socket. `addresses` has at least one address."""
        self.won: Deferred[tuple[socket.socket, SocketAddress]] = Deferred(lambda _: self._stop())
        self._reactor = reactor
        self._connect = connect
        self._silent = silent
        now = reactor.seconds()
        self._remaining = in_order(addresses, lambda address: silent.is_silent(address, now))[:_MOST_TRIED]
        self._running: dict[SocketAddress, tuple[Deferred[None], float]] = {}  # with start times
        self._next: IDelayedCall | None = None
        self._beginning = False
        self._failed_at_once = False
        self._try_next()

    def _try_next(self) -> None:
        """Start the next attempt, and further ones while attempts fail immediately."""
        self._failed_at_once = True
        if self._beginning:
            return
        self._beginning = True
        while self._failed_at_once and self._remaining:
            self._failed_at_once = False
            self._begin(self._remaining.pop(0))
        self._beginning = False

    def _begin(self, address: SocketAddress) -> None:
        if self._next is not None and self._next.active():
            self._next.cancel()
        began = self._reactor.seconds()  # before the timer starts, so that an attempt has lasted DELAY when it fires
        self._next = self._reactor.callLater(DELAY, self._try_next) if self._remaining else None
        if len(self._running) >= _MOST_AT_ONCE:
            self._running.pop(next(iter(self._running)))[0].cancel()
        attempt: Deferred[Any] = self._connect(address)
        self._running[address] = attempt, began
        attempt.addCallbacks(self._opened, self._failed, callbackArgs=(address,), errbackArgs=(address,))

    def _opened(self, sock: socket.socket, address: SocketAddress) -> None:
        self._running.pop(address)
        now = self._reactor.seconds()
        self._silent.forget(address)
        for other, (_, began) in self._running.items():
            if now - began >= DELAY:
                self._silent.note(other, now)
        self._stop()
        self.won.callback((sock, address))

    def _failed(self, reason: Failure, address: SocketAddress) -> None:
        if self._running.pop(address, None) is None:  # the attempt was cancelled
            return
        if self._remaining:
            self._try_next()
        elif not self._running:
            self.won.errback(reason)

    def _stop(self) -> None:
        self._remaining.clear()
        if self._next is not None and self._next.active():
            self._next.cancel()
        running, self._running = self._running, {}
        for attempt, _ in running.values():
            attempt.cancel()
