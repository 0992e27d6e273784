"""The server engine with a raw peer and no socket, on a clock that the test moves."""

from __future__ import annotations

from typing import Any

from mcproxy.config.model import Limits
from mcproxy.http.deadlines import Deadlines
from mcproxy.http.exchange import Exchange
from mcproxy.http.server_factory import ServerFactory
from tests.http.h1.harness import Wire
from tests.http.h2 import raw
from tests.http.h2.origin import Asked
from tests.http.h2.raw import Seen
from tests.support.clock import Clock


class H2Wire(Wire):
    """A transport of a TLS connection that has agreed on h2; turns of the reactor are the test's."""

    is_tls = True
    alpn: bytes | None = b"h2"
    server_name: str | None = "k8s.test"  # type: ignore[assignment]

    def __init__(self, protocol: Any) -> None:
        super().__init__(protocol)
        self._later: list[Any] = []
        self.full = False  # the peer reads nothing: what is written is kept, and the producer is told
        self.unread = 0  # bytes written while `full`

    def flush_later(self, item: Any) -> None:
        self._later.append(item)

    def write(self, data: bytes) -> None:
        super().write(data)
        if self.full:
            self.unread += len(data)
            if self.producer is not None and self.unread > 65536:
                self.producer.pauseProducing()

    def turn(self) -> None:
        """End a turn of the reactor."""
        while self._later:
            later, self._later = self._later, []
            for item in later:
                if not self.lost:
                    item.flush_coalesced()


class Stage:
    """A connection to the server engine. `asked` are the requests that reached the handler."""

    def __init__(self, *, begin: bool = True, settings: bytes = raw.settings(), **bounds: Any) -> None:
        self.clock = Clock()
        self.asked: list[Asked] = []
        self.deadlines = Deadlines(self.clock)
        self.factory = ServerFactory(
            self.deadlines, Limits(**bounds), self._handle, lambda _, problem: (b"", problem.message.encode())
        )
        self.wire = H2Wire(None)
        self.connection: Any = self.factory.build(self.wire)
        self.wire.protocol = self.connection
        self.connection.makeConnection(self.wire)
        self.seen = Seen()
        if begin:
            self.send(raw.PREFACE + settings + raw.SETTINGS_ACK)

    def _handle(self, exchange: Exchange) -> None:
        self.asked.append(Asked(exchange))

    def send(self, data: bytes) -> None:
        """Bytes come in one read, and the turn of the reactor ends."""
        self.wire.deliver(data)
        self.turn()

    def turn(self) -> None:
        self.wire.turn()
        self.seen.take(self.wire.taken())
        self.wire.settle()

    def passes(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            self.clock.advance(0.25)
            self.turn()

    @property
    def over(self) -> bool:
        return not self.wire.open

    def leaves(self) -> None:
        """The peer's connection is gone."""
        if not self.wire.lost:
            self.wire.lose()
            self.wire.turn()
