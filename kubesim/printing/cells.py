"""Columns of Tables and the formatting of their cells: ages, selectors, lists of ports.

The forms are those of k8s.io/apimachinery/pkg/util/duration and pkg/printers/internalversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict
from mcproxy.kube.duration import human_duration

Column = tuple[str, str | Callable[[JSONDict, datetime], Any]]
"""A definition, written `Name|type|priority|description`, and what finds the cell in an object at a time.

The description `@core.v1.PodStatus.podIP` is that of the field. The cell is the value at a path of the object, such as
`status.phase`; after `=` the default, which is else "".
"""
NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"


class Printer:
    """The printer of one kind: its columns, without the leading Name column unless `named` is False."""

    def __init__(
        self, *columns: Column, named: bool = True, conditions: Callable[[JSONDict], list[JSONDict]] | None = None
    ) -> None:
        self._columns: tuple[Column, ...] = (("Name|string|0|", "metadata.name"), *columns) if named else columns
        self.conditions = conditions

    def definitions(self) -> list[JSONDict]:
        """Return the columnDefinitions of the Table."""
        return [_definition(text) for text, _ in self._columns]

    def cells(self, obj: JSONDict, now: datetime) -> list[Any]:
        """Return the cells of an object's row."""
        return [_at_path(obj, cell) if isinstance(cell, str) else cell(obj, now) for _, cell in self._columns]


def column(name: str, kind: str, description: str, *, priority: int = 0, format_: str = "") -> JSONDict:
    """Return one entry of columnDefinitions."""
    return {"name": name, "type": kind, "format": format_, "description": description, "priority": priority}


def _definition(text: str) -> JSONDict:
    name, kind, priority, doc = text.split("|", 3)
    if name in ("Age", "Created At"):
        doc = age_description()
    elif name == "Name":
        doc = schemas.description(schemas.OBJECT_META, "name")
    elif doc.startswith("@"):
        definition, _, field = doc[1:].rpartition(".")
        doc = schemas.description(f"io.k8s.api.{definition}", field).partition("\n\nPossible enum values:")[0]
    return column(name, kind, doc, priority=int(priority), format_="name" if name == "Name" else "")


def age_description() -> str:
    """Return the description of Age (and Created At) columns."""
    return schemas.description(schemas.OBJECT_META, "creationTimestamp")


def at(obj: Mapping[str, Any], path: str, default: Any = "") -> Any:
    """Return the value at a path such as `status.podIP`; the default if it is absent or null."""
    value: Any = obj
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return default if value is None else value


def _at_path(obj: JSONDict, text: str) -> Any:
    path, _, default = text.partition("=")
    return at(obj, path) or (int(default) if default.isdigit() else default)


def or_default(*paths: str, default: Any = "") -> Callable[[JSONDict, datetime], Any]:
    """Return a cell of the first value that is not empty."""
    return lambda obj, now: next((found for path in paths if (found := at(obj, path))), default)


def count(*paths: str) -> Callable[[JSONDict, datetime], int]:
    """Return a cell with the number of items in lists or maps."""
    return lambda obj, now: sum(len(at(obj, path, ())) for path in paths)


def as_text(path: str, default: str) -> Callable[[JSONDict, datetime], str]:
    """Return a cell of a value as text."""
    return lambda obj, now: str(at(obj, path, default))


def is_set(path: str) -> Callable[[JSONDict, datetime], bool]:
    """Return a cell of a boolean that may be absent."""
    return lambda obj, now: bool(at(obj, path, False))


def selector_of(path: str) -> Callable[[JSONDict, datetime], str]:
    """Return a cell of a LabelSelector."""
    return lambda obj, now: selector(at(obj, path, {}))


def parse_time(text: Any) -> datetime | None:
    """Parse an RFC 3339 time, with or without microseconds; None for anything else."""
    if not isinstance(text, str) or not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def since(text: Any, now: datetime) -> str:
    """Format the time since a timestamp; `<unknown>` when there is none."""
    moment = parse_time(text)
    return UNKNOWN if moment is None else human_duration((now - moment).total_seconds())


def labels(values: Mapping[str, Any]) -> str:
    """Format labels as `a=b,c=d`, sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted(values.items())) or NONE


def selector(value: Mapping[str, Any]) -> str:
    """Format a LabelSelector in the syntax of `kubectl -l`."""
    parts = [f"{key}={item}" for key, item in sorted(at(value, "matchLabels", {}).items())]
    words = {"In": "in", "NotIn": "notin"}
    for item in sorted(at(value, "matchExpressions", ()), key=lambda entry: str(entry["key"])):
        operator = item["operator"]
        if operator in words:
            parts.append(f"{item['key']} {words[operator]} ({','.join(sorted(item.get('values') or ()))})")
        else:
            parts.append(item["key"] if operator == "Exists" else f"!{item['key']}")
    return ",".join(parts) or NONE


def first_three(items: Iterable[Any], *, none: str) -> str:
    """Format the first three of a list, and how many more there are."""
    values = [str(item) for item in items]
    if not values:
        return none
    shown = ",".join(values[:3])
    return shown if len(values) <= 3 else f"{shown} + {len(values) - 3} more..."


def condition(obj: JSONDict, kind: str) -> JSONDict | None:
    """Return a condition by its type."""
    return next((item for item in at(obj, "status.conditions", ()) if item.get("type") == kind), None)


def is_true(obj: JSONDict, kind: str) -> bool:
    """Return whether a condition is true."""
    return (condition(obj, kind) or {}).get("status") == "True"


def _of_containers(key: str) -> Callable[[JSONDict, datetime], str]:
    def cell(obj: JSONDict, now: datetime) -> str:
        template = at(obj, "spec.template.spec", None) or at(obj, "spec.jobTemplate.spec.template.spec", {})
        return ",".join(item.get(key, "") for item in at(template, "containers", ()))

    return cell


AGE: Column = ("Age|string|0|", lambda obj, now: since(at(obj, "metadata.creationTimestamp"), now))
TEMPLATE: tuple[Column, ...] = (
    ("Containers|string|1|Names of each container in the template.", _of_containers("name")),
    ("Images|string|1|Images referenced by each container in the template.", _of_containers("image")),
)
