"""Go's durations."""

from __future__ import annotations

import pytest

from mcproxy.kube.duration import parse


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("5s", 5),
        ("1m30s", 90),
        ("1.5h", 5400),
        (".5s", 0.5),
        ("1.s", 1),
        ("500ms", 0.5),
        ("1h1m1s1ms1us1ns", 3661.001001001),
        ("1µs", 1e-6),
        ("2s1m", 62),
    ],
)
def test_what_go_reads(text: str, seconds: float) -> None:
    assert parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "5", "s", ".s", "5 s", " 5s", "5s ", "-5s", "+5s", "5d", "1e3s", "\u0665s", "5s,", "0x5s"]
)
def test_what_it_does_not(text: str) -> None:
    assert parse(text) is None
