"""The subset of JSONPath in additionalPrinterColumns and scale subresources.

`.spec.list[0].name`, `['key']`, `[*]` and `[?(@.a=="b")]`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

STEP = re.compile(
    r"""\.?(?:
        (?P<name>[A-Za-z0-9_\-/]+(?:\\\.[A-Za-z0-9_\-/]+)*)
        | \[(?P<index>-?\d+)\]
        | \[(?P<all>\*)\]
        | \[['"](?P<quoted>[^'"]+)['"]\]
        | \[\?\(@\.(?P<field>[A-Za-z0-9_.\-]+)\s*==\s*(?P<value>"[^"]*"|'[^']*'|[\w.]+)\)\]
    )""",
    re.VERBOSE,
)


def find(document: Any, path: str) -> list[Any]:
    """Return all values that a path selects; none for a path outside of the subset."""
    values, rest = [document], path.strip().strip("{}")
    if rest == ".":
        return values
    while rest:
        step = STEP.match(rest)
        if step is None or step.end() == 0:
            return []
        rest = rest[step.end() :]
        values = [found for value in values for found in _step(value, step)]
    return values


def _step(value: Any, step: re.Match[str]) -> list[Any]:
    if key := step["name"] or step["quoted"]:
        key = key.replace("\\.", ".")
        return [value[key]] if isinstance(value, Mapping) and key in value else []
    if not isinstance(value, list):
        return []
    if step["index"]:
        at = int(step["index"])
        return [value[at]] if -len(value) <= at < len(value) else []
    if step["all"]:
        return list(value)
    wanted = _literal(step["value"])
    return [item for item in value if find(item, f".{step['field']}") == [wanted]]


def _literal(text: str) -> Any:
    if text[0] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text
