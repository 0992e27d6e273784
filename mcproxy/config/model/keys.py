"""Derives the keys of the file from the model's fields, and defines values that several sections share.

The reader (`sections.model_reader`), the dump, the JSON Schema and the manual (`man/keys.py`) use these keys. A field's
key is its name in camel case (`idle_timeout`: `idleTimeout`), and the string below it describes the key. Its type
defines the form of the value: `Seconds` is a duration, `Bytes` a size, a nested class or a tuple of pairs a mapping. An
annotation defines any other form: `Annotated[PEMFile, Key("caFile")]`. `schema/forms.json` has patterns, and the hints
for wrong values.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any


class NumberForm(enum.Enum):
    """The form of a number in the file."""

    PLAIN = "as a number"
    DURATION = "as a duration"  # 2m30s
    SIZE = "as a size"  # 64Ki
    OCTAL = "in octal, as a string"  # "0600"


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """The annotation of a type of value that many keys share, with its name in `$defs` of the schema."""

    name: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The annotation of restricted values."""

    keywords: tuple[tuple[str, Any], ...]  # keywords of the schema with their values


def within(least: float, most: float) -> Bounds:
    """Return the annotation of a number within these bounds."""
    return Bounds((("minimum", least), ("maximum", most)))


def one_of(*values: str | int) -> Bounds:
    """Return the annotation of a string or number that is one of these."""
    return Bounds((("enum", values),))


Seconds = Annotated[float, NumberForm.DURATION, SchemaDefinition("duration")]
Bytes = Annotated[int, NumberForm.SIZE, SchemaDefinition("size")]
FileMode = Annotated[int, NumberForm.OCTAL, SchemaDefinition("fileMode")]
Count = Annotated[int, SchemaDefinition("count")]
FileName = Annotated[str, SchemaDefinition("file")]
Name = Annotated[str, SchemaDefinition("name")]
ClusterName = Annotated[str, SchemaDefinition("clusterName")]
ServerName = Annotated[str, SchemaDefinition("serverName")]


@dataclass(frozen=True, slots=True)
class Key:
    """The annotation of a field whose key has another name or form."""

    name: str = ""  # "": the field's name in camel case; "a.b" is the key b of the mapping a
    omit_empty: bool = False  # a dump omits the key if it is empty, because the file allows no empty list or string
    secret: bool = False  # a dump masks its strings
    required: bool | None = None  # None: required if the field has no default


NOT_A_KEY = "not a key"
"""The annotation of a field without a key of its own: resolved from other keys, or part of a special form."""


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A field of a model class, with its key."""

    field: str
    path: tuple[str, ...]  # path of the key in the mapping of the class
    type: Any  # without None and annotations
    is_optional: bool  # the value is None if the key is absent
    default: Any  # value of an absent key; "", 0 or () if the key is required
    form: NumberForm = NumberForm.PLAIN
    omit_empty: bool = False
    secret: bool = False
    item: Any = None  # the type of the items of a list, without their annotations
    is_mapping: bool = False  # whether it is a tuple of pairs, a mapping with free keys
    is_model: bool = False  # whether the type is a model class
    has_default: bool = True
    is_required: bool = False
    notes: tuple[Any, ...] = ()  # the annotations
    item_hint: Any = None  # the type of the items, or of a mapping's values, with its annotations


def keys_of(model: type[Any]) -> tuple[ModelKey, ...]:
    """Return the keys of a model class, in the order of its fields."""
    found = _KEYS.get(model)
    if found is None:
        hints = typing.get_type_hints(model, include_extras=True)
        keys = (_key(field, hints[field.name]) for field in dataclasses.fields(model))
        found = _KEYS[model] = tuple(key for key in keys if key is not None)
    return found


_KEYS: dict[type[Any], tuple[ModelKey, ...]] = {}


_EMPTY: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, tuple: ()}


def plain_type(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return a type without None and annotations, whether None is allowed, and the annotations."""
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        kind, is_optional, others = plain_type(inner)
        return kind, is_optional, (*others, *notes)
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False, ()
    found = [plain_type(choice) for choice in typing.get_args(hint) if choice is not types.NoneType]
    kinds = tuple(kind for kind, _, _ in found)
    kind = kinds[0] if len(kinds) == 1 else typing.Union[kinds]  # noqa: UP007 (made at run time)
    return kind, len(found) < len(typing.get_args(hint)), tuple(note for _, _, notes in found for note in notes)


def _key(field: dataclasses.Field[Any], hint: Any) -> ModelKey | None:
    kind, is_optional, notes = plain_type(hint)
    if NOT_A_KEY in notes:
        return None
    key = next((note for note in notes if isinstance(note, Key)), Key())
    item_hint = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None
    item = plain_type(item_hint)[0]
    is_mapping = typing.get_origin(item) is tuple
    has_default = field.default is not dataclasses.MISSING
    return ModelKey(
        field=field.name,
        path=tuple((key.name or camel_case(field.name)).split(".")),
        type=kind,
        is_optional=is_optional,
        default=field.default if has_default else None if is_optional else _EMPTY.get(typing.get_origin(kind) or kind),
        form=next((note for note in notes if isinstance(note, NumberForm)), NumberForm.PLAIN),
        omit_empty=key.omit_empty,
        secret=key.secret,
        item=item,
        is_mapping=is_mapping,
        is_model=dataclasses.is_dataclass(kind),
        has_default=has_default,
        is_required=not has_default if key.required is None else key.required,
        notes=notes,
        item_hint=typing.get_args(item)[1] if is_mapping else item_hint,
    )


def camel_case(name: str) -> str:
    """Return the key for the name of a field: ``idleTimeout`` for ``idle_timeout``."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


# -- values that several sections share --------------------------------------------------------------------------------

IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Secret:
    """A string that repr, str, dumps and locals in tracebacks do not show."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself; call it only to send it."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class ReviewVersion(enum.StrEnum):
    """The API version of review requests; responses in either version are accepted."""

    V1 = "v1"
    V1BETA1 = "v1beta1"  # which kube-apiserver sends to webhooks by default


@dataclass(frozen=True, slots=True)
class PEMFile:
    """The contents of a PEM file when the configuration was loaded, or when the file was replaced on disk since.

    `path` is absolute, or the position of embedded data (``east.kubeconfig#users[0]``). `data` can be a private key, so
    repr omits it.
    """

    path: str
    data: bytes = field(repr=False)
