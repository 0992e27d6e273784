"""The section `daemon`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    control_socket: str | None = None
    shutdown_delay: float = 0.0
    drain_timeout: float = 30.0
    workers: int = 1
    state_dir: str | None = None  # absolute; what survives a restart. None: nothing is kept on disk
