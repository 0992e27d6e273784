"""Reading what wrk prints."""

from __future__ import annotations

import pytest

from bench import wrk
from bench.processes import Failed

SUCCESS = """\
Running 2s test @ https://localhost:40213/api
  1 threads and 16 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     0.92ms  310.05us   9.11ms   90.01%
    Req/Sec    17.21k     1.02k   18.88k    75.00%
  Latency Distribution
     50%    0.88ms
     75%    1.01ms
     90%    1.20ms
     99%  {p99}
  34422 requests in 2.00s, 43.85MB read
{errors}Requests/sec:  17211.08
Transfer/sec:     21.92MB
"""


@pytest.mark.parametrize(
    ("shown", "seconds"), [("1.94ms", 0.00194), ("870.00us", 0.00087), ("1.20s", 1.2), ("1.37s ", 1.37)]
)
def test_a_clean_report_gives_rate_and_tail_in_seconds(shown: str, seconds: float) -> None:
    report = wrk.parse(SUCCESS.format(p99=shown, errors=""))
    assert (report.requests, report.rate, report.errors) == (34422, 17211.08, "")
    assert report.p99 == pytest.approx(seconds)


@pytest.mark.parametrize(
    "line", ["Non-2xx or 3xx responses: 3", "Socket errors: connect 0, read 2, write 0, timeout 0"]
)
def test_bad_statuses_and_socket_errors_are_kept(line: str) -> None:
    assert wrk.parse(SUCCESS.format(p99="1.00ms", errors=f"  {line}\n")).errors == line


def test_a_run_without_answers_is_an_error() -> None:
    text = SUCCESS.format(p99="0.00us", errors="").replace("34422 requests", "0 requests").replace("17211.08", "0.00")
    assert wrk.parse(text).errors == "no request was answered"


def test_anything_else_is_refused() -> None:
    with pytest.raises(Failed, match="not a report"):
        wrk.parse("unable to connect to localhost:1 Connection refused\n")
