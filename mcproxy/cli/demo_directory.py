"""The directory of `mcproxy demo --dir`: marks and locks it, and detects edited files.

A hidden file, `.mcproxy-demo`, marks a directory of the demo. It is locked (flock) while a demo runs. It records the
ports, and the SHA-256 of the files that a user may edit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["MARKER", "DemoDirectory", "DemoError", "open_directory"]

MARKER = ".mcproxy-demo"
KEPT_DIGESTS = 2
"""Number of kept digests per file: of the last two contents, since a demo can be killed before it writes a file."""


class DemoError(Exception):
    """The demo cannot continue; the text has the cause and the remedy."""


class DemoDirectory:
    """A demo directory, locked by this process. `path` is absolute."""

    def __init__(self, path: Path, marker: int) -> None:
        self.path = path
        self._marker = marker
        self._record = _read(marker)

    @property
    def ports(self) -> dict[str, int]:
        """The ports of the last run, by part."""
        return dict(self._record["ports"])

    def edited(self, name: str) -> bool:
        """Return whether the file exists and differs from what a demo wrote."""
        digest = _digest(self.path / name)
        return digest is not None and digest not in self._record["written"].get(name, ())

    def record(self, ports: Mapping[str, int]) -> None:
        """Remember the ports for the next run."""
        self._record["ports"] = dict(ports)
        self._save()

    def write(self, name: str, text: str) -> None:
        """Write a file unless it was edited."""
        if self.edited(name):
            return
        data = text.encode()
        written = self._record["written"]
        digests = [hashlib.sha256(data).hexdigest(), *written.get(name, ())]
        written[name] = list(dict.fromkeys(digests))[:KEPT_DIGESTS]
        self._save()
        (self.path / name).write_bytes(data)

    def _save(self) -> None:
        data = json.dumps({**self._record, "pid": os.getpid()}, indent=1).encode()
        os.pwrite(self._marker, data, 0)
        os.ftruncate(self._marker, len(data))


@contextlib.contextmanager
def open_directory(path: Path, names: Iterable[str]) -> Iterator[DemoDirectory]:
    """Create the directory if it does not exist, and lock it. `names` are the files that the demo writes.

    Raises DemoError if another demo runs in it, if it has one of these files but no marker, or if it is not
    writable.
    """
    path = path.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
        known = (path / MARKER).exists()
        if not known:
            _refuse_foreign(path, names)
        marker = os.open(path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise DemoError(f"cannot write to {path}: {error.strerror}; choose another directory with --dir") from None
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = f" (process {_read(marker)['pid']})" if _read(marker)["pid"] else ""
        os.close(marker)
        raise DemoError(
            f"{path} is in use by another demo{who}: end that one, or choose another directory with --dir"
        ) from None
    except OSError as error:
        os.close(marker)
        raise DemoError(f"cannot lock {path / MARKER}: {error.strerror}; choose another directory with --dir") from None
    try:
        yield DemoDirectory(path, marker)
    finally:
        os.close(marker)


def _refuse_foreign(path: Path, names: Iterable[str]) -> None:
    foreign = [name for name in names if os.path.lexists(path / name)]
    if foreign:
        raise DemoError(
            f"{path} is not a directory of the demo's and holds {', '.join(foreign)}, which the demo would overwrite; "
            "choose another directory with --dir"
        )


def _read(marker: int) -> dict[str, Any]:
    """Return the record in a marker; an empty record for a new or damaged marker."""
    record: dict[str, Any] = {"pid": 0, "ports": {}, "written": {}}
    with contextlib.suppress(ValueError):
        found = json.loads(os.pread(marker, 1 << 16, 0))
        if isinstance(found, dict):
            record.update({key: found[key] for key in record if isinstance(found.get(key), type(record[key]))})
    return record


def _digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None
