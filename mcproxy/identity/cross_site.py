"""Refuses cross-site requests that web pages send with a browser on the same machine, even to a loopback address.

If every client has the proxy's own rights, a web page must not be able to use a browser's connection. Three kinds of
requests are refused: requests with the page's own Host, which resolves to a loopback address (DNS rebinding; like
--accept-hosts of `kubectl proxy`); requests with an `Origin` other than the requested host, such as a WebSocket or a
POST without a preflight; and requests that browsers mark as cross-site or same-site (`Sec-Fetch-Site`), e.g. images.

Sources: RFC 6454 (Origin), Fetch Metadata (W3C), RFC 6455 10.2.
"""

from __future__ import annotations

from ipaddress import ip_address

from mcproxy.identity.client_identity_headers import IdentityHeaders
from mcproxy.kube.status import StatusError

_FOREIGN_SITES = (b"cross-site", b"same-site")
_DEFAULT_PORTS = {b"http": b":80", b"https": b":443"}


def is_foreign(host: str) -> bool:
    """Whether a Host (without port) is not a name or address of this machine."""
    if host in ("", "localhost") or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True


def refuse_foreign_host(host: bytes) -> StatusError:
    """Return the refusal of a request without TLS for a host that is neither a server's name nor this machine.

    With TLS, a page would need a certificate for its name that the browser trusts.
    """
    name = host.decode("latin-1")[:253]
    return StatusError(403, f'"{name}" is not a name of this machine; use localhost, or add it to serverNames')


def check_same_origin(headers: IdentityHeaders, host: bytes) -> None:
    """Raise StatusError (403) for a request that comes from a page of another origin than `host`.

    Other clients than browsers send neither Origin nor Sec-Fetch-Site, or they send the origin of the requested host.
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
