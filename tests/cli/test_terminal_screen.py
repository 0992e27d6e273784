"""The screen of `mcproxy top`, in this process."""

from __future__ import annotations

import io
import os
import pty
import signal
import sys

import pytest

from mcproxy.cli.terminal_screen import Screen


@pytest.mark.parametrize(
    ("number", "end"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_signal_ends_it_though_python_ignores_what_a_finalizer_raises(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, end: type[BaseException]
) -> None:
    class Finalized:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)

    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    keyboard, terminal = pty.openpty()
    try:
        with Screen(io.StringIO(), terminal) as screen:
            found = Finalized()
            del found
            assert ignored
            with pytest.raises(end):
                list(screen.keys(30.0))
    finally:
        os.close(keyboard)
        os.close(terminal)
