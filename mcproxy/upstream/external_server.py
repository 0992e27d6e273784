"""A server outside of all clusters to which the proxy sends requests: a TokenReview webhook, an OIDC issuer.

The requests use the same client as requests to clusters (`control`): chain and name are verified, responses are
bounded, redirects are not followed. There are no health checks.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from mcproxy.config import model
from mcproxy.upstream.control import ControlClient, ControlResponse
from mcproxy.upstream.control_stream import ControlStream
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.tls import EndpointTLS
from mcproxy.upstream.upstream_context import UpstreamContext

_NO_CREDENTIALS = model.Credentials()
_CONNECTIONS = model.Connections(protocol=model.UpstreamProtocol.HTTP1)  # for occasional single requests
_MAX_URL = 2048


class ExternalServer:
    """One external server. It keeps idle connections for at most 45 s; `close` closes them."""

    def __init__(
        self,
        name: str,
        endpoint: model.EndpointConfig,
        *,
        tls: model.ClusterTLS,
        credentials: model.Credentials = _NO_CREDENTIALS,
        proxy: model.HTTPProxy | None = None,
        host: str = "",
        context: UpstreamContext,
    ) -> None:
        """`name`: for log lines about the credential. `host`: the Host header; "": that of the endpoint.

        Raises `CredentialError` if the credential can never be sent.
        """
        bare = replace(endpoint, path="")  # each request contains its whole path
        cluster = model.ClusterConfig(
            name=name,
            endpoints=(endpoint,),
            tls=tls,
            credentials=credentials,
            identity=model.UpstreamIdentity.PROXY,
            connections=_CONNECTIONS,
            proxy=proxy,
        )
        source = context.credential_source(cluster)
        own_tls = None
        if bare.scheme == "https":
            own_tls = EndpointTLS(context.contexts, tls, bare.host, lambda: source.certificate)
        self._credentials = source
        self._control = ControlClient(source, context)
        self._endpoint = Endpoint(bare, cluster, key=None, context=context, data_tls=own_tls, control_tls=own_tls)
        if host:
            self._endpoint.host_header = host.encode()
        self._unsubscribe = source.on_certificate_change(self._endpoint.renew_own_connections)

    async def request(
        self,
        method: str,
        target: str,
        *,
        headers: tuple[tuple[str, str], ...] = (),
        body: bytes = b"",
        timeout: float,
        max_body: int,
    ) -> ControlResponse:
        """Send one request; `target` is path and query. Raises as `ControlClient.request` does."""
        return await self._control.request(
            self._endpoint, method, target, headers=headers, body=body, timeout=timeout, max_body=max_body
        )

    async def upgrade(
        self, target: str, protocol: bytes, *, headers: tuple[tuple[str, str], ...] = (), timeout: float
    ) -> ControlStream:
        """GET `target` over HTTP/1.1 with Upgrade; return when the head of the response has arrived.

        Raises as `ControlClient.stream` does. The caller closes the stream.
        """
        return await self._control.stream(
            self._endpoint, target, headers=headers, head_timeout=timeout, upgrade=protocol
        )

    def close(self) -> None:
        """Close idle connections and stop the renewal of the credential."""
        self._unsubscribe()
        self._endpoint.close()
        self._credentials.close()


def split_url(url: str) -> tuple[model.EndpointConfig, str]:
    """Split an absolute https URL into its server, and path and query.

    Raises ValueError, with a sentence that can follow the URL, for another scheme, a user, or characters other than
    visible ASCII. A fragment is dropped.
    """
    if len(url) > _MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"is not a URL of at most {_MAX_URL} visible characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # the URL has brackets without an address, or an invalid port
        raise ValueError("has no valid address or port") from None
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc:
        raise ValueError("is not an absolute https URL without a user")
    endpoint = model.EndpointConfig(
        name=parts.netloc, scheme="https", host=parts.hostname, port=443 if port is None else port
    )
    return endpoint, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
