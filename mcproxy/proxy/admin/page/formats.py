"""Numbers, sizes and times as people read them. None, what is not known, is a dash. Pure."""

from __future__ import annotations

UNKNOWN = "\N{EN DASH}"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def count(value: float | None) -> str:
    """Return a whole number, with commas: ``12,345``."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def number(value: float | None) -> str:
    """Return a number with three digits that matter: ``0.25``, ``12.3``, ``1,234``."""
    if value is None:
        return UNKNOWN
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def size(value: float | None) -> str:
    """Return bytes: ``1.5 MiB``."""
    if value is None:
        return UNKNOWN
    rest = float(value)
    for unit in _UNITS[:-1]:
        if rest < 1024:
            return f"{number(round(rest, 1))} {unit}"
        rest /= 1024
    return f"{number(round(rest, 1))} {_UNITS[-1]}"


def seconds(value: float | None) -> str:
    """Return a short time: ``3 ms``, ``0.42 s``, ``12 s``; a long one as `duration`."""
    if value is None:
        return UNKNOWN
    if value >= _MINUTE:
        return duration(value)
    return f"{number(round(value * 1000, 1))} ms" if value < 0.1 else f"{number(round(value, 2))} s"


def duration(value: float | None) -> str:
    """Return a time in its two largest units: ``3 d 4 h``."""
    if value is None:
        return UNKNOWN
    whole = int(value)
    for unit, name, smaller, smaller_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name}" + (f" {rest} {smaller_name}" if rest else "")
    return f"{whole} s"


def instant(value: str | None) -> str:
    """Return an RFC 3339 time in UTC to the second, with spaces: ``2026-11-22 12:00:00Z``."""
    if not value:
        return UNKNOWN
    return value.replace("T", " ").partition(".")[0].removesuffix("Z") + "Z"


def share(value: float | None) -> str:
    """Return a part of one as per cent."""
    return UNKNOWN if value is None else f"{value * 100:.0f} %"
