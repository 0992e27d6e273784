"""Errors of the daemon for operators: their cause, remedy and position in the configuration file.

Also encodes errors in messages between processes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from mcproxy.net.bind import BindError
from mcproxy.net.tls_contexts import PairError

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded, Location


_CERTIFICATE = re.compile(r"certificate (\S+): ")


class DaemonError(Exception):
    """The daemon cannot do something that its configuration requires.

    `cause` describes the error, `todo` the remedy; both are sentences or clauses without a full stop.
    """

    def __init__(self, cause: str, *, todo: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


def is_of_configuration(error: BaseException) -> bool:
    """Return whether an error while applying the configuration means that the file is invalid."""
    return isinstance(error, PairError)


def describe(error: BaseException) -> tuple[str, str] | None:
    """Return cause and todo of an operational error, or None if `error` is a bug.

    Operational errors are DaemonError, errors of other packages with a `cause`, certificates that OpenSSL refuses, and
    errors of the operating system.
    """
    if isinstance(getattr(error, "cause", None), str) or isinstance(error, PairError):
        return str(error), str(getattr(error, "todo", ""))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", _open_remedy(error) if error.filename else ""
    return None


def log_error(log: Logger, what: str, error: BaseException, place: str = "", *, event: str) -> None:
    """Log a caught error: an operational error with cause and todo, a bug with its traceback.

    `place` is the error's position in the configuration file, written before the cause.
    """
    described = describe(error)
    if described is None:
        log.failure(what, event=event)
    else:
        log.error(what, event=event, cause=place + described[0], todo=described[1])


def _open_remedy(error: OSError) -> str:
    """Return the remedy for a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return "create it, or its folder, for the daemon's user"
    return "let the daemon's user open it"


class ProcessLost(Exception):
    """The other process has ended, or closed its end of the channel, before it answered."""


class ProcessError(Exception):
    """The request failed because of a bug in the other process, which has logged the traceback."""


class ProcessTimeoutError(ProcessError):
    """The other process did not answer in time."""


def is_operational(error: BaseException) -> bool:
    """Whether an operator can solve the error, which is then reported to the requester."""
    return isinstance(error, ProcessLost) or describe(error) is not None


def encode_error(error: BaseException) -> dict[str, Any]:
    """Return `error` as a JSON object; `decode_error` returns an error with the same text for operators."""
    if isinstance(error, PairError):
        return {"type": "pair", "text": str(error)}
    if isinstance(error, OSError) and error.errno is not None and error.filename is not None:
        return {"type": "os", "errno": error.errno, "file": os.fsdecode(error.filename)}
    described = describe(error)
    if described is not None:
        return {"type": "operational", "text": described[0], "todo": described[1]}
    return {
        "type": "bug",
        "text": str(error) if isinstance(error, ProcessError) else f"{type(error).__name__}: {error}",
    }


def decode_error(fields: dict[str, Any]) -> Exception:
    """Return the encoded error: PairError, OSError, DaemonError with cause and remedy, or else ProcessError."""
    match fields["type"]:
        case "pair":
            return PairError(fields["text"])
        case "os":
            return OSError(fields["errno"], os.strerror(fields["errno"]), fields["file"])
        case "operational":
            return DaemonError(fields["text"], todo=fields["todo"])
    return ProcessError(fields["text"])


def place_of(error: BaseException, loaded: Loaded) -> str:
    """Return ``file:line:column: key: `` of the cause, or "" if the cause is not in the file."""
    place = _find(error, loaded)
    return f"{place.mark}: {place.key}: " if place is not None else ""


def _find(error: BaseException, loaded: Loaded) -> Location | None:
    if isinstance(error, BindError):
        names = [listener.name for listener in loaded.config.listeners if str(listener.bind) == str(error.bind)]
        return loaded.location("listeners", names[0], "bind") if names else None
    if isinstance(error, PairError):
        match = _CERTIFICATE.match(str(error))
        return loaded.location("certificates", match[1], "certFile") if match else None
    if isinstance(error, DaemonError) and str(error).startswith("control socket"):
        return loaded.location("daemon", "controlSocket")
    if isinstance(error, DaemonError) and str(error).startswith("state directory"):
        return loaded.location("daemon", "stateDir")
    logging = loaded.config.logging
    for name, log in (("access", logging.access), ("audit", logging.audit)):
        if isinstance(error, OSError) and log is not None and error.filename == log.file:
            return loaded.location("logging", name, "file")
    return None
