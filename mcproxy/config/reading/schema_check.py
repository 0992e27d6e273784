"""The JSON Schema, applied to marked nodes.

The schema file is the one definition of the file's form, for editors and for this check. jsonschema-rs validates; here
an error's instance path becomes line and column, and its kind (the keyword that failed) becomes a message.

`errorMessage` (an annotation that editors know as well) is the right half of a message; on a rule of `allOf` it is the
whole. Values that are `writeOnly` (secrets) are never shown.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError

from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Mapping, Node, Path, Scalar, Sequence, key_path
from mcproxy.config.reading.right_forms import right_form
from mcproxy.config.reading.value_messages import Message, Schema, describe
from mcproxy.config.suggestions import nearest, suggest


@functools.cache
def load_schema() -> Schema:
    """Return the schema as installed with the package."""
    text = importlib.resources.files("mcproxy.config").joinpath("mcproxy.schema.json").read_text("utf-8")
    schema: Schema = json.loads(text)
    return schema


@functools.cache
def _validator() -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(load_schema())


def check_schema(document: Document, problems: Problems) -> None:
    """Report everything in `document` that the schema does not allow, and add it to `document.broken`.

    What is in `broken` already (reported before) is passed over.
    """
    known = frozenset(document.broken)
    for path, node in _not_finite(document.root, ()):
        _report(document, problems, path, node, (f"is the number {node.text}", "write a finite number"))
    reporter = _Reporter(document, problems, frozenset(document.broken))
    errors = _validator().iter_errors(_plain(document.root))
    # Of several errors of one value only the first counts; a list or mapping may have one for each key that it lacks.
    for error in sorted(errors, key=_rank):
        path = tuple(error.instance_path)
        if not _is_below(path, known):
            reporter.report(path, error)


_ORDER = ("type", "enum", "pattern", "minLength", "maxLength")


def _rank(error: ValidationError) -> int:
    return _ORDER.index(error.kind.name) if error.kind.name in _ORDER else len(_ORDER)


def _is_below(path: Path, broken: frozenset[Path]) -> bool:
    return any(path[:length] in broken for length in range(len(path) + 1))


def _plain(node: Node) -> Any:
    """Return the node as JSON has it."""
    if isinstance(node, Mapping):
        return {_text(name): _plain(entry.node) for name, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    return _text(node.value) if isinstance(node.value, str) else node.value


def _text(text: str) -> str:
    """Return the string without lone surrogates, which environment variables may contain and JSON may not."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _not_finite(node: Node, path: Path) -> Iterator[tuple[Path, Scalar]]:
    """Yield the numbers that JSON does not have: infinities and NaN."""
    if isinstance(node, Mapping):
        for name, entry in node.entries.items():
            yield from _not_finite(entry.node, (*path, name))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from _not_finite(item, (*path, index))
    elif isinstance(node.value, float) and not math.isfinite(node.value):
        yield path, node


def _report(document: Document, problems: Problems, path: Path, node: Node, message: Message) -> None:
    problems.error(node.mark, key_path(path), *message)
    document.broken.add(path)


class _Reporter:
    """Turns errors of the validator into problems at their places."""

    def __init__(self, document: Document, problems: Problems, broken: frozenset[Path]) -> None:
        self._document = document
        self._problems = problems
        self._broken = broken  # before the schema was applied

    def report(self, path: Path, error: ValidationError) -> None:
        node, schema = self._node(path), _schema_at(error.schema_path)
        keyword = str(error.schema_path[-1])
        if isinstance(node, Mapping) and keyword in _OF_KEYS:
            _OF_KEYS[keyword](self, node, schema, path, error)
        elif "allOf" in error.schema_path:
            if isinstance(node, Mapping):
                what, _, right = str(_rule_of(error.schema_path)["errorMessage"]).partition("; ")
                self._problems.error(node.mark, key_path(path), what, right)
        elif path not in self._document.broken:
            what, form = describe(keyword, node, schema)
            _report(self._document, self._problems, path, node, (what, right_form(path, node) or form))

    def _node(self, path: Path) -> Node:
        node: Node = self._document.root
        for step in path:
            if isinstance(node, Mapping):
                # The validator gets its texts without lone surrogates.
                name = step if step in node.entries else next(name for name in node.entries if _text(name) == step)
                node = node.entries[str(name)].node
            elif isinstance(node, Sequence):
                node = node.items[int(step)]
        return node

    def unknown_keys(self, node: Mapping, schema: Schema, path: Path, error: ValidationError) -> None:
        """Report each unknown key as a separate error, at the key."""
        properties: Schema = schema.get("properties", {})
        for name, entry in node.entries.items():
            if name not in properties and (*path, name) not in self._broken:
                before, colon, after = name.partition(":")
                space = colon and _intended_key(name, schema) == before
                right = (
                    f"put a space after the colon: {before}: {after}" if space else suggest(name, properties, most=20)
                )
                self._problems.error(entry.mark, key_path((*path, name)), "is not a known key", right)
                self._document.broken.add((*path, name))

    def missing(self, node: Mapping, schema: Schema, path: Path, error: ValidationError) -> None:
        """Messages stand at the mapping, since an absent key has no place."""
        assert isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required)
        name = error.kind.property
        if any(_intended_key(other, schema) == name for other in node.entries):
            return  # it is there, misspelt: the error of the unknown key says so
        hint = _resolved(schema.get("properties", {}).get(name, {})).get("errorMessage")
        form = str(hint).removeprefix("write ") if str(hint).startswith("write ") else None
        right = f"add {name}: {form}" if form else f"add {name}"
        self._problems.error(node.mark, key_path(path), f"has no {name}", right)

    def missing_companion(self, node: Mapping, schema: Schema, path: Path, error: ValidationError) -> None:
        for name, needed in schema["dependentRequired"].items():
            for other in needed:
                if name in node.entries and other not in node.entries:
                    message = (f"is given without {other}", f"add {other}")
                    self._problems.error(node.entries[name].mark, key_path((*path, name)), *message)


_OF_KEYS: dict[str, Callable[[_Reporter, Mapping, Schema, Path, ValidationError], None]] = {
    "additionalProperties": _Reporter.unknown_keys,
    "required": _Reporter.missing,
    "dependentRequired": _Reporter.missing_companion,
}


def _intended_key(name: str, schema: Schema) -> str | None:
    """Return the known key that a misspelt one stands for: ``url`` for ``url:https``, ``backend`` for ``bckend``."""
    properties: Schema = schema.get("properties", {})
    if name in properties:
        return None
    before = name.partition(":")[0]
    return before if before in properties else nearest(name, properties)


def _schema_at(path: list[str | int]) -> Schema:
    """Return the schema whose keyword is at the end of a schema path."""
    schema: Any = load_schema()
    for step in path[:-1]:
        schema = schema[step]
    found: Schema = schema
    return found


def _rule_of(path: list[str | int]) -> Schema:
    """Return the rule of `allOf` that a schema path leads into."""
    last = len(path) - 1 - path[::-1].index("allOf")
    return _schema_at([*path[: last + 2], ""])


def _resolved(schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = load_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema
