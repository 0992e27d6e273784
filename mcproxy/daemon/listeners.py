"""The listeners of a process: those in force, those that a reload adds, removed ones until their requests have ended.

A listener is kept across a reload if its address is unchanged, whatever else about it changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.daemon.live_listener import LiveListener
from mcproxy.daemon.process_parts import ProcessParts
from mcproxy.daemon.runtime import Runtime
from mcproxy.http.deadlines import Deadlines
from mcproxy.observe.metrics.counts import Counts
from mcproxy.observe.metrics.families import CONNECTIONS, CONNECTIONS_REFUSED, FLOODS, HANDSHAKES, Family

_FLUSH = 2.0
"""Seconds that connections may take to send their last answer and close, after the last request."""
_FLUSH_STEP = 0.02

_LABELS: dict[str, tuple[Family, tuple[str, ...]]] = {
    "accepted": (CONNECTIONS, ()),
    **{reason: (CONNECTIONS_REFUSED, (reason,)) for reason in ("connections", "connectionsPerClient", "proxy")},
    **{result: (HANDSHAKES, (result,)) for result in ("ok", "failed", "abandoned")},
}
"""By the names of `net.listen.Listener.counts`."""


@dataclass(frozen=True, slots=True)
class PreparedListeners:
    """The changes of a reload that is not in force yet."""

    opened: Mapping[str, LiveListener]
    """The new listeners by address; they do not accept yet."""
    unix_before: Sequence[tuple[LiveListener, model.UnixBind]]
    """The unix sockets whose mode or group is changed already, with the former values."""

    def undo(self) -> None:
        """Close the new listeners, and give unix sockets the mode and group that they had."""
        for live in self.opened.values():
            live.abort()
        for live, before in self.unix_before:
            live.socket.set_permissions(before)


class Listeners:
    """All listeners of one process."""

    def __init__(self, reactor: Any, deadlines: Deadlines, parts: ProcessParts, random: Callable[[], float]) -> None:
        """`random` returns a float in [0, 1), for `goawayChance`."""
        self._reactor = reactor
        self._deadlines = deadlines
        self._parts = parts
        self._random = random
        self._in_force: dict[str, LiveListener] = {}  # by address
        self._removed: set[LiveListener] = set()
        self._counts = ListenerCounts(parts.metrics.counts)
        parts.metrics.read_at_flush(lambda: self._counts.add(self.all))

    @property
    def in_force(self) -> Mapping[str, LiveListener]:
        """The listeners of the configuration in force by address (`str(bind)`), in its order."""
        return self._in_force

    @property
    def all(self) -> Sequence[LiveListener]:
        """The listeners in force, and removed ones whose requests have not ended."""
        return (*self._in_force.values(), *self._removed)

    def prepare(self, config: model.Config, runtime: Runtime) -> PreparedListeners:
        """Open the listeners with a new address, and change the mode and group of unix sockets that stay.

        Raises BindError, DaemonError and OSError, with everything as it was before.
        """
        opened: dict[str, LiveListener] = {}
        changed: list[tuple[LiveListener, model.UnixBind]] = []
        prepared = PreparedListeners(opened, changed)
        stay = {str(listener.bind) for listener in config.listeners}
        try:
            for listener in config.listeners:
                bind, address = listener.bind, str(listener.bind)
                live = self._in_force.get(address)
                if live is None:
                    live = LiveListener(self._reactor, self._deadlines, listener, runtime, self._parts, self._random)
                    live.open([old for old in self._in_force.values() if _same_port(old, bind, stay)])
                    opened[address] = live
                elif isinstance(bind, model.UnixBind) and bind != (before := live.socket.bind):
                    assert isinstance(before, model.UnixBind)
                    live.socket.set_permissions(bind)
                    changed.append((live, before))
        except Exception:
            prepared.undo()
            raise
        return prepared

    def commit(self, prepared: PreparedListeners, config: model.Config, runtime: Runtime) -> list[LiveListener]:
        """Serve new requests and connections with `runtime`; return the listeners that `config` has no longer.

        Those accept until `remove` closes them.
        """
        listeners: dict[str, LiveListener] = {}
        for listener in config.listeners:
            address = str(listener.bind)
            live = prepared.opened.get(address) or self._in_force[address]
            live.update(listener, runtime)
            listeners[address] = live
        for live in prepared.opened.values():
            live.socket.start_accepting()
        removed = [live for address, live in self._in_force.items() if address not in listeners]
        self._in_force = listeners
        return removed

    def remove(self, listeners: Collection[LiveListener]) -> None:
        """Close listeners that `commit` has returned; they count until `forget`."""
        for live in listeners:
            live.close()
        self._removed.update(listeners)

    def forget(self, listeners: Collection[LiveListener]) -> None:
        """End removed listeners, whose requests have ended."""
        self._counts.add(listeners)
        for live in listeners:
            live.abort()
            self._removed.discard(live)

    async def flushed(self, listeners: Sequence[LiveListener] | None = None) -> None:
        """Wait, 2 s at most, until connections have sent their last responses and are closed; None: all."""
        chosen = self.all if listeners is None else listeners
        until = self._reactor.seconds() + _FLUSH
        while any(live.socket.connections for live in chosen) and self._reactor.seconds() < until:
            await deferLater(self._reactor, _FLUSH_STEP)

    def begin_drain(self) -> None:
        """Ask clients to close kept connections, with the next response; new connections are accepted."""
        for live in self.all:
            live.factory.begin_drain()

    def close(self) -> None:
        """Close the listening sockets, and each connection after its request."""
        for live in self.all:
            live.close()

    def hand_over(self, addresses: Collection[str]) -> None:
        """Close as `close` does, but leave the sockets of `addresses`, with queued connections, to another process."""
        for address, live in self._in_force.items():
            live.close(handed_over=address in addresses)

    def abort(self) -> None:
        """End all listeners and connections at once."""
        for live in self.all:
            live.abort()
        self._removed.clear()
        self._in_force = {}

    @property
    def listening(self) -> list[tuple[str, int]]:
        """The addresses in force and their listening descriptors, which stay this process's."""
        return [(address, sock.fileno()) for address, live in self._in_force.items() for sock in live.socket.sockets]

    def restore_sockets(self) -> None:
        """Undo what another daemon that used these sockets too, and is gone, may have changed of them."""
        for live in self._in_force.values():
            live.socket.restore()


def _same_port(old: LiveListener, bind: model.Bind, stay: Collection[str]) -> bool:
    """Whether `old` is removed, and may block a listener on `bind`."""
    before = old.config.bind
    return (
        isinstance(before, model.TCPBind)
        and isinstance(bind, model.TCPBind)
        and before.port == bind.port != 0
        and str(before) not in stay
    )


class ListenerCounts:
    """Adds the counts of listeners to the metrics, which `net` and `http` do not import."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._before: WeakKeyDictionary[LiveListener, tuple[Counter[str], Counter[str]]] = WeakKeyDictionary()

    def add(self, listeners: Iterable[LiveListener]) -> None:
        """Add the counts of these listeners; of one that is gone, add them before."""
        for live in listeners:
            connections, floods = self._before.get(live, (Counter(), Counter()))
            now: tuple[Counter[str], Counter[str]] = Counter(live.socket.counts), Counter(live.factory.protection)
            self._before[live] = now
            name = live.config.name
            for key, number in (now[0] - connections).items():
                family, labels = _LABELS[key]
                self._counts.increase(family, (name, *labels), number)
            for kind, number in (now[1] - floods).items():
                self._counts.increase(FLOODS, (name, kind), number)
