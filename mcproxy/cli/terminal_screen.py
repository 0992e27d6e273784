"""A full-screen terminal: draws lines, reads keys, and restores the terminal's state.

The state is restored at every end except by SIGKILL: an exception, Ctrl-C, SIGTERM, SIGHUP. It is also restored while
the command is stopped by Ctrl-Z.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, TextIO

_ENTER = "\x1b[?1049h\x1b[?25l"  # alternate screen, no cursor (of xterm; tmux, screen, the Linux console know it)
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_REST = "\x1b[H", "\x1b[K", "\x1b[J"

_KEYS = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
}
RESIZED = "resized"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """Draws lines and waits for keys. Use it in a `with` statement."""

    def __init__(self, output: TextIO | None = None, keyboard: int = 0) -> None:
        """`keyboard` is the descriptor of the terminal from which keys are read."""
        self._output = sys.stdout if output is None else output
        self._keyboard = keyboard
        self._before: list[Any] = []
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._handlers: dict[int, Any] = {}
        self._end: BaseException | None = None  # the exception that a signal handler has raised

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._keyboard)
        for number, handler in (
            (signal.SIGWINCH, self._resized),
            (signal.SIGTSTP, self._stopped),
            *((number, self._ended) for number in _ENDING),
        ):
            self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._give_back()
        finally:
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            os.close(self._wake_read)
            os.close(self._wake_write)

    @property
    def size(self) -> tuple[int, int]:
        """The current columns and lines."""
        try:
            found = os.get_terminal_size(self._output.fileno())
        except OSError:
            found = shutil.get_terminal_size()
        return max(1, found.columns), max(1, found.lines)

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines, the first at the top. They must not be wider than the screen."""
        text = _HOME + "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines[:-1])
        self._write(text + (lines[-1] if lines else "") + _CLEAR_LINE + _CLEAR_REST)

    def keys(self, timeout: float, *descriptors: int) -> Iterator[str]:
        """Yield pressed keys until one of `descriptors` is readable, or `timeout` seconds have passed.

        A key is a character or a name ("up", "page down"); RESIZED is a change of the terminal's size. Raises EOFError
        if the terminal is gone, and the exception of a signal handler if Python ignored it.
        """
        ready, _, _ = select.select([self._keyboard, self._wake_read, *descriptors], [], [], max(0.0, timeout))
        if self._end is not None:
            raise self._end
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            yield RESIZED
        if self._keyboard in ready:
            try:
                typed = os.read(self._keyboard, 1024)
            except OSError as error:
                raise EOFError from error
            if not typed:
                raise EOFError
            yield from split_keys(typed.decode("utf-8", "replace"))

    def _take(self) -> None:
        tty.setcbreak(self._keyboard, termios.TCSANOW)  # Ctrl-C and Ctrl-Z still send signals
        self._write(_ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal can be gone
            self._write(_LEAVE)
        with contextlib.suppress(OSError, termios.error):
            termios.tcsetattr(self._keyboard, termios.TCSADRAIN, self._before)

    def _write(self, text: str) -> None:
        self._output.write(text)
        self._output.flush()

    def _resized(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"r")

    def _ended(self, number: int, frame: FrameType | None) -> None:
        """End the running code by an exception. If Python ignores it (in finalizers), `keys` raises it again."""
        self._end = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        self._resized(number, frame)
        raise self._end

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        """Handle Ctrl-Z: restore the terminal, stop, and set it up again when the command continues."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._resized(number, frame)


def split_keys(typed: str) -> Iterator[str]:
    """Yield the keys in a terminal's input, without sequences of unknown keys."""
    place = 0
    while place < len(typed):
        sequence = next((each for each in _KEYS if typed.startswith(each, place)), None)
        if sequence is not None:
            yield _KEYS[sequence]
            place += len(sequence)
        elif typed[place:] == "\x1b":
            yield "escape"
            place += 1
        elif typed[place] == "\x1b":
            place += _length_of_sequence(typed, place)
        else:
            yield typed[place]
            place += 1


def _length_of_sequence(typed: str, place: int) -> int:
    """Return the length of an escape sequence (ECMA-48): CSI up to its final byte, or two characters."""
    if typed[place + 1 : place + 2] != "[":
        return 2 if place + 1 < len(typed) else 1
    end = place + 2
    while end < len(typed) and not "@" <= typed[end] <= "~":
        end += 1
    return end + 1 - place
