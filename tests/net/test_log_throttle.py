"""One line of a kind in a period, and never more kinds than fit."""

from mcproxy.net.log_throttle import LogThrottle


def test_one_line_of_a_kind_in_a_period() -> None:
    throttle = LogThrottle(60.0)
    assert [throttle.allows("a", now) for now in (0.0, 1.0, 59.9, 60.0, 61.0, 120.0)] == [
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert throttle.allows("b", 1.0)


def test_a_crowd_of_kinds_shares_one_place_until_others_are_old() -> None:
    throttle = LogThrottle(60.0, most=3)
    assert [throttle.allows(kind, 0.0) for kind in "abcde"] == [True, True, True, True, False]
    assert not throttle.allows("a", 1.0)
    assert throttle.allows("f", 61.0)
    assert throttle.allows("g", 61.0)
