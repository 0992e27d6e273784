"""Signals, as the daemon means them.

HUP reloads, TERM and INT stop (a second one at once, a third one by the kernel, should the reactor be stuck), USR1
opens log files anew, PIPE is ignored. Python runs a handler between two bytecodes of whatever is going on, so each
handler only asks the reactor to call something.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

from mcproxy.daemon.lifecycle import Daemon


def ignore_until_ready() -> None:
    """Before the daemon can act on HUP and USR1, neither may end it (which is what they do by default)."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def install(reactor: Any, daemon: Daemon) -> None:
    """Install the handlers; call it when the reactor runs, since it installs its own when it starts."""
    stops = 0

    def calling(function: Callable[[], None]) -> Callable[[int, FrameType | None], None]:
        def handler(number: int, frame: FrameType | None) -> None:
            reactor.callFromThread(function)

        return handler

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stops
        stops += 1
        if stops == 2:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        reactor.callFromThread(daemon.stop)

    signal.signal(signal.SIGHUP, calling(daemon.hangup))
    signal.signal(signal.SIGUSR1, calling(daemon.reopen_logs))
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
