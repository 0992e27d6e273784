"""Log lines about an unavailable reviewer (of tokens or access) or source of keys: one line when it becomes
unavailable, and one when it works again.

The cause can change every second ("out for 12 s"), so a new line is written only when the *kind* of failure changes.
"""

from __future__ import annotations

from math import inf

from twisted.logger import Logger

from mcproxy.log_once import LogOnce

log = Logger(__name__)

_MAX_SHOWN = 200


class UnavailableError(Exception):
    """A reviewer or an issuer is unavailable.

    `kind` is a word that stays the same for the same failure; `cause` and `todo` are sentences for operators.
    """

    def __init__(self, kind: str, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.kind = kind
        self.cause = cause
        self.todo = todo


class ReviewerLog:
    """The availability of one reviewer, and the log lines about its changes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._once = LogOnce(inf)

    def works(self) -> None:
        """Note that the reviewer answered."""
        if self._once.ends():
            log.info(
                "authentication or authorization backend available again",
                event="reviewer_ready",
                reviewer=self._name,
                client="",
                log_subject=("reviewer", self._name),
                log_state="works",
            )

    def fails(self, error: UnavailableError, effect: str) -> None:
        """Note that the reviewer failed; `effect` describes the effect on clients."""
        if not self._once.allows(state=error.kind):
            return
        log.warn(
            "authentication or authorization backend unavailable",
            event="reviewer_out",
            reviewer=self._name,
            client="",
            cause=error.cause,
            effect=effect,
            todo=error.todo,
            log_subject=("reviewer", self._name),
            log_state=error.kind,
        )


def shown(text: str) -> str:
    """Return untrusted text as a part of a log line: printable ASCII, at most 200 characters."""
    return text[:_MAX_SHOWN].encode("unicode_escape").decode("ascii")[:_MAX_SHOWN]
