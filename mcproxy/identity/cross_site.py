"""Web pages: a browser on the same machine sends what any page asks of it, and to a loopback address too.

Where the proxy lends its own rights, being able to connect is the credential, so a page must not be able to use a
browser's connection. Two ways are closed, as `kubectl proxy` closes them (--accept-hosts): a name of the page's own
that resolves to a loopback address (DNS rebinding), and a WebSocket, which browsers open across origins.
"""

from __future__ import annotations

from ipaddress import ip_address

from mcproxy.http.messages import RequestHead
from mcproxy.kube.status import StatusError


def is_foreign(host: str) -> bool:
    """Whether a Host (without port) is no name of this machine, as a page's own name that resolves to it is not."""
    if host in ("", "localhost") or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def refuse_cross_site(head: RequestHead, foreign_host: bool) -> None:
    """Refuse what only a web page would ask; raises StatusError (403).

    `foreign_host`: the request came without TLS, for a host that is neither a server of the configuration nor a name of
    this machine. With TLS a page would need a certificate for its name that the browser believes.
    """
    if foreign_host:
        host = head.host.decode("latin-1")[:253]
        raise StatusError(403, f'"{host}" is no name of this machine; ask for localhost, or name it in serverNames')
    if head.upgrade is not None:
        _refuse_foreign_origin(head)


def _refuse_foreign_origin(head: RequestHead) -> None:
    """RFC 6455 10.2. Clients that are no browsers send no Origin, or that of the host they ask."""
    origin = head.header(b"origin")
    if origin is None:
        return
    _, separator, authority = origin.lower().partition(b"://")
    if not separator or _without_default_port(authority) != _without_default_port(head.host):
        raise StatusError(403, "upgrades are not open to web pages of another origin")


def _without_default_port(authority: bytes) -> bytes:
    return authority.removesuffix(b":443").removesuffix(b":80")
