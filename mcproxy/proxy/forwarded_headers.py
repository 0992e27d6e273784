"""Makes X-Forwarded-For, X-Forwarded-Proto and X-Forwarded-Host for requests to API servers. Pure.

Only a trusted proxy's values are kept, and the trusted proxy's own address is appended to the list. The values of other
clients are replaced (`identity.client_identity_headers` removes them with all other fields about the origin).
"""

from __future__ import annotations

from ipaddress import ip_address

from mcproxy.http.messages import RequestHead, split_fields


def forwarded_block(chain: bytes, scheme: bytes, host: bytes) -> bytes:
    """Return the three fields as a block.

    `chain`: the list of addresses, empty for a client on a unix socket; `host`: empty if an HTTP/1.0 request has none.
    """
    return b"%bX-Forwarded-Proto: %b\r\n%b" % (
        b"X-Forwarded-For: %b\r\n" % chain if chain else b"",
        scheme,
        b"X-Forwarded-Host: %b\r\n" % host if host else b"",
    )


def forwarded_through(head: RequestHead, proxy_address: str, scheme: bytes) -> bytes:
    """Return the three fields for the request of a trusted proxy, as a block.

    The connection's `scheme` replaces a missing X-Forwarded-Proto, and its Host a missing X-Forwarded-Host.
    """
    chain = [value for name, value in split_fields(head.fields) if name == b"x-forwarded-for"]
    return forwarded_block(
        b", ".join([*chain, proxy_address.encode()]),
        head.header(b"x-forwarded-proto") or scheme,
        head.header(b"x-forwarded-host") or head.host,
    )


def source_addresses(head: RequestHead, proxy_address: str) -> tuple[str, ...]:
    """Return the source addresses of a trusted proxy's request, as `sourceIPs` in kube-apiserver's audit log.

    They are the addresses in X-Forwarded-For, in order, and the proxy's own address unless it is the last one there.
    Malformed addresses are left out. Source: k8s.io/apimachinery `pkg/util/net/http.go`, SourceIPs.
    """
    addresses = []
    for name, value in split_fields(head.fields):
        if name == b"x-forwarded-for":
            addresses += [_canonical(each) for each in value.decode("latin-1").split(",")]
    found = [each for each in addresses if each]
    if not found or found[-1] != proxy_address:
        found.append(proxy_address)
    return tuple(found)


def _canonical(text: str) -> str:
    """Return an address in its canonical form; "" if it is malformed."""
    try:
        return str(ip_address(text.strip()))
    except ValueError:
        return ""
