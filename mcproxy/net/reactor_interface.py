"""The reactor interface that this package uses.

Twisted describes reactors by several interfaces; the sockets here need a few methods of three of them at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Reactor(Protocol):
    """The part of IReactorFDSet, IReactorTime and IReactorPluggableNameResolver that is used in `net`."""

    nameResolver: Any

    def addReader(self, reader: Any) -> Any: ...
    def removeReader(self, reader: Any) -> Any: ...
    def addWriter(self, writer: Any) -> Any: ...
    def removeWriter(self, writer: Any) -> Any: ...
    def seconds(self) -> Any: ...
    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kw: object) -> Any: ...


class ListeningReactor(Reactor, Protocol):
    """What a listener needs in addition: `reactor.LeanEpollReactor` has it."""

    def addExclusiveReader(self, reader: Any) -> Any: ...
