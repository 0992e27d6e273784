"""The differences of two configurations: added and removed entries, changed keys, and files with changed contents.

Secrets are compared but never shown.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.config.dump import effective
from mcproxy.config.loaded import Loaded
from mcproxy.config.model import Config, PEMFile, ResourceVersions, Secret, TokenFileConfig
from mcproxy.config.model.keys import keys_of
from mcproxy.config.problem import Problem

_MAX_VALUE = 120  # limit of the shown characters of a value
_SECTIONS = {key.path[0]: key.field for key in keys_of(Config) if key.item is not None}
"""The sections with named entries, and their fields in `Config`."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One difference. `entry` is like `clusters[east]`, or a section such as `daemon`; `key` is relative to it."""

    kind: str
    """added, removed or changed."""
    entry: str
    key: str = ""
    detail: str = ""
    """`5s -> 10s`, or another description of the change; without secrets."""

    def __str__(self) -> str:
        where = f"{self.entry}{'.' if self.key and not self.key.startswith('[') else ''}{self.key}"
        return f"{self.kind} {where}" + (f": {self.detail}" if self.detail else "")


def changes(old: Config, new: Config) -> tuple[ConfigChange, ...]:
    """Return the changes from `old` to `new`, in the order of the file's sections."""
    if old.daemon.control_socket_is_default and new.daemon.control_socket_is_default:
        # The default path depends on the file and on the reading user, and a reload does not change it.
        place = old.daemon.control_socket
        new = dataclasses.replace(new, daemon=dataclasses.replace(new.daemon, control_socket=place))
    if old == new:
        return ()
    return tuple(_sections(old, new))


def _sections(old: Config, new: Config) -> Iterator[ConfigChange]:
    before, after = effective(old), effective(new)
    for section in after.keys() | before.keys() - {"version"}:
        if section not in _SECTIONS and section != "version":
            yield from _values(section, "", before.get(section), after.get(section))
    for section, field in _SECTIONS.items():
        yield from _entries(
            section,
            _by_name(before.get(section)),
            _by_name(after.get(section)),
            getattr(old, field),
            getattr(new, field),
        )


def _entries(
    section: str, before: dict[str, Any], after: dict[str, Any], old: tuple[Any, ...], new: tuple[Any, ...]
) -> Iterator[ConfigChange]:
    models = {entry.name: entry for entry in old}
    for name in before:
        if name not in after:
            yield ConfigChange("removed", f"{section}[{name}]")
    for entry in new:
        name, where = entry.name, f"{section}[{entry.name}]"
        if name not in before:
            yield ConfigChange("added", where)
        elif entry != models[name]:
            found = list(_values(where, "", before[name], after[name]))
            contents = list(dict.fromkeys(_contents(models[name], entry)))
            yield from found
            yield from (ConfigChange("changed", where, detail=detail) for detail in contents)
            # If a server differs only in the members of its aggregate, only the aggregate counts as changed.
            if not found and not contents and section != "servers":
                yield ConfigChange("changed", where)
    common = [name for name in before if name in after]
    if common != [name for name in after if name in before]:
        yield ConfigChange("changed", section, detail="the order of its entries")


def _by_name(entries: Any) -> dict[str, Any]:
    return {_name(entry): entry for entry in entries or ()}


def _name(entry: Any) -> str:
    """Return the identity of an entry of a list, "" if it has none.

    The identity is a name, the group-version of an API service, the host of an ingress rule, or a path with conditions.
    """
    if not isinstance(entry, dict):
        return ""
    if entry.keys() >= {"group", "version", "cluster"}:
        return f"{entry['group']}/{entry['version']}"
    if "name" not in entry and "paths" in entry:
        return str(entry.get("host") or "every host")
    if entry.keys() >= {"path", "pathType"}:
        conditions = [str(entry[key]) for key in ("methods", "headers", "query") if entry.get(key)]
        return " ".join((entry["pathType"], entry["path"], *conditions))
    return str(entry.get("name") or "")


def _values(entry: str, key: str, old: Any, new: Any) -> Iterator[ConfigChange]:
    """Compare two values of a document: mappings key by key, and lists of named entries by their names."""
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _values(entry, f"{key}.{name}" if key else name, old.get(name), new.get(name))
    elif _named(old) and _named(new):
        before, after = _by_name(old), _by_name(new)
        for name in {**before, **after}:
            yield from _values(entry, f"{key}[{name}]", before.get(name), after.get(name))
        if list(before) != list(after) and set(before) == set(after):
            yield ConfigChange("changed", entry, key, "the order of its entries")
    elif old is None:
        yield ConfigChange("added", entry, key, "" if isinstance(new, dict) else _shown(new))
    elif new is None:
        yield ConfigChange("removed", entry, key, "" if isinstance(old, dict) else _shown(old))
    else:
        yield ConfigChange("changed", entry, key, f"{_shown(old)} -> {_shown(new)}")


def _named(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    names = [_name(item) for item in value]
    return all(names) and len(set(names)) == len(names)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _MAX_VALUE else printable[:_MAX_VALUE] + "..."


def _contents(old: Any, new: Any) -> Iterator[str]:
    """Yield differences of two models that are invisible in their documents: contents of files, and secrets."""
    if old == new:
        return
    if isinstance(old, PEMFile | TokenFileConfig) and isinstance(new, PEMFile | TokenFileConfig):
        if old.path == new.path:
            yield f"other contents of {new.path}"
    elif isinstance(old, Secret) or isinstance(new, Secret):
        yield "another secret"
    elif isinstance(old, bytes) and isinstance(new, bytes):
        yield "other contents of a file"
    elif dataclasses.is_dataclass(old) and type(old) is type(new):
        for field in dataclasses.fields(old):
            yield from _contents(getattr(old, field.name), getattr(new, field.name))
    elif isinstance(old, tuple) and isinstance(new, tuple):
        for one, other in zip(old, new, strict=False):
            yield from _contents(one, other)
        if len(old) != len(new) and any(_has_secret(item) for item in (*old, *new)):
            yield "other secrets"


def _has_secret(value: Any) -> bool:
    if dataclasses.is_dataclass(value):
        return any(isinstance(getattr(value, field.name), Secret) for field in dataclasses.fields(value))
    return isinstance(value, Secret)


# -- Warnings about a reload that changes the positions of members in resource versions --------------------------------
# A changed order or set of members makes new versions incomparable with older ones, unless members were only appended.

_CONSEQUENCE = "so later versions do not compare with those from before"
_MAX_NAMES = 8


def layouts_of(config: Config) -> dict[str, tuple[str, ...]]:
    """Return, by aggregate name, the names with a position in its resource versions."""
    return {aggregate.name: aggregate.layout for aggregate in config.aggregates}


def layout_warnings(before: Mapping[str, Sequence[str]], loaded: Loaded) -> tuple[Problem, ...]:
    """Return a warning for each aggregate whose members lose or change positions; `before` is from `layouts_of`."""
    found = []
    for aggregate in loaded.config.aggregates:
        old, new = tuple(before.get(aggregate.name, ())), aggregate.layout
        if new[: len(old)] == old or aggregate.resource_versions is ResourceVersions.KARMADA:
            continue
        gone = [name for name in old if name not in new]
        if gone:
            what = f"a reload would take {_listed(gone)} out of resource versions, {_CONSEQUENCE}"
            right = f"keep {_listed(gone)} in clusters, where it was, and add formerMembers: [{_listed(gone)}]"
        else:
            what = f"a reload would change the places of members in resource versions ({_listed(old)}), {_CONSEQUENCE}"
            right = "keep that order, and add members at the end"
        key = "clusters" if ("aggregates", aggregate.name, "clusters") in loaded.locations else "clusterSelector"
        place = loaded.location("aggregates", aggregate.name, key)
        found.append(Problem(place.mark if place else None, place.key if place else "", what, right))
    return tuple(found)


def _listed(names: Sequence[str]) -> str:
    return ", ".join((*names[:_MAX_NAMES], *(("…",) if len(names) > _MAX_NAMES else ())))
