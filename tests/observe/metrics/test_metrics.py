"""The counts of one process: what is counted elsewhere is read when they are."""

from mcproxy.observe.metrics import families
from mcproxy.observe.metrics.metrics import Metrics


def test_what_a_number_grows_by_is_counted_once() -> None:
    metrics, lost = Metrics(), [0]
    metrics.follow(families.ACCESS_LOG_LOST, (), lambda: lost[0])
    totals = []
    for number in (3, 3, 7):
        lost[0] = number
        metrics.flush()
        totals.append(metrics.counts.of(families.ACCESS_LOG_LOST)[()][0])
    assert totals == [3, 3, 7]


def test_quantiles_have_buckets_a_quarter_apart_at_most() -> None:
    bounds = families.FINE_BOUNDS
    assert list(bounds) == sorted(set(bounds))
    (first, *rest) = [bound for bound in bounds if bound >= 0.001]
    for bound in rest:
        assert 1.1 < bound / first <= 1.25
        first = bound
