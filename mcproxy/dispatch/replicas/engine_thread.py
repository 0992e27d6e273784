"""Runs the blocking calls of Redis in a thread; the reactor hands over calls, and receives their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from mcproxy.config import model
from mcproxy.dispatch.replicas.script import Call


class Engine(Protocol):
    """The interface of `redis_client.RedisEngine`, which is used in a thread."""

    def call(self, calls: Sequence[Call]) -> list[Any]:
        """Return the response to each call. Raises an exception with the attribute `todo` on failure."""

    def close(self) -> None:
        """Close all connections."""


class EngineThread:
    """One engine and its thread, which ends with `end`."""

    def __init__(
        self, reactor: Any, config: model.RedisConfig, make_engine: Callable[[model.RedisConfig], Engine]
    ) -> None:
        self.config = config
        self._reactor = reactor
        self._make_engine = make_engine
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._engine: Engine | None = None  # used in the thread only
        # A daemon thread, so that a Redis that does not respond cannot keep the process from exiting.
        threading.Thread(target=self._run, name="shared-state", daemon=True).start()

    def call(self, calls: Sequence[Call], done: Callable[[list[Any] | Exception], None]) -> None:
        """Make the calls in the thread, then call `done` in the reactor with the responses or the error."""

        def work() -> None:
            outcome: list[Any] | Exception
            try:
                if self._engine is None:
                    self._engine = self._make_engine(self.config)
                outcome = self._engine.call(calls)
            except Exception as error:
                outcome = error
            self._reactor.callFromThread(done, outcome)

        self._work.put(work)

    def end(self) -> None:
        """Close the engine after the pending calls."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._engine is not None:
            self._engine.close()
