"""Descriptors of open files."""

from __future__ import annotations

import os
from collections.abc import Iterable


def duplicates(descriptors: Iterable[int]) -> list[int]:
    """Return a duplicate of each descriptor. Raises OSError, and leaves none of them open then."""
    made: list[int] = []
    try:
        for descriptor in descriptors:
            made.append(os.dup(descriptor))  # noqa: PERF401  those before a failure are closed
    except OSError:
        for descriptor in made:
            os.close(descriptor)
        raise
    return made
