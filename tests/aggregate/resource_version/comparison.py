"""The comparison of resource versions that Kubernetes promises since 1.35, written from its documentation.

Source: KEP-5504 and the documentation of k8s.io/apimachinery `pkg/util/resourceversion` (CompareResourceVersion).
"""

from __future__ import annotations

import re


def compare(one: str, other: str) -> int:
    """Return -1, 0 or 1. Raises ValueError for what is no positive integer without leading zeros."""
    for text in (one, other):
        if not re.fullmatch(r"[1-9][0-9]*", text):
            raise ValueError(text)
    if len(one) != len(other):
        return -1 if len(one) < len(other) else 1
    return (one > other) - (one < other)
