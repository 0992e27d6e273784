"""Which build of this package runs: modules that were compiled beside their sources, or the sources, interpreted.

packaging/native.py compiles. Python takes an extension module before a source, so the compiled ones run where they
are; with MCPROXY_PURE=1 in the environment, which children and upgrades inherit, the sources run. All modules are taken
from one build: classes of the two are not the same. In a checkout the sources can have changed since they were
compiled, so a build has a record of them there, by which `select` finds that out.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

VARIABLE = "MCPROXY_PURE"
LIBRARY = "mcproxy__mypyc"
"""The module with the code of all compiled ones, beside the package."""
RECORD = "compiled"

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_BESIDE = os.path.dirname(_PACKAGE)


class StaleBuildError(ImportError):
    """The compiled modules of a checkout do not fit its sources."""


class _SourceFinder:
    """Finds the sources of this package's modules, and no extension modules."""

    def __init__(self) -> None:
        self._folders: dict[str, FileFinder] = {}

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if path is None or not name.startswith("mcproxy."):
            return None
        for folder in path:
            finder = self._folders.get(folder)
            if finder is None:
                finder = self._folders[folder] = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
            spec = finder.find_spec(name, target)
            if spec is not None:
                return spec
        return None

    def invalidate_caches(self) -> None:
        for finder in self._folders.values():
            finder.invalidate_caches()


def select() -> str:
    """Choose the build before any other module is imported; return ``compiled`` or ``pure``.

    Raises StaleBuildError where a checkout's compiled modules were not made from its sources.
    """
    if os.environ.get(VARIABLE, "") not in ("", "0"):
        sys.meta_path.insert(0, _SourceFinder())
        return "pure"
    suffix = EXTENSION_SUFFIXES[0]
    record = os.path.join(_PACKAGE, f"{RECORD}-{suffix[1:-3]}.txt")
    present = os.path.exists(os.path.join(_BESIDE, LIBRARY + suffix))
    if os.path.exists(os.path.join(_BESIDE, "pyproject.toml")) and (present or os.path.exists(record)):
        if not present:
            raise _stale("were built only in part")
        _check(Path(record), Path(_BESIDE))
    return "compiled" if present else "pure"


def write_record(folder: Path, soabi: str, files: Iterable[str], compiled: Iterable[str]) -> None:
    """Write down, for `folder`, which holds the package, what the sources `files` are that a build was made from.

    `compiled` are those of them that have extension modules. Each line has size, time of change (ns), digest and path.
    """
    native = frozenset(compiled)
    lines = []
    for file in files:
        path = folder / file
        found = path.stat()
        kind = "compiled" if file in native else "imported"
        lines.append(f"{found.st_size} {found.st_mtime_ns} {_digest(path)} {kind} {file}\n")
    new = folder / "mcproxy" / f"{RECORD}-{soabi}.new"
    new.write_text("".join(lines))
    new.replace(new.with_suffix(".txt"))


def _check(record: Path, folder: Path) -> None:
    """Raise StaleBuildError if a source differs from the record; one of the same size and time is not read."""
    try:
        lines = record.read_text().splitlines()
    except OSError:
        raise _stale("were built only in part") from None
    for line in lines:
        size, changed, digest, kind, file = line.split(" ", 4)
        path = folder / file
        try:
            found = path.stat()
            same = (found.st_size, found.st_mtime_ns) == (int(size), int(changed)) or _digest(path) == digest
        except OSError:
            same = False
        if not same:
            raise _stale(f"were built from another {file}")
        if kind == "compiled" and not path.with_suffix(EXTENSION_SUFFIXES[0]).exists():
            raise _stale(f"lack that of {file}")


def _stale(reason: str) -> StaleBuildError:
    return StaleBuildError(
        f"the compiled modules in {_BESIDE} {reason}: run `make native`, or `make native-clean` to remove them, "
        f"or set {VARIABLE}=1 to run the sources"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
