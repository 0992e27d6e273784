"""The part of a configuration that comes from one object: entries of sections, files with secrets, and notes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\Z")
_FILE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,240}\Z")


class FileName(str):
    """The name of one of a fragment's files, as a value in the configuration; its folder is added when it is known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A field of an object that is not carried over, or has another meaning here; one line."""

    object: str  # "UpstreamCluster east"
    field: str  # "spec.clientConfig.qps"; "" where all of it is meant
    what: str
    place: str = ""  # "ingress.yaml:12:5"

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.place, self.object, self.field, self.what) if part)
        return "".join(char if char.isprintable() else "?" for char in text)


@dataclass(slots=True)
class Fragment:
    """The configuration made from one object. `sections` has lists of entries by the name of the section."""

    origin: str  # "UpstreamCluster east"
    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    place: str = ""  # of the object, where it is known

    def add(self, section: str, entry: dict[str, Any]) -> None:
        self.sections.setdefault(section, []).append(entry)

    def note(self, where: str, what: str) -> None:
        self.notes.append(Note(self.origin, where, what))

    def file(self, cluster: str, suffix: str, data: bytes) -> FileName:
        """Keep a file of a cluster: cluster name, a separator that no cluster name contains, and a suffix."""
        if not is_cluster_name(cluster):
            raise ValueError(cluster)
        name = FileName(f"{cluster}_{suffix}")
        if not _FILE.match(name) or name in self.files:
            raise ValueError(name)
        self.files[name] = data
        return name


def is_cluster_name(name: str) -> bool:
    """Return whether mcproxy accepts a name for a cluster: a DNS name, which can be no path."""
    return len(name) <= 200 and _NAME.match(name) is not None
