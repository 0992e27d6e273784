"""The pace of health checks."""

from __future__ import annotations

import pytest

from mcproxy.upstream.upstream_context import CheckPacing


def test_the_first_check_waits_for_nothing_and_the_next_for_their_slots() -> None:
    pacing = CheckPacing(per_second=100)
    assert [pacing.reserve(1000.0) for _ in range(3)] == [0.0, pytest.approx(0.01), pytest.approx(0.02)]


def test_unused_slots_are_not_saved_up() -> None:
    pacing = CheckPacing(per_second=100)
    pacing.reserve(1000.0)
    assert [pacing.reserve(2000.0), pacing.reserve(2000.0)] == [0.0, pytest.approx(0.01)]
