"""The HTTP proxy on the way to a server, as connections take it."""

from __future__ import annotations

from mcproxy.config import model
from mcproxy.net.http_connect import HTTPProxy
from mcproxy.upstream.credentials import basic


def http_proxy(config: model.HTTPProxy | None) -> HTTPProxy | None:
    """Return the proxy with its credentials; None for none. Raises `CredentialError` for a colon in the user name."""
    if config is None:
        return None
    authorization = None
    if config.user is not None and config.password is not None:
        authorization = basic(config.user, config.password)
    return HTTPProxy(config.host, config.port, authorization)
