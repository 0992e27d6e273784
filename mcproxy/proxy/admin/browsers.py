"""What browsers may ask of an Admin listener, and what their pages may do with it. Pure.

An Admin listener on a loopback address needs no authentication, so web pages must not be able to use a browser on the
same machine: neither with a name that resolves to a loopback address (DNS rebinding), nor by requests to
other sites. All answers are to GET and change nothing, so a page could only read, which browsers forbid as long as
nothing says otherwise; the checks are there so that this is not the only line of defence. To follow a link is allowed,
as the policy "resource isolation" of Fetch Metadata (W3C) allows it: the page is nobody's frame, and shares no window.
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
"""Of every answer to a good request."""
PLAIN_POLICY = b"Content-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"
"""Of answers that are no page."""


def page_policy(style: str, script: str) -> bytes:
    """Return the Content-Security-Policy of a page with this one style and this one script, by their hashes.

    A hash, not a nonce: no answer needs a secret, and what a peer chose could not run even if it were not escaped.
    """
    return (
        f"Content-Security-Policy: default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'\r\n"
    ).encode("ascii")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode("ascii")


def check_host(host: bytes, bound: str) -> None:
    """Raise StatusError (403) for a Host that is neither of this machine nor the bound address (without a port)."""
    name = host_name(host)
    if is_foreign(name) and name != bound:
        raise StatusError(403, f'"{name[:253]}" is not a name of this machine; use localhost')


def check_site(headers: IdentityHeaders, host: bytes) -> None:
    """Raise StatusError (403) for a request that comes from a page of another origin and is not a followed link."""
    found = dict(_NAVIGATION.findall(b"\n" + headers.fields.lower()))
    if found == {b"mode": b"navigate", b"dest": b"document"} and not headers.browser_fields()[0]:
        return
    check_same_origin(headers, host)
