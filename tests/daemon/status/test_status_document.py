"""The document as a whole: its keys, and what the configuration adds to the figures of the processes."""

from __future__ import annotations

from typing import Any

from mcproxy.config import model
from mcproxy.config.model import FlowControlType, Per
from mcproxy.daemon.reload import ReloadResult
from mcproxy.daemon.status.rates import CountsAt, SampleDifference
from mcproxy.daemon.status.server_status import with_limits
from mcproxy.daemon.status.status_document import Counted, StatusDocument, of_reload, only_process
from mcproxy.observe.metrics.breakdown import Breakdown, Sums
from mcproxy.observe.metrics.families import AUDIT_EVENTS, AUDIT_EVENTS_LOST, FINE_BOUNDS
from mcproxy.observe.metrics.metrics import Metrics

WALL = 1_790_000_000.0


def counted_of(**sums: dict[Any, Sums]) -> Counted:
    """What was counted since the start, all of it in the last ten seconds."""
    totals: dict[str, Any] = {"requests": 0, "refused": 0, "refusals": {}}
    return Counted(
        SampleDifference(CountsAt(0.0, totals, Breakdown()), CountsAt(10.0, totals, Breakdown(**sums))), {}, {}
    )


NOTHING = counted_of()


def server(name: str, backend: model.Backend) -> model.Server:
    return model.Server(name=name, listeners=("tls",), server_names=(f"{name}.x",), backend=backend)


CONFIG = model.Config(
    servers=(
        server("east", model.ClusterBackend("east")),
        server("all", model.ClustersBackend(("east", "west"))),
        server("fleet", model.AggregateBackendConfig("fleet", ("east",))),
    ),
    flow_controls=(model.FlowControl(name="bulk", type=FlowControlType.TOKEN_BUCKET, qps=5.0, burst=10),),
)


def test_what_the_configuration_has_is_there_whatever_the_processes_say() -> None:
    document = StatusDocument(lambda: WALL)
    found = document.complete(CONFIG, {"listeners": [], "clusters": []}, NOTHING)
    assert [(each["name"], each["backend"], each["inFlight"], each["requestsTotal"]) for each in found["servers"]] == [
        ("east", {"cluster": "east"}, 0, 0),
        ("all", {"clusters": ["east", "west"]}, 0, 0),
        ("fleet", {"aggregate": "fleet"}, 0, 0),
    ]
    assert found["flowControls"][0]["use"] is None
    assert (found["aggregates"], found["certificates"]) == ([], [])
    state = document.of_configuration(CONFIG)
    assert state["startedAt"] == "2026-09-21T14:13:20Z"
    assert state["configHash"] != document.of_configuration(model.Config())["configHash"]


def test_live_figures_and_totals_are_put_to_their_servers() -> None:
    figures = {"servers": [{"name": "all", "inFlight": 3}, {"name": "gone", "inFlight": 1}]}
    counted = counted_of(servers={"all": Sums(20, 2, 1)})
    found = StatusDocument(lambda: WALL).complete(CONFIG, figures, counted)["servers"]
    assert [(each["inFlight"], each["requestsTotal"], each["errorsTotal"]) for each in found] == [
        (0, 0, 0),
        (3, 20, 2),
        (0, 0, 0),
    ]
    assert [each["requestsPerSecond"] for each in found] == [0.0, 2.0, 0.0]
    assert figures["servers"][0] == {"name": "all", "inFlight": 3}


def test_clusters_and_endpoints_have_what_was_counted_of_them() -> None:
    figures = {"clusters": [{"name": "east", "endpoints": [{"name": "a"}, {"name": "b"}]}, {"name": "west"}]}
    slow = Sums(8, seconds=0.5)
    slow.durations[FINE_BOUNDS.index(0.1)] = 8
    endpoints = {("east", "b"): slow, ("west", "a"): Sums(1, seconds=1.0)}
    counted = counted_of(clusters={"east": Sums(9, 1, 3)}, endpoints=endpoints)
    east, west = StatusDocument(lambda: WALL).complete(CONFIG, figures, counted)["clusters"]
    a, b = east["endpoints"]
    assert (east["requestsTotal"], east["errorsTotal"], east["refusedTotal"]) == (9, 1, 3)
    assert (east["requestsPerSecond"], east["refusedPerSecond"], east["p99Seconds"]) == (0.9, 0.3, None)
    assert (a["requestsTotal"], a["requestSeconds"], a["requestsPerSecond"]) == (0, 0.0, 0.0)
    assert (b["requestsTotal"], b["requestSeconds"], b["requestsPerSecond"]) == (8, 0.5, 0.8)
    assert 0.084 <= b["p50Seconds"] <= b["p99Seconds"] <= 0.1
    assert (west["requestsTotal"], west["endpoints"]) == (0, [])


def test_what_logs_have_lost_is_that_of_all_processes() -> None:
    metrics = Metrics()
    nothing = NOTHING.change
    assert Counted.of(metrics, nothing).logs == {"access": {"lost": 0}, "audit": {"written": 0, "lost": 0}}
    metrics.counts.series(AUDIT_EVENTS, ())[0] += 7
    metrics.counts.series(AUDIT_EVENTS_LOST, ())[0] += 2
    found = StatusDocument(lambda: WALL).complete(CONFIG, {}, Counted.of(metrics, nothing))
    assert found["logs"]["audit"] == {"written": 7, "lost": 2}


def flow_control(kind: FlowControlType, **fields: Any) -> model.FlowControl:
    return model.FlowControl(name="limit", type=kind, **fields)


def use_of(item: model.FlowControl, **live: Any) -> Any:
    (found,) = with_limits([item], [{"name": "limit", **live}])
    return found["use"]


def test_the_use_of_a_limit_is_the_fullest_part_of_it() -> None:
    most = FlowControlType.MAX_REQUESTS_INFLIGHT
    assert use_of(flow_control(most, max=200, max_long_running=10), inUse=50, inUseLongRunning=9) == 0.9
    assert use_of(flow_control(most, max=200), inUse=50, inUseLongRunning=9) == 0.25
    assert use_of(flow_control(most, max=20), inUse=50) == 1.0  # a reload has set it lower
    assert use_of(flow_control(most, max=0), inUse=0) == 1.0
    assert use_of(flow_control(most), inUse=5) is None
    assert use_of(flow_control(most, max=20, per=Per.USER), inUse=50) is None
    bucket = flow_control(FlowControlType.TOKEN_BUCKET, qps=5.0, burst=10)
    assert use_of(bucket, tokens=2.5) == 0.75
    assert use_of(bucket, tokens=None) is None
    assert use_of(flow_control(FlowControlType.EXEMPT)) is None


def test_the_last_reload_tells_when_and_why_it_was_refused() -> None:
    assert of_reload(None) is None
    failed = ReloadResult(("no such file",), ("a warning",), 0.12345, True, (), WALL)
    assert of_reload(failed) == {
        "ok": False,
        "at": "2026-09-21T14:13:20Z",
        "seconds": 0.123,
        "errors": ["no such file"],
        "warnings": ["a warning"],
        "changes": [],
    }


def test_the_only_process_has_an_entry_like_that_of_several() -> None:
    entry = only_process({"residentBytes": 5}, 3.5, 7)
    assert (entry["name"], entry["role"], entry["open"], entry["residentBytes"]) == ("mcproxy", "single", 7, 5)
