"""The section `daemon`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mcproxy.config.control_socket import MAX_PATH, default_control_socket
from mcproxy.config.model import Daemon, Listener, UnixBind
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place
from mcproxy.config.sections.entries import Merged, Named
from mcproxy.config.sections.model_reader import read
from mcproxy.config.sections.redis_settings import build_shared_state


def build_daemon(context: Context, merged: Merged, file: str, listeners: Sequence[Named[Listener]]) -> Daemon:
    """`file` is the main file: where the control socket is if no file says."""
    settings = merged.section("daemon")
    socket, state = settings.get("controlSocket"), settings.get("stateDir")
    return read(
        context,
        settings,
        Daemon,
        control_socket=_control_socket(context, socket, file, listeners),
        control_socket_is_default=socket is None,
        state_dir=context.path(state) if state is not None else None,
        shared_state=build_shared_state(context, merged),
    )


def _control_socket(
    context: Context, place: Place | None, file: str, listeners: Sequence[Named[Listener]]
) -> str | None:
    if place is None:
        binds = (listener.value.bind for listener in listeners if listener.value is not None)
        taken = {bind.path for bind in binds if isinstance(bind, UnixBind)}
        return None if context.offline else default_control_socket(file, context.environ, taken)
    path = context.path(place)
    if path is not None and len(os.fsencode(path)) > MAX_PATH:
        what = f"is longer than the {MAX_PATH} bytes of a unix socket's path"
        context.error(place, what, "use a shorter path")
    return path
