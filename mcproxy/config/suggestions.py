"""The right name for a wrong one, for messages about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_ALIKE = 3  # names that end with the wrong one, and are all suggested


def nearest(wrong: str, right: Iterable[str]) -> str | None:
    """Return the name most like `wrong`, or None where none is like it; letter case does not count."""
    lowered: dict[str, str] = {}
    for name in right:
        lowered.setdefault(name.lower(), name)
    found = difflib.get_close_matches(wrong.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggest(wrong: str, right: Iterable[str], most: int = 12) -> str:
    """Return the end of a message about an unknown name: the nearest right one, else the first ones."""
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
