"""Operational errors of the daemon: an operator can cause and fix them. They are one log line, never a traceback."""

from __future__ import annotations

from twisted.logger import Logger

from mcproxy.net.tls_contexts import PairError


class DaemonError(Exception):
    """The daemon cannot do something as it is configured.

    `cause` describes the error, `todo` the remedy; both are sentences or clauses without a full stop.
    """

    def __init__(self, cause: str, *, todo: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


def is_of_configuration(error: BaseException) -> bool:
    """Return whether an operational error means that the file is invalid, which only applying it could show."""
    return isinstance(error, PairError)


def describe(error: BaseException) -> tuple[str, str] | None:
    """Return cause and todo of an operational error, or None if `error` is a bug.

    Operational are, besides DaemonError: the errors of other packages that have a `cause`, certificates that OpenSSL
    refuses, and errors of the operating system.
    """
    if isinstance(getattr(error, "cause", None), str) or isinstance(error, PairError):
        return str(error), str(getattr(error, "todo", ""))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", _right_for(error) if error.filename else ""
    return None


def log_error(log: Logger, what: str, error: BaseException, place: str = "", *, event: str) -> None:
    """Log an error where it is caught: an operational one in a line with cause and todo, a bug with its traceback.

    `place` comes before the cause: where in the configuration file it is.
    """
    described = describe(error)
    if described is None:
        log.failure(what, event=event)
    else:
        log.error(what, event=event, cause=place + described[0], todo=described[1])


def _right_for(error: OSError) -> str:
    """Return what an operator has to do about a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        return "create it, or its folder, for the daemon's user"
    return "let the daemon's user open it"
