"""Log lines about a reviewer (of tokens or of access) or a source of keys that cannot answer: one line when that
begins, one when it is over.

The cause can differ with every second ("out for 12 s"), so a new line is due only when the *kind* of failure changes.
"""

from __future__ import annotations

from twisted.logger import Logger

log = Logger()

_MAX_SHOWN = 200


class UnavailableError(Exception):
    """A reviewer or an issuer cannot answer.

    `kind` is a word that stays the same for the same failure; `cause` and `todo` are sentences for operators.
    """

    def __init__(self, kind: str, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.kind = kind
        self.cause = cause
        self.todo = todo


class ReviewerLog:
    """Whether one reviewer works, and the lines that say so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kind = ""

    def works(self) -> None:
        """Note that the reviewer answered."""
        if self._kind:
            self._kind = ""
            log.info("{reviewer} works again", reviewer=self._name)

    def fails(self, error: UnavailableError, effect: str) -> None:
        """Note that it did not; `effect` says what that means for clients."""
        if error.kind == self._kind:
            return
        self._kind = error.kind
        log.warn(
            "{reviewer} fails: {cause}; {effect}",
            reviewer=self._name,
            cause=error.cause,
            effect=effect,
            todo=error.todo,
        )


def shown(text: str) -> str:
    """Return untrusted text as a part of a log line: printable ASCII, at most 200 characters."""
    return text[:_MAX_SHOWN].encode("unicode_escape").decode("ascii")[:_MAX_SHOWN]
