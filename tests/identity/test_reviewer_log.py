"""Log lines about a reviewer: few, however often a stranger overloads it."""

from __future__ import annotations

from typing import Any, cast

from twisted.logger import globalLogPublisher

from mcproxy.daemon.daemon_log import BURST, LineObserver
from mcproxy.daemon.log_lines import field
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError


def test_a_reviewer_that_is_overloaded_time_and_again_writes_few_lines() -> None:
    lines: list[str] = []
    observer = cast(Any, LineObserver(lines.append, seconds=lambda: 0.0))
    globalLogPublisher.addObserver(observer)
    try:
        for name in ("one", "{two}"):
            reviewer = ReviewerLog(name)
            for _ in range(200):
                reviewer.fails(UnavailableError("overload", "too many wait", "see who asks"), "clients get 503")
                reviewer.works()
    finally:
        globalLogPublisher.removeObserver(observer)
    # Those of each reviewer apart: that another one fails must be seen.
    for name in ("one", "{two}"):
        about = [line for line in lines if f" {field('reviewer', name)} " in line.replace("\n", " ")]
        assert sum("event=reviewer_out" in line for line in about) == BURST
        assert sum("event=reviewer_ready" in line for line in about) == BURST
