"""The main file and the files that it includes, as documents in reading order.

Patterns are relative to the file that names them and expand in C order. A pattern that matches nothing is fine (an
empty conf.d), a plain name that does not exist is an error. A file that two patterns match is read once; one that
includes itself, directly or in a ring, is an error.
"""

from __future__ import annotations

import glob
import os
import sys

from mcproxy.config.context import Context
from mcproxy.config.model import Mark
from mcproxy.config.problem import Problems
from mcproxy.config.reading import environment, schema, unsupported
from mcproxy.config.reading.nodes import Document, Mapping, Place, Scalar, root_place
from mcproxy.config.reading.yaml_text import MAX_BYTES, read_yaml

MAX_FILES = 10_000
STDIN = "-"
"""Standard input as the main file; relative file names in it are relative to the working directory."""


def read_documents(context: Context, path: str) -> list[Document]:
    """Read the main file and all that it includes; errors of form are reported, and what is left is returned.

    In each document ${ENV} is replaced, and unsupported parts and violations of the schema are reported. `version` may
    be left out in included files; that the main file has it is checked here.
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
        """Read one file and, after it, those that it includes; `named` is the place that includes it."""
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
        # As the operator wrote it, relative where the main file's name was: that is what messages show.
        folder = os.path.dirname(place.document.file)
        if not glob.has_magic(pattern):
            self.read(os.path.normpath(os.path.join(folder, pattern)), place)
            return
        for match in sorted(glob.glob(pattern, root_dir=folder or None, recursive=True), key=os.fsencode):
            path = os.path.normpath(os.path.join(folder, match))
            if os.path.isfile(path):
                self.read(path, place)

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
        node = read_yaml(path, data, problems)
        if node is None:
            return None
        root = _mapping(node, problems)
        if root is None:
            return None
        document = Document(path, os.path.dirname(os.path.abspath(path)), root)
        if b"$" in data:
            document = environment.expand(document, self._context)
        unsupported.check(document, problems)
        schema.check(document, problems)
        return document

    def _unreadable(self, path: str, named: Place | None, error: Exception) -> None:
        cause = getattr(error, "strerror", None) or str(error)
        right = "name a file that the daemon's user can read"
        if named is not None:
            self._context.error(named, f"{path} cannot be read: {cause}", right)
        else:
            self._context.problems.error(Mark(path, 1, 1), "", f"cannot be read: {cause}", right)


def _mapping(node: object, problems: Problems) -> Mapping | None:
    if isinstance(node, Mapping):
        return node
    if isinstance(node, Scalar) and node.value is None:
        return Mapping({}, node.mark)
    mark = getattr(node, "mark", None)
    problems.error(mark, "", "is not a mapping of sections", "begin with version: 1, then sections such as listeners:")
    return None
