"""Targets are judged as the project's goals are worded, and a missing measurement is never a pass."""

from __future__ import annotations

from bench import wrk
from bench.meter import Usage, core_seconds
from bench.rate import Round, Sample, pairs, summarise
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


def _sample(rate: float, errors: str = "", p99: float = 0.001) -> Sample:
    return Sample(wrk.Report(int(rate), rate, p99, errors), Usage(0.9, 0.9, 0.0))


def test_rates_are_compared_by_round_and_the_issue_s_figures_judged() -> None:
    rounds: list[Round] = [
        {"nginx": _sample(1000), "twisted.web": _sample(100), "mcproxy": _sample(800, p99=0.0015)},
        {"nginx": _sample(500), "twisted.web": _sample(50), "mcproxy": _sample(400, p99=0.0015)},
    ]
    section = summarise(["nginx", "twisted.web", "mcproxy"], rounds)
    assert [(target.met, target.measured.split()[0]) for target in section.targets] == [
        (True, "0.80"),
        (True, "1.50"),
        (True, "8.00"),
        (True, "0"),
    ]


def test_a_round_with_an_error_gives_no_ratio_and_fails_the_run() -> None:
    rounds: list[Round] = [
        {"nginx": _sample(1000), "mcproxy": _sample(5000, "Non-2xx or 3xx responses: 9")},
        {"nginx": _sample(1000), "mcproxy": _sample(700)},
    ]
    section = summarise(["nginx", "mcproxy"], rounds)
    assert section.targets[0].measured == "0.70 [0.70 to 0.70]"
    assert not section.targets[-1].met
    assert "errors of mcproxy: Non-2xx or 3xx responses: 9" in section.comparisons


def test_every_candidate_meets_each_yardstick_and_each_other() -> None:
    assert pairs(["direct", "nginx", "mcproxy", "old"]) == [("mcproxy", "nginx"), ("old", "nginx"), ("mcproxy", "old")]


def test_core_time_counts_programs_and_steal_but_no_idleness() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 10 200 5000 7 3 4 90 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\n"
    assert core_seconds(stat, 0) * 100 == core_seconds(stat.replace("5000", "1"), 0) * 100
    assert core_seconds(stat, 0) == 100 * core_seconds(stat, 1)
