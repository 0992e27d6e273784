"""The thread that calls Redis, which blocks. The reactor hands over calls, and takes their results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from mcproxy.config import model
from mcproxy.dispatch.replicas.script import Call


class Engine(Protocol):
    """Redis (`redis_client.RedisEngine`); used in a thread."""

    def call(self, calls: Sequence[Call]) -> list[Any]:
        """Return the answer to each call; raises an exception with the attribute `todo` if there is none."""

    def close(self) -> None:
        """Close all connections."""


class EngineThread:
    """One engine and the thread that it is used in; the thread ends with `end`."""

    def __init__(
        self, reactor: Any, config: model.RedisConfig, make_engine: Callable[[model.RedisConfig], Engine]
    ) -> None:
        self.config = config
        self._reactor = reactor
        self._make_engine = make_engine
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._engine: Engine | None = None  # used in the thread only
        # A daemon thread: a Redis that does not answer must not keep the process from exiting.
        threading.Thread(target=self._run, name="shared-state", daemon=True).start()

    def call(self, calls: Sequence[Call], done: Callable[[list[Any] | Exception], None]) -> None:
        """Make the calls in the thread, then call `done` with the answers, or why there are none, in the reactor."""

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
        """Close the engine, once what it does is done."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self._engine is not None:
            self._engine.close()
