"""Fetches an issuer's keys over HTTPS: from the URL in the file, else from the one in its discovery document.

Source: OpenID Connect Discovery 4. Nothing secret is sent, chain and name are verified, redirects are not followed.
"""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.identity.authentication.oidc.jwks import KeySet, parse_keys
from mcproxy.identity.reviewer_log import UnavailableError
from mcproxy.identity.strict_json import json_object
from mcproxy.net.connect_errors import ConnectError
from mcproxy.upstream.control import ControlError
from mcproxy.upstream.external_server import ExternalServer, split_url
from mcproxy.upstream.remedies import Keys, remedy
from mcproxy.upstream.upstream_context import UpstreamContext

_KEYS = Keys("the issuer", ca="`oidc[].caFile`")
_WITHIN = 10.0  # seconds for one document
_MAX_DOCUMENT = 1024 * 1024  # bytes


async def fetch_keys(config: model.OIDC, shared: UpstreamContext) -> KeySet:
    """Return the issuer's current keys; raises `UnavailableError`."""
    url = config.jwks_url or await _discovered(config, shared)
    document = await _get(url, config, shared)
    try:
        return parse_keys(document)
    except ValueError as error:
        raise _bad(url, error) from None


async def _discovered(config: model.OIDC, shared: UpstreamContext) -> str:
    url = config.issuer.rstrip("/") + "/.well-known/openid-configuration"
    try:
        document = json_object(await _get(url, config, shared))
        issuer, keys = document.get("issuer"), document.get("jwks_uri")
        if issuer != config.issuer:
            raise ValueError("is of another issuer than the configured one, byte for byte")
        if not isinstance(keys, str):
            raise ValueError("names no jwks_uri")
    except ValueError as error:
        raise _bad(url, error) from None
    return keys


async def _get(url: str, config: model.OIDC, shared: UpstreamContext) -> bytes:
    try:
        endpoint, target = split_url(url)
    except ValueError as error:
        raise _bad("the URL of the keys", error) from None
    server = ExternalServer("of the issuer", endpoint, tls=model.ClusterTLS(ca=config.ca), context=shared)
    try:
        response = await server.request(
            "GET", target, headers=(("accept", "application/json"),), timeout=_WITHIN, max_body=_MAX_DOCUMENT
        )
    except (ConnectError, ControlError) as error:
        raise UnavailableError("connection", error.cause, f"{remedy(error.cause, _KEYS)}; or give a jwksFile") from None
    finally:
        server.close()
    if response.status != 200:
        redirect = "; redirects are not followed" if 300 <= response.status < 400 else ""
        raise UnavailableError("status", f"{url} answered {response.status}{redirect}", f"see what answers at {url}")
    return response.body


def _bad(place: str, error: ValueError) -> UnavailableError:
    return UnavailableError(
        "document", f"{place} {error}", "see what the issuer publishes, and that `issuer` is written as there"
    )
