"""Durations and sizes as they are written in the file: ``2m30s`` is 150.0 seconds, ``64Ki`` is 65536 bytes."""

from __future__ import annotations

import re

_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m(?!s))?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?\Z", re.ASCII)
_SIZE = re.compile(r"(\d{1,15})(Ki|Mi|Gi|Ti)?\Z", re.ASCII)
_MILLISECONDS = (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def parse_duration(text: str) -> float:
    """Return seconds for ``500ms``, ``5s``, ``2m30s``, ``1h`` or ``0``; raises ValueError for anything else.

    A number without a unit is refused, since seconds and milliseconds are easily confused. 0 needs no unit.
    """
    if text == "0":
        return 0.0
    match = _DURATION.match(text)
    if not text or match is None:
        raise ValueError(f"not a duration: {text!r}")
    milliseconds = sum(
        int(count) * unit for count, (_, unit) in zip(match.groups(), _MILLISECONDS, strict=True) if count
    )
    return milliseconds / 1000


def format_duration(seconds: float) -> str:
    """Return the shortest text that `parse_duration` reads as `seconds` (whole milliseconds, not negative)."""
    rest = round(seconds * 1000)
    text = ""
    for name, unit in _MILLISECONDS:
        count, rest = divmod(rest, unit)
        text += f"{count}{name}" if count else ""
    return text or "0s"


def parse_size(text: str) -> int:
    """Return bytes for ``1000``, ``64Ki``, ``16Mi``, ``1Gi`` or ``1Ti``; raises ValueError for anything else."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    return int(match.group(1)) * _BYTES[match.group(2) or ""]


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as `size`."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return str(size)
