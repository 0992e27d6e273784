"""Rewrites a JSON patch (RFC 6902) against an object of the aggregate for the owner of the object. Pure.

The client has seen the cluster's label and annotation and a resource version of the aggregate. The member's object has
neither this label nor this annotation, and it has its own version. Other operations stay byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any

import msgspec

from mcproxy.kube import json_edit, label_maps
from mcproxy.kube.json_edit import JSONLimitExceeded, MalformedJSON, MetadataEdit

Path = tuple[str, ...]

_METADATA: Path = ("metadata",)
_VERSION: Path = ("metadata", "resourceVersion")
_VALUED = ("add", "replace", "test")
_MOVING = ("copy", "move")
_MAX_OPERATIONS = 10_000
"""A kube-apiserver's `maxJSONPatchOperations`; a longer patch is forwarded to the member without being read."""
_MAX_EDITED = 1000
"""Maximum number of operations that may need changes; checking each takes about 20 µs."""


def edit_json_patch(body: bytes, member: str, edit: MetadataEdit, *, bare: Collection[str] = ()) -> bytes:
    """Return the patch for `member`, whose name is the value of the label and annotation that `edit` removes.

    `bare` names the maps ("labels", "annotations") that the member's object lacks and the client has seen. Raises
    Malformed, and what `edit.resource_version` does.
    """
    concerned = re.compile(
        b"|".join([rb"metadata|\\", *(re.escape(key.partition("/")[0]).encode() for key in edit.labels)])
    ).search
    try:
        texts = [bytes(raw) for raw in _PATCH.decode(body)]
        if len(texts) > _MAX_OPERATIONS:
            return body
        if sum(concerned(text) is not None for text in texts) > _MAX_EDITED:
            raise JSONLimitExceeded(f"more than {_MAX_EDITED} operations of the patch are about metadata or labels")
        editor = _Editor(member, edit, set(bare))
        operations = [each for text in texts for each in (editor.edited(text) if concerned(text) else (text,))]
    except msgspec.ValidationError:
        return body  # the body is not a JSON array
    except MalformedJSON:
        raise
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise MalformedJSON(str(error)) from None
    if operations == texts:
        return body
    return b"[%b]" % b",".join(operations)


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

    def edited(self, text: bytes) -> list[bytes]:
        """Return the operations that replace one operation."""
        try:
            operation = _OPERATION.decode(text)
        except msgspec.ValidationError:
            return [text]
        kind, path = operation.op, _path(operation.path)
        if path is None:
            return [text]
        if kind in _MOVING:
            return self._moved(text, operation, path)
        if path in self._marks:
            return self._mark(text, kind, operation)
        if kind in ("add", "replace") and self._is_label_entry(path):
            return []
        if kind == "remove" and self._is_map(path):
            # The client has seen a map that the member's object lacks, since the map has only the aggregate's key.
            self._bare.discard(path[1])
            return [_text({"op": "add", "path": operation.path, "value": {}})]
        if kind not in _VALUED or not bytes(operation.value):
            return [text]
        before = self._containers(kind, path)
        return [*before, self._with_value(text, kind, path, operation)]

    def _moved(self, text: bytes, operation: _Operation, path: Path) -> list[bytes]:
        source = _path(operation.source)
        if source in self._marks:
            if self._is_label_entry(path) or path in self._marks:
                return []
            added = {"op": "add", "path": operation.path, "value": self._member}
            return [*self._containers("add", path), _text(added)]
        if self._is_label_entry(path) or path in self._marks:
            return [_text({"op": "remove", "path": operation.source})] if operation.op == "move" else []
        return [*self._containers("add", path), text]

    def _mark(self, text: bytes, kind: str, operation: _Operation) -> list[bytes]:
        """Return the operations that replace an operation on the label or the annotation itself."""
        if kind == "test" and _string(operation.value) != self._member:
            return [text]  # the member's object lacks the label, too, so the test fails there with the usual answer
        return [] if kind in (*_VALUED, "remove") else [text]

    def _containers(self, kind: str, path: Path) -> list[bytes]:
        """Return the operations that create the map to which a key is added, if the member's object lacks this map."""
        if kind != "add" or len(path) != 3 or path[0] != "metadata" or path[1] not in self._bare:
            return []
        self._bare.discard(path[1])
        pointer = f"/metadata/{path[1]}"
        # The test fails if another client has created the map meanwhile: adding the map would then remove its keys.
        return [
            _text({"op": "test", "path": pointer, "value": None}),
            _text({"op": "add", "path": pointer, "value": {}}),
        ]

    def _with_value(self, text: bytes, kind: str, path: Path, operation: _Operation) -> bytes:
        value = next(member for member in json_edit.members(text) if member.name == "value")
        before = text[value.value : value.end]
        if path == _VERSION:
            version = _string(operation.value)
            if version is None or self._edit.resource_version is None:
                return text
            changed = self._edit.resource_version(version)
            if changed == version:
                return text
            after = json_edit.quoted(changed).encode()
        elif path not in ((), _METADATA) and not self._is_map(path):
            after = self._without_labels(before, path)
        else:
            head, tail = b"".join(b'{"%b":' % name.encode() for name in path), b"}" * len(path)
            edited = json_edit.edit_metadata(b"%b%b%b" % (head, before, tail), self._edit)
            # A map without other keys does not exist in the member's object.
            after = edited[len(head) : len(edited) - len(tail)] if edited.startswith(head) else b"{}"
            if after == b"{}" and before != b"{}" and kind == "test":
                after = b"null"
            after = self._without_labels(after, path)
        if self._is_map(path):
            self._bare.discard(path[1])
            if kind == "replace":  # the map may be missing in the member's object
                return b'{"op":"add","path":%b,"value":%b}' % (json_edit.quoted(operation.path).encode(), after)
        return text if after == before else text[: value.value] + after + text[value.end :]

    def _without_labels(self, value: bytes, path: Path) -> bytes:
        for key in self._edit.labels:
            value = label_maps.without(value, key, path)
        return value

    def _is_label_entry(self, path: Path) -> bool:
        """Whether a path names the label in a map of labels or a selector."""
        return bool(path) and path[-1] in self._edit.labels and label_maps.is_label_map(path[:-1])

    def _is_map(self, path: Path) -> bool:
        return len(path) == 2 and path[0] == "metadata" and path[1] in ("labels", "annotations")


def _string(raw: msgspec.Raw) -> str | None:
    """Return a JSON string, None for anything else."""
    text = bytes(raw)
    return msgspec.json.decode(text, type=str) if text.startswith(b'"') else None


def _path(pointer: str | None) -> Path | None:
    """Return the segments of a JSON pointer (RFC 6901); None if it is malformed."""
    if pointer is None or (pointer and not pointer.startswith("/")):
        return None
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def _text(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
