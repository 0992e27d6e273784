"""What the reflectors of one member share: its places for initial lists, and whether it offers WatchList."""

from __future__ import annotations

from twisted.internet.defer import DeferredSemaphore


class MemberLimits:
    """Limits of one member.

    `initial_lists`: places for initial lists and relists, taken in the order of asking: a member that comes back is not
    asked for everything at once.
    """

    def __init__(self, max_initial_lists: int) -> None:
        self.initial_lists = DeferredSemaphore(max_initial_lists)
        self._without_watch_list: set[str] = set()

    def offers_watch_list(self, group: str) -> bool:
        """Return whether to try a WatchList; by group, since the API service of a group may be a server of its own."""
        return group not in self._without_watch_list

    def refuses_watch_list(self, group: str) -> None:
        """Note that the server of this group has no WatchList."""
        self._without_watch_list.add(group)

    def forget(self) -> None:
        """Try again what was refused: it may be another cluster, or another version of it."""
        self._without_watch_list.clear()
