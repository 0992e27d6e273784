"""The status document, put together in the process that knows the whole daemon: the supervisor, or the only one.

The figures of all processes are summed before. What the configuration says of them, and what it alone knows, is added
here, so that each process tells no more than what is live.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mcproxy.config import model
from mcproxy.daemon.figures import Figures
from mcproxy.daemon.figures.certificates import Expiry, expiries_of, fingerprint_of, of_certificates
from mcproxy.daemon.figures.limits import with_limits
from mcproxy.daemon.figures.servers import Totals, with_names
from mcproxy.daemon.figures.times import rfc3339

if TYPE_CHECKING:
    from mcproxy.daemon.reload import ReloadResult

SINGLE = "single"
"""The role of the only process of a daemon."""


class StatusDocument:
    """Makes the document. What it works out of a configuration is kept while that is in force."""

    def __init__(self, wall: Callable[[], float]) -> None:
        """`wall` returns the time of day, in seconds since 1970."""
        self._wall = wall
        self._started_at = wall()
        self._config: model.Config | None = None
        self._hash = ""
        self._expiries: list[Expiry] = []
        self._valid_until = 0.0  # when another certificate of a bundle is the next to expire

    def of_configuration(self, config: model.Config) -> Figures:
        """Return the keys that tell which configuration is in force, and since when the daemon runs."""
        self._use(config)
        return {"configHash": self._hash, "startedAt": rfc3339(self._started_at)}

    def complete(self, config: model.Config, figures: Mapping[str, Any], totals: Totals) -> Figures:
        """Return the lists of the document, from the figures of all processes.

        `totals` are the requests and errors of each server since the start.
        """
        self._use(config)
        found = dict(figures)
        servers = with_names(config.servers, found.get("servers", ()), totals)
        return {
            **found,
            "servers": servers,
            "aggregates": found.get("aggregates", []),
            "flowControls": with_limits(config.flow_controls, found.get("flowControls", ())),
            "certificates": of_certificates(self._expiries, self._wall()),
        }

    def _use(self, config: model.Config) -> None:
        now = self._wall()
        if config is not self._config:
            self._config, self._hash = config, fingerprint_of(config)
        elif now < self._valid_until:
            return
        self._expiries = expiries_of(config, now)
        self._valid_until = min((each.not_after for each in self._expiries if each.not_after > now), default=now + 3600)


def of_reload(result: ReloadResult | None) -> Figures | None:
    """Return the key `lastReload`; None before the first one."""
    if result is None:
        return None
    return {
        "ok": result.ok,
        "at": rfc3339(result.at),
        "seconds": round(result.seconds, 3),
        "errors": list(result.errors),
        "warnings": list(result.warnings),
        "changes": [str(change) for change in result.changes] if result.ok else [],
    }


def only_process(used: Mapping[str, Any], uptime: float, running: int) -> Figures:
    """Return the entry of the only process of a daemon; `used` is what it uses of the machine."""
    return {
        "name": "mcproxy",
        "pid": os.getpid(),
        "role": SINGLE,
        "leader": True,
        "restarts": 0,
        "uptimeSeconds": uptime,
        "open": running,
        **used,
    }
