"""A worker with a keeper behind it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from tests.proxy.conftest import reactor as reactor
from tests.proxy.keeper.harness import KeeperHarness


@pytest.fixture
def harness(reactor: Any, nothing_left_open: None) -> Iterator[KeeperHarness]:
    harness = KeeperHarness(reactor)
    yield harness
    pytest_twisted.blockon(Deferred.fromCoroutine(harness.close()))
