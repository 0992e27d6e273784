"""Reads Kubernetes objects from YAML or JSON files, and reads their fields with type checks.

The files are read with the limits of a configuration file: size, depth, and number of values after aliases.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.config.problem import ConfigErrors, Problems
from mcproxy.config.reading import nodes
from mcproxy.config.reading.yaml_text import MAX_BYTES, read_yaml_documents

MAX_OBJECTS = 10_000
MAX_DATA = 1024 * 1024
"""Maximum of bytes of a certificate, key or token: etcd's limit for a whole object."""
MAX_TEXT = 4096
"""Maximum of characters of a name, URL or item of a list."""


class UnusableError(Exception):
    """An object or a file cannot be used; the message names the fault."""


@dataclass(frozen=True, slots=True)
class Object:
    """One object. `content` is plain data: dict, list, str, int, float, bool or None."""

    api_version: str
    kind: str
    name: str
    namespace: str
    content: Mapping[str, Any]

    @property
    def fields(self) -> Fields:
        return Fields(self.content, "")


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of an object and the path that leads to it. A key with null counts as absent.

    Every method raises UnusableError for a value of a wrong type: no value is guessed, because kubectl and the API
    server would have refused the object.
    """

    content: Mapping[str, Any]
    path: str

    def at(self, key: str | int) -> str:
        if isinstance(key, int):
            return f"{self.path}[{key}]"
        return f"{self.path}.{key}" if self.path else key

    def has(self, key: str) -> bool:
        return self.content.get(key) is not None

    def text(self, key: str) -> str:
        """Return the string value of a key, "" if absent."""
        return self._text(self.content.get(key), self.at(key))

    def boolean(self, key: str) -> bool:
        """Return the boolean value of a key, False if absent. A string is never a boolean."""
        value = self.content.get(key)
        if value is not None and not isinstance(value, bool):
            raise UnusableError(f"{self.at(key)}: is neither true nor false")
        return value is True

    def integer(self, key: str) -> int:
        """Return the value of a key, a non-negative 32-bit integer; 0 if absent."""
        value = self.content.get(key)
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
            raise UnusableError(f"{self.at(key)}: is not a whole number from 0 to {2**31 - 1}")
        return value

    def fields(self, key: str) -> Fields:
        """Return the mapping that is the value of a key, an empty mapping if absent."""
        return self._fields(self.content.get(key), self.at(key))

    def items(self, key: str) -> Iterator[Fields]:
        """Yield the mappings in the list that is the value of a key."""
        for index, item in enumerate(self._list(key)):
            yield self._fields(item, f"{self.at(key)}[{index}]", required=True)

    def texts(self, key: str) -> list[str]:
        """Return the strings in the list that is the value of a key."""
        path = self.at(key)
        return [self._text(item, f"{path}[{index}]", required=True) for index, item in enumerate(self._list(key))]

    def labels(self, key: str) -> dict[str, str]:
        """Return the mapping of strings that is the value of a key."""
        found = self.fields(key)
        return {name: found.text(name) for name in found.content if found.has(name)}

    def data(self, key: str) -> bytes:
        """Return the base64-decoded value of a key, b"" if absent."""
        value = self.content.get(key)
        if value is None:
            return b""
        if not isinstance(value, str) or len(value) > MAX_DATA * 4 // 3 + 4:
            raise UnusableError(f"{self.at(key)}: is not base64 of at most {MAX_DATA} bytes")
        try:
            return base64.b64decode("".join(value.split()), validate=True)
        except (binascii.Error, ValueError):
            raise UnusableError(f"{self.at(key)}: is not base64") from None

    def others(self, *known: str) -> Iterator[str]:
        """Yield the paths of keys that are not in `known`."""
        for key, value in self.content.items():
            if key not in known and value is not None:
                yield self.at(key)

    def _list(self, key: str) -> Sequence[Any]:
        value = self.content.get(key)
        if value is not None and not isinstance(value, list):
            raise UnusableError(f"{self.at(key)}: is not a list")
        return value or ()

    @staticmethod
    def _fields(value: Any, path: str, *, required: bool = False) -> Fields:
        if value is None and not required:
            value = {}
        if not isinstance(value, dict):
            raise UnusableError(f"{path}: is not a mapping")
        return Fields(value, path)

    @staticmethod
    def _text(value: Any, path: str, *, required: bool = False) -> str:
        if value is None and not required:
            return ""
        if not isinstance(value, str):
            raise UnusableError(f"{path}: is not a string")
        if len(value) > MAX_TEXT:
            raise UnusableError(f"{path}: is longer than {MAX_TEXT} characters")
        if not value.isprintable():
            raise UnusableError(f"{path}: has characters that cannot be printed")
        return value


def read_objects(files: Sequence[str]) -> list[Object]:
    """Return the objects in YAML or JSON files in order, with the items of `List`s.

    Raises OSError; ConfigErrors, with line and column, for invalid YAML; UnusableError for a value that is no object.
    """
    found: list[Object] = []
    for file in files:
        problems = Problems()
        documents = read_yaml_documents(file, read_bounded(file), problems)
        if problems.errors or documents is None:
            raise ConfigErrors(problems.errors)
        for number, document in enumerate(documents, 1):
            found += objects_in(plain(document), f"{file}, document {number}", room=MAX_OBJECTS - len(found))
    return found


def read_bounded(file: str) -> bytes:
    """Return the bytes of a file; "-" means standard input. Raises OSError; UnusableError if the file is too large."""
    descriptor = 0 if file == "-" else os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", closefd=file != "-") as stream:
        if file != "-" and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnusableError(f"{file}: is not a regular file")
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UnusableError(f"{file}: is larger than {MAX_BYTES // 2**20} MiB; import its objects in several files")
    return data


def objects_in(document: Any, where: str, *, room: int = MAX_OBJECTS) -> list[Object]:
    """Return the object in a document, or the items of a list. Raises UnusableError."""
    if not isinstance(document, dict):
        raise UnusableError(f"{where}: is not a Kubernetes object")
    fields = Fields(document, "")
    try:
        kind = fields.text("kind")
        if kind.endswith("List") and isinstance(document.get("items"), list):
            found = [each for item in document["items"] for each in [_object(item, _of_list(document, kind), where)]]
        else:
            found = [_object(document, {}, where)]
    except UnusableError as error:
        raise UnusableError(f"{where}: {error}") from None
    if len(found) > room:
        raise UnusableError(f"{where}: more than {MAX_OBJECTS} objects; import them in several steps")
    return found


def _of_list(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return kind and apiVersion for the items of a typed list (UpstreamClusterList), which omit both."""
    return {} if kind == "List" else {"kind": kind.removesuffix("List"), "apiVersion": document.get("apiVersion")}


def _object(content: Any, defaults: Mapping[str, Any], where: str) -> Object:
    if not isinstance(content, dict):
        raise UnusableError("an item is not a Kubernetes object")
    fields = Fields({**defaults, **{key: value for key, value in content.items() if value is not None}}, "")
    metadata = fields.fields("metadata")
    kind, api_version, name = fields.text("kind"), fields.text("apiVersion"), metadata.text("name")
    if not kind or not api_version:
        raise UnusableError("is not a Kubernetes object: it has no kind and apiVersion")
    if not name:
        raise UnusableError(f"a {kind} has no metadata.name")
    return Object(api_version, kind, name, metadata.text("namespace"), fields.content)


def plain(node: nodes.Node) -> Any:
    """Return a YAML node as plain data (dict, list, str, …), without its positions in the file."""
    if isinstance(node, nodes.Mapping):
        return {name: plain(entry.node) for name, entry in node.entries.items()}
    if isinstance(node, nodes.Sequence):
        return [plain(item) for item in node.items]
    return node.value
