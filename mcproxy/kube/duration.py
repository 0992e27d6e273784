"""Parses durations of query parameters as Go's `time.ParseDuration` does ("1m30s"); formats ages as `kubectl get`."""

from __future__ import annotations

import re

_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_UNIT = re.compile(r"[^.0-9]*")
_MAX_DIGITS = 19
_MAX_SECONDS = 2**63 / 1e9


def parse(text: str) -> float | None:
    """Return the duration in seconds, None if `text` is not a positive duration."""
    if text == "0":
        return 0.0
    total, position = 0.0, 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            return None
        total += float(match[1]) * _SECONDS[match[2]]
        position = match.end()
    return total if position else None


def problem(text: str) -> str:
    """Return Go's error for a text that is not a duration, "" for a valid one."""
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return ""
    invalid, total = f"time: invalid duration {_quoted(text)}", 0.0
    while True:
        number = _NUMBER.match(rest)
        if number is None or len(number[0].partition(".")[0].lstrip("0")) > _MAX_DIGITS:
            return invalid
        unit = _UNIT.match(rest, number.end())
        assert unit is not None
        if not unit[0]:
            return f"time: missing unit in duration {_quoted(text)}"
        if unit[0] not in (*_SECONDS, "\u03bcs"):
            return f"time: unknown unit {_quoted(unit[0])} in duration {_quoted(text)}"
        total += float(number[0]) * _SECONDS.get(unit[0], 1e-6)
        if total >= _MAX_SECONDS:
            return invalid
        rest = rest[unit.end() :]
        if not rest:
            return ""


def _quoted(text: str) -> str:
    """Return a text as Go's package time quotes it."""
    parts = (
        f"\\{char}"
        if char in '"\\'
        else char
        if " " <= char < "\x7f"
        else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in text
    )
    return f'"{"".join(parts)}"'


# Formats durations as the ages of `kubectl get`: `3m12s`.
#
# Source: k8s.io/apimachinery `pkg/util/duration` (HumanDuration).


def human_duration(seconds: float) -> str:
    """Format seconds as duration.HumanDuration does; `<invalid>` for a time in the future."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 0:
        return "0s"
    if total < 120:
        return f"{total}s"
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if minutes < 10:
        return _two(minutes, "m", total % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if hours < 24 * 365 * 2:
        return f"{days}d"
    if hours < 24 * 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"
