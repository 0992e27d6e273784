"""Log lines that every process of a daemon would write, written once: an endpoint is out, a token's file is unreadable.

Such an event has a field `log_subject`, a tuple of strings. A child passes its line to the supervisor, which writes it
unless another process has logged the same. With a field `log_state` this means the same state of the subject, since the
last change of the state or the last reload; without one it means any line on the subject within a minute. The process
that logged it last may always log it again, since it has its own rules for repetition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from twisted.internet.interfaces import IReactorTime
from twisted.logger import LogEvent
from twisted.python.threadable import isInIOThread

from mcproxy.daemon.channel import Channel, Message
from mcproxy.daemon.processes.children import Child, Children

_REPEATED = 60.0
"""Seconds for which a line of another process on the same subject counts as a repetition, if it has no state."""
_MOST_SUBJECTS = 10_000


class CommonLog:
    """A child's end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def divert(self, event: LogEvent, line: str) -> bool:
        """Send a common event's line to the supervisor; False: this process is to write it itself."""
        subject = event.get("log_subject")
        if subject is None or self._channel.lost or not isInIOThread():  # type: ignore[no-untyped-call]
            return False
        self._channel.tell(
            "common_log",
            subject=list(subject),
            state=event.get("log_state", ""),
            line=line,
        )
        return True


@dataclass(frozen=True, slots=True)
class _Said:
    by: str
    at: float
    state: str


class CommonLogs:
    """The supervisor's end."""

    def __init__(self, children: Children, clock: IReactorTime, write: Callable[[str], None]) -> None:
        """`write` takes whole lines."""
        self._clock = clock
        self._write = write
        self._said: dict[tuple[str, ...], _Said] = {}
        children.on("common_log", self._receive)

    def reloaded(self) -> None:
        """Forget what was said of another configuration: the processes do, too."""
        self._said.clear()

    def _receive(self, child: Child, message: Message) -> None:
        subject, now = tuple(message["subject"]), self._clock.seconds()
        state = message["state"]
        before = self._said.get(subject)
        if before is not None and before.by != child.name and before.state == state:
            told = state != "" or now - before.at < _REPEATED
            if told:
                return
        if before is None and len(self._said) >= _MOST_SUBJECTS:
            del self._said[next(iter(self._said))]
        self._said[subject] = _Said(child.name, now, state)
        self._write(message["line"])
