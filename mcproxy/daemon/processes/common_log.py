"""Writes one log line if several processes of a daemon log the same fact, such as an endpoint that is out.

Such an event has a field `log_subject`, a tuple of strings. A child passes its line to the supervisor, which writes it
unless another process has logged the same fact. If the event has a field `log_state`, the same fact is the same state
of the subject, since the last change of the state or the last reload. Otherwise it is any line about the subject within
a minute. The process that logged the subject last can always log it again, because it limits repetition itself.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from twisted.internet.interfaces import IReactorTime
from twisted.logger import LogEvent
from twisted.python.threadable import isInIOThread

from mcproxy.daemon.channel import Channel, ChannelMessage
from mcproxy.daemon.processes.children import Child, Children
from mcproxy.log_once import PERIOD, LogOnce

_MOST_SUBJECTS = 10_000


class CommonLog:
    """The child's part: sends lines about common facts to the supervisor."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def divert(self, event: LogEvent, line: str) -> bool:
        """Send the line of an event with `log_subject` to the supervisor, or return False to have it written here."""
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


class CommonLogs:
    """The supervisor's part: writes each common fact once."""

    def __init__(self, children: Children, clock: IReactorTime, write: Callable[[str], None]) -> None:
        """`write` writes one line to the log."""
        self._clock = clock
        self._write = write
        self.reloaded()
        children.on("common_log", self._receive)

    def reloaded(self) -> None:
        """Forget the lines logged before a reload, as the processes do."""
        self._once = LogOnce(inf, most=_MOST_SUBJECTS)

    def _receive(self, child: Child, message: ChannelMessage) -> None:
        subject, state = tuple(message["subject"]), message["state"]
        period = inf if state else PERIOD
        if self._once.allows(subject, self._clock.seconds(), state=state, by=child.name, period=period):
            self._write(message["line"])
