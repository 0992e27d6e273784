"""The signal handlers of the daemon.

HUP reloads. TERM and INT shut down; a second signal ends everything at once, and a third one kills the process by the
default action, in case the reactor is blocked. USR1 reopens log files. USR2 replaces the program. PIPE is ignored.
Python runs a handler between two arbitrary bytecodes, so each handler only schedules a call in the reactor.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from mcproxy.daemon.interpreter import GROUP_SIGNALS

if TYPE_CHECKING:
    from mcproxy.daemon.lifecycle import Daemon


def ignore_until_ready() -> None:
    """Ignore HUP, USR1 and USR2, which would end the process, until the daemon can handle them.

    Call it first, because importing the daemon's modules takes a second on a slow machine.
    """
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)


def install(reactor: Any, daemon: Daemon, *, hangup_stops: bool = False) -> None:
    """Install the handlers. Call it when the reactor runs, because the reactor installs its own handlers at its start.

    `hangup_stops`: SIGHUP stops the daemon, as it stops any program whose terminal is closed.
    """
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

    signal.signal(signal.SIGHUP, stop if hangup_stops else calling(daemon.hangup))
    signal.signal(signal.SIGUSR1, calling(daemon.reopen_logs))
    signal.signal(signal.SIGUSR2, calling(daemon.replace_program))
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # A daemon that replaces another one was started with these signals blocked (`daemon.upgrade`).
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
