"""What is known of all registrations: who is told, what stays over a reload."""

from __future__ import annotations

from mcproxy.apiservices.availability import Availability, Condition, Registration, Verdict, failure
from mcproxy.config import model

A, B = Registration("a.io", "v1", "one"), Registration("b.io", "v1", "one")


def use(known: Availability, *registrations: Registration) -> None:
    services = [
        model.APIService(group=each.group, version=each.version, cluster=each.cluster) for each in registrations
    ]
    known.use({"web": services})


PASSED = Verdict("True", "Passed", "all checks passed")


def test_nothing_is_refused_before_anything_is_known() -> None:
    known = Availability(lambda: 7.0)
    assert known.refuses(A) is None
    assert known.get(A).status == "Unknown"


def test_subscribers_are_told_of_each_change_and_of_nothing_else() -> None:
    now = [1.0]
    known = Availability(lambda: now[0])
    told: list[tuple[Registration, Condition]] = []
    unsubscribe = known.subscribe(lambda *change: told.append(change))
    known.take(A, PASSED)
    now[0] = 2.0
    known.take(A, PASSED)
    known.take(A, failure("one/a", "refused"))
    assert [(each, condition.status, condition.since) for each, condition in told] == [
        (A, "True", 1.0),
        (A, "False", 2.0),
    ]
    assert known.refuses(A) == told[-1][1]
    unsubscribe()
    known.take(A, PASSED)
    assert len(told) == 2


def test_what_stays_keeps_its_condition() -> None:
    known = Availability(lambda: 1.0)
    use(known, A)
    known.take(A, failure("one/a", "refused"))
    use(known, B, A)
    assert [(each, condition.status) for each, condition in known.all()] == [(B, "Unknown"), (A, "False")]
    use(known, B)
    assert known.refuses(A) is None


def test_a_configuration_tells_which_server_has_which() -> None:
    known = Availability(lambda: 1.0)
    told: list[int] = []
    unsubscribe = known.on_configured(lambda: told.append(len(known.services("web"))))
    use(known, A, B)
    assert [each.group for each in known.services("web")] == ["a.io", "b.io"]
    assert known.services("other") == ()
    unsubscribe()
    use(known)
    assert told == [2]


def test_since_when_a_server_has_the_api_services_that_it_has() -> None:
    now = [1.0]
    known = Availability(lambda: now[0])
    begun = []
    for registrations in ((A,), (A,), (A, B), (B, A), (B,), ()):
        use(known, *registrations)
        begun.append(known.begun("web"))
        now[0] += 1.0
    assert begun == [1.0, 1.0, 3.0, 3.0, 5.0, 6.0]
    assert known.begun("other") == 0.0
