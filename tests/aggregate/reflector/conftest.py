"""The reactor that pytest-twisted runs, for tests with real sockets and processes."""

from __future__ import annotations

from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]

from mcproxy.aggregate.reflector import member_calls


@pytest.fixture
def reactor() -> Any:
    from twisted.internet import reactor
    from twisted.internet.task import deferLater

    pytest_twisted.blockon(deferLater(reactor, 0))  # the first run installs the reactor's own readers
    return reactor


@pytest.fixture(autouse=True)
def short_backoff(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that fail are repeated soon; `test_backoff` alone has the times of client-go."""
    if not request.module.__name__.endswith("test_backoff"):
        monkeypatch.setattr(member_calls, "_FIRST_DELAY", 0.1)
