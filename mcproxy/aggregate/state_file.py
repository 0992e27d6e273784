"""Files under `daemon.stateDir`: written atomically, checksummed, versioned, readable by the owner alone.

One file is a head line `mcproxy KIND VERSION SHA256 LENGTH` and its payload. A file that cannot be used (cut, damaged,
of another version or kind) is put aside under the name `NAME.broken` with a log line: what it held is asked for again.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from twisted.logger import Logger

log = Logger()

_LONGEST_HEAD = 200


def write(path: Path, kind: str, version: int, payload: bytes) -> None:
    """Write a file beside its last state, then replace that: a crash leaves one or the other. Raises OSError.

    The folder is made with mode 0700 if it is missing; the file has mode 0600.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    head = f"mcproxy {kind} {version} {hashlib.sha256(payload).hexdigest()} {len(payload)}\n".encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(head)
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def read(path: Path, kind: str, version: int) -> bytes | None:
    """Return the payload of a file; None if there is none, or none that can be used, which is put aside."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        put_aside(path, error.strerror or str(error))
        return None
    head, newline, payload = content[:_LONGEST_HEAD].partition(b"\n")
    payload = content[len(head) + 1 :]
    words = head.split(b" ")
    cause = ""
    if not newline or len(words) != 5 or words[:2] != [b"mcproxy", kind.encode()]:
        cause = f"it is no file of {kind}"
    elif words[2] != str(version).encode():
        cause = "another version of mcproxy wrote it"
    elif words[4] != str(len(payload)).encode():
        cause = "it is incomplete"
    elif words[3] != hashlib.sha256(payload).hexdigest().encode():
        cause = "its checksum is wrong"
    if cause:
        put_aside(path, cause)
        return None
    return payload


def put_aside(path: Path, cause: str) -> None:
    """Rename a file that cannot be used to `NAME.broken`, and log why."""
    with suppress(OSError):
        os.replace(path, path.with_name(path.name + ".broken"))
    log.warn(
        "the state file {path} cannot be used and was put aside; what it held is asked for again",
        path=str(path),
        cause=cause,
        todo="remove the .broken file; see that the disk of daemon.stateDir is sound",
    )
