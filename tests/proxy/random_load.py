"""What the random traffic of all versions of HTTP has in common: configurations, requests at the clusters, counts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from random import Random

from mcproxy.config import model
from mcproxy.dispatch.flow_controller import FlowController
from mcproxy.upstream.endpoint import Endpoint
from tests.proxy.harness import Harness, UpstreamEnd

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\n"
EVERYTHING = (
    model.Rule(verbs=("*",), api_groups=("*",), resources=("*",)),
    model.Rule(verbs=("*",), non_resource_urls=("*",)),
)


class RandomLoad(ABC):
    """A proxy whose configuration, clients and clusters change at random."""

    def __init__(self, harness: Harness, random: Random) -> None:
        self.harness = harness
        self.random = random
        self.endpoints: set[Endpoint] = set()
        self.controls: set[FlowController] = set()
        self.statuses: Counter[int] = Counter()
        self._read: dict[UpstreamEnd, int] = {}
        self._serial = 0

    @abstractmethod
    def config(self) -> model.Config:
        """Return a random configuration."""

    async def serve(self) -> None:
        """Serve another configuration; what the earlier ones had is remembered for `check_counts`."""
        await self.harness.serve(self.config())
        runtime = self.harness.service.runtime
        assert runtime is not None
        self.controls.update(runtime.flow_controls.controls.values())
        for live in runtime.clusters.values():
            self.endpoints.update(live.endpoints)

    def unread_requests(self, end: UpstreamEnd) -> Iterator[tuple[bytes, bytes, bool]]:
        """Yield head, body, and whether that is all of the body, of each request of HTTP/1.1 since the last call.

        A request without all of its body is yielded again by the next call.
        """
        while True:
            at = self._read.get(end, 0)
            head, found, rest = end.received[at:].partition(b"\r\n\r\n")
            if not found:
                return
            lines = head.lower().split(b"\r\n")
            length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
            if b"transfer-encoding: chunked" in lines:
                length = rest.find(b"0\r\n\r\n") + 5 if b"0\r\n\r\n" in rest else len(rest) + 1
            whole = len(rest) >= length
            if whole:
                self._read[end] = at + len(head) + 4 + length
            yield head, rest[:length], whole
            if not whole:
                return

    def ignore_rest(self, end: UpstreamEnd) -> None:
        """What follows on a connection is no further request."""
        self._read[end] = 1 << 60

    def check_counts(self) -> None:
        """No permits, places in queues, or requests of endpoints are left."""
        counts = [(each.config.name, each.in_use, each.in_use_long_running, each.waiting) for each in self.controls]
        assert [count for count in counts if any(count[1:])] == []
        assert [endpoint for endpoint in self.endpoints if endpoint.in_flight or endpoint.load] == []
