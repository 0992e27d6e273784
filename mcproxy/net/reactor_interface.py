"""The interface of the reactor for this package.

Twisted describes reactors by several interfaces; this package needs methods of three of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Reactor(Protocol):
    """The methods of IReactorFDSet, IReactorTime and IReactorPluggableNameResolver that `net` uses."""

    nameResolver: Any

    def addReader(self, reader: Any) -> Any: ...
    def removeReader(self, reader: Any) -> Any: ...
    def addWriter(self, writer: Any) -> Any: ...
    def removeWriter(self, writer: Any) -> Any: ...
    def seconds(self) -> Any: ...
    def callLater(self, delay: float, callable: Callable[..., Any], *args: object, **kw: object) -> Any: ...


class ListeningReactor(Reactor, Protocol):
    """The additional methods for listeners, which `reactor.LeanEpollReactor` has."""

    def addExclusiveReader(self, reader: Any) -> Any: ...
