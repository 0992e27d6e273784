"""Connections of a listener by client, counted over several processes: `net.client_table.Places`."""

from __future__ import annotations

from mcproxy.dispatch.shared_memory.counts import SharedCounts


class ConnectionCounts:
    """The counts of one listener, as one process sees them. What a process had that died is taken off."""

    def __init__(self, counts: SharedCounts) -> None:
        self._counts = counts

    def take(self, client: str, limit: int) -> bool:
        """Count one more, unless there are as many as `limit`; return whether it was counted."""
        return self._counts.take_below(client, limit)

    def take_beyond(self, client: str) -> None:
        """Count one more, whatever their number."""
        self._counts.take(client)  # its own maximum is none

    def release(self, client: str) -> None:
        """Count one less."""
        self._counts.release(client)
