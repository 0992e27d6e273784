"""What metrics count of requests over the wire: the same whether they are in the access log or not."""

from __future__ import annotations

from dataclasses import replace

from mcproxy.config import model
from mcproxy.observe.metrics import families
from tests.proxy.harness import OK, Harness, always, cluster, config
from tests.proxy.test_policies import USERS, answered, ready, rest, server

POD = b"/api/v1/namespaces/demo/pods/x"
TOKEN = b"Authorization: Bearer alice"


async def counted(harness: Harness) -> dict[str, dict[tuple[str, ...], float]]:
    """Send requests, and return the counters that they have increased; of histograms the counts."""
    harness.service.metrics.take()
    await answered(harness, POD, TOKEN)
    await answered(harness, POD, TOKEN, method=b"OPTIONS")
    await answered(harness, b"/version", TOKEN)
    await answered(harness, POD)
    await answered(harness, POD, b"Authorization: Bearer mallory")
    taken = harness.service.metrics.take()
    return {
        family.name: {
            labels: sum(numbers[:-1]) if family.kind == "histogram" else numbers[0]
            for labels, numbers in zip(*[iter(taken[family.name])] * 2, strict=True)
        }
        for family in families.COUNTED
        if family.name in taken and "server" in family.labels and "bytes" not in family.name
    }


async def test_requests_count_the_same_with_and_without_an_access_log(harness: Harness) -> None:
    upstream = harness.upstream()
    upstream.reply = always(OK)
    served = server(rest(), authentication="users")
    given = config([cluster(upstream.endpoint("a"))], [served], authentication=(USERS,))
    await harness.serve(given)
    await ready(harness)
    found = await counted(harness)
    assert found["mcproxy_requests_total"] == {
        ("east", "east", "get", "pods", "200"): 1,
        ("east", "east", "options", "pods", "200"): 1,
        ("east", "east", "get", "", "200"): 1,
        ("east", "east", "get", "", "401"): 2,  # before the path is looked at
    }
    assert found["mcproxy_authentication_total"] == {
        ("east", "tokenFile", "accepted"): 3,
        ("east", "none", "refused"): 1,
        ("east", "token", "refused"): 1,
    }
    assert found["mcproxy_dispatch_policy_hits_total"] == {("east", "rest"): 3}
    assert found["mcproxy_own_duration_seconds"] == {("east",): 5}
    await harness.service.apply(replace(given, logging=model.Logging(access=model.AccessLogConfig())))
    assert await counted(harness) == found
    assert len(harness.logs[0].records) == 5
