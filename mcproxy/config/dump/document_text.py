"""A document as YAML or JSON that people read and that `mcproxy` loads again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*\Z|([0-9]+(h|m|s|ms))+\Z|[0-9]+[KMGT]i\Z")
_WORDS_WITH_MEANING = frozenset("null true false yes no on off y n".split())  # noqa: SIM905
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff-\ufeff]")

Document = dict[str, Any]
Path = tuple[str | int, ...]
Comments = Mapping[Path, Sequence[str]]


def to_json(document: Document) -> str:
    return _readable(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def to_yaml(document: Document, comments: Comments | None = None) -> str:
    """Return block-style YAML that YAML 1.1 and 1.2 readers understand alike.

    `comments` are lines for mappings, by the path of keys and indices that leads to them.
    """
    return "".join(line + "\n" for line in _yaml(document, "", (), comments or {}))


def _yaml(value: Any, indent: str, path: Path, comments: Comments) -> Iterable[str]:
    if isinstance(value, dict) and value:
        yield from (f"{indent}# {line}" for line in comments.get(path, ()))
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                yield f"{indent}{_word(key)}:"
                yield from _yaml(item, indent + "  ", (*path, key), comments)
            else:
                yield f"{indent}{_word(key)}: {_word(item)}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            nested = isinstance(item, dict | list) and item
            lines = list(_yaml(item, "  ", (*path, number), comments)) if nested else [f"  {_word(item)}"]
            yield f"{indent}- {lines[0][2:]}"
            yield from (indent + line for line in lines[1:])
    else:
        yield f"{indent}{_word(value)}"


def _word(value: Any) -> str:
    """Return a scalar or an empty collection; a string is unquoted only where every YAML reader takes it for one."""
    if isinstance(value, str) and _BARE.match(value) and value.lower() not in _WORDS_WITH_MEANING:
        return value
    return _readable(json.dumps(value, ensure_ascii=False))


def _readable(text: str) -> str:
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
