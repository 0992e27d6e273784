"""The reactor that pytest-twisted runs, for tests with real sockets and processes; and a core that takes no time."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]


@pytest.fixture
def reactor() -> Any:
    from twisted.internet import reactor
    from twisted.internet.task import deferLater

    pytest_twisted.blockon(deferLater(reactor, 0))  # the first run installs the reactor's own readers
    return reactor


@pytest.fixture(autouse=True)
def decoding_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends what takes long to decode is asked less; how fast this machine is must change no test."""
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
