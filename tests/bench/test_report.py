"""Targets are evaluated as the project's goals state, and a missing measurement is never a pass."""

from __future__ import annotations

from bench.meter import core_seconds
from bench.report import NOISE, Section, document, limit, show_targets, table


def test_a_lower_limit_is_met_by_the_median_and_includes_equality() -> None:
    assert limit("rate", [0.5, 0.7, 0.9], at_least=0.7).met
    assert not limit("rate", [0.5, 0.69, 0.9], at_least=0.7).met


def test_an_upper_limit_is_met_from_below() -> None:
    target = limit("memory", [59.0, 60.0, 61.0], unit="KiB", digits=1, at_most=60.0)
    assert (target.met, target.wanted, target.measured) == (True, "at most 60 KiB", "60.0 [59.0 to 61.0] KiB")
    assert not limit("memory", [60.1], at_most=60.0).met


def test_what_was_not_measured_is_missed() -> None:
    target = limit("rate", [], at_least=0.7)
    assert (target.met, target.measured) == (False, "not measured")


def test_a_table_is_aligned_markdown() -> None:
    assert table(["a", "bb"], [["ccc", "d"]]) == "| a   | bb |\n|-----|----|\n| ccc | d  |\n"


def test_results_show_each_target_beside_its_measurement_and_the_machine() -> None:
    section = Section(
        "Start", ["subject", "s"], [["mcproxy", "1.0"]], [], [limit("start", [2.0], unit="s", at_most=1.5)]
    )
    text = document([section], "python -m bench all", "2026-01-01 00:00 UTC", {"kernel": "6.0"})
    assert show_targets([section]) in text
    assert "| start  | at most 1.5 s | 2.00 [2.00 to 2.00] s     | FAIL   |" in text
    assert "- kernel: 6.0\n" in text
    assert NOISE in text
    assert "Warning" not in text
    warned = document([section], "python -m bench all", "2026-01-01 00:00 UTC", {}, ["a plain build"])
    assert "**Warning: a plain build**\n" in warned


def test_core_time_counts_programs_and_steal_but_no_idleness() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 10 200 5000 7 3 4 90 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\n"
    assert core_seconds(stat, 0) * 100 == core_seconds(stat.replace("5000", "1"), 0) * 100
    assert core_seconds(stat, 0) == 100 * core_seconds(stat, 1)
