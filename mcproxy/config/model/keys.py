"""The keys of the file, derived from the model's fields, for the reader (`sections.model_reader`), the dump, the JSON
Schema and the manual (`man/keys.py`); values that several sections are made of.

A field is the key of the same name in camel case, `idle_timeout` is `idleTimeout`; the string below it describes the
key. Its type says how the value is written: `Seconds` as a duration, `Bytes` as a size, a nested class as a mapping, a
tuple of pairs as a mapping too. Where the file has another form, the annotation says so: `Annotated[PEMFile,
Key("caFile")]`. Patterns, and what to write instead of a wrong value, are in `schema/forms.json`.
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
    """How a number is written."""

    PLAIN = "as a number"
    DURATION = "as a duration"  # 2m30s
    SIZE = "as a size"  # 64Ki
    OCTAL = "in octal, as a string"  # "0600"


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """The annotation of a kind of value that many keys share, by its name in `$defs` of the schema."""

    name: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """The annotation of values that are restricted."""

    keywords: tuple[tuple[str, Any], ...]  # of the schema, with their values


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

    name: str = ""  # "": the field's in camel case; "a.b" is the key b of the mapping a
    omit_empty: bool = False  # a dump leaves it out if it is empty, where the file has no empty list or string
    secret: bool = False  # a dump masks its texts
    required: bool | None = None  # None: where the field has no default


NOT_A_KEY = "not a key"
"""The annotation of a field that is resolved from other keys, or that belongs to a key with a special form."""


@dataclass(frozen=True, slots=True)
class ModelKey:
    """A field of a class of the model, and its key."""

    field: str
    path: tuple[str, ...]  # of the key, from the mapping that the class is
    type: Any  # without None and annotations
    is_optional: bool  # None where the key is absent
    default: Any  # where the key is absent; "", 0 or () where it is required
    form: NumberForm = NumberForm.PLAIN
    omit_empty: bool = False
    secret: bool = False
    item: Any = None  # the type of the items, where it is a list
    is_mapping: bool = False  # with keys that are no names of fields: a tuple of pairs
    is_model: bool = False  # a class of the model
    has_default: bool = True
    is_required: bool = False
    notes: tuple[Any, ...] = ()  # the annotations
    item_hint: Any = None  # the type of the items, or of a mapping's values, with its annotations


def keys_of(model: type[Any]) -> tuple[ModelKey, ...]:
    """Return the keys of the fields of a class of the model, in the order of the fields."""
    found = _KEYS.get(model)
    if found is None:
        hints = typing.get_type_hints(model, include_extras=True)
        keys = (_key(field, hints[field.name]) for field in dataclasses.fields(model))
        found = _KEYS[model] = tuple(key for key in keys if key is not None)
    return found


_KEYS: dict[type[Any], tuple[ModelKey, ...]] = {}


_EMPTY: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False, tuple: ()}


def plain_type(hint: Any) -> tuple[Any, bool, tuple[Any, ...]]:
    """Return a type without None and annotations, whether it has None, and the annotations."""
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


# -- values that parts of several sections are made of -----------------------------------------------------------------

IPNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a configuration file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Secret:
    """A string that never shows itself: not in repr, str, a dump or a traceback's locals."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret itself; call it only where it goes onto the wire."""
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
    V1BETA1 = "v1beta1"  # what kube-apiserver asks webhooks in by default


@dataclass(frozen=True, slots=True)
class PEMFile:
    """A PEM file as it was when the configuration was loaded, or when it was replaced on disk since.

    `path` is absolute, or the place of embedded data (``east.kubeconfig#users[0]``); `data` may be a key, so repr
    leaves it out.
    """

    path: str
    data: bytes = field(repr=False)
