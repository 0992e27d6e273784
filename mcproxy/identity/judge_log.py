"""What the log tells of a judge that cannot judge (tokens, or who may do what): one line when that begins, one when it
is over.

Its causes change with every second ("out for 12 s"), so a line is due when the *kind* of trouble is another one.
"""

from __future__ import annotations

from twisted.logger import Logger

log = Logger()

_MAX_SHOWN = 200


class Trouble(Exception):
    """A judge cannot tell. `kind` is a word that stays the same for the same trouble; the others are for operators."""

    def __init__(self, kind: str, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.kind = kind
        self.cause = cause
        self.todo = todo


class JudgeLog:
    """Whether one judge works, and the lines that say so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kind = ""

    def works(self) -> None:
        """Note that the judge answered."""
        if self._kind:
            self._kind = ""
            log.info("{judge} works again", judge=self._name)

    def fails(self, trouble: Trouble, effect: str) -> None:
        """Note that it did not; `effect` says what that means for clients."""
        if trouble.kind == self._kind:
            return
        self._kind = trouble.kind
        log.warn(
            "{judge} fails: {cause}; {effect}",
            judge=self._name,
            cause=trouble.cause,
            effect=effect,
            todo=trouble.todo,
        )


def shown(text: str) -> str:
    """Return a stranger's text as a part of a log line: printable ASCII, shortened."""
    return text[:_MAX_SHOWN].encode("unicode_escape").decode("ascii")[:_MAX_SHOWN]
