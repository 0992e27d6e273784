"""The parts of responses of API servers that `decoder` decodes."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from msgspec import Raw


class PageMeta(msgspec.Struct):
    """The metadata of a list."""

    resourceVersion: Raw = Raw(b'""')
    continue_: str = msgspec.field(name="continue", default="")
    remainingItemCount: int | None = None


class Row(msgspec.Struct, gc=False):
    """A row of a Table."""

    cells: Raw
    object: Raw


R = TypeVar("R", Row, Raw)


class WirePage(msgspec.Struct, Generic[R]):
    """A page of a List or of a Table, or a Status in its place.

    Its rows are Raw if one of them is malformed, and the others are to be read.
    """

    kind: str = ""
    apiVersion: str = ""
    metadata: PageMeta = msgspec.field(default_factory=PageMeta)
    items: list[Raw] | None = None
    rows: list[R] | None = None
    columnDefinitions: Raw = Raw(b"null")
    message: str = ""


class Line(msgspec.Struct, gc=False):
    """A line of a watch."""

    type: str
    object: Raw


class BookmarkMeta(msgspec.Struct):
    """The metadata of a bookmark's object."""

    resourceVersion: Raw
    annotations: dict[str, str] | None = None


class BookmarkObject(msgspec.Struct):
    """The object of a bookmark, or the Table that it comes in."""

    metadata: BookmarkMeta
    kind: str = ""
    rows: list[Raw] | None = None
    columnDefinitions: Raw = Raw(b"null")


class TableColumns(msgspec.Struct):
    """The columnDefinitions of a Table."""

    columnDefinitions: Raw = Raw(b"null")


class StatusDetails(msgspec.Struct):
    """The details of a Status."""

    retryAfterSeconds: int = 0


class Status(msgspec.Struct):
    """The object of an ERROR event."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class WireKind(msgspec.Struct, gc=False):
    """The kind of any object."""

    kind: str = ""
    apiVersion: str = ""
