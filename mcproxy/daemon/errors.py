"""Ordinary errors of the daemon: what an operator can cause and mend. They take one line, never a traceback."""

from __future__ import annotations

from mcproxy.net.contexts import PairError


class DaemonError(Exception):
    """Something the daemon cannot do as it is set up.

    `cause` says what is wrong, `todo` what would help; both are whole sentences or clauses without a full stop.
    """

    def __init__(self, cause: str, *, todo: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


def is_of_configuration(error: BaseException) -> bool:
    """Tell whether an ordinary error means that the file is wrong, though only building it could show that."""
    return isinstance(error, PairError)


def describe(error: BaseException) -> tuple[str, str] | None:
    """Return cause and todo of an ordinary error, or None if `error` is a bug.

    Ordinary are, besides DaemonError: the errors of other rooms that carry a `cause` for operators, certificates that
    OpenSSL refuses, and what the operating system refuses.
    """
    if isinstance(getattr(error, "cause", None), str) or isinstance(error, PairError):
        return str(error), str(getattr(error, "todo", ""))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", "let the daemon's user open it" if error.filename else ""
    return None
