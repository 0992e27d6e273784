"""What tests of this room share: the reactor for those with real sockets, and what was logged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from twisted.logger import globalLogPublisher

from tests.support.logged import told
from tests.upstream.conftest import reactor as reactor


class Logged(list[dict[str, Any]]):
    """The events of this room's modules, oldest first."""

    def texts(self, level: str) -> list[str]:
        """Return the lines of one level: "info", "warn"."""
        return [str(event_text(event)) for event in self if event["log_level"].name == level]

    def everything(self) -> str:
        """Return all that the events hold, for a look whether something is in it that must not be."""
        return "\n".join(f"{event_text(event)} {event!r}" for event in self)


def event_text(event: Any) -> str:
    return told(event)


@pytest.fixture
def logged() -> Iterator[Logged]:
    found = Logged()

    def observe(event: Any) -> None:
        if str(event.get("log_namespace", "")).startswith("mcproxy.identity"):
            found.append(event)

    globalLogPublisher.addObserver(cast(Any, observe))
    yield found
    globalLogPublisher.removeObserver(cast(Any, observe))
