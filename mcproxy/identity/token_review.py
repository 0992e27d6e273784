"""TokenReview to a cluster: its own tokens (service accounts, nodes) and whatever its own authenticators know.

The question goes over the cluster's control connections with the proxy's own credential, to a ready endpoint; where
one cannot be reached, the next is asked.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.identity.judge_log import Trouble
from mcproxy.identity.reviewer import Reviewer
from mcproxy.identity.token_review_body import HEADERS, MAX_ANSWER, PATH
from mcproxy.identity.tokens import CacheTimes
from mcproxy.net.errors import ConnectError
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint

_WITHIN = 10.0  # seconds for one review, over all endpoints
_EACH = 5.0  # seconds for one endpoint

LiveCluster = Callable[[], Cluster | None]
"""The cluster as it is now: a reload may replace it while a judge stays."""


def token_reviews(config: model.TokenReview, cluster: str, live: LiveCluster, clock: IReactorTime) -> Reviewer:
    """Return the judge that asks the cluster of this name."""
    return Reviewer(
        f"tokenReview by cluster {cluster}",
        _ClusterServer(cluster, live, clock),
        cluster=cluster,
        audiences=config.audiences,
        cache_times=CacheTimes(config.cache_success, config.cache_failure),
    )


class _ClusterServer:
    """Sends reviews to one cluster."""

    def __init__(self, name: str, live: LiveCluster, clock: IReactorTime) -> None:
        self._name = name
        self._live = live
        self._clock = clock

    async def send(self, body: bytes) -> ControlResponse:
        cluster = self._live()
        if cluster is None:
            raise Trouble("gone", f"there is no cluster {self._name} any more", "name a cluster that is in the file")
        deadline = self._clock.seconds() + _WITHIN
        trouble: Trouble | None = None
        tried: list[Endpoint] = []
        while (endpoint := cluster.pick(tried)) is not None:
            left = deadline - self._clock.seconds()
            if left <= 0:
                break
            tried.append(endpoint)
            try:
                return await _ask(cluster, endpoint, body, min(left, _EACH))
            except Trouble as next_one:
                trouble = next_one
        raise trouble or Trouble(
            "endpoints", cluster.unavailable_message(), "see that the cluster's API server runs and can be reached"
        )

    def refusal(self, status: int) -> Trouble:
        if status == 401:
            return Trouble(
                "401",
                "the cluster does not know the proxy's own credential (401)",
                f"give cluster {self._name} valid credentials",
            )
        if status == 403:
            return Trouble(
                "403",
                "the cluster does not let the proxy create tokenreviews (403)",
                "grant it create on tokenreviews of authentication.k8s.io, as `mcproxy rbac` prints it",
            )
        return Trouble("status", f"the cluster answered {status}", "see the log of the cluster's API server")

    def close(self) -> None:
        """The connections are the cluster's."""


async def _ask(cluster: Cluster, endpoint: Endpoint, body: bytes, timeout: float) -> ControlResponse:
    todo = "see that the cluster's API server runs and can be reached"
    try:
        response = await cluster.control.request(
            endpoint, "POST", PATH, headers=HEADERS, body=body, timeout=timeout, max_body=MAX_ANSWER
        )
    except CredentialError as error:
        raise Trouble("credential", error.cause, f"give cluster {cluster.name} a credential") from None
    except ConnectError as error:
        endpoint.doubt()
        raise Trouble("connection", error.cause, todo) from None
    except ControlError as error:
        raise Trouble("connection", error.cause, todo) from None
    if response.status >= 500 or response.status == 429:
        raise Trouble("status", f"{endpoint.name} answered {response.status}", todo)
    return response
