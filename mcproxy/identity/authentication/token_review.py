"""TokenReview by a cluster: its own tokens (service accounts, nodes) and those that its authenticators accept."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.identity.authentication.token_authenticator import CacheTimes
from mcproxy.identity.authentication.token_review_body import GROUP
from mcproxy.identity.authentication.token_reviewer import TokenReviewer
from mcproxy.identity.review_client import LiveCluster, create_review
from mcproxy.upstream.control import ControlResponse


def token_review_authenticator(
    config: model.TokenReview, cluster: str, live: LiveCluster, clock: IReactorTime
) -> TokenReviewer:
    """Return the authenticator that sends TokenReviews to the cluster of this name."""
    return TokenReviewer(
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
        return await create_review(self._live(), GROUP, "TokenReview", body, self._clock)

    def close(self) -> None:
        """The connections are the cluster's."""
