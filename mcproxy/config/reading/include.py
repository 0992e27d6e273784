"""Reads the main file and the files that it includes, as documents in reading order.

Patterns are relative to the file that contains them and expand in the order of the C locale. A pattern without matches
is a warning, or only a note in an empty folder (conf.d, for later files). A plain name of a missing file is an error. A
file that two patterns match is read once. A file that includes itself, directly or indirectly, is an error.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shlex
import sys

from mcproxy.config.model import Mark
from mcproxy.config.problem import Problems
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import (
    Document,
    Entry,
    Mapping,
    Node,
    Path,
    Place,
    Scalar,
    Sequence,
    key_path,
    root_place,
)
from mcproxy.config.reading.schema_check import check_schema
from mcproxy.config.reading.yaml_text import MAX_BYTES, read_yaml

# -- environment variables -----------------------------------------------------------------------------------------
# ``${NAME}`` in strings is the environment variable NAME; ``$$`` is a dollar sign.
# Replaced after parsing and in values only, so that a variable's value cannot change the file's structure or types.

_DOLLAR = re.compile(r"\$(?:(\$)|\{([^}]*)\}|)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def expand(document: Document, context: Context) -> Document:
    """Return `document` with the variables in its strings replaced.

    If a variable cannot be replaced, this is reported, and the place of the string is added to `document.broken`.
    Offline, an unset variable is not reported.
    """
    root = _Expander(document, context).node(document.root, ())
    return dataclasses.replace(document, root=root) if isinstance(root, Mapping) else document


@dataclasses.dataclass(frozen=True)
class _Expander:
    document: Document
    context: Context

    def node(self, node: Node, path: Path) -> Node:
        if isinstance(node, Mapping):
            entries = {
                name: Entry(entry.mark, self.node(entry.node, (*path, name))) for name, entry in node.entries.items()
            }
            return Mapping(entries, node.mark)
        if isinstance(node, Sequence):
            return Sequence(tuple(self.node(item, (*path, i)) for i, item in enumerate(node.items)), node.mark)
        if isinstance(node.value, str) and "$" in node.value:
            return Scalar(_DOLLAR.sub(lambda match: self._replace(match, node, path), node.value), node.mark, node.text)
        return node

    def _replace(self, match: re.Match[str], node: Scalar, path: Path) -> str:
        dollar, name = match.groups()
        if dollar is not None:
            return "$"
        if name is None:
            what, right = "a lone dollar sign", "write $$ for a dollar sign, ${NAME} for an environment variable"
        elif not _VARIABLE.match(name):
            what, right = f"${{{name}}} names no environment variable", "write ${NAME}, or $$ for a dollar sign"
        elif name in self.context.environ:
            return self.context.environ[name]
        else:
            what = f"the environment variable {name} is not set"
            right = "set it and restart the daemon (a reload keeps the environment of its start), or write the value"
        self.document.broken.add(path)
        if not (self.context.offline and name is not None and _VARIABLE.match(name)):
            self.context.problems.error(node.mark, key_path(path), what, right)
        return match.group()


# -- Detection of a file with Kubernetes objects instead of a configuration; `mcproxy import` reads some kinds ------

_KIND = re.compile(rb"""^[ \t]*["']?kind["']?[ \t]*:[ \t]*["']?([A-Za-z][A-Za-z0-9]*)["']?[ \t]*,?[ \t]*$""", re.M)
_API_VERSION = re.compile(rb"""^[ \t]{0,8}["']?apiVersion["']?[ \t]*:""", re.M)
_OWN_VERSION = re.compile(rb"""^["']?version["']?[ \t]*:|^[ \t]*[{][ \t\n]*["']version["'][ \t]*:""", re.M)

_COMMANDS = {
    "UpstreamCluster": "upstreamcluster",
    "ResourceRegistry": "resourceregistry",
    "Cluster": "resourceregistry",
    "Config": "kubeconfig",
    "APIService": "apiservice",
}
"""The subcommand of `mcproxy import`, by kind."""


def kubernetes_object(data: bytes) -> tuple[str, str] | None:
    """Return the kind of the Kubernetes object in a file, and the subcommand of `mcproxy import` that reads it.

    None if the file contains no object. The subcommand is "" if the kind cannot be imported. In a file with several
    objects or lists, an importable kind is preferred. The lines are scanned in linear time, without a YAML parser.
    """
    if _OWN_VERSION.search(data) or not _API_VERSION.search(data):
        return None
    kinds = [match[1].decode() for match in _KIND.finditer(data)]
    if not kinds:
        return None
    kind = next((kind for kind in kinds if kind in _COMMANDS), kinds[0])
    return kind, _COMMANDS.get(kind, "")


MAX_FILES = 10_000
STDIN = "-"
"""Standard input as the main file; relative file names in it are relative to the working directory."""


def read_documents(context: Context, path: str) -> list[Document]:
    """Read the main file and all included files; report errors of form, and return the readable documents.

    In each document ${ENV} is replaced, and violations of the schema are reported. The main file must have `version`,
    included files need not.
    """
    reader = _Reader(context)
    main = reader.read(path, None)
    if main is not None and not root_place(main).has("version"):
        context.problems.error(main.root.mark, "version", "is missing", "write version: 1")
    return reader.documents


class _Reader:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._open: list[str] = []  # real names of the files being read, the main file first
        self._seen: set[str] = set()
        self.documents: list[Document] = []

    def read(self, path: str, named: Place | None) -> Document | None:
        """Read one file, then the files that it includes; `named` is the place that includes it."""
        real = os.path.realpath(path)
        if real in self._open and named is not None:
            ring = " > ".join([*self._open[self._open.index(real) :], real])
            self._context.error(named, f"{path} includes itself: {ring}", "take it out of one of these files")
            return None
        if real in self._seen:
            return None
        self._seen.add(real)
        document = self._document(path, named)
        if document is not None:
            self.documents.append(document)
            self._open.append(real)
            for place in root_place(document).children("include"):
                self._include(place)
            self._open.pop()
        return document

    def _include(self, place: Place) -> None:
        pattern = place.string
        if pattern is None:
            return
        if self._context.begins_with_tilde(place, pattern):
            return
        # Messages show the name as the operator wrote it, relative if the main file's name is relative.
        folder = os.path.dirname(place.document.file)
        if not glob.has_magic(pattern):
            self.read(os.path.normpath(os.path.join(folder, pattern)), place)
            return
        paths = [
            os.path.normpath(os.path.join(folder, match))
            for match in sorted(glob.glob(pattern, root_dir=folder or None, recursive=True), key=os.fsencode)
        ]
        files = [path for path in paths if os.path.isfile(path)]
        if not files:
            self._matches_nothing(place, os.path.normpath(os.path.join(folder, pattern)))
        for path in files:
            self.read(path, place)

    def _matches_nothing(self, place: Place, pattern: str) -> None:
        """Report a pattern without matching files; in an empty folder, which is for later files, only as a note."""
        folder = os.path.dirname(pattern) or "."
        what = f"no file matches {pattern}"
        if glob.has_magic(folder):
            self._context.warn(place, "include-nothing", what, "see the pattern, or take it out")
            return
        try:
            others = [name for name in sorted(os.listdir(folder)) if not name.startswith(".")]
        except OSError as error:
            right = "make the folder, or take the pattern out"
            self._context.warn(place, "include-nothing", f"{what}: {folder}: {error.strerror}", right)
            return
        if others:
            right = f"the folder has {', '.join(others[:3])}{' and others' if len(others) > 3 else ''}: see the pattern"
            self._context.warn(place, "include-nothing", what, right)
        else:
            self._context.problems.note(place.mark, place.key, f"{what}: the folder is empty")

    def _document(self, path: str, named: Place | None) -> Document | None:
        problems = self._context.problems
        if len(self._seen) > MAX_FILES and named is not None:
            self._context.error(named, f"more than {MAX_FILES} files are included", "include fewer files")
            return None
        try:
            if path == STDIN and named is None:
                data = sys.stdin.buffer.read(MAX_BYTES + 1)
            else:
                with open(path, "rb") as file:
                    data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            self._unreadable(path, named, error)
            return None
        problems.files.append(path)
        if (found := kubernetes_object(data)) is not None:
            self._refuse_object(path, *found)
            return None
        node = read_yaml(path, data, problems)
        if node is None:
            return None
        root = _mapping(node, problems)
        if root is None:
            return None
        document = Document(path, os.path.dirname(os.path.abspath(path)), root)
        if b"$" in data:
            document = expand(document, self._context)
        check_schema(document, problems)
        return document

    def _refuse_object(self, path: str, kind: str, command: str) -> None:
        what = f"is a Kubernetes object (kind {kind}), not a configuration of mcproxy"
        right = "begin with version: 1, then sections such as listeners:"
        if command:
            right = f"`mcproxy import {command} {shlex.quote(path)} --output FILE` makes one of it"
        self._context.problems.error(Mark(path, 1, 1), "", what, right)

    def _unreadable(self, path: str, named: Place | None, error: Exception) -> None:
        cause = getattr(error, "strerror", None) or str(error)
        right = "name a file that the daemon's user can read"
        if named is not None:
            self._context.error(named, f"{path} cannot be read: {cause}", right)
        else:
            if isinstance(error, FileNotFoundError):
                right = "name yours with -c, or write it; `mcproxy files mcproxy/etc/mcproxy.yaml` prints an example"
            self._context.problems.error(Mark(path, 1, 1), "", f"cannot be read: {cause}", right)


def _mapping(node: object, problems: Problems) -> Mapping | None:
    if isinstance(node, Mapping):
        return node
    if isinstance(node, Scalar) and node.value is None:
        return Mapping({}, node.mark)
    mark = getattr(node, "mark", None)
    problems.error(mark, "", "is not a mapping of sections", "begin with version: 1, then sections such as listeners:")
    return None
