"""The section `daemon`."""

from __future__ import annotations

from typing import Literal

from mcproxy.config.context import Context
from mcproxy.config.model import AUTO, Daemon
from mcproxy.config.reading.merge import Merged
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.fields import duration_at
from mcproxy.config.sections.shared_state import build_shared_state


def build_daemon(context: Context, merged: Merged) -> Daemon:
    default = Daemon()
    socket = merged.setting("daemon", "controlSocket")
    state = merged.setting("daemon", "stateDir")
    return Daemon(
        control_socket=_control_socket(context, socket) if socket is not None else None,
        shutdown_delay=duration_at(merged.setting("daemon", "shutdownDelay"), default.shutdown_delay),
        drain_timeout=duration_at(merged.setting("daemon", "drainTimeout"), default.drain_timeout),
        workers=_workers(merged.setting("daemon", "workers"), default.workers),
        state_dir=context.path(state) if state is not None else None,
        shared_state=build_shared_state(context, merged),
    )


def _control_socket(context: Context, place: Place) -> str | None:
    path = context.path(place)
    if path is not None and len(path.encode()) > 107:
        context.error(place, "is longer than the 107 bytes of a unix socket's path", "use a shorter path")
    return path


def _workers(place: Place | None, default: int | Literal["Auto"]) -> int | Literal["Auto"]:
    if place is None:
        return default
    return AUTO if place.string is not None else int(place.value or 0)  # 2.0 is a whole number too
