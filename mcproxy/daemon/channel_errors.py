"""Errors of another process, and their encoding: JSON, which becomes the same operational error at the other end."""

from __future__ import annotations

import os
from typing import Any

from mcproxy.daemon.errors import DaemonError, describe
from mcproxy.net.tls_contexts import PairError


class ProcessLost(Exception):
    """The other process has ended, or closed its end, before it answered."""


class ProcessError(Exception):
    """A bug of the other process, which has logged the traceback, made the request fail."""


class ProcessTimeoutError(ProcessError):
    """It has not answered in time."""


def is_operational(error: BaseException) -> bool:
    """Whether an operator can mend it, who reads of it where it was asked for."""
    return isinstance(error, ProcessLost) or describe(error) is not None


def encode(error: BaseException) -> dict[str, Any]:
    """Return `error` as a JSON object, which `decode` turns into an error that says the same to an operator."""
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


def decode(fields: dict[str, Any]) -> Exception:
    """Return the error of `encode`: PairError, OSError, DaemonError (if it had cause and remedy), else ProcessError."""
    match fields["type"]:
        case "pair":
            return PairError(fields["text"])
        case "os":
            return OSError(fields["errno"], os.strerror(fields["errno"]), fields["file"])
        case "operational":
            return DaemonError(fields["text"], todo=fields["todo"])
    return ProcessError(fields["text"])
