"""The in-memory file system of a simulated container, to which `kubectl cp` and redirections write."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field

__all__ = ["Entry", "FileSystem", "FileSystemError"]

MAX_BYTES = 1 << 28  # bytes in one container


class FileSystemError(Exception):
    """An operation failed; the message is the C library's, such as "No such file or directory"."""


@dataclass
class Entry:
    """A file (`data` is its content), or a directory (`data` is None)."""

    data: bytearray | None
    mode: int = 0o644
    mtime: int = 0

    @property
    def is_directory(self) -> bool:
        return self.data is None


@dataclass
class FileSystem:
    """Paths are absolute and normal; use `resolve` first."""

    now: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in ("/", "/bin", "/dev", "/etc", "/tmp", "/var", "/var/log"):
            self.entries[path] = Entry(None, 0o755, self.now)

    @staticmethod
    def resolve(cwd: str, path: str) -> str:
        """Return an absolute, normal path."""
        joined = posixpath.normpath(posixpath.join(cwd, path))
        return "/" + joined.lstrip("/")

    def get(self, path: str) -> Entry:
        entry = self.entries.get(path)
        if entry is None:
            raise FileSystemError("No such file or directory")
        return entry

    def read(self, path: str) -> bytes:
        entry = self.get(path)
        if entry.data is None:
            raise FileSystemError("Is a directory")
        return bytes(entry.data)

    def children(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        prefix = path.rstrip("/") + "/"
        below = (other.removeprefix(prefix) for other in self.entries if other.startswith(prefix) and other != prefix)
        return sorted(name for name in below if name and "/" not in name)

    def below(self, path: str) -> list[str]:
        """Return a path and everything below it, parents first."""
        prefix = path.rstrip("/") + "/"
        return sorted(other for other in self.entries if other == path or other.startswith(prefix))

    def open_for_writing(
        self, path: str, *, append: bool = False, mode: int = 0o644, mtime: int | None = None
    ) -> bytearray:
        """Return the buffer of a file, which is created if missing; its directory must exist."""
        if not self.entries.get(posixpath.dirname(path), Entry(bytearray())).is_directory:
            raise FileSystemError("No such file or directory")
        entry = self.entries.get(path)
        if entry is not None and entry.is_directory:
            raise FileSystemError("Is a directory")
        if entry is None or entry.data is None or not append:
            entry = self.entries[path] = Entry(bytearray(), mode, self.now if mtime is None else mtime)
        assert entry.data is not None
        return entry.data

    def append(self, buffer: bytearray, data: bytes) -> None:
        """Append to a file's buffer. Raises FileSystemError when the container is full."""
        if len(buffer) + len(data) > MAX_BYTES:
            raise FileSystemError("No space left on device")
        buffer += data

    def make_directory(self, path: str, *, parents: bool = False, mode: int = 0o755) -> None:
        parent = posixpath.dirname(path)
        if path in self.entries:
            if parents and self.entries[path].is_directory:
                return
            raise FileSystemError("File exists")
        if parent not in self.entries:
            if not parents:
                raise FileSystemError("No such file or directory")
            self.make_directory(parent, parents=True)
        self.entries[path] = Entry(None, mode, self.now)

    def remove(self, path: str, *, recursive: bool = False) -> None:
        if self.get(path).is_directory and not recursive:
            raise FileSystemError("Is a directory")
        for other in self.below(path):
            del self.entries[other]
