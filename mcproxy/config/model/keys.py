"""The keys of the file, derived from the model's fields, for the reader (`sections.model_reader`) and the dump; values
that several sections are made of.

A field is the key of the same name in camel case, `idle_timeout` is `idleTimeout`, and its type says how the value is
written: `Seconds` as a duration, `Bytes` as a size, a nested class as a mapping, a tuple of pairs as a mapping too.
Where the file has another form, the annotation says so: `Annotated[PEMFile, Key("caFile")]`.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Any


class Form(enum.Enum):
    """How a number is written."""

    PLAIN = "as a number"
    DURATION = "as a duration"  # 2m30s
    SIZE = "as a size"  # 64Ki
    OCTAL = "in octal, as a string"  # "0600"


Seconds = Annotated[float, Form.DURATION]
Bytes = Annotated[int, Form.SIZE]
FileMode = Annotated[int, Form.OCTAL]


@dataclass(frozen=True, slots=True)
class Key:
    """The annotation of a field whose key has another name or form."""

    name: str = ""  # "": the field's in camel case; "a.b" is the key b of the mapping a
    omit_empty: bool = False  # a dump leaves it out if it is empty, where the file has no empty list or string
    secret: bool = False  # a dump masks its texts


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
    form: Form = Form.PLAIN
    omit_empty: bool = False
    secret: bool = False
    item: Any = None  # the type of the items, where it is a list
    is_mapping: bool = False  # with keys that are no names of fields: a tuple of pairs
    is_model: bool = False  # a class of the model


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


def _key(field: dataclasses.Field[Any], hint: Any) -> ModelKey | None:
    notes: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *rest = typing.get_args(hint)
        notes = tuple(rest)
    if NOT_A_KEY in notes:
        return None
    key = next((note for note in notes if isinstance(note, Key)), Key())
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    present = tuple(choice for choice in choices if choice is not types.NoneType)
    kind = present[0] if len(present) == 1 else typing.Union[present]  # noqa: UP007 (made at run time)
    item = typing.get_args(kind)[0] if typing.get_origin(kind) is tuple else None
    empty = None if len(present) < len(choices) else _EMPTY.get(typing.get_origin(kind) or kind)
    return ModelKey(
        field=field.name,
        path=tuple((key.name or camel_case(field.name)).split(".")),
        type=kind,
        is_optional=len(present) < len(choices),
        default=field.default if field.default is not dataclasses.MISSING else empty,
        form=next((note for note in notes if isinstance(note, Form)), Form.PLAIN),
        omit_empty=key.omit_empty,
        secret=key.secret,
        item=item,
        is_mapping=typing.get_origin(item) is tuple,
        is_model=dataclasses.is_dataclass(kind),
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
    """The version of the API that reviews are sent in; answers in either are taken."""

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
