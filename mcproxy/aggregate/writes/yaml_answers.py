"""Answers in YAML to requests that are passed to members, or answered here, in JSON.

Members are asked for JSON, in which the cluster's marks and versions are edited; what a client gets that prefers YAML
is made of the finished answer, in a thread. A longer one than lists have in YAML stays JSON, as its Content-Type says:
the write has been made, and a refusal would deny that.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from mcproxy.aggregate.encoding.objects import MAX_YAML, to_yaml
from mcproxy.aggregate.member_requests import prefers_yaml
from mcproxy.kube.media_types import JSON, YAML

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from mcproxy.aggregate.request import AggregatedRequest

InThread = Callable[..., "Deferred[Any]"]
_JSON_TYPE = re.compile(rb"(?mi)^content-type: *" + JSON.encode() + rb"[^\r\n]*")


async def answered(
    request: AggregatedRequest, in_thread: InThread, answer: Callable[[AggregatedRequest], Awaitable[None]]
) -> None:
    """Have a request answered, in YAML if the client prefers that."""
    if not prefers_yaml(request):
        await answer(request)
        return
    held = _HeldAnswer(request)
    await answer(cast("AggregatedRequest", held))
    await held.exchange.send(in_thread)


class _HeldAnswer:
    """A request whose whole answer is kept until it is in YAML; what is streamed passes."""

    def __init__(self, request: AggregatedRequest) -> None:
        self._request = request
        self.exchange = _HeldExchange(request.exchange)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class _HeldExchange:
    def __init__(self, exchange: Any) -> None:
        self._exchange = exchange
        self._answer: tuple[int, bytes, bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def answer(self, status: int, block: bytes, body: bytes) -> None:
        self._answer = status, block, body

    async def send(self, in_thread: InThread) -> None:
        if self._answer is None:
            return
        status, block, body = self._answer
        if body and len(body) <= MAX_YAML and _JSON_TYPE.search(block):
            try:
                body = await in_thread(to_yaml, body)
                block = _JSON_TYPE.sub(b"Content-Type: " + YAML.encode(), block)
            except (ValueError, RecursionError):
                pass  # what a member calls JSON and is none goes on as it is
        self._exchange.answer(status, block, body)
