"""A judge that asks a server by TokenReview: `token_review` asks a cluster, `webhook` a server that is none."""

from __future__ import annotations

from typing import Protocol

from mcproxy.identity.asking import ABOUT_THE_QUESTION
from mcproxy.identity.judge_log import JudgeLog, Trouble
from mcproxy.identity.token_review_body import answer, question
from mcproxy.identity.tokens import Accepted, CacheTimes, Refused, TokenResult, Unavailable
from mcproxy.upstream.control import ControlResponse

_EFFECT = "clients whose tokens it alone could judge get 503"


class Server(Protocol):
    """Where the questions go."""

    async def send(self, body: bytes) -> ControlResponse:
        """POST a TokenReview; within 10 s it returns an answer of a status that `asking` lists, or raises `Trouble`."""

    def close(self) -> None:
        """End idle connections."""


class Reviewer:
    """The judge; `cluster` is the name of the cluster that is asked, "" for another server."""

    def __init__(
        self,
        name: str,
        server: Server,
        *,
        cluster: str,
        audiences: tuple[str, ...],
        cache_times: CacheTimes,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.cache_times = cache_times
        self._server = server
        self._audiences = audiences
        self._log = JudgeLog(name)

    def known(self, token: bytes) -> TokenResult | None:
        return None

    async def judge(self, token: bytes) -> TokenResult:
        try:
            text = token.decode("utf-8")
        except UnicodeDecodeError:
            return Refused("the token is no text")
        try:
            result = await self._review(text)
        except Trouble as trouble:
            self._log.fails(trouble, _EFFECT)
            return Unavailable(trouble.cause)
        self._log.works()
        return result

    def close(self) -> None:
        self._server.close()

    async def _review(self, token: str) -> Accepted | Refused:
        response = await self._server.send(question(token, self._audiences))
        if response.status in ABOUT_THE_QUESTION:
            return Refused(f"the question was answered with status {response.status}")
        return answer(response.body, token, self._audiences)
