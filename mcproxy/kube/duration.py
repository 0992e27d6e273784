"""Go's duration text ("1m30s", "500ms"), as Kubernetes uses it in query parameters."""

from __future__ import annotations

import re

_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


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
