"""The definition of one column of a Table. msgspec reads its annotations at run time: this module is not compiled.

Source: apimachinery `pkg/apis/meta/v1` (TableColumnDefinition); `pkg/registry/rest/table.go` for the columns of
resources that define none.
"""

from __future__ import annotations

import msgspec

MAX_COLUMNS = 1000


class Column(msgspec.Struct, frozen=True):
    """One column definition, with Go's order of fields."""

    name: str
    type: str
    format: str = ""
    description: str = ""
    priority: int = 0


DEFAULT_COLUMNS = (
    Column(
        "Name",
        "string",
        "name",
        "Name must be unique within a namespace. Is required when creating resources, although some resources may "
        "allow a client to request the generation of an appropriate name automatically. Name is primarily intended for "
        "creation idempotence and configuration definition. Cannot be updated. More info: "
        "https://kubernetes.io/docs/concepts/overview/working-with-objects/names#names",
    ),
    Column(
        "Age",
        "date",
        "",
        "CreationTimestamp is a timestamp representing the server time when this object was created. It is not "
        "guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It "
        "is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More "
        "info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata",
    ),
)
"""For objects of which the member gave no Table."""
_COLUMNS = msgspec.json.Decoder(list[Column])


def parse_columns(columns: bytes | None) -> tuple[Column, ...] | None:
    """Read a member's columnDefinitions; None if it gave none, or none that can be read."""
    if columns is None:
        return None
    try:
        found = _COLUMNS.decode(columns)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return tuple(found) if 0 < len(found) <= MAX_COLUMNS else None
