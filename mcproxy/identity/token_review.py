"""TokenReview to a cluster: its own tokens (service accounts, nodes) and whatever its own authenticators know."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.identity.asking import LiveCluster, ask_cluster
from mcproxy.identity.reviewer import Reviewer
from mcproxy.identity.token_review_body import GROUP
from mcproxy.identity.tokens import CacheTimes
from mcproxy.upstream.control import ControlResponse


def token_reviews(config: model.TokenReview, cluster: str, live: LiveCluster, clock: IReactorTime) -> Reviewer:
    """Return the judge that asks the cluster of this name."""
    return Reviewer(
        f"tokenReview by cluster {cluster}",
        _ClusterServer(live, clock),
        cluster=cluster,
        audiences=config.audiences,
        cache_times=CacheTimes(config.cache_success, config.cache_failure),
    )


class _ClusterServer:
    """Sends reviews to one cluster."""

    def __init__(self, live: LiveCluster, clock: IReactorTime) -> None:
        self._live = live
        self._clock = clock

    async def send(self, body: bytes) -> ControlResponse:
        return await ask_cluster(self._live(), GROUP, "tokenreviews", body, self._clock)

    def close(self) -> None:
        """The connections are the cluster's."""
