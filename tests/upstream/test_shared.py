"""The pace of health checks."""

from __future__ import annotations

import pytest

from mcproxy.upstream.shared import Pacer


def test_the_first_check_waits_for_nothing_and_the_next_for_their_slots() -> None:
    pacer = Pacer(per_second=100)
    assert [pacer.delay(1000.0) for _ in range(3)] == [0.0, pytest.approx(0.01), pytest.approx(0.02)]


def test_slots_that_nobody_took_are_not_saved_up() -> None:
    pacer = Pacer(per_second=100)
    pacer.delay(1000.0)
    assert [pacer.delay(2000.0), pacer.delay(2000.0)] == [0.0, pytest.approx(0.01)]
