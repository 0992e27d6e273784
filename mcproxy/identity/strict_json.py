"""Strict parsing of untrusted JSON (tokens, key sets, responses of reviewers): anything invalid is a ValueError."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from mcproxy.kube.nesting import refuse_deep

_MAX_DEPTH = 32
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # an escape that may be one half of a surrogate pair


def json_object(text: bytes) -> dict[str, Any]:
    """Parse `text`, which must be one JSON object (RFC 8259).

    Raises ValueError, whose message shows nothing of the text, for any other text and for JSON that parsers treat
    differently: duplicate names in an object, NaN, half a surrogate pair. Raises it also for nesting deeper than 32.
    """
    try:
        refuse_deep(text, _MAX_DEPTH)
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_no_doubles, parse_constant=_no_constant)
        if _HALF.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):  # UnicodeError and JSONDecodeError are ValueErrors that contain the text
        raise ValueError("is not acceptable JSON") from None
    if not isinstance(value, dict):
        raise ValueError("is no JSON object")
    return value


def strings(value: object) -> tuple[str, ...]:
    """Return the items of a list of strings, without duplicates; () for None. Raises ValueError for anything else."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError("is no list of strings")
    return tuple(dict.fromkeys(value))


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError
    return names


def _no_constant(_: str) -> NoReturn:
    raise ValueError
