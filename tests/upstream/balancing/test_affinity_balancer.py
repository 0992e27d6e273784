"""Which endpoint answered last: by user and collection, bounded, and asked only by a watch that goes on."""

from __future__ import annotations

import pytest

from mcproxy.kube.requestinfo import parse
from mcproxy.upstream.balancing.affinity_balancer import _MAX_COLLECTIONS, WatchAffinity
from tests.upstream.fakes import some_endpoints

PODS = b"/api/v1/namespaces/demo/pods"
WATCH = b"?watch=true&resourceVersion=12&timeoutSeconds=300"


def test_only_the_same_user_and_collection_have_a_preference() -> None:
    made = some_endpoints(2)
    served = WatchAffinity(made)
    served.record("ann", parse(b"GET", PODS), made[1])
    asked = {
        (user, path): served.preferred(user, parse(b"GET", path + WATCH), path + WATCH)
        for user in ("ann", "bob")
        for path in (PODS, b"/api/v1/pods", b"/api/v1/namespaces/demo/secrets", b"/apis/x/v1/namespaces/demo/pods")
    }
    assert {key: endpoint for key, endpoint in asked.items() if endpoint} == {("ann", PODS): made[1]}


@pytest.mark.parametrize(
    ("query", "goes_on"),
    [
        (b"?watch=1&resourceVersion=12", True),
        (b"?resourceVersion=12&watch=1", True),
        (b"?resourceVersion=012&watch=1", True),
        (b"?watch=1", False),
        (b"?watch=1&resourceVersion=0", False),
        (b"?watch=1&resourceVersion=", False),
        (b"?resourceVersion=&watch=1", False),
        (b"?resourceVersion=12", False),  # a list
    ],
)
def test_a_watch_from_a_version_goes_on_from_a_list(query: bytes, goes_on: bool) -> None:
    made = some_endpoints(1)
    served = WatchAffinity(made)
    served.record("ann", parse(b"GET", PODS), made[0])
    assert (served.preferred("ann", parse(b"GET", PODS + query), PODS + query) is not None) == goes_on


def test_what_is_used_least_is_forgotten_first() -> None:
    made = some_endpoints(1)
    served = WatchAffinity(made)
    info, watch = parse(b"GET", PODS), parse(b"GET", PODS + WATCH)
    for number in range(_MAX_COLLECTIONS):
        served.record(f"u{number}", info, made[0])
    assert served.preferred("u0", watch, PODS + WATCH) is made[0]
    served.record("one more", info, made[0])
    served.record("x" * 1000, info, made[0])  # too long a name to keep
    assert len(served) == _MAX_COLLECTIONS
    assert served.preferred("u1", watch, PODS + WATCH) is None
    assert served.preferred("u0", watch, PODS + WATCH) is made[0]
