"""Protects an Admin listener from other sites' web pages: checks of Host and origin, and response headers. Pure.

An Admin listener on a loopback address needs no authentication. So web pages must not be able to use a browser on the
same machine, neither with a name that resolves to a loopback address (DNS rebinding) nor by cross-site requests. All
requests are GETs without side effects, so a page could only read, which browsers forbid by default. These checks are a
second line of defence. Following a link is allowed, as in the "resource isolation policy" of Fetch Metadata (W3C): the
page cannot be framed, and shares no window.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from mcproxy.identity.client_identity_headers import IdentityHeaders
from mcproxy.identity.cross_site import check_same_origin, is_foreign
from mcproxy.kube.status import StatusError
from mcproxy.proxy.routes import host_name

_NAVIGATION = re.compile(rb"\nsec-fetch-(mode|dest):[ \t]*([^\n]*?)[ \t]*\r")

FIELDS = (
    b"X-Content-Type-Options: nosniff\r\n"
    b"Referrer-Policy: no-referrer\r\n"
    b"Cross-Origin-Resource-Policy: same-origin\r\n"
    b"Cross-Origin-Opener-Policy: same-origin\r\n"
    b"X-Frame-Options: DENY\r\n"
)
"""Header fields of every answer to an accepted request."""
PLAIN_POLICY = b"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"
"""Header fields of answers that are not the page."""


def page_policy(style: str, script: str) -> bytes:
    """Return the Content-Security-Policy of a page that allows only this style and this script, by their hashes.

    Hashes are used instead of a nonce: answers need no secret, and injected text could not run even if unescaped.
    """
    return (
        f"Content-Security-Policy: default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'\r\n"
    ).encode("ascii")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode("ascii")


def check_host(host: bytes, bound: str) -> None:
    """Raise StatusError (403) for a Host that is neither this machine nor the bound address (without a port)."""
    name = host_name(host)
    if is_foreign(name) and name != bound:
        raise StatusError(403, f'"{name[:253]}" is not a name of this machine; use localhost')


def check_site(headers: IdentityHeaders, host: bytes) -> None:
    """Raise StatusError (403) for a request that comes from a page of another origin and is not a followed link."""
    found = dict(_NAVIGATION.findall(b"\n" + headers.fields.lower()))
    if found == {b"mode": b"navigate", b"dest": b"document"} and not headers.browser_fields()[0]:
        return
    check_same_origin(headers, host)
