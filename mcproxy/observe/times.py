"""Times of day as logs have them, made for every line. Pure."""

from __future__ import annotations

import time


class Seconds:
    """Formats a time in whole seconds; keeps the last result, since most lines share it with the one before."""

    __slots__ = ("_pattern", "_second", "_text")

    def __init__(self, pattern: str) -> None:
        """`pattern` is that of `time.strftime`, for UTC."""
        self._pattern = pattern
        self._second = -1
        self._text = ""

    def __call__(self, second: int) -> str:
        """Return the text for a time in seconds since the epoch."""
        if second != self._second:
            self._second = second
            self._text = time.strftime(self._pattern, time.gmtime(second))
        return self._text
