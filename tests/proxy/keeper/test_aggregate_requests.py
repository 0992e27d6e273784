"""Everything that `tests.proxy.test_aggregate_requests` says of one process, with the handler in a keeper."""

from __future__ import annotations

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
