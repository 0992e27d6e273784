"""The client of review APIs (TokenReview, SubjectAccessReview): creates a review in a cluster.

It uses the proxy's own credential and the cluster's control connections. After an unreachable or failing (429, 5xx)
endpoint, the next endpoint is tried. A 401 or 403 to the proxy is final, since it applies to all endpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from mcproxy.config.model import ReviewVersion
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.net.causes import code_of_status
from mcproxy.net.connect_errors import ConnectError
from mcproxy.observe.metrics.families import REVIEW_DURATION, REVIEWS
from mcproxy.observe.metrics.metrics import Metrics
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.remedies import remedy

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint

HEADERS = (("content-type", "application/json"), ("accept", "application/json"))
MAX_ANSWER = 1024 * 1024  # maximum bytes; a response repeats the request
TIMEOUT = 10.0  # seconds for one review, over all endpoints
_ENDPOINT_TIMEOUT = 5.0  # seconds for one endpoint
_AT_ONCE = 1.0  # a review whose connection is lost within so many seconds is sent again, since it changes nothing

SUCCESS = (200, 201)
REJECTED = (
    400,
    413,
    422,
)  # the review itself is invalid; a client that causes it must not make the reviewer count as unavailable

_TODO = "see that the cluster's API server runs and can be reached"

LiveCluster = Callable[[], "Cluster"]
"""Returns the cluster in force: a reload can replace it while an authenticator or authorizer stays."""


async def create_review(
    cluster: Cluster,
    group: str,
    kind: str,
    body: bytes,
    clock: IReactorTime,
    version: ReviewVersion = ReviewVersion.V1,
) -> ControlResponse:
    """POST `body`, a review of this kind in the API `group` and `version`.

    Returns, within 10 s, a response whose status is in `SUCCESS` or `REJECTED`; raises `UnavailableError` otherwise.
    """
    sending = _create(cluster, group, version, f"{kind.lower()}s", body, clock)
    return await counted(sending, cluster.metrics, clock, kind, cluster.name)


async def counted(
    sending: Coroutine[Deferred[Any], Any, ControlResponse],
    metrics: Metrics,
    clock: IReactorTime,
    kind: str,
    reviewer: str,
) -> ControlResponse:
    """Await the answer to a review, and count it; `reviewer` is the cluster, or "webhook"."""
    begun = clock.seconds()
    result = "failed"
    try:
        response = await sending
        result = "answered"
    finally:
        metrics.counts.increase(REVIEWS, (kind, reviewer, result))
        metrics.counts.observe(REVIEW_DURATION, (kind, reviewer), clock.seconds() - begun)
    return response


async def _create(
    cluster: Cluster, group: str, version: ReviewVersion, resource: str, body: bytes, clock: IReactorTime
) -> ControlResponse:
    path = f"/apis/{group}/{version}/{resource}"
    deadline = clock.seconds() + TIMEOUT
    failure: UnavailableError | None = None
    tried: list[Endpoint] = []
    broken: Endpoint | None = None  # the endpoint that closed an idle connection just when the review arrived
    while True:
        endpoint = cluster.pick(tried)
        again = endpoint is None
        if endpoint is None:
            if broken is None:
                break
            endpoint, broken = broken, None
        begun = clock.seconds()
        left = deadline - begun
        if left <= 0:
            break
        tried.append(endpoint)
        try:
            response = await _post(cluster, endpoint, path, body, min(left, _ENDPOINT_TIMEOUT))
        except CredentialError as error:
            todo = f"give cluster {cluster.name} a usable credential"
            raise UnavailableError("credential", error.cause, todo) from None
        except UnavailableError as error:
            failure = error
            if error.kind == "no answer" and not again and clock.seconds() - begun < _AT_ONCE:
                broken = endpoint
            continue
        if response.status not in SUCCESS + REJECTED:
            raise _refused(response.status, cluster, group, resource)
        return response
    raise failure or UnavailableError("endpoints", cluster.unavailable_message(), _TODO)


async def _post(cluster: Cluster, endpoint: Endpoint, path: str, body: bytes, timeout: float) -> ControlResponse:
    """Send the review to one endpoint; raises CredentialError, and `UnavailableError` if another should be tried."""
    try:
        response = await cluster.control.request(
            endpoint, "POST", path, headers=HEADERS, body=body, timeout=timeout, max_body=MAX_ANSWER
        )
    except ConnectError as error:
        endpoint.request_check()
        raise UnavailableError("connection", error.cause, remedy(error.cause, endpoint.keys)) from None
    except ControlError as error:  # not "connection": the cause can be a client that overloads the API server
        raise UnavailableError("no answer", error.cause, remedy(error.cause, endpoint.keys)) from None
    if response.status >= 500 or response.status == 429:
        todo = remedy(code_of_status(response.status), endpoint.keys)
        raise UnavailableError("status", f"{endpoint.name} answered {response.status}", todo)
    return response


def _refused(status: int, cluster: Cluster, group: str, resource: str) -> UnavailableError:
    if status == 401:
        return UnavailableError(
            "401",
            "the cluster does not accept the proxy's own credential (401)",
            f"give cluster {cluster.name} valid credentials",
        )
    if status == 403:
        return UnavailableError(
            "403",
            f"the cluster does not let the proxy create {resource} of {group} (403)",
            "grant it what `mcproxy rbac` prints",
        )
    if status == 404:
        return UnavailableError(
            "404",
            f"the cluster does not serve {resource} of {group} (404)",
            f"if cluster {cluster.name} is an API server that extends another cluster's API, write identity: "
            "RequestHeader there, and users are judged by that cluster; else see what answers there",
        )
    return UnavailableError("status", f"the cluster answered {status}", "see the log of the cluster's API server")
