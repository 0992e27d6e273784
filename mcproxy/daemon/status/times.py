"""Times of the status document."""

from __future__ import annotations

import time


def rfc3339(seconds: float) -> str:
    """Return a time of day, in seconds since 1970, as RFC 3339 has it, in UTC and whole seconds."""
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"
