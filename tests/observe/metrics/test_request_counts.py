"""What a request is counted as; what clients choose makes no series."""

from bisect import bisect_left
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.observe.metrics import families
from mcproxy.observe.metrics.breakdown import quantile
from mcproxy.observe.metrics.counts import MAX_SERIES, MetricCounts
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.observe.metrics.request_counts import (
    BATCH,
    CODES,
    FLUSHED_AT_ONCE,
    MAX_RESOURCES,
    METHODS,
    VERBS,
    RequestCounts,
    refused_by,
)
from mcproxy.observe.problems import BY
from mcproxy.observe.record import AccessRecord
from mcproxy.requests.reasons import REASONS
from tests.observe.metrics.records import record


def counted(*records: AccessRecord) -> MetricCounts:
    counts = MetricCounts()
    requests = RequestCounts(counts)
    for each in records:
        requests.finished(each)
    requests.flush()
    return counts


def requests_of(counts: MetricCounts) -> dict[tuple[str, ...], float]:
    return {labels: number for labels, (number,) in counts.of(families.REQUESTS).items()}


def test_a_request_is_counted_by_server_cluster_verb_resource_and_code() -> None:
    counts = counted(record(), record(), record(status=404))
    assert requests_of(counts) == {
        ("east", "c1", "list", "pods", "200"): 2,
        ("east", "c1", "list", "pods", "404"): 1,
    }
    assert counts.of(families.RESPONSE_BYTES) == {("east", "c1"): [15]}
    assert counts.of(families.REQUEST_BYTES) == {("east", "c1"): [9]}
    assert counts.of(families.OUTCOMES) == {("east", "ok"): [3]}
    assert counts.of(families.POLICY_HITS) == {("east", "rest"): [3]}
    assert counts.of(families.AGGREGATE_READS) == {}


def test_requests_are_counted_in_batches_and_no_number_of_them_waits_for_a_look_at_the_counts() -> None:
    counts = MetricCounts()
    requests = RequestCounts(counts)
    for _ in range(FLUSHED_AT_ONCE - 1):
        requests.finished(record())
    assert sum(requests_of(counts).values()) == 0
    for _ in range(BATCH):
        requests.finished(record())
    assert sum(requests_of(counts).values()) >= FLUSHED_AT_ONCE


def test_the_endpoint_s_time_and_the_proxy_s_own_are_apart() -> None:
    counts = counted(record(total=0.04, upstream=0.015), record(total=0.5, upstream=None))
    (total,) = counts.of(families.REQUEST_DURATION).values()
    (upstream,) = counts.of(families.UPSTREAM_DURATION).values()
    (own,) = counts.of(families.OWN_DURATION).values()
    assert total[-1] == pytest.approx(0.54)
    assert upstream[-1] == pytest.approx(0.015)
    assert own[-1] == pytest.approx(0.525)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.0011, 59.9, 60.0, 61.0])
def test_a_duration_is_in_the_bucket_whose_bound_is_not_below_it(seconds: float) -> None:
    (numbers,) = counted(record(total=seconds)).of(families.REQUEST_DURATION).values()
    bounds = [*families.DURATION_BOUNDS, float("inf")]
    expected = next(index for index, bound in enumerate(bounds) if seconds <= bound)
    assert [index for index, number in enumerate(numbers[:-1]) if number] == [expected]


def test_durations_of_long_running_requests_are_not_counted() -> None:
    counts = counted(record(verb="watch", long_running=True, total=300.0))
    assert requests_of(counts) == {("east", "c1", "watch", "pods", "200"): 1}
    assert not any(any(numbers) for numbers in counts.of(families.REQUEST_DURATION).values())
    assert not any(any(numbers) for numbers in counts.of(families.OWN_DURATION).values())
    assert not any(any(numbers) for numbers in counts.of(families.UPSTREAM_DURATION).values())


def test_a_path_that_is_no_resource_s_has_its_method_as_verb() -> None:
    counts = counted(record(verb="", resource="", method="POST"), record(verb="", resource="", method="PoST"))
    assert set(requests_of(counts)) == {("east", "c1", "post", "", "200"), ("east", "c1", "other", "", "200")}


def test_a_resource_is_other_until_a_response_has_shown_that_it_exists() -> None:
    counts = counted(record(status=404), record(status=200), record(status=404))
    assert requests_of(counts) == {
        ("east", "c1", "list", "other", "404"): 1,
        ("east", "c1", "list", "pods", "200"): 1,
        ("east", "c1", "list", "pods", "404"): 1,
    }


def test_attempts_after_the_first_are_retries() -> None:
    counts = counted(record(attempts=1), record(attempts=3), record(attempts=2, long_running=True), record(attempts=0))
    assert counts.of(families.UPSTREAM_RETRIES) == {("c1",): [3]}


def test_results_of_authentication_are_counted_by_authenticator() -> None:
    counts = counted(
        record(authenticator="oidc"),
        record(authenticator="oidc", status=403, reason="forbidden"),
        record(authenticator="token", status=401, reason="unauthenticated"),
        record(authenticator="token", status=503, reason="authenticator_unavailable"),
        record(authenticator=""),
    )
    assert counts.of(families.AUTHENTICATION) == {
        ("east", "oidc", "accepted"): [2],
        ("east", "token", "refused"): [1],
        ("east", "token", "unavailable"): [1],
    }


def test_an_answer_of_an_aggregate_counts_for_no_single_cluster() -> None:
    counts = counted(record(cluster="c1,c2", cached=True), record(cluster="c1", cached=False))
    assert {labels[1] for labels in requests_of(counts)} == {"*", "c1"}
    assert counts.of(families.AGGREGATE_READS) == {("east", "cached"): [1], ("east", "members"): [1]}


HOSTILE = st.builds(
    record,
    method=st.text(max_size=12),
    verb=st.text(max_size=12),
    resource=st.text(max_size=12),
    uri=st.text(max_size=12),
    status=st.integers(-1, 1000),
    user=st.text(max_size=12),
    client=st.text(max_size=12),
    user_agent=st.text(max_size=12),
    protocol=st.text(max_size=12),
    total=st.floats(0, 1e9),
)


@settings(max_examples=50)
@given(st.lists(HOSTILE.filter(lambda each: not 0 < each.status < 400), max_size=30))
def test_what_clients_choose_makes_no_series(records: list[AccessRecord]) -> None:
    counts = counted(*records)
    for server, cluster, verb, resource, code in requests_of(counts):
        assert (server, cluster) == ("east", "c1")
        assert verb in {*VERBS, *METHODS.values(), "other"}
        assert resource in ("other", "")
        assert code in {"other", *(label for status, label in CODES.items() if status >= 400)}
    assert sum(requests_of(counts).values()) == len(records)


def test_resources_are_bounded_even_if_every_response_shows_that_they_exist() -> None:
    counts = counted(*(record(resource=f"r{number}.example.com") for number in range(1000)))
    found = requests_of(counts)
    assert len(found) == MAX_RESOURCES + 1
    assert found["east", "c1", "list", "other", "200"] == 1000 - MAX_RESOURCES
    assert len(counts) < MAX_RESOURCES + 20


@pytest.mark.parametrize("resource", ["r" * 201, "<img src=x>", "pods\nforged", "{{ $labels.user }}", "é"])
def test_what_is_no_name_of_a_resource_is_other(resource: str) -> None:
    assert set(requests_of(counted(record(resource=resource)))) == {("east", "c1", "list", "other", "200")}


def test_series_are_bounded_when_all_that_is_bounded_together_is_too_much() -> None:
    resources = [f"r{number}" for number in range(MAX_RESOURCES)]
    records = (
        record(cluster=f"c{cluster}", resource=resource, verb=verb, status=status)
        for cluster in range(6)
        for resource in resources
        for verb in ("get", "list", "watch")
        for status in (200, 404, 500)
    )
    found = requests_of(counted(*records))
    assert MAX_SERIES < len(found) <= MAX_SERIES + 6 * 3
    assert sum(found.values()) == 6 * MAX_RESOURCES * 3 * 3


def test_a_cluster_that_answers_everything_hides_no_error_of_another() -> None:
    """Its series may fill the bound; those of others keep their resources, and what errors are found by."""
    resources = [f"r{number}.example.com" for number in range(MAX_RESOURCES + 1)]
    hostile = [
        record(cluster="hostile", resource=resource, verb=verb, status=status)
        for resource in resources
        for verb in ("get", "list", "watch")
        for status in (200, *range(400, 418))
    ]
    found = requests_of(
        counted(*(each for each in hostile if each.status == 200), record(), *hostile, record(status=503))
    )
    assert found["east", "c1", "list", record().resource, "200"] == 1
    assert found["east", "c1", "other", "other", "5xx"] == 1


def test_the_sum_of_processes_that_come_and_go_is_bounded() -> None:
    total = MetricCounts()
    for process in range(3):
        series = [("east", "c1", "list", f"r{process}-{number}", "200") for number in range(5000)]
        total.add({families.REQUESTS.name: [part for labels in series for part in (labels, [1])]})
    found = requests_of(total)
    assert len(found) == MAX_SERIES + 1
    assert found["east", "c1", "other", "other", "2xx"] == 5000


def test_what_was_kept_of_hostile_requests_is_bounded() -> None:
    counts = MetricCounts()
    requests = RequestCounts(counts)
    for number in range(5_000):
        requests.finished(record(status=404, resource=f"r{number}", method=f"M{number}"))
        requests.finished(record(status=200, policy=f"p{number}"))
    assert len(requests._by_labels) <= 4096


def test_totals_are_sums_over_servers() -> None:
    metrics = Metrics()
    for each in (record(), record(status=500), record(server="west", status=599), record(status=0)):
        metrics.finished(each)
    totals = metrics.totals()
    assert (totals["requests"], totals["errors"], totals["bytes"]) == (4, 2, 20)
    assert sum(totals["durations"]) == 4
    assert len(totals["durations"]) == len(families.FINE_BOUNDS) + 1
    servers = metrics.breakdown().servers
    assert {name: (sums.requests, sums.errors) for name, sums in servers.items()} == {"east": (3, 1), "west": (1, 1)}


@given(st.floats(0, 100), st.floats(0, 100))
def test_the_finer_buckets_lie_within_those_of_the_metrics(total: float, upstream: float) -> None:
    """A bucket of /metrics is found by the finer one: both have to say the same."""
    counts = MetricCounts()
    requests = RequestCounts(counts)
    requests.finished(record(total=total, upstream=upstream))
    requests.flush()
    for family, fine, value in (
        (families.REQUEST_DURATION, families.FINE_DURATION, total),
        (families.UPSTREAM_DURATION, families.FINE_UPSTREAM_DURATION, upstream),
    ):
        for each in (family, fine):
            (numbers,) = counts.of(each).values()
            assert numbers[bisect_left(each.bounds, value)] == 1
            assert sum(numbers[:-1]) == 1


def test_a_quantile_is_no_further_from_the_truth_than_a_fifth() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.finished(record(total=0.0101 + number / 1_000_000))  # 10.1 to 11.1 ms; a bucket of /metrics ends at 25
    found = quantile(families.FINE_BOUNDS, metrics.totals()["durations"], 0.99)
    assert found is not None
    assert 0.0101 <= found <= 0.0111 * 1.2


@pytest.mark.parametrize(
    ("fields", "code", "by"),
    [
        ({"status": 401, "reason": "unauthenticated", "cluster": ""}, "401", "authentication"),
        ({"status": 401}, "401", "cluster"),
        ({"status": 403}, "403", "cluster"),
        ({"status": 403, "reason": "no_policy", "cluster": ""}, "403", "dispatch"),
        ({"status": 403, "reason": "rejected", "cluster": ""}, "403", "policy"),
        ({"status": 403, "reason": "forbidden"}, "403", "authorizer"),
        ({"status": 403, "reason": "impersonation_refused"}, "403", "impersonation"),
        ({"status": 403, "reason": "cross_site", "cluster": ""}, "403", "proxy"),
        ({"status": 409}, "409", "cluster"),
        ({"status": 429}, "429", "cluster"),
        ({"status": 429, "reason": "flow_control"}, "429", "flow_control"),
        ({"status": 404, "reason": "no_server", "server": "", "cluster": ""}, "404", "proxy"),
    ],
)
def test_a_refusal_is_counted_by_who_refused(fields: dict[str, Any], code: str, by: str) -> None:
    counts = MetricCounts()
    requests = RequestCounts(counts)
    requests.finished(record(**fields))
    requests.finished(record())
    requests.finished(record(status=500))
    requests.flush()
    ((labels, numbers),) = counts.of(families.REFUSALS).items()
    assert (labels[2:], numbers) == ((code, by), [1])


def test_every_reason_of_a_refusal_has_somebody_who_refused() -> None:
    words = {refused_by(record(reason=reason)) for reason in REASONS}
    assert words == set(BY)


def test_who_sends_most_is_of_all_requests_that_have_ended() -> None:
    """The last ones, less than a batch, were missing."""
    metrics = Metrics()
    for _ in range(3):
        metrics.finished(record())
    assert metrics.sender_figures()["total"]["requests"] == 3
