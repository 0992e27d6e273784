"""Calls what may block for ever, such as a read of a network file system, in a thread that keeps nothing waiting.

The threads of the reactor's pool are joined when the reactor stops: one that hangs would keep the process from exiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads

T = TypeVar("T")


def in_daemon_thread(
    reactor: IReactorFromThreads, name: str, function: Callable[..., T], *arguments: object
) -> Deferred[T]:
    """Call a function with arguments in a thread of its own that is called `name`; return its result or exception."""
    done: Deferred[T] = Deferred()

    def work() -> None:
        try:
            result = function(*arguments)
        except Exception as error:
            reactor.callFromThread(done.errback, error)
        else:
            reactor.callFromThread(done.callback, result)

    threading.Thread(target=work, name=name, daemon=True).start()
    return done
