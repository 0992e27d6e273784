"""Files under `daemon.stateDir`: written atomically, checksummed, versioned, readable only by the owner.

A file has a head line `mcproxy KIND VERSION SHA256 LENGTH`, padded with spaces to a fixed length, and then the payload.
A file that cannot be used (truncated, damaged, of another version or kind) is renamed to `NAME.broken`, and this is
logged. The proxy then reads the same data from the members again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from twisted.logger import Logger

log = Logger(__name__)

_HEAD_LENGTH = 160
_BLOCK = 1024 * 1024


def write(path: Path, kind: str, version: int, payload: bytes) -> None:
    """Write a file; see `write_pieces`. Raises OSError."""
    write_pieces(path, kind, version, (payload,))


def write_pieces(path: Path, kind: str, version: int, pieces: Iterable[bytes]) -> None:
    """Write a temporary file, then rename it over the old file: a crash leaves the old or the new one. Raises OSError.

    The payload is produced piece by piece, so it is never completely in memory. A missing folder is created with mode
    0700; the file has mode 0600.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(b" " * _HEAD_LENGTH)
            digest, length = hashlib.sha256(), 0
            for piece in pieces:
                digest.update(piece)
                length += len(piece)
                file.write(piece)
            file.seek(0)
            file.write(
                f"mcproxy {kind} {version} {digest.hexdigest()} {length}".encode().ljust(_HEAD_LENGTH - 1) + b"\n"
            )
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # otherwise a crash can undo the rename
    finally:
        os.close(folder)


def read(path: Path, kind: str, version: int) -> bytes | None:
    """Return the payload of a file; None if the file is missing, or unusable and therefore put aside."""
    file = open_checked(path, kind, version)
    if file is None:
        return None
    with file:
        return file.read()


def open_checked(path: Path, kind: str, version: int) -> BinaryIO | None:
    """Return an open file with a valid checksum, at the beginning of its payload; the caller closes it.

    Returns None if the file is missing, or unusable and therefore put aside.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        put_aside(path, error.strerror or str(error))
        return None
    try:
        cause = _defect(file, kind, version)
        file.seek(_HEAD_LENGTH)
    except OSError as error:
        cause = error.strerror or str(error)
    if cause:
        file.close()
        put_aside(path, cause)
        return None
    return file


def _defect(file: BinaryIO, kind: str, version: int) -> str:
    head = file.read(_HEAD_LENGTH)
    words = head.split()
    if not head.endswith(b"\n") or len(words) != 5 or words[:2] != [b"mcproxy", kind.encode()]:
        return f"it is no file of {kind}"
    if words[2] != str(version).encode():
        return "another version of mcproxy wrote it"
    digest, length = hashlib.sha256(), 0
    while block := file.read(_BLOCK):
        digest.update(block)
        length += len(block)
    if words[4] != str(length).encode():
        return "it is incomplete"
    return "" if words[3] == digest.hexdigest().encode() else "its checksum is wrong"


def put_aside(path: Path, cause: str) -> None:
    """Rename a file that cannot be used to `NAME.broken`, and log why."""
    with suppress(OSError):
        os.replace(path, path.with_name(path.name + ".broken"))
    log.warn(
        "a state file was unusable and set aside; its contents are fetched again",
        event="state_file_broken",
        file=str(path),
        cause=cause,
        todo="remove the .broken file; see that the disk of daemon.stateDir is sound",
    )
