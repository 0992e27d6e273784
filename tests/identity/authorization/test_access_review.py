"""SubjectAccessReviews: what is asked, what is believed, how long it is remembered, and what happens without answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred

from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, SubjectAccessReviewer
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.net.connect_errors import ConnectionRefused
from mcproxy.observe.metrics.families import CACHE_LOOKUPS
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.requests.coroutines import known, settled
from mcproxy.upstream.control import ControlResponse
from mcproxy.upstream.credentials import CredentialError
from tests.identity.conftest import Logged
from tests.identity.fake_review_cluster import Endpoint
from tests.support.clock import Clock

GOLDEN = Path(__file__).parents[2] / "golden" / "auth"
ALICE = UserInfo("alice", ("dev", "system:authenticated"))
LIST_PODS = Attributes("list", resource="pods", namespace="demo")


def recorded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return content


def answer(allowed: bool = True, **status: Any) -> ControlResponse:
    body = {"kind": "SubjectAccessReview", "status": {"allowed": allowed, **status}}
    return ControlResponse(201, (), json.dumps(body).encode())


class FakeCluster:
    """Keeps every question; the test answers them, or `now` does at once."""

    def __init__(self) -> None:
        self.name = "east"
        self.metrics = Metrics()
        self.endpoint = Endpoint("a")
        self.control = self
        self.asked: list[dict[str, Any]] = []
        self.running: list[Deferred[ControlResponse]] = []
        self.now: Any = None
        self.cancelled = 0
        self.version = "v1"

    def pick(self, exclude: Any = ()) -> Endpoint | None:
        return None if exclude else self.endpoint

    def _cancel(self, _: Any) -> None:
        self.cancelled += 1

    async def request(self, endpoint: Endpoint, method: str, path: str, **more: Any) -> ControlResponse:
        assert (method, path) == ("POST", f"/apis/authorization.k8s.io/{self.version}/subjectaccessreviews")
        self.asked.append(json.loads(more["body"]))
        if isinstance(self.now, Exception):
            raise self.now
        if self.now is not None:
            return cast(ControlResponse, self.now)
        running: Deferred[ControlResponse] = Deferred(self._cancel)
        self.running.append(running)
        return await running


class Bench:
    """Reviews by a fake cluster, with what they logged."""

    def __init__(self, *, allowed: float = 300.0, denied: float = 30.0, version: str = "v1") -> None:
        self.clock = Clock()
        self.cluster = FakeCluster()
        self.cluster.version = version
        settings = model.SubjectAccessReview(
            version=model.ReviewVersion(version), cache_allowed=allowed, cache_denied=denied
        )
        self.reviews = SubjectAccessReviewer(lambda: cast(Any, self.cluster), settings, cast(Any, self.clock))

    def ask(self, user: UserInfo = ALICE, attributes: Attributes = LIST_PODS) -> list[Any]:
        """Ask; the list gets the decision or the error when there is one."""
        result: list[Any] = []
        self.last = Deferred.fromCoroutine(settled(self.reviews.decide(user, attributes)))
        self.last.addCallbacks(result.append, lambda failure: result.append(failure.value))
        return result


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize(
    ("name", "user", "attributes"),
    [
        ("sar-allowed", ALICE, LIST_PODS),
        ("sar-denied", UserInfo("alice", ("dev",)), Attributes("delete", resource="pods", namespace="demo")),
        (
            "sar-as-mcproxy",
            UserInfo("bob", ("x",), "u1", (("scopes", ("a", "b")),)),
            Attributes("get", version="v1", resource="secrets", namespace="demo", name="x"),
        ),
        (
            "sar-nonresource",
            UserInfo("alice", ("system:authenticated",)),
            Attributes("get", path="/healthz", is_resource=False),
        ),
        ("sar-subresource", UserInfo("alice"), Attributes("get", resource="pods", subresource="log", namespace="demo")),
    ],
)
def test_questions_and_answers_are_those_of_a_cluster(
    bench: Bench, name: str, user: UserInfo, attributes: Attributes
) -> None:
    recording = recorded(name)
    sent = recording["request"]["body"]
    expected = json.loads(sent) if isinstance(sent, str) else sent
    bench.cluster.now = ControlResponse(recording["response"]["status"], (), recording["response"]["body"].encode())
    result = bench.ask(user, attributes)
    asked = bench.cluster.asked[0]
    if name == "sar-as-mcproxy":
        del expected["spec"]["resourceAttributes"]["group"]  # an empty string there, which says the same
    assert asked == expected
    status = json.loads(recording["response"]["body"])["status"]
    assert result == [Decision(status["allowed"], "")]


def test_v1beta1_is_asked_in_its_own_words() -> None:
    bench = Bench(version="v1beta1")
    user = UserInfo("bob", ("x", "y"), "u1", (("scopes", ("a",)),))
    bench.ask(user)
    assert bench.cluster.asked == [
        {
            "apiVersion": "authorization.k8s.io/v1beta1",
            "kind": "SubjectAccessReview",
            "spec": {
                "resourceAttributes": {"namespace": "demo", "verb": "list", "resource": "pods"},
                "user": "bob",
                "group": ["x", "y"],
                "extra": {"scopes": ["a"]},
                "uid": "u1",
            },
        }
    ]


@pytest.mark.parametrize("asked", ["v1", "v1beta1"])
@pytest.mark.parametrize("answered", ["v1", "v1beta1"])
@pytest.mark.parametrize("allowed", [True, False])
def test_both_versions_are_taken_in_answers(asked: str, answered: str, allowed: bool) -> None:
    bench = Bench(version=asked)
    body = {**json.loads(answer(allowed).body), "apiVersion": f"authorization.k8s.io/{answered}"}
    bench.cluster.now = ControlResponse(201, (), json.dumps(body).encode())
    assert bench.ask() == [Decision(allowed)]


def test_selectors_are_passed_on_raw(bench: Bench) -> None:
    bench.ask(attributes=LIST_PODS._replace(field_selector="spec.nodeName=n", label_selector="a in (b)"))
    asked = bench.cluster.asked[0]["spec"]["resourceAttributes"]
    assert asked["fieldSelector"] == {"rawSelector": "spec.nodeName=n"}
    assert asked["labelSelector"] == {"rawSelector": "a in (b)"}


def test_a_refusals_reason_is_kept_and_cut(bench: Bench) -> None:
    bench.cluster.now = answer(False, reason="no " * 1000)
    assert len(bench.ask()[0].reason) == 1000


def test_denied_beats_allowed(bench: Bench) -> None:
    bench.cluster.now = answer(True, denied=True)
    assert bench.ask() == [Decision(False, "")]


@pytest.mark.parametrize(("allowed", "seconds"), [(True, 300.0), (False, 30.0)])
def test_what_was_said_is_known_for_its_own_time(bench: Bench, allowed: bool, seconds: float) -> None:
    bench.cluster.now = answer(allowed)
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is None
    bench.ask()
    bench.clock.advance(seconds - 0.1)
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) == Decision(allowed)
    assert known(bench.reviews.decide(UserInfo("alice"), LIST_PODS)) is None
    assert known(bench.reviews.decide(ALICE, LIST_PODS._replace(name="x"))) is None
    bench.clock.advance(0.2)
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is None


def test_a_time_of_zero_remembers_nothing() -> None:
    bench = Bench(allowed=0.0)
    bench.cluster.now = answer()
    bench.ask()
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is None


def test_one_question_is_asked_once_however_many_wait(bench: Bench) -> None:
    results = [bench.ask() for _ in range(5)]
    assert len(bench.cluster.asked) == 1
    bench.cluster.running[0].callback(answer())
    assert results == [[Decision(True)]] * 5
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) == Decision(True)
    lookups = bench.cluster.metrics.counts.of(CACHE_LOOKUPS)
    assert lookups == {("decisions", "hit"): [1], ("decisions", "miss"): [5]}
    assert bench.reviews.load.places == 64
    bench.ask(attributes=LIST_PODS._replace(verb="watch"))
    assert len(bench.cluster.asked) == 2


def test_cancelling_one_waiter_leaves_the_others_their_answer(bench: Bench) -> None:
    bench.ask()
    first = bench.last
    second = bench.ask()
    first.cancel()
    bench.last.addErrback(lambda _: None)
    assert bench.cluster.cancelled == 0
    bench.cluster.running[0].callback(answer())
    assert second == [Decision(True)]


def test_an_answer_without_waiters_is_cached(bench: Bench) -> None:
    bench.ask()
    bench.last.cancel()
    bench.cluster.running[0].callback(answer())
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) == Decision(True)


def test_a_cluster_is_asked_so_much_at_once_and_no_more(bench: Bench) -> None:
    results = [bench.ask(attributes=LIST_PODS._replace(name=str(number))) for number in range(100)]
    assert len(bench.cluster.asked) == 64
    bench.cluster.running[0].callback(answer())
    assert len(bench.cluster.asked) == 65
    bench.last.cancel()
    for running in bench.cluster.running[1:]:
        running.callback(answer())
    while len(bench.cluster.running) > sum(running.called for running in bench.cluster.running):
        for running in bench.cluster.running:
            if not running.called:
                running.callback(answer())
    assert len(bench.cluster.asked) == 99  # the last one left before its turn came
    assert all(result == [Decision(True)] for result in results[:99])


def error_of(result: list[Any]) -> StatusError:
    assert isinstance(result[0], StatusError)
    return result[0]


def test_without_an_answer_it_is_503_and_one_line_for_all(bench: Bench, logged: Logged) -> None:
    for seconds in range(3):  # a cause whose words change counts as the same
        bench.cluster.now = ConnectionRefused(f"connection refused, out for {seconds} s")
        assert error_of(bench.ask(attributes=LIST_PODS._replace(name=str(seconds)))).code == 503
    (line,) = logged
    assert (line["log_level"].name, line["cause"]) == ("warn", "connection refused, out for 0 s")
    assert "event=reviewer_out" in logged.texts("warn")[0]
    assert 'reviewer="subjectAccessReview by cluster east"' in logged.texts("warn")[0]
    bench.cluster.now = answer()
    bench.ask()
    assert [(line["event"], line["reviewer"]) for line in logged[1:]] == [
        ("reviewer_ready", "subjectAccessReview by cluster east")
    ]
    bench.cluster.now = ConnectionRefused("connection refused")
    bench.ask(attributes=LIST_PODS._replace(name="y"))
    assert len(logged) == 3


def test_the_log_line_names_the_missing_right_and_the_response_does_not(bench: Bench, logged: Logged) -> None:
    bench.cluster.now = ControlResponse(403, (), recorded("sar-as-alice-forbidden")["response"]["body"].encode())
    error = error_of(bench.ask())
    assert error.code == 503
    assert "subjectaccessreviews" not in error.message
    assert "create subjectaccessreviews of authorization.k8s.io" in logged[0]["cause"]
    assert "mcproxy rbac" in logged[0]["todo"]


@pytest.mark.parametrize(
    "trouble",
    [
        ControlResponse(401, (), b""),
        ControlResponse(503, (), b""),
        CredentialError("the plugin failed"),
        ControlResponse(201, (), b"{"),
        ControlResponse(201, (), b"[" * 100_000),
        ControlResponse(201, (), b"[]"),
        ControlResponse(201, (), b'{"kind":"SubjectAccessReview"}'),
        ControlResponse(201, (), b'{"kind":"SubjectAccessReview","status":{}}'),
        ControlResponse(201, (), b'{"kind":"SubjectAccessReview","status":{"allowed":"true"}}'),
        ControlResponse(201, (), b'{"kind":"SubjectAccessReview","status":{"allowed":1}}'),
        ControlResponse(201, (), b'{"kind":"SubjectAccessReview","status":{"allowed":true,"denied":"false"}}'),
        ControlResponse(201, (), b'{"kind":"SubjectAccessReview","status":{"allowed":true,"reason":{}}}'),
        ControlResponse(201, (), b'{"kind":"Status","status":{"allowed":true}}'),
        ControlResponse(302, (), b""),
        ControlResponse(400, (), answer().body),
        ControlResponse(201, (), b'{"kind": "SubjectAccessReview", "status": {"allowed": false, "reason": "\\ud800"}}'),
    ],
)
def test_what_is_no_answer_allows_nothing(bench: Bench, logged: Logged, trouble: Any) -> None:
    bench.cluster.now = trouble
    assert error_of(bench.ask()).code == 503
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is None
    assert len(logged) == 1


def test_a_silent_reviewer_is_a_timeout(bench: Bench) -> None:
    result = bench.ask()
    bench.clock.advance(10.0)
    assert error_of(result).code == 503
    assert bench.cluster.cancelled == 1
    assert not bench.clock.getDelayedCalls()


def test_decisions_of_a_cluster_that_a_reload_replaced_are_forgotten(bench: Bench) -> None:
    bench.cluster.now = answer()
    bench.ask()
    bench.cluster = FakeCluster()
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is None
    bench.cluster.now = answer(False)
    assert bench.ask() == [Decision(False)]


def test_an_answer_of_a_cluster_that_was_replaced_meanwhile_is_not_kept(bench: Bench) -> None:
    result = bench.ask()
    before, bench.cluster = bench.cluster, FakeCluster()
    before.running[0].callback(answer())
    assert result == [Decision(True)]  # to the request that began before
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is None


def test_requests_after_a_reload_do_not_get_the_answer_of_the_cluster_before(bench: Bench) -> None:
    before, after = bench.cluster, FakeCluster()
    first = bench.ask()
    bench.cluster = after
    second = bench.ask()
    before.running[0].callback(answer(True))
    assert (first, second) == ([Decision(True)], [])
    after.running[0].callback(answer(False))
    assert second == [Decision(False)]


def test_the_decisions_asked_for_longest_ago_go_first(bench: Bench) -> None:
    bench.cluster.now = answer()
    bench.ask()
    for number in range(8192):
        if number % 1000 == 0:
            assert known(bench.reviews.decide(ALICE, LIST_PODS)) is not None
        bench.ask(attributes=LIST_PODS._replace(name=str(number)))
    assert len(bench.reviews._decisions) == 8192
    assert known(bench.reviews.decide(ALICE, LIST_PODS)) is not None
    assert known(bench.reviews.decide(ALICE, LIST_PODS._replace(name="0"))) is None


def test_long_questions_are_not_kept(bench: Bench) -> None:
    bench.cluster.now = answer()
    long = LIST_PODS._replace(label_selector="a" * 2000)
    bench.ask(attributes=long)
    assert known(bench.reviews.decide(ALICE, long)) is None


def test_where_the_cluster_knows_only_the_proxy_its_own_rights_are_asked_for_once() -> None:
    clock, cluster = Clock(), FakeCluster()
    asked: list[tuple[str, dict[str, Any]]] = []

    async def request(endpoint: Endpoint, method: str, path: str, **more: Any) -> ControlResponse:
        asked.append((path, json.loads(more["body"])))
        body = {"kind": "SelfSubjectAccessReview", "status": {"allowed": True}}
        return ControlResponse(201, (), json.dumps(body).encode())

    cluster.request = request  # type: ignore[method-assign]
    reviewer = SubjectAccessReviewer(
        lambda: cast(Any, cluster), model.SubjectAccessReview(), cast(Any, clock), of_the_proxy=True
    )
    decisions: list[Decision] = []
    Deferred.fromCoroutine(settled(reviewer.decide(ALICE, LIST_PODS))).addCallback(decisions.append)
    assert decisions == [Decision(True)]
    assert known(reviewer.decide(UserInfo("bob"), LIST_PODS)) == Decision(True)
    [(path, body)] = asked
    assert path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert body["kind"] == "SelfSubjectAccessReview"
    assert set(body["spec"]) == {"resourceAttributes"}
