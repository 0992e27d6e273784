"""The column definitions of a Table."""

from __future__ import annotations

import msgspec

MAX_COLUMNS = 1000


class TableColumnDefinition(msgspec.Struct, frozen=True):
    """One column definition, with Go's order of fields."""

    name: str
    type: str
    format: str = ""
    description: str = ""
    priority: int = 0


DEFAULT_COLUMNS = (
    TableColumnDefinition(
        "Name",
        "string",
        "name",
        "Name must be unique within a namespace. Is required when creating resources, although some resources may "
        "allow a client to request the generation of an appropriate name automatically. Name is primarily intended for "
        "creation idempotence and configuration definition. Cannot be updated. More info: "
        "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    ),
    TableColumnDefinition(
        "Age",
        "date",
        "",
        "CreationTimestamp is a timestamp representing the server time when this object was created. It is not "
        "guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It "
        "is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More "
        "info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    ),
)
"""The columns for objects for which the member sent no Table."""
_COLUMNS = msgspec.json.Decoder(list[TableColumnDefinition])


def parse_columns(columns: bytes | None) -> tuple[TableColumnDefinition, ...] | None:
    """Read a member's columnDefinitions; None if they are missing or cannot be read."""
    if columns is None:
        return None
    try:
        found = _COLUMNS.decode(columns)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return tuple(found) if 0 < len(found) <= MAX_COLUMNS else None
