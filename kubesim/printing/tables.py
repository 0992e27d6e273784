"""Tables and PartialObjectMetadata of objects; of custom resources with columns by JSONPath."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.status import APIError
from kubesim.printing import cells
from kubesim.printing.cells import Printer
from kubesim.printing.printers import CREATED_AT, PRINTERS

STEP = re.compile(
    r"""\.?(?:
        (?P<name>[A-Za-z0-9_\-/]+(?:\\\.[A-Za-z0-9_\-/]+)*)
        | \[(?P<index>-?\d+)\]
        | \[(?P<all>\*)\]
        | \[['"](?P<quoted>[^'"]+)['"]\]
        | \[\?\(@\.(?P<field>[A-Za-z0-9_.\-]+)\s*==\s*(?P<value>"[^"]*"|'[^']*'|[\w.]+)\)\]
    )""",
    re.VERBOSE,
)


def json_path(document: Any, path: str) -> list[Any]:
    """Return all values that a path selects; none for a path outside of the subset."""
    values, rest = [document], path.strip().strip("{}")
    if rest == ".":
        return values
    while rest:
        step = STEP.match(rest)
        if step is None or step.end() == 0:
            return []
        rest = rest[step.end() :]
        values = [found for value in values for found in _step(value, step)]
    return values


def _step(value: Any, step: re.Match[str]) -> list[Any]:
    if key := step["name"] or step["quoted"]:
        key = key.replace("\\.", ".")
        return [value[key]] if isinstance(value, Mapping) and key in value else []
    if not isinstance(value, list):
        return []
    if step["index"]:
        at = int(step["index"])
        return [value[at]] if -len(value) <= at < len(value) else []
    if step["all"]:
        return list(value)
    wanted = _literal(step["value"])
    return [item for item in value if json_path(item, f".{step['field']}") == [wanted]]


def _literal(text: str) -> Any:
    if text[0] == "'":
        return text[1:-1]
    try:
        return json.loads(text)
    except ValueError:
        return text


META_GROUP = "meta.k8s.io"
DEFAULT_COLUMN = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def table(
    resource: ResourceInfo,
    items: Iterable[JSONDict],
    *,
    include_object: str,
    list_metadata: Mapping[str, Any],
    now: datetime | str,
    columns: list[JSONDict] | None = None,
    version: str = "v1",
) -> JSONDict:
    """Return a Table of objects. `include_object` is the query parameter (Metadata, Object, None or "").

    `columns` are a CRD's additionalPrinterColumns where they are not the resource's own; `version` is that of
    meta.k8s.io. Raises APIError 400 for another `include_object`.
    """
    mode = check_include_object(include_object)
    printer = printer_for(resource, columns)
    moment = as_time(now)
    return {
        "kind": "Table",
        "apiVersion": f"{META_GROUP}/{version}",
        "metadata": {key: value for key, value in list_metadata.items() if value != ""},
        "columnDefinitions": printer.definitions(),
        "rows": [row(printer, item, mode, moment, version) for item in items],
    }


def check_include_object(value: str) -> str:
    """Return the effective mode. Raises APIError 400 (indented, as a real one)."""
    if value not in ("", "Metadata", "Object", "None"):
        raise APIError(
            400,
            "BadRequest",
            f'Unable to convert to Table as requested: includeObject: Invalid value: "{value}": '
            "must be 'Metadata', 'Object', 'None', or empty",
            indented=True,
        )
    return value or "Metadata"


def row(printer: Printer, obj: JSONDict, mode: str, now: datetime, version: str) -> JSONDict:
    """Return one row, with the object as `include_object` demands."""
    out: JSONDict = {"cells": printer.cells(obj, now)}
    conditions = printer.conditions(obj) if printer.conditions else None
    if conditions:
        out["conditions"] = conditions
    if mode == "Metadata":
        out["object"] = partial_metadata(obj, version=version)
    else:
        if (
            isinstance(printer, CustomPrinter) and mode == "Object"
        ):  # custom resources have their keys in alphabetical order
            obj = json.loads(json.dumps(obj, sort_keys=True))
        out["object"] = obj if mode == "Object" else None
    return out


def as_time(now: datetime | str) -> datetime:
    """Return a datetime; a string is parsed as RFC 3339."""
    return datetime.fromisoformat(now) if isinstance(now, str) else now


def printer_for(resource: ResourceInfo, columns: list[JSONDict] | None = None) -> Printer:
    """Return the printer of a resource; the default one has Name and Created At."""
    columns = resource.printer_columns if columns is None else columns
    if columns is not None:
        return custom(columns)
    key = (resource.group, resource.kind)
    return PRINTERS.get(key) or Printer(*CREATED_AT)


def custom(columns: list[JSONDict]) -> Printer:
    """Return the printer of a custom resource, from its additionalPrinterColumns."""
    return CustomPrinter(columns or [DEFAULT_COLUMN])


class CustomPrinter(Printer):
    """The printer of a custom resource, with the columns of its definition."""

    def __init__(self, entries: list[JSONDict]) -> None:
        super().__init__()
        self._entries = entries

    def definitions(self) -> list[JSONDict]:
        return [*super().definitions(), *map(custom_definition, self._entries)]

    def cells(self, obj: JSONDict, now: datetime) -> list[Any]:
        return [*super().cells(obj, now), *(cell(obj, entry, now) for entry in self._entries)]


def custom_definition(entry: JSONDict) -> JSONDict:
    """Return the definition of an additionalPrinterColumn."""
    text = f"Custom resource definition column (in JSONPath format): {entry['jsonPath']}"
    if entry is DEFAULT_COLUMN:
        text = cells.age_description()
    return cells.column(
        entry["name"],
        entry["type"],
        entry.get("description") or text,
        priority=entry.get("priority", 0),
        format_=entry.get("format", ""),
    )


def cell(obj: JSONDict, entry: JSONDict, now: datetime) -> Any:
    """Return the value of a custom column: None where the object has none of the declared type."""
    found = json_path(obj, entry["jsonPath"])
    if not found:
        return None
    value, kind = found[0], entry["type"]
    if kind == "date":
        if not isinstance(value, str):
            return None
        return cells.since(value, now) if cells.parse_time(value) else "<invalid>"
    if kind == "string":
        return text_of(found if len(found) > 1 else value)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if kind == "integer" else float(value)


def text_of(value: Any) -> str:
    """Format a JSON value as kubectl's JSONPath printer does."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def partial_metadata(obj: JSONDict, *, version: str = "v1") -> JSONDict:
    """Return the PartialObjectMetadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"{META_GROUP}/{version}",
        "metadata": obj.get("metadata") or {},
    }
