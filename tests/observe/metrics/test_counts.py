"""Counts of several processes are added up: nothing is lost, and nothing is counted twice."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.observe.metrics import families
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.metrics import Metrics

INCREASES = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 9)), max_size=30)


@settings(max_examples=50)
@given(st.lists(INCREASES, min_size=1, max_size=5), st.integers(1, 3))
def test_sums_of_what_was_taken_are_what_was_counted(processes: list[list[tuple[str, int]]], most: int) -> None:
    total, one = MetricCounts(), MetricCounts()
    for increases in processes:
        process = MetricCounts()
        for position, (server, amount) in enumerate(increases):
            for counts in (process, one):
                counts.increase(families.OUTCOMES, (server, "ok"), amount)
                counts.observe(families.OWN_DURATION, (server,), float(amount))
            if position % 7 == 3:
                total.add(json.loads(json.dumps(process.take(most))))
        while taken := process.take(most):
            total.add(json.loads(json.dumps(taken)))
    assert dict(total.of(families.OUTCOMES)) == dict(one.of(families.OUTCOMES))
    assert dict(total.of(families.OWN_DURATION)) == dict(one.of(families.OWN_DURATION))


def test_what_nothing_was_counted_of_is_not_taken() -> None:
    counts = MetricCounts()
    series = counts.series(families.OUTCOMES, ("a", "ok"))
    assert counts.take() == {}
    series[0] += 2
    assert counts.take() == {"mcproxy_request_outcomes_total": [("a", "ok"), [2]]}
    assert counts.take() == {}
    series[0] += 1  # who counts keeps the series
    assert counts.take() == {"mcproxy_request_outcomes_total": [("a", "ok"), [1]]}


def test_what_another_program_counts_in_another_way_is_left_out() -> None:
    counts = MetricCounts()
    counts.add({"mcproxy_unknown_total": [["a"], [1]], "mcproxy_own_duration_seconds": [["a"], [1, 2]]})
    assert len(counts) == 0


def test_what_is_lost_is_zero_from_the_start() -> None:
    """Prometheus' increase() does not see the first value of a series, so an alert on the first loss needs the zero."""
    metrics = Metrics()
    for family in (families.ACCESS_LOG_LOST, families.AUDIT_EVENTS_LOST):
        assert metrics.counts.of(family) == {(): [0]}
    assert metrics.take() == {}


def test_of_a_series_with_many_numbers_those_are_told_that_are_not_zero() -> None:
    counts, total = MetricCounts(), MetricCounts()
    for value in (0.0042, 0.0042, 70.0):
        counts.observe(families.FINE_DURATION, ("a", "b"), value)
    expected = {labels: list(numbers) for labels, numbers in counts.of(families.FINE_DURATION).items()}
    taken = json.loads(json.dumps(counts.take()))
    assert len(taken["mcproxy_fine_request_duration_seconds"][1]) == 3
    total.add(taken)
    assert total.of(families.FINE_DURATION) == expected
    total.add({"mcproxy_fine_request_duration_seconds": [["a", "b"], {"900": 1}]})  # of another program
    assert total.of(families.FINE_DURATION) == expected
