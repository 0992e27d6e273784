"""The way by which a caller was last allowed to impersonate. Source: k8s.io/apiserver `impersonation/cache.go`."""

from __future__ import annotations

from collections import OrderedDict

_REMEMBERED = 10_000


class LastModes:
    """By cluster and caller; that way is tried first, as most use one."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str], str] = OrderedDict()

    def get(self, cluster: str, caller: str) -> str:
        """Return the mode, `impersonate` for the verb, "" if none is known."""
        return self._last.get((cluster, caller), "")

    def note(self, cluster: str, caller: str, mode: str) -> None:
        self._last[cluster, caller] = mode
        self._last.move_to_end((cluster, caller))
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
