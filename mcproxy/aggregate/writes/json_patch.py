"""A JSON patch (RFC 6902) made against an object of the aggregate, as the owner of the object must get it. Pure.

The client has seen the label and the annotation of the cluster, and a resource version of the aggregate; the member's
object has neither of the first, and its own version. Operations that do not touch them stay byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import msgspec

from mcproxy.kube import json_edit
from mcproxy.kube.json_edit import Malformed
from mcproxy.kube.metadata_edit import MetadataEdit

Path = tuple[str, ...]
_CODEC = ("utf-8", "surrogateescape")

_METADATA: Path = ("metadata",)
_VERSION: Path = ("metadata", "resourceVersion")
_VALUED = ("add", "replace", "test")
_MOVING = ("copy", "move")
_MAX_OPERATIONS = 10_000
"""As a kube-apiserver (`maxJSONPatchOperations`); a longer patch goes on to it unread."""


def edit_json_patch(body: bytes, member: str, edit: MetadataEdit, *, bare: Collection[str] = ()) -> bytes:
    """Return the patch for `member`, whose name is what the removed labels and annotations of `edit` hold.

    `bare` are those of "labels" and "annotations" that the member's object does not have: a client that adds one key
    there has seen a map. Raises Malformed, and what `edit.resource_version` does.
    """
    try:
        texts = [bytes(raw).decode(*_CODEC) for raw in _PATCH.decode(body)]
        if len(texts) > _MAX_OPERATIONS:
            return body
        editor = _Editor(member, edit, set(bare))
        operations = [each for text in texts for each in editor.edited(text)]
    except msgspec.ValidationError:
        return body  # no array
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise Malformed(str(error)) from None
    if operations == texts:
        return body
    return f"[{','.join(operations)}]".encode(*_CODEC)


class _Operation(msgspec.Struct):
    op: str
    path: str
    source: str | None = msgspec.field(name="from", default=None)
    value: msgspec.Raw = msgspec.Raw(b"")


_PATCH = msgspec.json.Decoder(list[msgspec.Raw])
_OPERATION = msgspec.json.Decoder(_Operation)


class _Editor:
    def __init__(self, member: str, edit: MetadataEdit, bare: set[str]) -> None:
        self._member = member
        self._edit = edit
        self._bare = bare
        self._marks = {("metadata", "labels", key) for key in edit.labels}
        self._marks |= {("metadata", "annotations", key) for key in edit.annotations}

    def edited(self, text: str) -> list[str]:
        """Return the operations that take the place of one."""
        try:
            operation = _OPERATION.decode(text.encode(*_CODEC))
        except msgspec.ValidationError:
            return [text]
        kind, path = operation.op, _path(operation.path)
        if path is None:
            return [text]
        if kind in _MOVING:
            return self._moved(text, operation, path)
        if path in self._marks:
            return self._mark(text, kind, operation)
        if kind == "remove" and self._is_map(path):
            # Without keys of its own the member's object has no such map, which the client has seen.
            self._bare.discard(path[1])
            return [_text({"op": "add", "path": operation.path, "value": {}})]
        if kind not in _VALUED or not bytes(operation.value):
            return [text]
        before = self._containers(kind, path)
        return [*before, self._with_value(text, kind, path, operation)]

    def _moved(self, text: str, operation: _Operation, path: Path) -> list[str]:
        source = _path(operation.source)
        if source in self._marks:
            if path in self._marks:
                return []
            added = {"op": "add", "path": operation.path, "value": self._member}
            return [*self._containers("add", path), _text(added)]
        if path in self._marks:
            return [_text({"op": "remove", "path": operation.source})] if operation.op == "move" else []
        return [*self._containers("add", path), text]

    def _mark(self, text: str, kind: str, operation: _Operation) -> list[str]:
        """Return what becomes of an operation on the label or the annotation itself."""
        if kind == "test" and _string(operation.value) != self._member:
            return [text]  # the member does not have it either, so the test fails there with the usual answer
        return [] if kind in (*_VALUED, "remove") else [text]

    def _containers(self, kind: str, path: Path) -> list[str]:
        """Return what makes the map that a key is added to, where the member's object has none."""
        if kind != "add" or len(path) != 3 or path[0] != "metadata" or path[1] not in self._bare:
            return []
        self._bare.discard(path[1])
        pointer = f"/metadata/{path[1]}"
        # The test fails if somebody else has made the map meanwhile: adding it would then remove what is in it.
        return [
            _text({"op": "test", "path": pointer, "value": None}),
            _text({"op": "add", "path": pointer, "value": {}}),
        ]

    def _with_value(self, text: str, kind: str, path: Path, operation: _Operation) -> str:
        if path != _VERSION and path not in ((), _METADATA) and not self._is_map(path):
            return text
        value = [member for member in json_edit.members(text, 0) if member.name == "value"][-1]
        before = text[value.value : value.end]
        if path == _VERSION:
            version = _string(operation.value)
            if version is None or self._edit.resource_version is None:
                return text
            changed = self._edit.resource_version(version)
            if changed == version:
                return text
            after = json_edit.quoted(changed)
        else:
            head, tail = "".join(f'{{"{name}":' for name in path), "}" * len(path)
            edited = json_edit.edit_metadata(f"{head}{before}{tail}".encode(*_CODEC), self._edit).decode(*_CODEC)
            # A map in which nothing else stood is gone.
            after = edited[len(head) : len(edited) - len(tail)] if edited.startswith(head) else "{}"
            if after == "{}" and before != "{}" and kind == "test":
                after = "null"
        if self._is_map(path):
            self._bare.discard(path[1])
            if kind == "replace":  # of a map that the member's object may not have
                return f'{{"op":"add","path":{json_edit.quoted(operation.path)},"value":{after}}}'
        return text if after == before else text[: value.value] + after + text[value.end :]

    def _is_map(self, path: Path) -> bool:
        return len(path) == 2 and path[0] == "metadata" and path[1] in ("labels", "annotations")


def _string(raw: msgspec.Raw) -> str | None:
    """Return a JSON string, None for anything else."""
    text = bytes(raw)
    found = msgspec.json.decode(text) if text.startswith(b'"') else None
    return found if isinstance(found, str) else None


def _path(pointer: str | None) -> Path | None:
    """Return the segments of a JSON pointer (RFC 6901), None for what is none."""
    if pointer is None or (pointer and not pointer.startswith("/")):
        return None
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
