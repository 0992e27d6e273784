"""The harness with an Admin listener, whose answers are the test's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import pytest_twisted  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred

from mcproxy.kube.healthz import Check
from tests.proxy.harness import Harness


class Source:
    """What Admin listeners show."""

    def __init__(self) -> None:
        self.checked: list[Check] = []
        self.waiting: Deferred[None] | None = None
        self.error: Exception | None = None
        self.metrics_text = [b"a 1\n", b"b 2\n"]
        self.asked = 0

    async def _asked(self) -> None:
        self.asked += 1
        if self.waiting is not None:
            waiting: Deferred[None] = Deferred()
            self.waiting.addBoth(lambda result: waiting.callback(None))
            await waiting
        if self.error is not None:
            raise self.error

    async def status(self) -> dict[str, Any]:
        await self._asked()
        return {"version": "1", "state": "serving"}

    async def metrics(self, openmetrics: bool) -> list[bytes]:
        await self._asked()
        return [*self.metrics_text, *([b"# EOF\n"] if openmetrics else [])]

    async def requests(self) -> dict[str, Any]:
        await self._asked()
        return {"total": 0, "requests": [], "missing": []}

    async def config(self) -> str:
        await self._asked()
        return "version: 1\n"

    async def checks(self) -> list[Check]:
        return self.checked


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def harness(reactor: Any, nothing_left_open: None, source: Source) -> Iterator[Harness]:
    harness = Harness(reactor, source)
    yield harness
    pytest_twisted.blockon(Deferred.fromCoroutine(harness.close()))
