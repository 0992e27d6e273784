"""The context in which a configuration is loaded: problems, environment variables, the time, and the files read so far.

A file is read only once in a load, so that 200 clusters with one CA file share its bytes. Offline only YAML files are
read: the contents of other files, and unset variables, count as valid.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping as Environ
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from mcproxy.config.problem import Problems
from mcproxy.config.reading.nodes import Document, Place

MAX_FILE_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Context:
    problems: Problems
    environ: Environ[str, str]
    now: datetime  # with a time zone
    offline: bool = False
    kubeconfigs: dict[str, Document | None] = field(default_factory=dict)
    _files: dict[str, bytes | str] = field(default_factory=dict)  # contents, or the reason why they are unreadable

    def error(self, place: Place, what: str, right: str | None = None) -> None:
        """Report an error of the value at `place`."""
        self.problems.error(place.mark, place.key, what, right)

    def warn(self, place: Place, lint: str, what: str, right: str | None = None) -> None:
        """Report a warning about the value at `place`; `lint` is its name in `config.problem.LINTS`."""
        self.problems.warn(place.mark, lint, place.key, what, right)

    def error_unless_allowed(self, place: Place, lint: str, what: str, right: str | None = None) -> None:
        """Report an error that a comment on its line can allow; `lint` is the name of its warning in other contexts."""
        self.problems.error_unless_allowed(place.mark, lint, place.key, what, right)

    def begins_with_tilde(self, place: Place, text: str) -> bool:
        """Return whether a file name begins with a tilde, which only a shell expands; report it."""
        if text != "~" and not text.startswith("~/"):
            return False
        self.error(place, f"{place.shown} begins with ~, which is not expanded here", f'write "${{HOME}}{text[1:]}"')
        return True

    def path(self, place: Place) -> str | None:
        """Return the absolute file name for the string at `place`, which is relative to the file that contains it."""
        text = place.string
        if text is None:
            return None
        if "\0" in text:
            self.error(place, "a file name with a NUL byte", "write a file name")
            return None
        if self.begins_with_tilde(place, text):
            return None
        return os.path.normpath(os.path.join(place.document.directory, text))

    def read(self, place: Place) -> tuple[str, bytes] | None:
        """Return name and contents of the regular file that `place` names; None if it does not exist (reported).

        Offline the contents are empty, so callers must check `offline` before parsing them.
        """
        path = self.path(place)
        if path is None:
            return None
        if self.offline:
            return path, b""
        if path not in self._files:
            self._files[path] = _read(path)
        found = self._files[path]
        if isinstance(found, str):
            self.error(place, f"{path} cannot be read: {found}", "name a file that the daemon's user can read")
            return None
        return path, found

    def check_private(self, place: Place, path: str) -> None:
        """Warn of a file with a secret that every user of this machine may read."""
        if not self.offline and _is_open_to_others(path):
            self.warn(
                place, "readable-secret", f"every user of this machine may read {path}", f"chmod o= {shlex.quote(path)}"
            )


def _is_open_to_others(path: str) -> bool:
    try:
        folders = Path(path).resolve().parents
        may_read = bool(os.stat(path).st_mode & stat.S_IROTH)
        return may_read and all(os.stat(folder).st_mode & stat.S_IXOTH for folder in folders)
    except OSError:
        return False


def _read(path: str) -> bytes | str:
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "it is not a regular file"
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return error.strerror or str(error)
    return data if len(data) <= MAX_FILE_BYTES else f"it is larger than {MAX_FILE_BYTES // 2**20} MiB"


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file, without blocking on a FIFO (which is later refused, because it is not a regular file)."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
