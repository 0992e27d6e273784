"""Everything that `tests.proxy.test_aggregate_requests` says of one process, with the handler in a keeper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from tests.proxy import conftest
from tests.proxy.keeper.harness import KeeperHarness
from tests.proxy.test_aggregate_requests import (
    TestImpersonation,
    TestLimits,
    TestMembers,
    TestReaching,
    TestReload,
    TestSessions,
    TestSystemNames,
    TestTheHandler,
)

reactor = conftest.reactor

__all__ = [
    "TestImpersonation",
    "TestLimits",
    "TestMembers",
    "TestReaching",
    "TestReload",
    "TestSessions",
    "TestSystemNames",
    "TestTheHandler",
]


@pytest.fixture
def harness(reactor: Any, nothing_left_open: None) -> Iterator[KeeperHarness]:
    harness = KeeperHarness(reactor)
    yield harness
    pytest_twisted.blockon(Deferred.fromCoroutine(harness.close()))
