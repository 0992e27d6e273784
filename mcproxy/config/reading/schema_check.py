"""Checks marked nodes against the JSON Schema.

The schema file is the only definition of the file's form, for editors and for this check. jsonschema-rs validates. This
module turns an error's instance path into line and column, and its failed keyword into a message.

The annotation `errorMessage`, which editors also know, is the second half of a message. On a rule of `allOf` it is the
whole message. Values that are `writeOnly` (secrets) are never shown.
"""

from __future__ import annotations

import functools
import importlib.resources
import ipaddress
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema_rs
from jsonschema_rs import ValidationError

from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Mapping, Node, Path, Scalar, Sequence, key_path, quote
from mcproxy.config.suggestions import nearest, suggest

# -- Messages about values that violate the schema: mistake and remedy, by the keyword that failed ---------------------

Schema = dict[str, Any]
Message = tuple[str, str | None]  # what is wrong, what would be right

_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}


def describe(keyword: str, node: Node, schema: Schema) -> Message:
    """Return the message for the value `node`, which violates `keyword` of `schema`."""
    right: str | None = schema.get("errorMessage")
    match keyword:
        case "type":
            return f"is {_described(node, schema)}", _right_type(node, schema)
        case "enum":
            return f"{_shown_value(node)} is not known", _one_of(schema["enum"])
        case "pattern":
            empty = isinstance(node, Scalar) and node.value == ""
            return "is empty" if empty else f"{_shown_value(node)} has the wrong form", right
        case "minLength":
            return "is empty", right or "write a string, or leave the key out"
        case "maxLength":
            return f"is longer than {schema['maxLength']} characters", "shorten it"
        case "minimum":
            return f"{_shown_value(node)} is too small", right or f"write at least {schema['minimum']}"
        case "exclusiveMinimum":
            return f"{_shown_value(node)} is too small", right or f"write more than {schema['exclusiveMinimum']}"
        case "maximum" if schema["maximum"] == 0:  # a duration: only 0 needs no unit
            return f"{_shown_value(node)} has no unit", right
        case "maximum":
            return f"{_shown_value(node)} is too large", f"write at most {schema['maximum']}"
        case "minItems":
            return "is an empty list", right or "give it at least one entry"
        case "minProperties":
            return "is empty", right
        case "maxProperties":
            return "has more than one key", right
    return "is not allowed", right or "see the description of the key in mcproxy.yaml(5)"


def _shown_value(node: Node) -> str:
    """Return a string in quotes, or a number or constant as written in the file; cut if it is long."""
    text = node.text if isinstance(node, Scalar) else ""
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return quote(text)
    return text if len(text) <= 60 else text[:57] + "…"


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


def _described(node: Node, schema: Schema) -> str:
    kind = _type_of(node)
    if "writeOnly" in schema and isinstance(node, Scalar):
        return "not a string" if node.value is not None else "empty"
    if isinstance(node, Scalar) and node.value is not None:
        names = {"string": "the string", "boolean": "the boolean"}
        return f"{names.get(kind, 'the number')} {_shown_value(node)}"
    return {"object": "a mapping", "array": "a list"}.get(kind, "empty")


def _right_type(node: Node, schema: Schema) -> str:
    types = schema["type"]
    wanted = [kind for kind in ([types] if isinstance(types, str) else types) if kind != "null"]
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


# -- Suggestions for malformed values with a clear intent: ``bind: 7600`` is a port without an address -----------------

_BIND = "write host:port, [v6]:port, unix:/absolute/path or systemd:NAME"


def right_form(path: Path, node: Node) -> str | None:
    """Return a suggestion for `node`, or None if there is no better hint than the schema's."""
    form = tuple(step if isinstance(step, str) else "[]" for step in path)
    find = _FORMS.get(form)
    return find(node) if find is not None else None


def _bind(node: Node) -> str | None:
    text = node.text if isinstance(node, Scalar) else ""
    host, colon, port = text.rpartition(":")
    if text.isdigit() or (host in ("", "*") and colon and port.isdigit()):
        port = port or text
        return f'write "0.0.0.0:{port}" or "[::]:{port}" for all addresses, "127.0.0.1:{port}" for this machine alone'
    if text.startswith("/"):
        return f"write unix:{text}"
    if text.removeprefix("unix:").startswith("~"):
        return "write unix:/absolute/path: ~ means nothing here"
    if _is_address(host) and ":" in host and port.isdigit():
        return f'write "[{host}]:{port}"'
    if _is_address(text):
        return f'write "[{text}]:6443"' if ":" in text else f'write it with a port: "{text}:6443"'
    return _BIND if not isinstance(node, Scalar) else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _one_name(node: Node) -> str | None:
    """Return the suggestion for a list in place of a single name."""
    if not isinstance(node, Sequence):
        return None
    names = [item.text for item in node.items if isinstance(item, Scalar)]
    return f"name one, without brackets: {names[0]}" if names else "name one, or leave the key out"


def _log_file(node: Node) -> str | None:
    file = node.text if isinstance(node, Scalar) and isinstance(node.value, str) else "FILE"
    return f"write {{file: {file}}}"


def _endpoint(node: Node) -> str | None:
    url = node.text if isinstance(node, Scalar) and isinstance(node.value, str) else "https://…"
    if url.startswith("tunnel:"):
        return f"write {{tunnel: {url.removeprefix('tunnel:').strip() or 'NAME'}}}"
    return f'write {{url: "{url}"}}'


def _backend(node: Node) -> str | None:
    if isinstance(node, Scalar) and isinstance(node.value, str):
        return f"write {{cluster: {node.text}}}"
    if isinstance(node, Sequence):
        return "write {clusters: […]}"
    return "write {cluster: NAME}, {clusters: [NAME, …]}, {aggregate: NAME} or {tunnels: [NAME, …]}"


_FORMS: dict[Path, Callable[[Node], str | None]] = {
    ("listeners", "[]", "bind"): _bind,
    ("servers", "[]", "authentication"): _one_name,
    ("servers", "[]", "authorization"): _one_name,
    ("servers", "[]", "backend"): _backend,
    ("logging", "access"): _log_file,
    ("logging", "audit"): _log_file,
    ("clusters", "[]", "endpoints", "[]"): _endpoint,
}


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
    """Report all violations of the schema in `document`, and add their values to `document.broken`.

    Values that are already in `broken` (reported before) are skipped.
    """
    known = frozenset(document.broken)
    for path, node in _not_finite(document.root, ()):
        _report(document, problems, path, node, (f"is the number {node.text}", "write a finite number"))
    reporter = _Reporter(document, problems, frozenset(document.broken))
    errors = _validator().iter_errors(_plain(document.root))
    # Only the first error of a value is reported; a list or mapping can have an error for each missing key.
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
    """Return the string without lone surrogates, which environment variables can contain, but JSON cannot."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _not_finite(node: Node, path: Path) -> Iterator[tuple[Path, Scalar]]:
    """Yield numbers that JSON cannot express: infinities and NaN."""
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
        self._broken = broken  # paths of values that were reported before the schema was applied

    def report(self, path: Path, error: ValidationError) -> None:
        node, schema = self._node(path), _schema_at(error.schema_path)
        keyword = str(error.schema_path[-1])
        if isinstance(node, Mapping) and keyword in _OF_KEYS:
            _OF_KEYS[keyword](self, node, schema, path, error)
        elif "allOf" in error.schema_path:
            if isinstance(node, Mapping):
                rule, parent = (
                    _rule_of(error.schema_path),
                    _schema_at(error.schema_path[: _last_rules(error.schema_path) + 1]),
                )
                wanted = {name for choice in rule.get("anyOf", ()) for name in choice["required"]}
                if any(_intended_key(name, parent) in wanted for name in node.entries):
                    return  # the key is misspelt; it is reported as an unknown key
                what, _, right = str(rule["errorMessage"]).partition("; ")
                self._problems.error(node.mark, key_path(path), what, right)
        elif path not in self._document.broken:
            what, form = describe(keyword, node, schema)
            _report(self._document, self._problems, path, node, (what, right_form(path, node) or form))

    def _node(self, path: Path) -> Node:
        node: Node = self._document.root
        for step in path:
            if isinstance(node, Mapping):
                # The validator got the strings without lone surrogates.
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
        """Report missing keys at the mapping, since an absent key has no position."""
        assert isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Required)
        name = error.kind.property
        if any(_intended_key(other, schema) == name for other in node.entries):
            return  # the key is misspelt; it is reported as an unknown key
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
    """Return the known key for a misspelt one: ``url`` for ``url:https``, ``backend`` for ``bckend``."""
    properties: Schema = schema.get("properties", {})
    if name in properties:
        return None
    before = name.partition(":")[0]
    return before if before in properties else nearest(name, properties)


def _schema_at(path: list[str | int]) -> Schema:
    """Return the schema that contains the keyword at the end of a schema path."""
    schema: Any = load_schema()
    for step in path[:-1]:
        schema = schema[step]
    found: Schema = schema
    return found


def _rule_of(path: list[str | int]) -> Schema:
    """Return the rule of `allOf` that a schema path leads into."""
    return _schema_at([*path[: _last_rules(path) + 2], ""])


def _last_rules(path: list[str | int]) -> int:
    """Return the index of the last `allOf` in a schema path."""
    return len(path) - 1 - path[::-1].index("allOf")


def _resolved(schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = load_schema()["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    return schema
