"""Writes the JSON Schema, and the keys and warnings in mcproxy.yaml(5), so that none is missing.

A key is declared once, in `mcproxy/config/model/`. What its type cannot say is in `schema/forms.json`: patterns, what a
message says to write, rules of a mapping, keys that no field has. Warnings are those of `mcproxy/config/problem.py`.

python man/keys.py          rewrite schema/mcproxy.schema.json, and man/mcproxy.yaml.5 between its marks
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import json
import re
import typing
from collections import Counter
from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any

from mcproxy.config.dump import written
from mcproxy.config.model import Bind, Config, JWKSFile, ListenerConfig, PEMFile, Secret, TokenFileConfig
from mcproxy.config.model.keys import Bounds, ModelKey, SchemaDefinition, keys_of, plain_type
from mcproxy.config.problem import LINTS

HERE = Path(__file__).parent
SCHEMA = HERE.parent / "schema" / "mcproxy.schema.json"
FORMS = HERE.parent / "schema" / "forms.json"
PAGE = HERE / "mcproxy.yaml.5"
BEGIN = '.\\" Keys: written by man/keys.py from the schema.\n'
END = '.\\" End of keys.\n'
BEGIN_LINTS = '.\\" Warnings: written by man/keys.py from mcproxy/config/problem.py.\n'
END_LINTS = '.\\" End of warnings.\n'

Node = dict[str, Any]

# -- the JSON Schema of the model --------------------------------------------------------------------------------------

_TYPES = {str: "string", Secret: "string", int: "integer", float: "number", bool: "boolean"}
_KINDS = dict.fromkeys((PEMFile, JWKSFile, TokenFileConfig), "file") | {IPv4Network | IPv6Network: "network"}


def schema() -> Node:
    """Return the schema of the file."""
    made = _Schema(json.loads(FORMS.read_text("utf-8")))
    root = made.mapping(Config)
    for node in root["properties"].values():
        if node["type"] in ("array", "object"):  # a section may be empty
            node["type"] = [node["type"], "null"]
    about = {name: root.pop(name) for name in ("$schema", "$id", "title", "description")}
    return {**about, **root, "$defs": made.definitions}


class _Schema:
    def __init__(self, forms: Node) -> None:
        self.definitions: Node = forms.pop("$defs")
        self._forms = forms  # by class
        self._uses = Counter(_classes(Config))

    def mapping(self, *models: type[Any]) -> Node:
        """Return the schema of the mapping that a class is; of several, one with the keys of all."""
        node: Node = {"type": "object", "additionalProperties": False, "required": [], "properties": {}}
        keys_below = typing.get_args(Bind) if models == (ListenerConfig,) else ()  # they stand in the listener itself
        for model in (*models, *keys_below):
            texts = _texts(model)
            for key in keys_of(model):
                inner = node
                for name in key.path[:-1]:
                    new = {"type": "object", "additionalProperties": False, "properties": {}}
                    inner = inner["properties"].setdefault(name, new)
                if key.is_required and len(models) == 1:
                    node["required"].append(key.path[-1])
                inner["properties"][key.path[-1]] = {"description": texts.get(key.field), **self._key(key)}
        form = self._forms.get(_name(models[0]) if len(models) == 1 else "Backend", {})
        node = _merged(node, form)
        node["properties"] = {name: node["properties"][name] for name in (*form.get("order", ()), *node["properties"])}
        return {name: value for name, value in node.items() if value != [] and name != "order"}

    def _key(self, key: ModelKey) -> Node:
        if key.item is None:
            node = self._value(key.type, key.notes)
        else:
            kind, _, notes = plain_type(key.item_hint)
            name, inner = ("object", "additionalProperties") if key.is_mapping else ("array", "items")
            node = {"type": name, inner: self._value(kind, notes)}
        if key.has_default and key.default is not None and not key.is_required:
            node["default"] = {} if key.is_model else written(key.default, key, masked=False)
        return node

    def _value(self, kind: Any, notes: tuple[Any, ...]) -> Node:
        name = next((note.name for note in notes if isinstance(note, SchemaDefinition)), _KINDS.get(kind))
        if name is not None:
            return {"$ref": f"#/$defs/{name}"}
        models = [each for each in typing.get_args(kind) or (kind,) if dataclasses.is_dataclass(each)]
        if models:
            return self._model(*models)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"type": "string", "enum": [str(member) for member in kind]}
        bounds = {name: value for note in notes if isinstance(note, Bounds) for name, value in note.keywords}
        return {"type": _TYPES.get(kind), **bounds}

    def _model(self, *models: type[Any]) -> Node:
        """Return the schema of a mapping, in `$defs` where several keys have it, or it is an entry of a section."""
        if len(models) > 1 or self._uses[models[0]] == 1:
            return self.mapping(*models)
        name = _name(models[0])[0].lower() + _name(models[0])[1:]
        if name not in self.definitions:
            self.definitions[name] = {}  # in the order in which they are met
            self.definitions[name] = self.mapping(models[0])
        return {"$ref": f"#/$defs/{name}"}


def _name(model: type[Any]) -> str:
    """Return the name of a mapping: its class's without what distinguishes it from the class of what is live."""
    return model.__name__.removesuffix("Config") or model.__name__


def _classes(model: type[Any]) -> Iterator[type[Any]]:
    """Yield each class of the model once for each key that it is the type of; entries of sections once more."""
    for key in keys_of(model):
        for kind in (key.type, key.item):
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                yield kind
                if model is Config and key.item is not None:
                    yield kind
                yield from _classes(kind)


def _texts(model: type[Any]) -> dict[str, str]:
    """Return the strings below the fields of a class, by field."""
    [body] = [node.body for node in ast.parse(inspect.getsource(model)).body if isinstance(node, ast.ClassDef)]
    found = {}
    for field, below in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    return found


def _merged(node: Node, form: Node) -> Node:
    """Return a schema with that of a form over it; null takes a keyword away."""
    both = {
        name: _merged(node[name], value) if isinstance(value, dict) and name in node else value
        for name, value in {**node, **form}.items()
    }
    return {name: value for name, value in both.items() if value is not None}


def _lines(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each key of the file, or several for one with keys below it."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or '"properties"' not in text:
        return text
    inner = indent + "  "
    items = (f"{inner}{json.dumps(name)}: {_lines(item, inner)}" for name, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"


# -- the manual page ---------------------------------------------------------------------------------------------------
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
    found = schema()
    SCHEMA.write_text(_lines(found) + "\n", "utf-8")
    PAGE.write_text(renewed(PAGE.read_text("utf-8"), found), "utf-8")
