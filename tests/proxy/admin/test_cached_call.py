"""A result that is shared for a moment."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred, ensureDeferred

from mcproxy.proxy.admin.cached_call import CachedCall
from tests.support.clock import Clock


class Made:
    def __init__(self) -> None:
        self.clock = Clock()
        self.calls: list[Deferred[str]] = []
        self.recent = CachedCall(self.make, self.clock, 0.5)

    async def make(self) -> str:
        self.calls.append(Deferred())
        return await self.calls[-1]

    def get(self) -> Deferred[Any]:
        return ensureDeferred(self.recent.get())


def result_of(deferred: Deferred[Any]) -> Any:
    found: list[Any] = []
    deferred.addBoth(found.append)
    return found[0] if found else None


def test_who_asks_meanwhile_shares_the_call_and_who_asks_soon_its_result() -> None:
    made = Made()
    asked = [made.get() for _ in range(3)]
    assert len(made.calls) == 1
    made.calls[0].callback("a")
    assert [result_of(each) for each in asked] == ["a", "a", "a"]
    made.clock.advance(0.4)
    assert result_of(made.get()) == "a"
    made.clock.advance(0.2)
    last = made.get()
    assert len(made.calls) == 2
    made.calls[1].callback("b")
    assert result_of(last) == "b"


def test_an_error_goes_to_all_who_waited_and_is_not_kept() -> None:
    made = Made()
    asked = [made.get() for _ in range(2)]
    made.calls[0].errback(OSError("no"))
    for each in asked:
        with pytest.raises(OSError, match="no"):
            result_of(each).raiseException()
    again = made.get()
    made.calls[1].callback("c")
    assert result_of(again) == "c"
