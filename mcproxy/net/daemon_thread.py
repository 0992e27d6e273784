"""Calls functions that can block for ever, such as reads of a network file system, in a separate daemon thread.

The reactor joins the threads of its pool when it stops, so a hanging thread there would block the exit of the process.
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
    """Call a function with arguments in a new thread named `name`; return its result or exception."""
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
