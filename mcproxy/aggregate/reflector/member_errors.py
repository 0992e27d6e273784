"""What may go wrong with a member."""

from __future__ import annotations

from mcproxy.net.causes import Cause, code_of

_MAX_CAUSE = 500


class MemberError(Exception):
    """A member gave no usable answer.

    `cause` is a sentence for operators, in one line. `status` is the HTTP status of the answer, 0 if there was none;
    `retry_after` is how many seconds the member asked to wait.
    """

    def __init__(self, cause: str, *, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(cause)
        shown = cause.encode("unicode_escape").decode("ascii")[:_MAX_CAUSE]  # it may have the member's own words
        self.cause = Cause(shown, code_of(cause))
        self.status = status
        self.retry_after = retry_after


class MemberSlow(MemberError):
    """The member did not answer in the time that there was."""


class MemberUnreachable(MemberError):
    """None of the member's endpoints can be connected to, or is ready."""
