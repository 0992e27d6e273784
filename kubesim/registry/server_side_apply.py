"""Server-side apply: the applier owns the fields of its configuration; those that it dropped are removed.

The rules are those of structured-merge-diff's Updater.Apply (merge, prune, conflicts); the messages those of
apimachinery's managedfields.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from kubesim.apimachinery import schemas
from kubesim.apimachinery.resources import JSONDict, ResourceInfo
from kubesim.apimachinery.schemas import Schema
from kubesim.apimachinery.status import APIError, StatusCause, StatusError, bad_request, field_required, invalid
from kubesim.registry import managed_fields
from kubesim.registry.managed_fields import Entry, FieldSet, Path


class _Loader(yaml.SafeLoader):
    """A YAML loader like Kubernetes': timestamps stay strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load_yaml(body: bytes) -> Any:
    """Load a YAML (or JSON) body. Raises APIError 400."""
    try:
        if body.lstrip()[:1] == b"{":
            return json.loads(body)
        return yaml.load(body, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise bad_request(f"error decoding YAML: {error}") from error


def apply(
    current: JSONDict | None,
    config: Any,
    *,
    resource: ResourceInfo,
    manager: str,
    force: bool,
    now: str,
    subresource: str = "",
) -> JSONDict:
    """Return the object after `manager` applied `config`, managedFields included; `current` when nothing changes.

    Its fields of the object and of each subresource are owned separately, so that neither apply removes the other's.

    Raises APIError: 400 for a configuration that cannot be applied, 409 for conflicts (unless `force`), 422 without a
    manager's name.
    """
    _check(config, resource, manager)
    schema = schemas.of(resource)
    live = managed_fields.without_entries(current) if current else {}
    entries = managed_fields.read(current)
    applied = managed_fields.of_object(schema, config)
    mine = frozenset(path for path in applied if not managed_fields.is_reset_field(resource, subresource, path))
    key = Entry(manager, "Apply", resource.group_version, subresource, now, mine)
    last = next((entry.fields for entry in entries if entry.identity == key.identity), managed_fields.EMPTY)
    others = [entry for entry in entries if entry.identity != key.identity]

    merged = merge(schema, live, config)
    merged = _prune(schema, merged, last, _union([*others, key]))
    difference = managed_fields.compare(schema, schemas.completed(resource, live), schemas.completed(resource, merged))
    conflicts = [(entry, path) for entry in others for path in sorted(entry.fields & difference.changed)]
    if conflicts and not force:
        raise conflict(conflicts)
    entries = managed_fields.without_fields(others, {path for _, path in conflicts} | difference.removed)
    managed_fields.write(merged, [*entries, key])
    return current if current is not None and _same(current, merged) else merged


def _check(config: Any, resource: ResourceInfo, manager: str) -> None:
    if not manager:
        cause = field_required("fieldManager", "is required for apply patch")
        raise invalid("meta.k8s.io", "PatchOptions", "", [cause])
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: the configuration must be an object")
    if not config.get("kind") or not config.get("apiVersion"):
        missing = "Kind" if not config.get("kind") else "apiVersion"
        raise bad_request(f"invalid object type: Object '{missing}' is missing in the applied configuration")
    if (config["apiVersion"], config["kind"]) != (resource.group_version, resource.kind):
        raise bad_request(
            f"invalid object type: {config['apiVersion']}, Kind={config['kind']}, expected "
            f"{resource.group_version}, Kind={resource.kind}"
        )
    if (config.get("metadata") or {}).get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")


def conflict(conflicts: list[tuple[Entry, Path]]) -> StatusError:
    """Return the 409 with a cause for each field that another manager owns."""
    causes = [
        StatusCause("FieldManagerConflict", f"conflict with {_owner(entry)}", path_string(path)).as_dict()
        for entry, path in conflicts
    ]
    if len(conflicts) == 1:
        entry, path = conflicts[0]
        text = f"Apply failed with 1 conflict: conflict with {_owner(entry)}: {path_string(path)}"
    else:
        lines: list[str] = []
        for owner in sorted({_owner(entry) for entry, _ in conflicts}):
            lines.append(f"conflicts with {owner}:")
            lines.extend(f"- {path_string(path)}" for entry, path in conflicts if _owner(entry) == owner)
        text = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines)
    return APIError(409, "Conflict", text, {"causes": causes})


def _owner(entry: Entry) -> str:
    text = json.dumps(entry.manager)
    if entry.subresource:
        text += f" with subresource {json.dumps(entry.subresource)}"
    if entry.operation == "Update":
        text += f" using {entry.api_version}" + (f" at {entry.time}" if entry.time else "")
    return text


def path_string(path: Path) -> str:
    """Format a path as messages show it: `.spec.containers[name="web"].image`."""
    out = ""
    for part in path:
        kind, _, rest = part.partition(":")
        if kind == "f":
            out += f".{rest}"
        elif kind == "k":
            keys = json.loads(rest)
            out += "[" + ",".join(f"{name}={json.dumps(value)}" for name, value in keys.items()) + "]"
        else:
            out += f"[={rest}]"
    return out


def merge(schema: Schema, live: Any, config: Any) -> Any:
    """Merge `config` into `live`: objects and keyed lists are merged, all else is replaced."""
    if isinstance(config, Mapping) and isinstance(live, Mapping) and not schemas.is_atomic_map(schema):
        out = dict(live)
        for key, value in config.items():
            if value is None:
                out.pop(key, None)
            else:
                out[key] = merge(schemas.child(schema, key), live.get(key), value)
        return out
    ours, theirs = managed_fields.index(schema, config), managed_fields.index(schema, live)
    if ours is None or theirs is None:
        return _without_nulls(config)
    element = schemas.element(schema)
    out_items: list[Any] = []
    waiting = list(theirs)
    for key, item in ours.items():
        if key in theirs:
            while waiting and waiting[0] != key and waiting[0] not in ours:
                out_items.append(theirs[waiting.pop(0)])
            if key in waiting:
                waiting.remove(key)
        out_items.append(merge(element, theirs.get(key), item))
    return out_items + [theirs[key] for key in waiting if key not in ours]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _union(entries: list[Entry]) -> FieldSet:
    return frozenset(path for entry in entries for path in entry.fields)


def _prune(schema: Schema, merged: JSONDict, last: FieldSet, owned: FieldSet) -> JSONDict:
    """Remove fields that only the applier owned and no longer configures."""
    if not last:
        return merged
    needed = {path[:depth] for path in owned for depth in range(1, len(path) + 1)}
    ours = {path[:depth] for path in last for depth in range(1, len(path) + 1)}
    gone = frozenset(path for path in ours if path not in needed)
    pruned: JSONDict = _removed(schema, merged, (), gone) if gone else merged
    return pruned


def _removed(schema: Schema, value: Any, path: Path, gone: FieldSet) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _removed(schemas.child(schema, key), item, (*path, f"f:{key}"), gone)
            for key, item in value.items()
            if (*path, f"f:{key}") not in gone
        }
    items = managed_fields.index(schema, value)
    if items is None:
        return value
    below = schemas.element(schema)
    return [_removed(below, item, (*path, key), gone) for key, item in items.items() if (*path, key) not in gone]


def _same(current: JSONDict, merged: JSONDict) -> bool:
    """Return whether an apply changed nothing but the time of its entry."""
    return managed_fields.without_entries(current) == managed_fields.without_entries(merged) and {
        (entry.identity, entry.fields) for entry in managed_fields.read(current)
    } == {(entry.identity, entry.fields) for entry in managed_fields.read(merged)}
