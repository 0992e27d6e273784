"""The proxy's own rights are tried out beside everything else, and each one that is missing is one log line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import CancelledError, Deferred

from mcproxy.config import model
from mcproxy.daemon import rights_check
from mcproxy.daemon.rights_check import RightsCheck
from mcproxy.identity import self_access_review
from mcproxy.identity.required_rights import Right, required_rights
from mcproxy.identity.reviewer_log import UnavailableError
from tests.support.clock import Clock
from tests.support.logged import captured_logs

ALL = ["get /readyz", "impersonate users", "impersonate groups", "impersonate serviceaccounts"]
UIDS = "impersonate uids.authentication.k8s.io"
REVIEWS = "create subjectaccessreviews.authorization.k8s.io"
TOKEN = model.Credentials(token=model.Secret("t"))


class Bench:
    """Clusters that grant what is in `granted`; None: they cannot be reached."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, credentials: model.Credentials = TOKEN) -> None:
        self.clock = Clock()
        self.granted: dict[str, set[str] | str] = {name: {*ALL, UIDS, REVIEWS} for name in names}
        self.asked: list[str] = []
        self.pending: list[Deferred[None]] = []
        self.hold = False
        self.when_cancelled: Exception | None = None  # what a request fails with, if not with CancelledError
        self.events: list[Any] = []
        self.check = RightsCheck(self.clock)
        self.config = model.Config(
            clusters=tuple(
                model.ClusterConfig(
                    name=name,
                    endpoints=(model.EndpointConfig(name="a", scheme="https", host="10.0.0.1", port=6443),),
                    credentials=credentials,
                )
                for name in names
            ),
            servers=tuple(model.Server(name=name, listeners=(), backend=model.ClusterBackend(name)) for name in names),
        )
        self.clusters = {name: cast(Any, SimpleNamespace(name=name)) for name in names}
        monkeypatch.setattr(self_access_review, "is_granted", self._is_granted)

    async def _is_granted(self, cluster: Any, right: Right, clock: Any) -> bool:
        shown = rights_check.describe_right(right)
        self.asked.append(f"{cluster.name} {shown}")
        if self.hold:
            waiting: Deferred[None] = Deferred()
            self.pending.append(waiting)
            try:
                await waiting
            except CancelledError:
                if self.when_cancelled is not None:
                    raise self.when_cancelled from None
                raise
        granted = self.granted[cluster.name]
        if isinstance(granted, str):
            raise UnavailableError(granted, f"it is {granted}", "see to it")
        return shown in granted

    def start(self) -> None:
        self.check.start(cast(Any, SimpleNamespace(config=self.config, clusters=self.clusters)))

    def passes(self, seconds: float) -> list[str]:
        """Let time pass; gives the log lines that this brought."""
        with captured_logs() as events:
            self.clock.pump([0.5] * round(seconds / 0.5))
        self.events += events
        return [
            f"{event['event']} {event['cluster']}: {event.get('right', event.get('cause', ''))}" for event in events
        ]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(monkeypatch, "east", "west")
    yield bench
    bench.check.stop()
    assert not bench.clock.getDelayedCalls()


def test_nothing_is_asked_while_the_daemon_starts_and_nothing_is_logged_when_all_is_granted(bench: Bench) -> None:
    bench.start()
    assert bench.asked == []
    assert bench.passes(2) == []
    assert [each for each in bench.asked if each.startswith("east")] == [
        f"east {right}" for right in [*ALL, UIDS, REVIEWS]
    ]
    assert len(bench.asked) == 12
    assert bench.passes(100) == []
    assert len(bench.asked) == 12


def test_each_missing_right_is_one_line_with_a_remedy(bench: Bench) -> None:
    bench.granted["east"] = {"get /readyz", "impersonate users"}
    bench.start()
    assert bench.passes(2) == [f"right_missing east: {right}" for right in [*ALL[2:], UIDS, REVIEWS]]
    assert {event["todo"] for event in bench.events} == {
        "grant it what `mcproxy rbac --cluster east` prints, then reload"
    }
    assert all(event["purpose"] for event in bench.events)


def test_constrained_impersonation_stands_for_the_verb_impersonate(bench: Bench) -> None:
    modes = required_rights(bench.config, bench.config.clusters[0], constrained=True)
    bench.granted["east"] = {rights_check.describe_right(right) for right in modes}
    bench.start()
    assert bench.passes(2) == []
    assert bench.check.missing("east") == ()
    last = rights_check.describe_right(modes[-2])
    assert last.startswith("impersonate-on:arbitrary-node:")
    bench.granted["east"] = {rights_check.describe_right(right) for right in modes} - {last}
    bench.clock.advance(61)
    bench.start()
    assert bench.passes(2) == [f"right_missing east: {last}"]
    assert bench.events[-1]["todo"] == "grant it what `mcproxy rbac --cluster east --constrained` prints, then reload"
    bench.start()
    assert bench.passes(2) == []
    assert bench.check.missing("east") == (last,)


def test_many_missing_rights_are_one_line_for_each_purpose(bench: Bench) -> None:
    exported = model.ServiceExport(name="x", namespace="demo", service="x", from_clusters=("west",), to=("east",))
    bench.config = replace(bench.config, service_exports=(exported,))
    bench.granted["east"] = set()
    bench.start()
    lines = [line for line in bench.passes(2) if line.startswith("right_missing east: ")]
    missing = bench.check.missing("east")
    assert missing is not None
    assert len(missing) > len(lines) + 3
    assert sorted(right for line in lines for right in line.split(": ", 1)[1].split(", ")) == sorted(missing)
    purposes = [event["purpose"] for event in bench.events if event["cluster"] == "east"]
    assert len(set(purposes)) == len(purposes) == len(lines)


def test_the_status_has_what_is_missing_once_a_cluster_has_answered(bench: Bench) -> None:
    bench.granted["east"] = {*ALL, UIDS}
    bench.granted["west"] = "connection"
    bench.start()
    assert bench.check.missing("east") is None
    bench.passes(2)
    assert bench.check.missing("east") == (REVIEWS,)
    assert bench.check.missing("west") is None
    assert bench.check.missing("north") is None
    bench.granted["west"] = {*ALL, UIDS, REVIEWS}
    bench.passes(20)
    assert bench.check.missing("west") == ()


def test_a_reload_is_quiet_about_what_it_did_not_change(bench: Bench) -> None:
    bench.granted["east"] = {*ALL, UIDS}
    bench.start()
    assert len(bench.passes(2)) == 1
    bench.start()
    assert bench.passes(2) == []
    bench.granted["east"] = {*ALL, UIDS, REVIEWS}
    bench.start()
    assert bench.passes(2) == ["rights_complete east: "]


def test_a_reload_asks_a_cluster_anew_unless_it_granted_all_a_moment_ago(bench: Bench) -> None:
    bench.start()
    bench.passes(2)
    bench.start()
    bench.passes(2)
    assert len(bench.asked) == 12
    bench.clusters["east"] = cast(Any, SimpleNamespace(name="east"))  # another configuration
    bench.start()
    bench.passes(2)
    assert len(bench.asked) == 18
    bench.passes(60)
    bench.start()
    bench.passes(2)
    assert len(bench.asked) == 30


def test_a_cluster_that_cannot_be_reached_is_asked_later_and_costs_no_line(bench: Bench) -> None:
    bench.granted["east"] = "connection"
    bench.start()
    assert bench.passes(20) == []
    bench.granted["east"] = {*ALL, UIDS}
    assert bench.passes(20) == [f"right_missing east: {REVIEWS}"]
    assert bench.passes(100) == []


def test_a_cluster_that_refuses_everything_while_it_starts_is_asked_again(bench: Bench) -> None:
    bench.granted["east"] = "403"
    bench.start()
    assert bench.passes(2) == []
    assert bench.passes(20) == ["rights_check_failed east: it is 403"]
    assert "system:basic-user" in bench.events[-1]["todo"]
    assert bench.passes(100) == []


def test_only_some_clusters_are_asked_at_a_time_and_a_reload_ends_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, *(f"c{number}" for number in range(50)))
    bench.hold = True
    bench.start()
    bench.passes(2)
    assert len(bench.pending) == 4
    bench.start()
    bench.passes(2)
    assert len(bench.pending) == 8
    assert all(each.called for each in bench.pending[:4])
    bench.check.stop()
    assert not bench.clock.getDelayedCalls()


def test_a_cluster_that_the_proxy_has_no_credential_for_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, "east", credentials=model.Credentials())
    bench.start()
    assert bench.passes(2) == []
    assert bench.asked == []


@pytest.mark.parametrize(
    "error", [None, UnavailableError("timeout", "it was given up", "see to it"), RuntimeError("could not be sent")]
)
def test_a_check_that_is_stopped_while_it_asks_asks_nothing_more_and_logs_nothing(
    bench: Bench, error: Exception | None
) -> None:
    """A request that is cancelled may fail like one that reached nobody, which is otherwise asked again later."""
    bench.hold, bench.when_cancelled = True, error
    bench.start()
    bench.passes(1)
    asked = len(bench.asked)
    with captured_logs() as events:
        bench.check.stop()
    assert events == []
    assert len(bench.asked) == asked == 2
    assert not bench.clock.getDelayedCalls()


@pytest.mark.parametrize(
    ("right", "shown"),
    [
        (Right("why", "list", "deployments", "apps", namespace="demo"), "list deployments.apps in namespace demo"),
        (Right("why", "get", "namespaces", name="kube-system"), "get namespaces kube-system"),
        (Right("why", "watch", "*", "apps"), "watch *.apps"),
        (Right("why", "get", path="/apis/*"), "get /apis/*"),
    ],
)
def test_a_right_is_named_with_its_object_and_its_namespace(right: Right, shown: str) -> None:
    assert rights_check.describe_right(right) == shown


class Role:
    """Whether this process leads."""

    leads = False

    def __init__(self) -> None:
        self.notify: Any = None

    def on_role(self, notify: Any) -> Any:
        self.notify = notify

    def lead(self, leads: bool) -> None:
        self.leads = leads
        self.notify()


def test_of_several_processes_the_leader_alone_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, role = Bench(monkeypatch, "east"), Role()
    bench.granted["east"] = {*ALL, REVIEWS}
    bench.check = cast(Any, rights_check.RightsCheckOfLeader(bench.clock, cast(Any, role)))
    role.lead(True)  # before its first configuration
    role.lead(False)
    bench.start()
    assert not bench.passes(60)
    assert not bench.asked
    role.lead(True)
    assert len(bench.passes(60)) == 1
    role.lead(False)
    bench.start()
    asked = len(bench.asked)
    assert not bench.passes(60)
    assert len(bench.asked) == asked
    role.lead(True)
    bench.check.stop()
    assert not bench.passes(60)
    assert len(bench.asked) == asked
