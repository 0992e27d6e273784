"""Edits of YAML bodies that keep all other text: comments, order, and how scalars are written. Pure.

kubectl and client libraries send JSON; YAML comes from people with curl, as `application/apply-patch+yaml` above all.
The text is cut at the positions that the parser gives, and then read again: if it then says anything else than it
should, it is refused rather than sent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import yaml

from mcproxy.kube import label_maps, yaml_nodes
from mcproxy.kube.metadata_edit import MetadataEdit
from mcproxy.kube.status import StatusError

_MAX_LENGTH = 256 * 1024
"""Bytes of a text that is read."""

_OWN_LABELS = ("metadata", "labels")
Pair = tuple[yaml.Node, yaml.Node]


def edit_metadata(body: bytes, edit: MetadataEdit) -> bytes:
    """Return YAML with the `metadata` of its object edited; keys are only removed, and versions changed.

    Raises StatusError: 400 for what is no YAML, or cannot be edited; 413; and what `edit.resource_version` does.
    """
    marks = {"labels": edit.labels, "annotations": edit.annotations}
    needles = [key for keys in marks.values() for key in keys]
    if edit.resource_version is not None:
        needles.append("resourceVersion")
    if not any(needle.encode() in body for needle in needles):
        return body
    document = _Document(body)
    for _, metadata in document.find("metadata"):
        document.remove_below(metadata, marks)
        if edit.resource_version is not None:
            for pair in _pairs(metadata, "resourceVersion"):
                document.change(pair[1], edit.resource_version)
    document.remove_labels(edit.labels)
    return document.edited(lambda value: _without_labels(_expected(value, edit), edit.labels, ()))


def change_string(body: bytes, path: tuple[str, ...], change: Callable[[str], str]) -> bytes:
    """Return YAML with the strings at a path of names changed. Raises as `edit_metadata`."""
    if path[-1].encode() not in body:
        return body
    document = _Document(body)
    for _, value in document.find(*path):
        document.change(value, change)
    return document.edited(lambda value: _changed(value, path, change))


def label(body: bytes, key: str) -> str | None:
    """Return the value of a label in YAML, None if there is none. Raises as `edit_metadata`."""
    if key.encode() not in body:
        return None
    found = [value.value for _, value in _Document(body).find("metadata", "labels", key) if _is_scalar(value)]
    return str(found[-1]) if found else None


def name(body: bytes) -> str:
    """Return the object's name in YAML, "" if it has none. Raises as `edit_metadata`."""
    found = [value.value for _, value in _Document(body).find("metadata", "name") if _is_scalar(value)]
    return str(found[-1]) if found else ""


class _Document:
    """A parsed text, and the cuts to make in it."""

    def __init__(self, body: bytes) -> None:
        if len(body) > _MAX_LENGTH:
            raise StatusError(413, f"Request entity too large: limit of YAML is {_MAX_LENGTH}; send JSON")
        try:
            self._text = body.decode()
            self._root = yaml_nodes.compose(self._text)
        except yaml_nodes.Refused as error:
            raise StatusError(400, f"this YAML cannot be read here: {error}; send JSON") from None
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise StatusError(400, f"error decoding YAML: {str(error)[:200]}") from None
        self._cuts: list[tuple[int, int, str]] = []
        metadata = yaml_nodes.entry(self._root, "metadata")
        for node in (self._root, metadata, *(yaml_nodes.entry(metadata, name) for name in ("labels", "annotations"))):
            _refuse_repeated(node)

    def find(self, *path: str) -> Iterator[Pair]:
        """Yield the pairs at a path of keys."""
        nodes = [self._root]
        pairs: list[Pair] = []
        for name in path:
            pairs = [pair for node in nodes for pair in _pairs(node, name)]
            nodes = [value for _, value in pairs]
        yield from pairs

    def remove_below(self, parent: yaml.Node, marks: Mapping[str, Collection[str]]) -> None:
        """Remove the keys `marks[name]` from each map `name` of `parent`; the map too if nothing else is in it."""
        emptied: list[Pair] = []
        for name, keys in marks.items():
            for pair in _pairs(parent, name):
                node = pair[1]
                if not isinstance(node, yaml.MappingNode):
                    continue
                gone = [each for each in node.value if _is_scalar(each[0]) and each[0].value in keys]
                if gone and len(gone) == len(node.value):
                    emptied.append(pair)
                else:
                    self._remove_pairs(node, gone)
        self._remove_pairs(parent, emptied)

    def remove_labels(self, keys: Collection[str]) -> None:
        """Remove keys from the maps of labels at any depth, but for the object's own (`kube.label_maps`)."""
        waiting: list[tuple[yaml.Node | None, tuple[str, ...]]] = [(self._root, ())]
        while waiting:
            node, path = waiting.pop()
            if isinstance(node, yaml.SequenceNode):
                waiting += [(each, (*path, "")) for each in node.value]
            elif isinstance(node, yaml.MappingNode):
                if label_maps.is_label_map(path) and path != _OWN_LABELS:
                    self._remove_pairs(
                        node, [each for each in node.value if _is_scalar(each[0]) and each[0].value in keys]
                    )
                for name, value in node.value:
                    inner = (*path, str(name.value) if _is_scalar(name) else "")
                    if not label_maps.is_data(inner) and not _is_scalar(value):
                        waiting.append((value, inner))

    def _remove_pairs(self, mapping: yaml.Node, gone: list[Pair]) -> None:
        if not isinstance(mapping, yaml.MappingNode) or not gone:
            return
        if len(gone) == len(mapping.value):
            self._cuts.append((mapping.start_mark.index, self._end(mapping), "{}"))
            return
        places = {id(pair): place for place, pair in enumerate(mapping.value)}
        for pair in gone:
            self._remove_pair(mapping, pair, places[id(pair)])

    def _remove_pair(self, mapping: yaml.MappingNode, pair: Pair, place: int) -> None:
        begin, end = pair[0].start_mark.index, pair[1].end_mark.index
        if mapping.flow_style:
            if place + 1 < len(mapping.value):
                end = mapping.value[place + 1][0].start_mark.index
            elif place:
                begin = mapping.value[place - 1][1].end_mark.index
            self._cuts.append((begin, end, ""))
            return
        begin = self._text.rfind("\n", 0, begin) + 1
        self._cuts.append((begin, self._line_behind(end), ""))

    def change(self, node: yaml.Node, change: Callable[[str], str]) -> None:
        """Change a scalar."""
        if _is_scalar(node):
            after = change(node.value)
            if after != node.value:
                self._cuts.append((node.start_mark.index, node.end_mark.index, f'"{after}"'))

    def edited(self, expected: Callable[[Any], Any]) -> bytes:
        """Return the text with the cuts made. Raises StatusError (400) if it does not say what is `expected`."""
        pieces: list[str] = []
        position = 0
        for begin, end, replacement in sorted(self._cuts):
            pieces += (self._text[position:begin], replacement)
            position = max(position, end)
        text = "".join((*pieces, self._text[position:]))
        try:
            root = self._root if text == self._text else yaml_nodes.compose(text)
            if yaml_nodes.plain(root) == expected(yaml_nodes.plain(self._root)):
                return text.encode()
        except yaml.YAMLError:
            pass
        raise StatusError(400, "the metadata in this YAML cannot be read in one way only; send JSON")

    def _line_behind(self, end: int) -> int:
        """Return where the line behind a pair begins. A block ends where the next token begins."""
        begin = self._text.rfind("\n", 0, end) + 1
        if self._text[begin:end].strip(" "):
            following = self._text.find("\n", end)
            return following + 1 if following >= 0 else len(self._text)
        return begin

    def _end(self, node: yaml.Node) -> int:
        """Return the end of a value without the blank lines behind it."""
        text = self._text[node.start_mark.index : node.end_mark.index]
        end: int = node.start_mark.index + len(text.rstrip())
        return end


def _pairs(node: yaml.Node | None, name: str) -> list[Pair]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [pair for pair in node.value if _is_scalar(pair[0]) and pair[0].value == name]


def _refuse_repeated(node: yaml.Node | None) -> None:
    """Raise StatusError (400) for a mapping with a key twice, in the words of a kube-apiserver's strict decoding."""
    seen: set[str] = set()
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if _is_scalar(key):
            if key.value in seen:
                where = f'line {key.start_mark.line + 1}: key "{key.value[:200]}" already set in map'
                raise StatusError(400, f"strict decoding error: yaml: unmarshal errors:\n  {where}")
            seen.add(key.value)


def _is_scalar(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _expected(value: Any, edit: MetadataEdit) -> Any:
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return value
    metadata = dict(value["metadata"])
    for name, keys in (("labels", edit.labels), ("annotations", edit.annotations)):
        found = metadata.get(name)
        if isinstance(found, dict) and found.keys() & keys.keys():
            metadata[name] = {key: each for key, each in found.items() if key not in keys}
            if not metadata[name]:
                del metadata[name]
    version = metadata.get("resourceVersion")
    if isinstance(version, str) and edit.resource_version is not None:
        metadata["resourceVersion"] = edit.resource_version(version)
    return {**value, "metadata": metadata}


def _without_labels(value: Any, keys: Collection[str], path: tuple[str, ...]) -> Any:
    if label_maps.is_data(path):
        return value
    if isinstance(value, list):
        return [_without_labels(each, keys, (*path, "")) for each in value]
    if not isinstance(value, dict):
        return value
    removes = label_maps.is_label_map(path) and path != _OWN_LABELS
    kept = {name: each for name, each in value.items() if not (removes and name in keys)}
    return {name: _without_labels(each, keys, (*path, str(name))) for name, each in kept.items()}


def _changed(value: Any, path: tuple[str, ...], change: Callable[[str], str]) -> Any:
    if not path:
        return change(value) if isinstance(value, str) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _changed(value[path[0]], path[1:], change)}
