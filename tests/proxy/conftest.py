"""Every test on the harness must leave the reactor as it found it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from tests.proxy.harness import Harness


@pytest.fixture
def reactor() -> Any:
    from twisted.internet import reactor

    pytest_twisted.blockon(deferLater(reactor, 0))  # the first run installs the reactor's own readers
    return reactor


@pytest.fixture
def harness(reactor: Any, nothing_left_open: None) -> Iterator[Harness]:
    harness = Harness(reactor)
    yield harness
    pytest_twisted.blockon(Deferred.fromCoroutine(harness.close()))
