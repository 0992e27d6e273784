"""What the log tells of an event: the line that an operator reads, without its time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from twisted.logger import ILogObserver, LogEvent, globalLogPublisher

from mcproxy.daemon.log_lines import format_text


@contextmanager
def captured_logs() -> Iterator[list[LogEvent]]:
    """Capture the log, without what is logged during a collection of garbage, which is that of earlier tests.

    A coroutine in a cycle of references is closed when it is collected, and its end may be logged.
    """
    collecting = False
    events: list[LogEvent] = []

    def collection(phase: str, _: object) -> None:
        nonlocal collecting
        collecting = phase == "start"

    def observe(event: LogEvent) -> None:
        if not collecting:
            events.append(event)

    observer = cast(ILogObserver, observe)
    gc.callbacks.append(collection)
    globalLogPublisher.addObserver(observer)
    try:
        yield events
    finally:
        globalLogPublisher.removeObserver(observer)
        gc.callbacks.remove(collection)


def told(event: Any) -> str:
    """Return the line of an event from its level on, without its line end."""
    return format_text(event).rstrip("\n").split(" ", 1)[1]


def names(events: Any) -> list[tuple[str, str, str]]:
    """Return name, level and cause of each event."""
    return [(event["event"], event["log_level"].name, str(event.get("cause", ""))) for event in events]
