"""Log lines that clients cause are limited by kind and address; others are not."""

import pytest
from twisted.logger import LogEvent

from mcproxy.daemon import daemon_log
from mcproxy.daemon.daemon_log import BURST, MAX_KEYS, LogLimiter
from mcproxy.log_once import PERIOD


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(client: str, text: str = "token refused: {cause}", cause: str = "unknown") -> LogEvent:
    return {"log_namespace": "mcproxy.x", "log_format": text, "client": client, "cause": cause}


def admitted(limiter: LogLimiter, event: LogEvent, times: int) -> int:
    return sum(limiter.admit(event) for _ in range(times))


def test_first_lines_are_whole_and_the_rest_is_one_summary_per_period() -> None:
    time = Time()
    limiter = LogLimiter(time)
    assert admitted(limiter, refusal("10.0.0.1"), 300) == BURST
    limiter.admit(refusal("10.0.0.1", cause="the last one"))
    assert limiter.summaries() == []
    time.now += PERIOD
    (summary,) = limiter.summaries()
    assert (summary["suppressed"], summary["client"], summary["cause"]) == (301 - BURST, "10.0.0.1", "the last one")
    assert limiter.summaries() == []
    assert limiter.admit(refusal("10.0.0.1"))


def test_address_and_kind_have_limits_of_their_own() -> None:
    limiter = LogLimiter(Time())
    admitted(limiter, refusal("10.0.0.1"), 300)
    assert limiter.admit(refusal("10.0.0.2"))
    assert limiter.admit(refusal("10.0.0.1", "refused a request that breaks the protocol"))
    assert limiter.admit(refusal("10.0.0.1", cause="another")) is False  # a client can choose the cause


def test_lines_without_a_client_are_never_limited() -> None:
    limiter = LogLimiter(Time())
    event = {"log_namespace": "mcproxy.x", "log_format": "endpoint {endpoint} is out", "endpoint": "a"}
    assert admitted(limiter, event, 1000) == 1000


def test_quiet_client_gets_a_new_burst_each_period() -> None:
    time = Time()
    limiter = LogLimiter(time)
    for _ in range(5):
        assert admitted(limiter, refusal("10.0.0.1"), BURST) == BURST
        time.now += PERIOD


def test_many_addresses_share_one_key_beyond_the_table() -> None:
    time = Time()
    limiter = LogLimiter(time)
    lines = sum(limiter.admit(refusal(f"10.1.{number >> 8}.{number & 255}")) for number in range(20_000))
    assert lines == MAX_KEYS + BURST
    time.now += PERIOD
    (summary,) = limiter.summaries()
    assert summary["client"] == "other clients"
    assert summary["suppressed"] == 20_000 - lines


def test_summaries_can_be_had_before_the_period_ends() -> None:
    limiter = LogLimiter(Time())
    admitted(limiter, refusal("10.0.0.1"), BURST + 1)
    assert [event["suppressed"] for event in limiter.summaries(now=True)] == [1]


def test_ipv6_addresses_of_one_network_are_one_client() -> None:
    limiter = LogLimiter(Time())
    assert sum(limiter.admit(refusal(f"2001:db8:1:2::{number:x}")) for number in range(100)) == BURST
    assert limiter.admit(refusal("2001:db8:1:3::1"))


def test_no_number_of_kinds_makes_a_summary_get_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_log, "MAX_KEYS", 1)
    time = Time()
    limiter = LogLimiter(time)
    assert admitted(limiter, refusal("10.0.0.1"), BURST + 3) == BURST
    time.now += PERIOD
    for kind in range(20):
        limiter.admit(refusal("10.0.0.2", text=f"kind {kind}"))
    assert [each["suppressed"] for each in limiter.summaries()] == [3]
    assert limiter.admit(refusal("10.0.0.1")), "it is silent for ever"
