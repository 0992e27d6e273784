"""The Available condition: kube-aggregator's reasons and words (recorded: golden/aggregator, A1 to A3)."""

from __future__ import annotations

import pytest

from mcproxy.apiservices.availability import Registration, Verdict, failure, not_checked, of_status, without_endpoint

METRICS = Registration("metrics.k8s.io", "v1beta1", "metrics")


def test_the_name_and_path_of_a_registration() -> None:
    assert METRICS.name == "v1beta1.metrics.k8s.io"
    assert METRICS.path == "/apis/metrics.k8s.io/v1beta1"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, ("True", "Passed", "all checks passed")),
        (204, ("True", "Passed", "all checks passed")),
        *(
            (
                bad,
                (
                    "False",
                    "FailedDiscoveryCheck",
                    f"failing or missing response from m/a: bad status from m/a: {bad}",
                ),
            )
            for bad in (301, 302, 401, 403, 404, 429, 500, 503)
        ),
    ],
)
def test_what_the_status_of_an_answer_shows(status: int, expected: tuple[str, str, str]) -> None:
    verdict = of_status(status, "m/a")
    assert verdict[:3] == expected
    assert verdict.answered == (status if verdict.failed else 0)


def test_requests_pass_unless_the_condition_is_false() -> None:
    unknown = not_checked(1.0)
    assert (unknown.status, unknown.unavailable) == ("Unknown", False)
    assert unknown.after(failure("m/a", "connection refused"), 2.0).unavailable


def test_the_time_of_transition_is_that_of_another_status() -> None:
    down = not_checked(1.0).after(without_endpoint("metrics", {"a": "connection refused"}), 2.0)
    assert (down.since, down.reason) == (2.0, "MissingEndpoints")
    assert down.message == 'no endpoint of cluster "metrics" is ready: a: connection refused'
    still = down.after(failure("metrics/a", "no answer"), 3.0)
    assert (still.since, still.reason) == (2.0, "FailedDiscoveryCheck")
    assert still.after(Verdict("True", "Passed", "all checks passed"), 4.0).since == 4.0


def test_a_message_is_bounded() -> None:
    assert len(not_checked(0.0).after(failure("m/a", "x" * 100_000), 1.0).message) == 1024


def test_a_condition_as_fields() -> None:
    down = not_checked(1.0).after(failure("m/a", "refused"), 2.0)
    assert type(down).from_fields(down.to_fields()) == down
