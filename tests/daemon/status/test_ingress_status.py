"""The figures of ingresses: what is counted by rule, what is live, and the sums of several processes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mcproxy.config.model import Redirect, RouteFilters
from mcproxy.daemon.status.ingress_status import counted_of_rules, of_ingresses, with_rules
from mcproxy.daemon.status.process_status import summed
from mcproxy.observe.ingress_rules import rules_of
from mcproxy.observe.metrics.ingress_counts import IngressCounts
from mcproxy.observe.metrics.metrics import Metrics
from tests.services.ingress.config import backend, ingress, path, rule, shares


def test_requests_and_errors_of_each_rule() -> None:
    metrics = Metrics()
    counts = IngressCounts(metrics.counts)
    for status in (200, 204, 404, 503):
        counts.count(("web", "a.example/x", "demo/x"), "east", status, "ok", 1, 2, 1, 0.1, 0.1)
    counts.count(("web", "default", "demo/z"), "", 200, "ok", 1, 2, 3, None, None)
    assert counted_of_rules(metrics.counts) == {
        ("web", "a.example/x", "demo/x"): (4, 1),
        ("web", "default", "demo/z"): (1, 0),
    }


def test_requests_to_ingresses_are_among_all_requests_of_the_daemon() -> None:
    metrics = Metrics()
    counts = IngressCounts(metrics.counts)
    before = metrics.totals()
    counts.count(("web", "a.example/x", "demo/x"), "east", 200, "ok", 1, 20, 1, 0.1, 0.1)
    counts.count(("web", "a.example/x", "demo/x"), "east", 503, "ok", 1, 3, 1, 0.1, 0.1)
    counts.count(("web", "a.example/x", "demo/x"), "east", 101, "ok", 1, 4, 1, None, None)
    totals = metrics.totals()
    assert (before["requests"], sum(before["durations"])) == (0, 0)
    assert {key: totals[key] for key in ("requests", "errors", "refused", "bytes")} == {
        "requests": 3,
        "errors": 1,
        "refused": 0,
        "bytes": 27,
    }
    assert sum(totals["durations"]) == 2


def test_an_ingress_without_requests_has_its_rules_too() -> None:
    both = backend("y", clusters=("east", "west"), weights=(("west", 0),))
    configured = ingress("web", rule("a.example", path("/x", "x"), path("/y", both)), default="z")
    (found,) = with_rules([configured], [{"name": "web", "inFlight": 2}], {("web", "a.example/x", "demo/x"): (4, 1)})
    assert (found["inFlight"], found["requestsTotal"], found["errorsTotal"]) == (2, 4, 1)
    assert [(each["rule"], each["requestsTotal"]) for each in found["rules"]] == [
        ("a.example/x", 4),
        ("a.example/y", 0),
        ("default", 0),
    ]
    assert found["rules"][1]["weights"] == {"east": 1, "west": 0}


def test_a_rule_with_several_backends_has_an_entry_for_each_and_a_redirect_has_one() -> None:
    away = RouteFilters(redirect=Redirect(scheme="https"))
    configured = ingress("web", rule("a", path("/", None, backends=shares(x=3, y=0)), path("/r", None, filters=away)))
    counted = {("web", "a/", "demo/x"): (4, 1), ("web", "a/r", ""): (2, 0)}
    (found,) = with_rules([configured], (), counted)
    assert [
        (each["rule"], each.get("service"), each.get("share"), each["requestsTotal"]) for each in found["rules"]
    ] == [
        ("a/", "demo/x", 3, 4),
        ("a/", "demo/y", 0, 0),
        ("a/r", None, None, 2),
    ]
    assert [each.service for each in rules_of({"ingresses": [found]})] == ["demo/x:8080", "demo/y:8080", ""]


def service(**more: Any) -> dict[str, Any]:
    known = {"service": "demo/x", "port": "8080", "cluster": "east", "via": "Endpoints", "known": True, "stale": False}
    return {**known, "cause": "", "ready": 3, "terminating": 1, "inFlight": 1, "outEndpoints": [], **more}


def test_processes_know_the_same_endpoints_and_find_out_by_themselves_which_fail() -> None:
    one, other = {"endpoint": "a:1", "cause": "x"}, {"endpoint": "b:1", "cause": "y"}
    found = summed(
        {"ingressServices": [service(outEndpoints=out)], "ingresses": [{"name": "web", "inFlight": 1}]}
        for out in ([dict(one)], [dict(one), dict(other)], [])
    )
    assert found["ingressServices"] == [service(inFlight=3, outEndpoints=[one, other])]
    assert found["ingresses"] == [{"name": "web", "inFlight": 3}]


def test_a_process_without_ingresses_has_no_figures_of_them() -> None:
    assert of_ingresses(None, ()) == {}


def test_rules_as_they_are_shown() -> None:
    both = backend("x", clusters=("east", "west"), weights=(("west", 0),))
    status = {
        "ingresses": with_rules([ingress("web", rule("", path("/", both)))], (), {}),
        "ingressServices": [service(outEndpoints=[{"endpoint": "a:1"}]), service(cluster="west", ready=0, stale=True)],
    }
    (shown,) = rules_of(status)
    assert (shown.rule, shown.service) == ("*/", "demo/x:8080")
    assert shown.words == "east 3 (1 out), west 0 (stale, weight 0)"
    assert shown.impaired
    assert not shown.empty
    empty = [service(ready=0), service(cluster="west")]
    assert next(rules_of({**status, "ingressServices": empty})).empty  # the other cluster gets no requests
    assert not next(rules_of({**status, "ingressServices": []})).empty  # nobody tells


def test_endpoints_are_counted_by_state_and_the_first_ones_named() -> None:
    def endpoint(number: int, *, ready: bool = True, usable: bool = True, in_flight: int = 0) -> Any:
        problem = "" if usable else "it refused the connection"
        return SimpleNamespace(name=f"p{number}", ready=ready, usable=usable, in_flight=in_flight, problem=problem)

    endpoints = [endpoint(number, in_flight=number) for number in range(30)]
    endpoints += [endpoint(number, usable=False) for number in range(30, 60)]
    endpoints += [endpoint(number, ready=False) for number in range(60, 64)]
    member = SimpleNamespace(
        key=SimpleNamespace(key=SimpleNamespace(port=80), via="Endpoints"),
        endpoints=endpoints,
        service="demo/web",
        cluster="east",
        known=SimpleNamespace(known=True, stale=False, problem=""),
    )
    route = SimpleNamespace(ingress="web")
    requests = [SimpleNamespace(route=route), SimpleNamespace(route=route), SimpleNamespace(route=None)]
    found = of_ingresses(cast("Any", SimpleNamespace(members={"a": member})), cast("Any", requests))
    assert found["ingresses"] == [{"name": "web", "inFlight": 2}]
    (service,) = found["ingressServices"]
    assert (service["ready"], service["terminating"], service["inFlight"]) == (60, 4, sum(range(30)))
    assert service["readyEndpoints"] == [f"p{number}" for number in range(20)]
    assert [each["endpoint"] for each in service["outEndpoints"]] == [f"p{number}" for number in range(30, 50)]
