"""An authenticator that sends TokenReviews to a server: `token_review` to a cluster, `webhook` to another server."""

from __future__ import annotations

from typing import Protocol

from mcproxy.config.model import ReviewVersion
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, TokenResult, Unavailable
from mcproxy.identity.authentication.token_review_body import decode_review, encode_review
from mcproxy.identity.review_client import REJECTED
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError
from mcproxy.upstream.control import ControlResponse

_EFFECT = "clients whose tokens it alone could accept get 503"


class Server(Protocol):
    """The destination of the reviews."""

    async def send(self, body: bytes) -> ControlResponse:
        """POST a TokenReview; return a response of `SUCCESS` or `REJECTED` within 10 s, or raise `UnavailableError`."""

    def close(self) -> None:
        """End idle connections."""


class TokenReviewer:
    """The authenticator; `cluster` is the name of the cluster that reviews, "" for another server."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        cluster: str,
        audiences: tuple[str, ...],
        cache_times: CacheTimes,
        version: ReviewVersion = ReviewVersion.V1,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.cache_times = cache_times
        self._server = server
        self._audiences = audiences
        self._version = version
        self._log = ReviewerLog(name)

    def authenticate_nowait(self, token: bytes) -> TokenResult | None:
        return None

    async def authenticate(self, token: bytes) -> TokenResult:
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError:
            return Refused("the token is no text")
        try:
            result = await self._review(text)
        except UnavailableError as error:
            self._log.fails(error, _EFFECT)
            return Unavailable(error.cause)
        self._log.works()
        return result

    def start(self) -> None:
        """The first review opens a connection."""

    def stop(self, successors: object) -> None:
        self._server.close()

    async def _review(self, token: str) -> Accepted | Refused:
        response = await self._server.send(encode_review(token, self._audiences, self._version))
        if response.status in REJECTED:
            return Refused(f"the review was rejected with status {response.status}")
        return decode_review(response.body, token, self._audiences)
