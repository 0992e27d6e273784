"""The benchmark of the controller of exports, small: what it says without a stopwatch is right."""

from __future__ import annotations

import pytest

from bench import services_in_memory


def test_a_change_is_everywhere_within_two_seconds_and_nothing_is_written_when_nothing_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(services_in_memory, "_HOUR", 120.0)
    rows = {row[0]: row[1] for row in services_in_memory.measure(6, 3, 2)}
    assert rows["an hour of nothing, writes to services"] == "0"
    (change,) = [value for name, value in rows.items() if name.startswith("the second change")]
    assert float(change.split()[0]) <= 2
