"""Writes the keys and warnings in mcproxy.yaml(5) from the JSON Schema and config/problem.py, so that none is missing.

python man/keys.py          rewrite man/mcproxy.yaml.5 between its marks
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
SCHEMA = HERE.parent / "schema" / "mcproxy.schema.json"
PAGE = HERE / "mcproxy.yaml.5"
BEGIN = '.\\" Keys: written by man/keys.py from the schema.\n'
END = '.\\" End of keys.\n'
BEGIN_LINTS = '.\\" Warnings: written by man/keys.py from mcproxy/config/problem.py.\n'
END_LINTS = '.\\" End of warnings.\n'

from mcproxy.config.problem import LINTS  # noqa: E402

Node = dict[str, Any]


def resolve(node: Node, root: Node) -> Node:
    """Follow $ref; what stands beside it counts too."""
    while "$ref" in node:
        target = root
        for step in node["$ref"].split("/")[1:]:
            target = target[step]
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    return node


def keys(node: Node, root: Node, prefix: str = "") -> Iterator[tuple[str, Node, bool]]:
    """Yield every key as (path, schema, required), in the order of the schema."""
    for name, value in node.get("properties", {}).items():
        child = resolve(value, root)
        path = prefix + name
        yield path, child, name in node.get("required", ())
        yield from keys(child, root, path + ".")
        if isinstance(child.get("items"), dict):
            yield from keys(resolve(child["items"], root), root, path + "[].")


def section(root: Node) -> str:
    """Return the mdoc text for all keys, a subsection for each key at the top level."""
    lines: list[str] = []
    for path, node, required in keys(root, root):
        if "." not in path:
            lines += [".El"] if lines else []
            lines += [f".Ss {path}", ".Bl -tag -width Ds"]
        lines += [f".It Va {path}", *_sentences(node.get("description", ""))]
        lines += _facts(node, required)
    return "\n".join([*lines, ".El"]) + "\n"


def _facts(node: Node, required: bool) -> Iterator[str]:
    choices = node.get("enum", ())
    if len(choices) > 1:
        yield "One of " + ", ".join(_value(choice) for choice in choices) + "."
    if required:
        yield "Required."
    elif "default" in node and node["default"] not in ({}, [], ""):
        yield f"Default: {_value(node['default'])}."


def _sentences(text: str) -> list[str]:
    """One sentence a line, as mdoc(7) wants it, with characters that are its own escaped."""
    text = text.replace("\\", "\\e").replace("…", "...")
    return [re.sub(r"^([.'])", r"\\&\1", line) for line in re.sub(r"(?<!\.)\. (?=[A-Z0-9])", ".\n", text).split("\n")]


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def lints() -> str:
    """Return the mdoc text for all warnings."""
    lines = [line for name, text in LINTS.items() for line in (f".It Li {name}", f"{text[0].upper()}{text[1:]}.")]
    return "\n".join([".Bl -tag -width Ds", *lines, ".El"]) + "\n"


def renewed(page: str, root: Node) -> str:
    """Return the page with its keys as the schema has them, and its warnings as they are named."""
    for begin, text, end in ((BEGIN, section(root), END), (BEGIN_LINTS, lints(), END_LINTS)):
        before, rest = page.split(begin)
        page = before + begin + text + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8"), json.loads(SCHEMA.read_text("utf-8"))), "utf-8")
