"""A cluster that is asked for reviews, as far as `identity.asking` needs one."""

from __future__ import annotations

from typing import Any, cast

from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.remedies import Keys
from tests.support.clock import Clock


class Endpoint:
    def __init__(self, name: str) -> None:
        self.name = name
        self.keys = Keys()
        self.checks_requested = 0

    def request_check(self) -> None:
        self.checks_requested += 1


class FakeCluster:
    """Answers by endpoint: a response, an error, or None for a wait without end."""

    def __init__(self, clock: Clock, answers: dict[str, Any], name: str = "east") -> None:
        self.name = name
        self.metrics = Metrics()
        self.clock = clock
        self.answers = answers
        self.endpoints = {name: Endpoint(name) for name in answers}
        self.control = self
        self.asked: list[tuple[str, float]] = []
        self.questions: list[tuple[str, bytes]] = []

    def pick(self, exclude: Any = ()) -> Endpoint | None:
        return next((one for one in self.endpoints.values() if one not in exclude), None)

    def unavailable_message(self) -> str:
        return f"no endpoint of cluster {self.name} is ready: out for {int(self.clock.seconds())} s"

    async def request(self, endpoint: Endpoint, method: str, path: str, **more: Any) -> ControlResponse:
        assert method == "POST"
        assert ("content-type", "application/json") in more["headers"]
        self.questions.append((path, more["body"]))
        self.asked.append((endpoint.name, more["timeout"]))
        answer = self.answers[endpoint.name]
        if answer is None:
            self.clock.advance(more["timeout"])
            raise ControlError(f"no answer from {endpoint.name}")
        if isinstance(answer, Exception):
            raise answer
        return cast(ControlResponse, answer)
