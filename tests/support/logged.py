"""What the log tells of an event: the line that an operator reads, without its time."""

from __future__ import annotations

from typing import Any

from mcproxy.daemon.log_lines import format_text


def told(event: Any) -> str:
    """Return the line of an event from its level on, without its line end."""
    return format_text(event).rstrip("\n").split(" ", 1)[1]


def names(events: Any) -> list[tuple[str, str, str]]:
    """Return name, level and cause of each event."""
    return [(event["event"], event["log_level"].name, str(event.get("cause", ""))) for event in events]
