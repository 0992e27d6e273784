"""Cross-site requests: what web pages have a browser on the same machine send, to a loopback address too.

Where the proxy lends its own rights to whoever can connect, a page must not be able to use a browser's connection.
Three ways are closed, the first as `kubectl proxy` closes it (--accept-hosts): a name of the page's own that resolves
to a loopback address (DNS rebinding); any request with an `Origin` that is not the host asked, such as a WebSocket or a
POST without a preflight; and what browsers mark as cross-site or same-site (`Sec-Fetch-Site`), images and forms too.

Sources: RFC 6454 (Origin), Fetch Metadata (W3C), RFC 6455 10.2.
"""

from __future__ import annotations

from ipaddress import ip_address

from mcproxy.identity.identity_headers import IdentityHeaders
from mcproxy.kube.status import StatusError

_FOREIGN_SITES = (b"cross-site", b"same-site")
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


def is_foreign(host: str) -> bool:
    """Whether a Host (without port) is no name of this machine, as a page's own name that resolves to it is not."""
    if host in ("", "localhost") or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def refuse_foreign_host(host: bytes) -> StatusError:
    """Return the refusal of a request without TLS for a host that is neither a server of the file nor this machine.

    With TLS a page would need a certificate for its name that the browser trusts.
    """
    name = host.decode("latin-1")[:253]
    return StatusError(403, f'"{name}" is no name of this machine; ask for localhost, or name it in serverNames')


def check_same_origin(headers: IdentityHeaders, host: bytes) -> None:
    """Refuse a request that a page of another origin than `host` has a browser send; raises StatusError (403).

    Clients that are no browsers send neither Origin nor Sec-Fetch-Site, or the origin of the host that they ask.
    """
    origins, sites = headers.browser_fields()
    if sites and any(site.lower() in _FOREIGN_SITES for site in sites):
        raise _refused()
    if origins and not all(_is_origin_of(origin, host) for origin in origins):
        raise _refused()


def _refused() -> StatusError:
    return StatusError(403, "web pages of another origin may not use the proxy's own rights")


def _is_origin_of(origin: bytes, host: bytes) -> bool:
    scheme, separator, authority = origin.lower().partition(b"://")
    port = _DEFAULT_PORTS.get(scheme)
    return bool(separator) and port is not None and authority.removesuffix(port) == host.lower().removesuffix(port)
