"""Ordinary errors of the daemon: what an operator can cause and mend. They take one line, never a traceback."""

from __future__ import annotations


class DaemonError(Exception):
    """Something the daemon cannot do as it is set up.

    `cause` says what is wrong, `todo` what would help; both are whole sentences or clauses without a full stop.
    """

    def __init__(self, cause: str, *, todo: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


def explain(error: BaseException) -> tuple[str, str] | None:
    """Return cause and todo of an ordinary error, or None if `error` is a bug.

    Besides DaemonError, the errors of other rooms that carry a `cause` for operators are ordinary, and so is what the
    operating system refuses.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, str):
        return cause, str(getattr(error, "todo", ""))
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}", ""
    return None
