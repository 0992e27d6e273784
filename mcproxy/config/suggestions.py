"""Suggests similar names, for messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIKE = 3  # limit of suggested names that end with the wrong one


def nearest(wrong: str, right: Iterable[str]) -> str | None:
    """Return the name most similar to `wrong`, or None if no name is similar; case is ignored."""
    lowered: dict[str, str] = {}
    for name in right:
        lowered.setdefault(name.lower(), name)
    found = difflib.get_close_matches(wrong.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggest(wrong: str, right: Iterable[str], most: int = 12) -> str:
    """Return the end of a message about an unknown name: the most similar known name, else the first known names."""
    names = list(right)
    close = nearest(wrong, names)
    if close is not None:
        alike = [name for name in names if name.lower().endswith(wrong.lower())]
        if close not in alike or wrong.lower() == close.lower() or len(alike) > _ALIKE:
            alike = [close]
        return f"did you mean {' or '.join(alike)}?"
    if not names:
        return "there are none"
    listed = ", ".join(names[:most]) + (", …" if len(names) > most else "")
    return f"known are {listed}"
