"""The authenticator by TokenReview, which sends reviews to a cluster or to a webhook server.

A cluster knows its own tokens (service accounts, nodes) and the tokens that its authenticators accept. The webhook is
that of apiserver's --authentication-token-webhook-config-file; reviews are sent to the URL in its kubeconfig, with an
unchanged path. Source: k8s.io/apiserver `plugin/pkg/authenticator/token/webhook`.
"""

from __future__ import annotations

import json
from typing import Any, Protocol

from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.config.model import ReviewVersion
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused, TokenResult, Unavailable
from mcproxy.identity.review_client import (
    HEADERS,
    MAX_ANSWER,
    REJECTED,
    SUCCESS,
    TIMEOUT,
    LiveCluster,
    counted,
    create_review,
)
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError, shown
from mcproxy.identity.strict_json import json_object, strings
from mcproxy.kube.user import Extra, UserInfo
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.external_server import ExternalServer
from mcproxy.upstream.remedies import of_kubeconfig, remedy
from mcproxy.upstream.upstream_context import UpstreamContext

GROUP = "authentication.k8s.io"
_API_VERSIONS = tuple(f"{GROUP}/{version}" for version in ReviewVersion)
_LONGEST_REASON = 200  # maximum characters of a server's reason that are shown
_SECRET_PART = 8  # consecutive characters of a token that must not be shown
_NO_REVIEW = (
    "see what answers there: it must speak TokenReview of authentication.k8s.io in the `version` that it is asked in"
)


def encode_review(token: str, audiences: tuple[str, ...], version: ReviewVersion = ReviewVersion.V1) -> bytes:
    """Return the body of a review of `token`; without audiences, the server's own audiences apply."""
    spec: dict[str, Any] = {"token": token}
    if audiences:
        spec["audiences"] = audiences
    review = {"apiVersion": f"{GROUP}/{version}", "kind": "TokenReview", "spec": spec}
    return json.dumps(review, separators=(",", ":")).encode()


def decode_review(body: bytes, token: str, audiences: tuple[str, ...]) -> Accepted | Refused:
    """Parse the body of a successful response; raises `UnavailableError` if it is not a known TokenReview version."""
    try:
        review = json_object(body)
        if review.get("kind") != "TokenReview" or review.get("apiVersion") not in _API_VERSIONS:
            raise ValueError("is no TokenReview of authentication.k8s.io/v1 or v1beta1")
        return _status(_part(review, "status"), token, audiences)
    except ValueError as error:
        raise UnavailableError("answer", f"its answer {error}", _NO_REVIEW) from None


def _status(status: dict[str, Any], token: str, audiences: tuple[str, ...]) -> Accepted | Refused:
    good = status.get("authenticated", False)
    if not isinstance(good, bool):
        raise ValueError("says neither yes nor no")
    if not good:
        return Refused(_why(status.get("error"), token))
    if audiences and not set(audiences).intersection(strings(status.get("audiences"))):
        return Refused("the token is for other audiences")
    return Accepted(_user(_part(status, "user")))


def _user(user: dict[str, Any]) -> UserInfo:
    name, uid = user.get("username"), user.get("uid", "")
    if not isinstance(name, str) or not name:
        raise ValueError("has no user name")
    if not isinstance(uid, str):
        raise ValueError("has a uid that is no string")
    return UserInfo(name, strings(user.get("groups")), uid, _extra(_part(user, "extra")))


def _extra(extra: dict[str, Any]) -> Extra:
    """Return the extra with keys in lower case, as in impersonation headers; equal keys are merged."""
    values: dict[str, tuple[str, ...]] = {}
    for key, value in extra.items():
        lower = key.lower()
        values[lower] = tuple(dict.fromkeys((*values.get(lower, ()), *strings(value))))
    return tuple(sorted(values.items()))


def _part(value: dict[str, Any], name: str) -> dict[str, Any]:
    part = value.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ValueError(f"has a {name} that is no object")
    return part


def _why(error: object, token: str) -> str:
    """Return the server's reason for refusing a token, unless it repeats a part of the token."""
    if not isinstance(error, str) or not error:
        return "the token is not valid"
    said = error[:_LONGEST_REASON]
    begins = range(len(said) - _SECRET_PART + 1)
    if token in error or any(said[begin : begin + _SECRET_PART] in token for begin in begins):
        return "the token is not valid (the reason given repeats it)"
    return shown(said)


_EFFECT = "clients whose tokens it alone could accept get 503"


class ReviewServer(Protocol):
    """The destination of the reviews."""

    async def send(self, body: bytes) -> ControlResponse:
        """POST a TokenReview; within 10 s return a `SUCCESS` or `REJECTED` response, or raise `UnavailableError`."""

    def close(self) -> None:
        """End idle connections."""


class TokenReviewer:
    """The authenticator; `cluster` is the name of the reviewing cluster, "" for another server."""

    def __init__(
        self,
        name: str,
        server: ReviewServer,
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
        """Do nothing: the first review opens a connection."""

    def stop(self, successors: object) -> None:
        self._server.close()

    async def _review(self, token: str) -> Accepted | Refused:
        response = await self._server.send(encode_review(token, self._audiences, self._version))
        if response.status in REJECTED:
            return Refused(f"the review was rejected with status {response.status}")
        return decode_review(response.body, token, self._audiences)


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
        """Do nothing: the connections belong to the cluster."""


def webhook(config: model.Webhook, shared: UpstreamContext) -> TokenReviewer:
    """Return the authenticator for a webhook; raises `CredentialError` for an unusable credential."""
    return TokenReviewer(
        "webhook",
        _WebhookServer(config, shared),
        cluster="",
        audiences=(),
        cache_times=CacheTimes(config.cache_success, config.cache_failure),
        version=config.version,
    )


class _WebhookServer:
    """Sends reviews to the webhook's URL."""

    def __init__(self, config: model.Webhook, shared: UpstreamContext) -> None:
        self._shared = shared
        self._url = config.endpoint.url
        self._path = config.endpoint.path or "/"
        self._file = config.kubeconfig.file
        self._keys = of_kubeconfig(config.kubeconfig, "the webhook's server")
        self._server = ExternalServer(
            "of the webhook",
            config.endpoint,
            tls=config.tls,
            credentials=config.credentials,
            proxy=config.proxy,
            context=shared,
        )

    async def send(self, body: bytes) -> ControlResponse:
        try:
            sending = self._server.request(
                "POST", self._path, headers=HEADERS, body=body, timeout=TIMEOUT, max_body=MAX_ANSWER
            )
            response = await counted(sending, self._shared.metrics, self._shared.reactor, "TokenReview", "webhook")
        except CredentialError as error:
            raise UnavailableError("credential", error.cause, f"put a usable credential into {self._file}") from None
        except (ConnectError, ControlError) as error:
            raise UnavailableError("connection", error.cause, remedy(error.cause, self._keys)) from None
        if response.status in (401, 403):
            raise UnavailableError(
                str(response.status),
                f"it does not accept the proxy's own credential ({response.status})",
                f"put a credential that may review tokens into {self._file}",
            )
        if response.status not in SUCCESS + REJECTED:
            raise UnavailableError("status", f"it answered {response.status}", f"see what answers at {self._url}")
        return response

    def close(self) -> None:
        self._server.close()
