"""The reactor that pytest-twisted runs, for tests with real sockets and processes."""

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
