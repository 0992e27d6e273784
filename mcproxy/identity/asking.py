"""Asking for a review (TokenReview, SubjectAccessReview): its form, and how a cluster is asked for one.

A cluster is asked in the proxy's own name, over its control connections. An endpoint that cannot be reached or is not
well does not speak for its cluster, so the next one is asked; what any of them says of the proxy itself holds for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from mcproxy.identity.judge_log import Trouble
from mcproxy.net.errors import ConnectError
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint

HEADERS = (("content-type", "application/json"), ("accept", "application/json"))
MAX_ANSWER = 1024 * 1024  # bytes; it repeats the question
WITHIN = 10.0  # seconds for one review, over all endpoints
_EACH = 5.0  # seconds for one endpoint

GOOD = (200, 201)
ABOUT_THE_QUESTION = (400, 413, 422)  # no client may make a reviewer count as down

_TODO = "see that the cluster's API server runs and can be reached"

LiveCluster = Callable[[], "Cluster"]
"""The cluster as it is now: a reload may replace it while a judge stays."""


async def ask_cluster(cluster: Cluster, group: str, resource: str, body: bytes, clock: IReactorTime) -> ControlResponse:
    """Create a review, `resource` of the API `group` in v1; `body` is the question.

    Within 10 s it returns an answer that is `GOOD` or `ABOUT_THE_QUESTION`, or raises `Trouble`.
    """
    path = f"/apis/{group}/v1/{resource}"
    deadline = clock.seconds() + WITHIN
    trouble: Trouble | None = None
    tried: list[Endpoint] = []
    while (endpoint := cluster.pick(tried)) is not None:
        left = deadline - clock.seconds()
        if left <= 0:
            break
        tried.append(endpoint)
        try:
            response = await _ask(cluster, endpoint, path, body, min(left, _EACH))
        except CredentialError as error:
            raise Trouble("credential", error.cause, f"give cluster {cluster.name} a usable credential") from None
        except Trouble as next_one:
            trouble = next_one
            continue
        if response.status not in GOOD + ABOUT_THE_QUESTION:
            raise _refusal(response.status, cluster, group, resource)
        return response
    raise trouble or Trouble("endpoints", cluster.unavailable_message(), _TODO)


async def _ask(cluster: Cluster, endpoint: Endpoint, path: str, body: bytes, timeout: float) -> ControlResponse:
    """Ask one endpoint; raises CredentialError, and `Trouble` where another one may do better."""
    try:
        response = await cluster.control.request(
            endpoint, "POST", path, headers=HEADERS, body=body, timeout=timeout, max_body=MAX_ANSWER
        )
    except ConnectError as error:
        endpoint.request_check()
        raise Trouble("connection", error.cause, _TODO) from None
    except ControlError as error:
        raise Trouble("connection", error.cause, _TODO) from None
    if response.status >= 500 or response.status == 429:
        raise Trouble("status", f"{endpoint.name} answered {response.status}", _TODO)
    return response


def _refusal(status: int, cluster: Cluster, group: str, resource: str) -> Trouble:
    if status == 401:
        return Trouble(
            "401",
            "the cluster does not know the proxy's own credential (401)",
            f"give cluster {cluster.name} valid credentials",
        )
    if status == 403:
        return Trouble(
            "403",
            f"the cluster does not let the proxy create {resource} of {group} (403)",
            "grant it what `mcproxy rbac` prints",
        )
    return Trouble("status", f"the cluster answered {status}", "see the log of the cluster's API server")
