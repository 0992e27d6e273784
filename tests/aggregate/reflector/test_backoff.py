"""Times between attempts."""

from __future__ import annotations

from mcproxy.aggregate.reflector.member_calls import Backoff


def test_it_doubles_up_to_half_a_minute_with_a_jitter() -> None:
    least, most = Backoff(lambda: 0.0), Backoff(lambda: 0.999)
    assert [least.failed() for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert [round(most.failed(), 1) for _ in range(7)] == [1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    least.worked()
    assert least.failed() == 0.8
