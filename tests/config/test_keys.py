"""The keys of the schema are those of the model, with the same defaults: so a key is added to these two alone."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from mcproxy.config.model import Backend, Bind, Config
from mcproxy.config.model.keys import Form, keys_of
from mcproxy.config.reading.schema_check import load_schema
from mcproxy.config.units import parse_duration, parse_size

SCHEMA = load_schema()

OTHER_FORMS = {
    "": {"version", "include"},
    "listeners": {key.path[0] for kind in typing.get_args(Bind) for key in keys_of(kind)},
    "clusters.endpoints": {"url"},
    "aggregates": {"clusterSelector", "formerMembers"},
}
"""Keys that no field has: the reader and the dump know them by name."""
FROM_KUBECONFIGS = {"clusters.credentials": {"basic"}}
"""Fields that the file has no key for."""


def _resolved(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {**SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], **schema}
    return schema


def _properties(schema: dict[str, Any], mappings: tuple[str, ...] = ()) -> dict[str, Any]:
    properties: dict[str, Any] = _resolved(schema).get("properties", {})
    return _properties(properties[mappings[0]], mappings[1:]) if mappings else properties


def _mappings(schema: dict[str, Any], model: type[Any], path: str) -> Iterator[tuple[str, dict[str, Any], type[Any]]]:
    """Yield each mapping of the file: where it is, its schema, its class of the model."""
    yield path, schema, model
    for key in keys_of(model):
        *mappings, name = key.path
        inner = _properties(schema, tuple(mappings)).get(name)
        if inner is None or "properties" not in _resolved(_resolved(inner).get("items", inner)):
            continue
        kind = key.type if key.is_model else key.item
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from _mappings(_resolved(inner).get("items", inner), kind, f"{path}.{name}" if path else name)


MAPPINGS = {path: (schema, model) for path, schema, model in _mappings(SCHEMA, Config, "")}


def test_the_walk_finds_the_mappings() -> None:
    assert len(MAPPINGS) > 30
    assert {"listeners.limits", "daemon.sharedState.redis", "ingresses.rules.paths.backend.healthCheck"} <= set(
        MAPPINGS
    )


@pytest.mark.parametrize("path", MAPPINGS)
def test_the_keys_of_the_schema_are_those_of_the_model(path: str) -> None:
    schema, model = MAPPINGS[path]
    by_mapping: dict[tuple[str, ...], set[str]] = {(): set(OTHER_FORMS.get(path, ()))}
    for key in keys_of(model):
        *mappings, name = key.path
        by_mapping.setdefault(tuple(mappings), set()).add(name)
        by_mapping[()] |= set(mappings[:1])
    by_mapping[()] -= FROM_KUBECONFIGS.get(path, set())
    for inner, names in by_mapping.items():
        assert set(_properties(schema, inner)) == names


def test_a_backend_has_one_key_for_each_kind() -> None:
    names = {key.path[0] for kind in typing.get_args(Backend) for key in keys_of(kind)}
    assert set(_properties(_properties(SCHEMA["$defs"]["server"])["backend"])) == names


@pytest.mark.parametrize("path", MAPPINGS)
def test_defaults_of_schema_and_model_are_equal(path: str) -> None:
    schema, model = MAPPINGS[path]
    for key in keys_of(model):
        *mappings, name = key.path
        written = _properties(schema, tuple(mappings)).get(name)
        if written is None or key.is_model:
            continue
        default = written.get("default")
        match key.form:
            case Form.DURATION:
                default = parse_duration(str(default)) if default is not None else 0.0
            case Form.SIZE:
                default = parse_size(str(default)) if default is not None else None
        expected = list(key.default) if isinstance(key.default, tuple) else key.default
        if (path, name) not in RESOLVED:
            assert (default or None) == (expected or None), name


RESOLVED = {
    ("listeners", "paths"),  # left out: all
    ("listeners", "protocols"),  # depends on tls
}
"""Keys whose default in the model is not what the file says of them."""
