"""Reading what h2load prints."""

from __future__ import annotations

import pytest

from bench import h2load
from bench.processes import Failed

REPORT = """\
finished in 2.00s, 11540.00 req/s, 13.86MB/s
requests: {done} total, {done} started, {done} done, {good} succeeded, {bad} failed, 0 errored, 0 timeout
status codes: {good} 2xx, {moved} 3xx, {bad} 4xx, 0 5xx
traffic: 27.72MB (29068120) total, 1.24MB (1300000) headers (space savings 65.11%), 25.00MB ({data}) data
                     min         max         mean         sd        +/- sd
time for request:     5.08ms     32.31ms      8.66ms      1.94ms    74.68%
time for connect:        0us         0us         0us         0us     0.00%
"""


def report(done: int = 1000, bad: int = 0, moved: int = 0, data: int = 1_200_000) -> h2load.Report:
    return h2load.parse(REPORT.format(done=done, good=done - bad, bad=bad, moved=moved, data=data))


def test_a_clean_report_gives_requests_and_mean_latency_in_seconds() -> None:
    found = report()
    assert (found.requests, found.errors) == (1000, "")
    assert found.mean == pytest.approx(0.00866)


@pytest.mark.parametrize(("bad", "moved"), [(3, 0), (0, 2)])
def test_another_status_than_2xx_is_an_error(bad: int, moved: int) -> None:
    assert f"{bad} 4xx" in report(bad=bad, moved=moved).errors


def test_bodies_that_are_too_short_are_an_error() -> None:
    assert report(data=1000 * 1126).errors == ""
    assert "1000 bodies" in report(data=1000 * 1126 - 1).errors


def test_a_run_without_answers_is_an_error() -> None:
    assert report(done=0).errors == "no request was answered"


def test_anything_else_is_refused() -> None:
    with pytest.raises(Failed, match="not a report"):
        h2load.parse("Could not resolve host\n")
