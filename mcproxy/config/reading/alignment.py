"""Finds misaligned YAML lines near the position at which the parser stopped."""

from __future__ import annotations

import re
from collections.abc import Sequence

_LINE = re.compile(r"( *)((?:- +)*)(-(?= |$)|[A-Za-z_\"'][\w.\"'-]*:(?= |$))?")
_ENDS = ("did not find expected key", "did not find expected '-' indicator", "mapping values are not allowed")


def misaligned(lines: Sequence[str], number: int, problem: str) -> tuple[int, int, int] | None:
    """Return line and column of the neighbour with which a line should be aligned, and the line's own column.

    `number` and the results count from 0. `problem` is libyaml's message. Returns None if it is about something else.
    """
    if not problem.startswith(_ENDS) or number >= len(lines):
        return None
    starts = _starts(lines[number])
    if not starts:
        return None
    own, kind = next(iter(starts.items()))
    if problem.startswith("mapping") and not _continues_value(lines, number, own):
        return None
    best: tuple[int, int] | None = None
    for before in range(number - 1, max(-1, number - 200), -1):
        for column, other in _starts(lines[before]).items():
            if other == kind and (best is None or abs(column - own) < abs(best[1] - own)):
                best = (before, column)
    return (*best, own) if best is not None and best[1] != own else None


def _starts(line: str) -> dict[int, str]:
    """Return the list entries ("-") and keys (":") that begin on a line, by column, outer ones first."""
    match = _LINE.match(line)
    if match is None or line.lstrip().startswith("#"):
        return {}
    found = {len(match[1]) + dash.start(): "-" for dash in re.finditer("-", match[2])}
    if match[3]:
        found[match.start(3)] = "-" if match[3] == "-" else ":"
    return found


def _continues_value(lines: Sequence[str], number: int, own: int) -> bool:
    """Whether YAML reads a key as a part of the previous value, because it is indented more than that value's key."""
    before = next((line for line in reversed(lines[:number]) if line.strip() and not line.lstrip().startswith("#")), "")
    keys = [column for column, kind in _starts(before).items() if kind == ":"]
    return bool(keys) and keys[-1] < own and not before.rstrip().endswith(":")
