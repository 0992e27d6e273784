"""Composes, checks and writes a configuration made of fragments; each fragment is made from one imported object.

A fragment has entries of sections, files with secrets, and notes. Before files are written to the destination,
mcproxy's own loader reads all fragments and files, in a directory that only this user can enter. No file at the
destination is overwritten. An object whose fragment the loader refuses is left out and reported.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcproxy.config.dump import to_yaml
from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors, Problem
from mcproxy.importing.object_files import UnusableError

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*\Z")
_FILE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,240}\Z")


class FileName(str):
    """The name of a fragment's file, as a value in the configuration; its directory is added when known."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Note:
    """A remark for the user about a field of an object that is not carried over, or has another meaning in mcproxy."""

    object: str  # "UpstreamCluster east"
    field: str  # "spec.clientConfig.qps"; "" for the whole object
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
    place: str = ""  # place of the object, if known

    def add(self, section: str, entry: dict[str, Any]) -> None:
        self.sections.setdefault(section, []).append(entry)

    def note(self, where: str, what: str) -> None:
        self.notes.append(Note(self.origin, where, what))

    def file(self, cluster: str, suffix: str, data: bytes) -> FileName:
        """Add a file of a cluster, named by the cluster, a separator that no cluster name contains, and a suffix."""
        if not is_cluster_name(cluster):
            raise ValueError(cluster)
        name = FileName(f"{cluster}_{suffix}")
        if not _FILE.match(name) or name in self.files:
            raise ValueError(name)
        self.files[name] = data
        return name


def is_cluster_name(name: str) -> bool:
    """Return whether mcproxy accepts a name for a cluster: a DNS name, which cannot be a path."""
    return len(name) <= 200 and _NAME.match(name) is not None


# -- the configuration -----------------------------------------------------------------------------------------------

SECTIONS = (
    "listeners",
    "certificates",
    "clusters",
    "authentication",
    "flowControls",
    "aggregates",
    "servers",
    "serviceExports",
    "ingresses",
)
"""The sections in the order of the written file."""
STUBS = "what the output refers to"
"""The origin of the fragment that is only for the check: it has stubs of entries in the operator's own file."""
_MAX_PROBLEMS = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """A configuration that loads. `left_out`: the objects whose fragments do not load."""

    fragments: tuple[Fragment, ...]
    left_out: tuple[Note, ...]

    @property
    def notes(self) -> list[Note]:
        return [*self.left_out, *(note for fragment in self.fragments for note in fragment.notes)]

    @property
    def files(self) -> dict[str, bytes]:
        return {name: data for fragment in self.fragments for name, data in fragment.files.items()}

    def without(self, origin: str) -> Checked:
        """Return the configuration without the fragments of an origin."""
        return Checked(tuple(each for each in self.fragments if each.origin != origin), self.left_out)


Complete = Callable[[Sequence[Fragment]], Sequence[Fragment]]
"""The type of a function that adds the further entries that fragments need, such as a listener."""


def check(fragments: Sequence[Fragment], complete: Complete = tuple) -> Checked:
    """Return the completed fragments that load, alone and together. Raises UnusableError if no fragment loads."""
    left_out: list[Note] = []
    good = list(fragments)
    if problems_of(complete(good)):
        if found := problems_of(complete([])):
            raise UnusableError("\n".join(found))
        good = [fragment for fragment in fragments if _loads(complete([fragment]), fragment, left_out)]
    if problems_of(complete(good)):  # fragments conflict with each other
        apart, good = good, []
        for fragment in apart:
            if _loads(complete([*good, fragment]), fragment, left_out):
                good.append(fragment)
    whole = complete(good)
    if found := problems_of(whole):
        raise UnusableError("what was made is no good configuration:\n" + "\n".join(found))
    return Checked(tuple(whole), tuple(left_out))


def _loads(together: Sequence[Fragment], fragment: Fragment, left_out: list[Note]) -> bool:
    found = problems_of(together)
    left_out += [Note(fragment.origin, "", f"left out: {problem}", fragment.place) for problem in found[:_MAX_PROBLEMS]]
    return not found


def problems_of(fragments: Sequence[Fragment]) -> list[str]:
    """Return the loader's errors for a configuration of these fragments and their files."""
    with staged(fragments) as path:
        try:
            load(path, environ={})
        except ConfigErrors as errors:
            return [_without(os.path.dirname(path), problem) for problem in causes(errors, path)]
    return []


def causes(errors: ConfigErrors, path: str) -> list[Problem]:
    """Return only the problems in files that the configuration names, if any, because these cause its other problems.
    Otherwise return all problems.
    """
    elsewhere = [problem for problem in errors.problems if problem.mark is not None and problem.mark.file != path]
    return elsewhere or list(errors.problems)


def _without(folder: str, problem: Problem) -> str:
    text = f"{problem.what}; {problem.right}" if problem.right else problem.what
    return f"{problem.key}: {text}".replace(folder + os.sep, "").replace(folder, "")


@contextlib.contextmanager
def staged(fragments: Iterable[Fragment]) -> Iterator[str]:
    """Write a configuration of fragments with their files, readable only by this user; yield its path."""
    together = list(fragments)
    with tempfile.TemporaryDirectory(prefix="mcproxy-import-") as folder:  # mode 0700
        for fragment in together:
            for name, data in fragment.files.items():
                _write_new(os.path.join(folder, name), data)
        path = os.path.join(folder, "mcproxy.yaml")
        _write_new(path, text_of(together, folder, ()).encode())
        yield path


def text_of(fragments: Iterable[Fragment], folder: str, header: Sequence[str]) -> str:
    """Return the YAML. `folder`: the prefix of file names; "" if files are in the configuration's directory."""
    document: dict[str, Any] = {"version": 1}
    together: dict[str, list[dict[str, Any]]] = {section: [] for section in SECTIONS}
    for fragment in fragments:
        for section, entries in fragment.sections.items():
            together[section] += entries
    document.update({section: entries for section, entries in together.items() if entries})
    comments = "".join(f"# {line}\n" if line else "#\n" for line in header)
    return comments + to_yaml(_resolved(document, folder))


def _resolved(value: Any, folder: str) -> Any:
    """Prefix file names with the folder, and double dollar signs, which would name environment variables."""
    if isinstance(value, dict):
        return {key: _resolved(item, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, folder) for item in value]
    if isinstance(value, FileName):
        value = os.path.join(folder, value)
    return value.replace("$", "$$") if isinstance(value, str) else value


def write_files(folder: str, files: dict[str, bytes], *, force: bool) -> None:
    """Write files with secrets (mode 0600) into a directory, which is created with mode 0700 if missing.

    An existing file is refused before any file is written, or replaced with `force`. Raises OSError, UnusableError.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    mode = os.stat(folder).st_mode
    if mode & 0o022 and not mode & 0o1000:
        raise UnusableError(f"{folder}: others may write to this folder; choose another, or chmod go-w {folder}")
    if not force and (there := [name for name in files if os.path.lexists(os.path.join(folder, name))]):
        rest = f", and {len(there) - 1} more of its files are" if len(there) > 1 else ""
        raise UnusableError(f"{os.path.join(folder, there[0])} is there already{rest}; --force replaces what is there")
    for name, data in files.items():
        write_file(os.path.join(folder, name), data, force=force)


def write_file(path: str, data: bytes, *, force: bool) -> None:
    """Write one file, mode 0600, never through a link. Raises OSError; UnusableError if it exists."""
    if not force:
        try:
            _write_new(path, data)
        except FileExistsError:
            raise UnusableError(f"{path} is there already; --force replaces it") from None
        return
    temporary = f"{path}.{os.getpid()}.new"
    try:
        _write_new(temporary, data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_new(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
