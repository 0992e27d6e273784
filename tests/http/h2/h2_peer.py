"""The `h2` package as a peer that gives flow-control credit back only when it is told to."""

from __future__ import annotations

from collections.abc import Callable

import h2.config
import h2.connection
import h2.events
import h2.settings


class H2Peer:
    """A mixin: `begin_protocol` sets its attributes."""

    protocol: h2.connection.H2Connection
    unacknowledged: dict[int, int]  # bytes, padding too, that the window of each stream was not given back

    def begin_protocol(self, *, client_side: bool) -> None:
        configuration = h2.config.H2Configuration(client_side=client_side, header_encoding=None)
        self.protocol = h2.connection.H2Connection(configuration)
        self.protocol.initiate_connection()
        self.unacknowledged = {}

    def received(self, event: h2.events.DataReceived) -> None:
        """DATA came: its credit is owed."""
        stream = event.stream_id or 0
        self.unacknowledged[stream] = self.unacknowledged.get(stream, 0) + (event.flow_controlled_length or 0)

    def acknowledge_all(self, exchange: Callable[[], None]) -> None:
        """Give all credit back, until no more DATA comes; `exchange` lets both sides speak."""
        for _ in range(2000):
            owed = self._owed()
            if not owed:
                break
            for stream in owed:
                self._acknowledge(stream, self.unacknowledged[stream])
            exchange()

    def _owed(self) -> list[int]:
        return [stream for stream, amount in self.unacknowledged.items() if amount]

    def _acknowledge(self, stream: int, size: int) -> None:
        self.unacknowledged[stream] -= size
        self.protocol.acknowledge_received_data(size, stream)

    # steps

    def acknowledge(self, chosen: int, size: int) -> None:
        owed = self._owed()
        if owed:
            stream = owed[chosen % len(owed)]
            self._acknowledge(stream, min(size, self.unacknowledged[stream]))

    def change(self, window: int) -> None:
        self.protocol.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    def ping(self, chosen: int) -> None:
        self.protocol.ping(b"%08d" % chosen)
