"""LabelSelector objects, as in the spec of workloads, Services and budgets.

Selectors in query parameters are in `selectors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector matches some labels."""
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_matches(item, labels) for item in selector.get("matchExpressions") or ())


def _matches(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or ()
    if operator == "In":
        return bool(labels.get(key) in values)
    if operator == "NotIn":
        return bool(labels.get(key) not in values)
    return bool((key in labels) == (operator == "Exists"))
