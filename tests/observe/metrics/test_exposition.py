"""The text of /metrics, as prometheus-client's parsers read it."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from twisted.internet.defer import Deferred

from mcproxy.observe.metrics import families
from mcproxy.observe.metrics.exposition import OPENMETRICS, SLICE, TEXT, content_type, metrics_text
from mcproxy.observe.metrics.metrics import Metrics
from tests.observe.metrics.records import record
from tests.support.clock import Clock


def text_of(metrics: Metrics, *, openmetrics: bool = False) -> str:
    pieces: list[bytes] = []
    clock = Clock()
    text = Deferred.fromCoroutine(metrics_text(clock, metrics, {}, openmetrics=openmetrics))
    text.addCallback(pieces.extend)
    clock.advance(0)
    return b"".join(pieces).decode()


def parsed(text: str, *, openmetrics: bool = False) -> dict[str, Metric]:
    found: Iterable[Metric] = parse_openmetrics(text) if openmetrics else parse_text(text)  # type: ignore[no-untyped-call]
    return {metric.name: metric for metric in found}


@pytest.mark.parametrize("openmetrics", [False, True])
def test_counters_and_histograms_are_read_back(openmetrics: bool) -> None:
    metrics = Metrics()
    for total in (0.0005, 0.003, 0.003, 700.0):
        metrics.finished(record(total=total))
    text = text_of(metrics, openmetrics=openmetrics)
    found = parsed(text, openmetrics=openmetrics)
    requests = found["mcproxy_requests"]
    assert requests.type == "counter"
    assert requests.documentation == families.REQUESTS.help
    (sample,) = requests.samples
    assert sample.name == "mcproxy_requests_total"
    assert sample.value == 4
    assert sample.labels == {"server": "east", "cluster": "c1", "verb": "list", "resource": "pods", "code": "200"}

    duration = found["mcproxy_request_duration_seconds"]
    assert duration.type == "histogram"
    buckets = {each.labels["le"]: each.value for each in duration.samples if each.name.endswith("_bucket")}
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.005"], buckets["60.0"], buckets["+Inf"]) == (1, 1, 3, 3, 4)
    values = list(buckets.values())
    assert values == sorted(values)
    others = {each.name.removeprefix(duration.name): each.value for each in duration.samples if "le" not in each.labels}
    assert others["_count"] == 4
    assert others["_sum"] == pytest.approx(700.0065)


@settings(max_examples=50)
@given(st.booleans(), st.lists(st.text(), min_size=2, max_size=2))
def test_every_label_is_read_back(openmetrics: bool, labels: list[str]) -> None:
    server, reason = (label.encode("utf-8", "replace").decode() for label in labels)
    metrics = Metrics()
    metrics.counts.increase(families.OUTCOMES, (server, reason))
    text = text_of(metrics, openmetrics=openmetrics)
    (sample,) = parsed(text, openmetrics=openmetrics)["mcproxy_request_outcomes"].samples
    assert sample.labels == {"server": server, "reason": reason}


def test_the_text_is_made_in_slices_between_which_others_have_their_turn() -> None:
    metrics = Metrics()

    class Slow(Clock):
        turns = 0

        def seconds(self) -> float:  # each look at the clock takes a tenth of a slice
            self.rightNow += SLICE / 10
            return self.rightNow

        def callLater(self, *args: Any, **kwargs: Any) -> Any:
            self.turns += 1
            metrics.counts.increase(families.OUTCOMES, ("b", f"new{self.turns}"))
            return super().callLater(*args, **kwargs)

    for number in range(5000):
        metrics.counts.increase(families.OUTCOMES, ("a", f"r{number}"))
    clock = Slow()
    text = Deferred.fromCoroutine(metrics_text(clock, metrics, {}))
    clock.pump([0.0] * 10)
    assert clock.turns >= 4
    pieces: list[bytes] = []
    text.addCallback(pieces.extend)
    assert len(b"".join(pieces).splitlines()) >= 5002
    assert max(map(len, pieces)) < 64 * 1024


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/json", False),
        ("application/openmetrics-text", True),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,*/*;q=0.1",
            True,
        ),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text; version=1.0.0; charset=utf-8", True),
    ],
)
def test_openmetrics_is_for_those_who_ask_for_it(accept: str, expected: bool) -> None:
    assert content_type(accept) == (expected, OPENMETRICS if expected else TEXT)
