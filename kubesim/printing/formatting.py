"""Formatting of Table cells: ages, selectors, lists of ports.

The forms are those of k8s.io/apimachinery/pkg/util/duration and pkg/printers/internalversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubesim.apimachinery import schemas
from mcproxy.kube.duration import human_duration

JSONDict = dict[str, Any]
Cells = list[Any]
NONE = "<none>"
UNKNOWN = "<unknown>"
UNSET = "<unset>"
TEMPLATE_CONTAINERS = "Containers|string|1|Names of each container in the template."
TEMPLATE_IMAGES = "Images|string|1|Images referenced by each container in the template."


@dataclass(frozen=True)
class Printer:
    """The printer of one kind. `columns` are without the leading Name column unless `named` is False.

    A column is written `Name|type|priority|description`; the description `@core.v1.PodStatus.podIP` is that of the
    field.
    """

    columns: tuple[str, ...]
    cells: Callable[[JSONDict, datetime], Cells]
    named: bool = True
    conditions: Callable[[JSONDict], list[JSONDict]] | None = None
    custom: tuple[JSONDict, ...] = ()
    """Complete definitions (of a CRD's columns), after the others."""

    def definitions(self) -> list[JSONDict]:
        """Return the columnDefinitions of the Table."""
        own = [*map(_column, self.columns), *self.custom]
        return [name_column(), *own] if self.named else own


def column(name: str, kind: str, description: str, *, priority: int = 0, format_: str = "") -> JSONDict:
    """Return one entry of columnDefinitions."""
    return {"name": name, "type": kind, "format": format_, "description": description, "priority": priority}


def name_column() -> JSONDict:
    """Return the Name column, the first of nearly every kind."""
    return column("Name", "string", schemas.description(schemas.OBJECT_META, "name"), format_="name")


def age_description() -> str:
    """Return the description of Age (and Created At) columns."""
    return schemas.description(schemas.OBJECT_META, "creationTimestamp")


def _column(text: str) -> JSONDict:
    name, kind, priority, doc = text.split("|", 3)
    if name in ("Age", "Created At"):
        doc = age_description()
    elif name == "Name":
        doc = schemas.description(schemas.OBJECT_META, "name")
    elif doc.startswith("@"):
        definition, _, field = doc[1:].rpartition(".")
        doc = schemas.description(f"io.k8s.api.{definition}", field).partition("\n\nPossible enum values:")[0]
    return column(name, kind, doc, priority=int(priority), format_="name" if name == "Name" else "")


AGE = "Age|string|0|"


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


def age(obj: JSONDict, now: datetime) -> str:
    return since(meta(obj).get("creationTimestamp"), now)


def meta(obj: JSONDict) -> JSONDict:
    return obj.get("metadata") or {}


def spec(obj: JSONDict) -> JSONDict:
    return obj.get("spec") or {}


def status(obj: JSONDict) -> JSONDict:
    return obj.get("status") or {}


def name(obj: JSONDict) -> str:
    return str(meta(obj).get("name", ""))


def labels(values: Mapping[str, Any] | None) -> str:
    """Format labels as `a=b,c=d`, sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted((values or {}).items())) or NONE


def selector(value: Mapping[str, Any] | None) -> str:
    """Format a LabelSelector in the syntax of `kubectl -l`."""
    if not value:
        return NONE
    parts = [f"{key}={item}" for key, item in sorted((value.get("matchLabels") or {}).items())]
    words = {"In": "in", "NotIn": "notin"}
    for item in sorted(value.get("matchExpressions") or (), key=lambda entry: str(entry["key"])):
        operator = item["operator"]
        if operator in words:
            parts.append(f"{item['key']} {words[operator]} ({','.join(sorted(item.get('values') or ()))})")
        else:
            parts.append(item["key"] if operator == "Exists" else f"!{item['key']}")
    return ",".join(parts) or NONE


def template_cells(obj: JSONDict, template: str = "template") -> Cells:
    """Return the names and images of a pod template's containers."""
    containers = spec(spec(obj).get(template) or {}).get("containers") or []
    return [
        ",".join(item.get("name", "") for item in containers),
        ",".join(item.get("image", "") for item in containers),
    ]


def first_three(items: Iterable[Any], *, none: str) -> str:
    """Format the first three of a list, and how many more there are."""
    values = [str(item) for item in items]
    if not values:
        return none
    shown = ",".join(values[:3])
    return shown if len(values) <= 3 else f"{shown} + {len(values) - 3} more..."


def condition(obj: JSONDict, kind: str) -> JSONDict | None:
    """Return a condition by its type."""
    return next((item for item in status(obj).get("conditions") or () if item.get("type") == kind), None)


def is_true(obj: JSONDict, kind: str) -> bool:
    found = condition(obj, kind)
    return found is not None and found.get("status") == "True"


def simple(cells: Callable[[JSONDict, datetime], Cells], *columns: str) -> Printer:
    """Return a printer with these columns between Name and Age."""
    return Printer((*columns, AGE), cells)
