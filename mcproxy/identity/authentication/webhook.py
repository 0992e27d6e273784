"""TokenReview by a server that is not a cluster, as with apiserver's --authentication-token-webhook-config-file.

The URL in its kubeconfig is the review's own: nothing is added to its path.
"""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.identity.authentication.token_authenticator import CacheTimes
from mcproxy.identity.authentication.token_reviewer import TokenReviewer
from mcproxy.identity.review_client import HEADERS, MAX_ANSWER, REJECTED, SUCCESS, TIMEOUT, counted
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.external_server import ExternalServer
from mcproxy.upstream.remedies import of_kubeconfig, remedy
from mcproxy.upstream.upstream_context import UpstreamContext


def webhook(config: model.Webhook, shared: UpstreamContext) -> TokenReviewer:
    """Return the authenticator for a webhook; raises `CredentialError` for a credential that can never be sent."""
    return TokenReviewer(
        "webhook",
        _WebhookServer(config, shared),
        cluster="",
        audiences=(),
        cache_times=CacheTimes(config.cache_success, config.cache_failure),
        version=config.version,
    )


class _WebhookServer:
    """Sends reviews to the one URL."""

    def __init__(self, config: model.Webhook, shared: UpstreamContext) -> None:
        self._shared = shared
        self._url = config.endpoint.url
        self._path = config.endpoint.path or "/"
        self._file = config.kubeconfig.file
        self._keys = of_kubeconfig(config.kubeconfig, "the webhook's server")
        self._server = ExternalServer(
            "of the webhook", config.endpoint, tls=config.tls, credentials=config.credentials, context=shared
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
