"""The JSON Schema, applied to marked nodes.

The schema file is the one definition of the file's form, for editors and for this check alike. The dozen keywords that
it uses are interpreted here instead of by the jsonschema package: that costs 0.1 s and some megabytes at each start,
and its sentences would have to be taken apart again to say what would be right, and where. A test holds this reading
against jsonschema's, and fails when the schema uses a keyword that is not known here.

`errorMessage` (known to editors as well) is the right half of a message; on a rule of `allOf` it is the whole.
Of a value that is `writeOnly` (a secret), nothing is shown.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
import re
from typing import Any

from mcproxy.config.model import Mark
from mcproxy.config.names import suggest
from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Mapping, Node, Path, Scalar, Sequence, key_path, quote

Schema = dict[str, Any]

KEYWORDS = frozenset(
    """$ref type enum pattern minimum exclusiveMinimum maximum minLength maxLength minItems items properties
    additionalProperties required minProperties maxProperties dependentRequired allOf anyOf not""".split()  # noqa: SIM905
)
ANNOTATIONS = frozenset(("$schema", "$id", "$defs", "title", "description", "default", "errorMessage", "writeOnly"))

_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}


@functools.cache
def load_schema() -> Schema:
    """Return the schema as installed with the package."""
    text = importlib.resources.files("mcproxy.config").joinpath("mcproxy.schema.json").read_text("utf-8")
    schema: Schema = json.loads(text)
    return schema


@functools.cache
def _pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern with JSON Schema's meaning of ``$``, which Python also lets match before a last line end."""
    return re.compile(re.sub(r"\$\Z", r"\\Z", pattern))


def check(document: Document, problems: Problems) -> None:
    """Report everything in `document` that the schema does not allow, and add it to `document.broken`.

    What is in `broken` already (reported before) is passed over.
    """
    _Checker(load_schema(), document, problems).check(document.root, load_schema(), ())


class _Checker:
    def __init__(self, root: Schema, document: Document, problems: Problems) -> None:
        self._root = root
        self._document = document
        self._problems = problems

    def check(self, node: Node, schema: Schema, path: Path) -> None:
        if path in self._document.broken:
            return
        schema = self._resolved(schema)
        if not self._type(node, schema, path):
            return
        if isinstance(node, Mapping):
            self._mapping(node, schema, path)
        elif isinstance(node, Sequence):
            self._sequence(node, schema, path)
        else:
            self._scalar(node, schema, path)

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        return schema

    def _report(self, mark: Mark, path: Path, what: str, right: str | None) -> None:
        self._problems.error(mark, key_path(path), what, right)
        self._document.broken.add(path)

    def _type(self, node: Node, schema: Schema, path: Path) -> bool:
        types = schema.get("type", ())
        allowed = (types,) if isinstance(types, str) else tuple(types)
        kind = _type_of(node)
        if not allowed or kind in allowed or (kind == "integer" and "number" in allowed):
            return True
        self._report(node.mark, path, f"is {_describe(node, schema)}", _right_type(node, allowed, schema))
        return False

    def _scalar(self, node: Scalar, schema: Schema, path: Path) -> None:
        right = schema.get("errorMessage")
        value = node.value
        if "enum" in schema and value not in schema["enum"]:
            shown = quote(node.text) if isinstance(value, str) else node.text
            self._report(node.mark, path, f"{shown} is not known", _one_of(schema["enum"]))
        elif isinstance(value, str):
            if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
                what = f"{quote(node.text)} has the wrong form" if value else "is empty"
                self._report(node.mark, path, what, right)
            elif len(value) < schema.get("minLength", 0):
                self._report(node.mark, path, "is empty", right or "write a text, or leave the key out")
            elif len(value) > schema.get("maxLength", len(value)):
                what = f"is longer than {schema['maxLength']} characters"
                self._report(node.mark, path, what, "shorten it")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._number(node, value, schema, path)

    def _number(self, node: Scalar, value: float, schema: Schema, path: Path) -> None:
        low, above, high = schema.get("minimum"), schema.get("exclusiveMinimum"), schema.get("maximum")
        if math.isnan(value):
            self._report(node.mark, path, f"{node.text} is no number", schema.get("errorMessage") or "write a number")
        elif (low is not None and value < low) or (above is not None and value <= above):
            bound = f"at least {low}" if low is not None else f"more than {above}"
            self._report(node.mark, path, f"{node.text} is too small", schema.get("errorMessage") or f"write {bound}")
        elif high == 0 and value > 0:
            self._report(node.mark, path, f"{node.text} has no unit", schema.get("errorMessage"))
        elif high is not None and value > high:
            self._report(node.mark, path, f"{node.text} is too large", f"write at most {high}")

    def _sequence(self, node: Sequence, schema: Schema, path: Path) -> None:
        if len(node.items) < schema.get("minItems", 0):
            self._report(
                node.mark, path, "is an empty list", schema.get("errorMessage") or "give it at least one entry"
            )
        items = schema.get("items")
        if items is not None:
            for index, item in enumerate(node.items):
                self.check(item, items, (*path, index))

    def _mapping(self, node: Mapping, schema: Schema, path: Path) -> None:
        properties: Schema = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        for name, entry in node.entries.items():
            if name in properties:
                self.check(entry.node, properties[name], (*path, name))
            elif others is False:
                if (*path, name) not in self._document.broken:
                    self._report(entry.mark, (*path, name), "is not a known key", suggest(name, properties))
            elif isinstance(others, dict):
                self.check(entry.node, others, (*path, name))
        self._presence(node, schema, path)

    def _presence(self, node: Mapping, schema: Schema, path: Path) -> None:
        """Check which keys are there; messages stand at the mapping, since an absent key has no place."""
        properties: Schema = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in node.entries:
                hint = self._resolved(properties[name]).get("errorMessage") if name in properties else None
                self._missing(node, path, name, hint)
        for name, needed in schema.get("dependentRequired", {}).items():
            for other in needed:
                if name in node.entries and other not in node.entries:
                    self._problems.error(
                        node.entries[name].mark, key_path((*path, name)), f"stands without {other}", f"add {other}"
                    )
        for rule in schema.get("allOf", ()):
            if not _holds(rule, node):
                what, _, right = rule["errorMessage"].partition("; ")
                self._problems.error(node.mark, key_path(path), what, right)
        count = len(node.entries)
        if not schema.get("minProperties", 0) <= count <= schema.get("maxProperties", count):
            what = "is empty" if count == 0 else "has more than one key"
            self._report(node.mark, path, what, schema.get("errorMessage"))

    def _missing(self, node: Mapping, path: Path, name: str, hint: str | None) -> None:
        form = hint.removeprefix("write ") if hint is not None and hint.startswith("write ") else None
        right = f"add {name}: {form}" if form else f"add {name}"
        self._problems.error(node.mark, key_path(path), f"has no {name}", right)


def _holds(rule: Schema, node: Mapping) -> bool:
    if "not" in rule:
        return not _holds(rule["not"], node)
    if "anyOf" in rule:
        return any(_holds(branch, node) for branch in rule["anyOf"])
    return all(name in node.entries for name in rule["required"])


def _type_of(node: Node) -> str:
    if isinstance(node, Mapping):
        return "object"
    if isinstance(node, Sequence):
        return "array"
    value = node.value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    return "number" if isinstance(value, float) else "string"


def _one_of(values: list[Any]) -> str:
    words = [str(value) for value in values]
    return f"write {words[0]}" if len(words) == 1 else f"write one of {', '.join(words)}"


def _describe(node: Node, schema: Schema) -> str:
    kind = _type_of(node)
    if "writeOnly" in schema and isinstance(node, Scalar):
        return "no text" if node.value is not None else "empty"
    if isinstance(node, Scalar) and node.value is not None:
        names = {"string": "the text", "boolean": "the truth value"}
        shown = quote(node.text) if kind == "string" else node.text
        return f"{names.get(kind, 'the number')} {shown}"
    return {"object": "a mapping", "array": "a list"}.get(kind, "empty")


def _right_type(node: Node, allowed: tuple[str, ...], schema: Schema) -> str:
    wanted = [kind for kind in allowed if kind != "null"]
    if isinstance(node, Scalar) and node.value is None:
        return "give it a value, or leave the key out"
    if "enum" in schema and getattr(node, "text", None) not in schema["enum"]:
        return _one_of(schema["enum"])
    if wanted == ["string"] and isinstance(node, Scalar):
        return "write it in quotes" if "writeOnly" in schema else f'write it in quotes: "{node.text}"'
    if wanted == ["array"] and isinstance(node, Scalar):
        return f"write a list: [{node.text}]"
    if "errorMessage" in schema:
        return str(schema["errorMessage"])
    return "write " + " or ".join(_TYPE_NAMES[kind] for kind in wanted)
