"""resourceVersion parameters as numbers."""

from __future__ import annotations

import re


def revision(text: str) -> int:
    """Return a resourceVersion as a number; "" and "0" are 0. Raises ValueError with Go's message."""
    if not text:
        return 0
    if not re.fullmatch(r"[0-9]+", text):
        raise ValueError(
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        )
    return int(text)
