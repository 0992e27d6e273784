"""Admin listeners with several processes: a worker queries the supervisor, which queries all children.

    worker      admin(what, …) + memory file  -> supervisor    writes the answer into the file
    supervisor  requests                      -> each worker   its requests in flight

Texts are passed in memory files, because they can have megabytes, which would block the reactor as a JSON message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mcproxy.daemon.channel import Channel, ChannelMessage, Fields
from mcproxy.daemon.errors import ProcessError, ProcessLost
from mcproxy.daemon.processes.children import Child, Children
from mcproxy.kube.healthz import Check
from mcproxy.kube.status import retry_after
from mcproxy.proxy.admin.admin_interface import AdminSource

_KIND = "admin"
_UNANSWERED = (ProcessLost, ProcessError, OSError)  # OSError: no free descriptor for the memory file
TIMEOUT = 10.0
"""Timeout of the supervisor's answer in seconds. The timeout of a child's answer is shorter."""


class AdminRelay:
    """The supervisor's part: answers the queries of workers."""

    def __init__(self, children: Children, source: AdminSource) -> None:
        self._source = source
        self._answers: dict[str, Callable[[ChannelMessage], Awaitable[list[bytes]]]] = {
            "status": self._status,
            "metrics": lambda message: source.metrics(message["openmetrics"]),
            "requests": self._requests,
            "config": self._config,
            "checks": self._checks,
        }
        children.on(_KIND, self._asked)

    async def _asked(self, child: Child, message: ChannelMessage) -> Fields:
        try:
            pieces = await self._answers[message["what"]](message)
            for piece in pieces:
                _write_all(message.fds[0], piece)
        finally:
            message.close()
        return {}

    async def _status(self, message: ChannelMessage) -> list[bytes]:
        return [_json(await self._source.status())]

    async def _requests(self, message: ChannelMessage) -> list[bytes]:
        return [_json(await self._source.requests())]

    async def _config(self, message: ChannelMessage) -> list[bytes]:
        return [(await self._source.config()).encode()]

    async def _checks(self, message: ChannelMessage) -> list[bytes]:
        return [_json([list(check) for check in await self._source.checks()])]


class ChannelAdmin:
    """The worker's part: the source of its Admin listeners (`proxy.admin.admin_interface.AdminSource`)."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def status(self) -> dict[str, Any]:
        return await self._document("status")

    async def metrics(self, openmetrics: bool) -> list[bytes]:
        return [await self._text("metrics", openmetrics=openmetrics)]

    async def requests(self) -> dict[str, Any]:
        return await self._document("requests")

    async def config(self) -> str:
        return (await self._text("config")).decode()

    async def checks(self) -> Sequence[Check]:
        """Return the supervisor's checks; without an answer, a check that reports this but does not fail readiness."""
        try:
            answer = json.loads(await self._ask("checks"))
        except _UNANSWERED:
            return [Check("supervisor", "the supervisor does not answer", needed=False)]
        return [Check(*fields) for fields in answer]

    async def _document(self, what: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(await self._text(what))
        return document

    async def _text(self, what: str, **fields: Any) -> bytes:
        try:
            return await self._ask(what, **fields)
        except _UNANSWERED:
            raise retry_after(503, "the supervisor does not answer", 1) from None

    async def _ask(self, what: str, **fields: Any) -> bytes:
        descriptor = os.memfd_create(f"mcproxy-admin-{what}", os.MFD_CLOEXEC)
        try:
            await self._channel.ask(_KIND, [descriptor], timeout=TIMEOUT, what=what, **fields)
            return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _json(document: Any) -> bytes:
    return json.dumps(document).encode()
