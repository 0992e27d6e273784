"""Headers that tell a pod the client's address: X-Forwarded-*, X-Real-IP and Forwarded (RFC 7239). Pure.

If the client is no trusted proxy, its headers of these names are replaced, in any spelling (many servers read `_` as
`-`). A trusted proxy's chain of addresses is kept, and the proxy's own address is appended. X-Forwarded-For has
precedence, and Forwarded is made from it, because a proxy that knows only X-Forwarded-For passes on any Forwarded that
its client has invented. If there is only Forwarded, its chain is used, with proto and host of the last element, which
that proxy has written.

X-Forwarded-Port is the port in the client's Host, or else the default port of the scheme.

`Proxy` is always removed, because CGI servers turn it into the variable HTTP_PROXY (httpoxy).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address

from mcproxy.config.model import IPNetwork
from mcproxy.http.messages import split_fields
from mcproxy.net.trusted_proxies import is_trusted

_OURS = re.compile(rb"(?:^|\n)(?:x[-_]forwarded[-_]|x[-_]real[-_]ip:|forwarded:|proxy:)", re.IGNORECASE)
_NODE = re.compile(rb'for="?(\[[0-9a-f:.]+\]|[\w.-]+)(?::[\w]+)?"?', re.IGNORECASE)
_PAIR = re.compile(rb'(?:^|[;\s])(proto|host)=(?:"([^"\\]*)"|([^\s;",]+))', re.IGNORECASE)
_PORT = re.compile(rb":([0-9]{1,5})\Z")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
MAX_CHAIN = 50
"""Maximum of addresses of a chain that are passed on; the last ones are kept."""


class Origin:
    """The origin of one request, and the header fields that describe it."""

    __slots__ = ("address", "fields", "https", "rest")

    def __init__(self, rest: bytes, fields: bytes, address: str, *, https: bool) -> None:
        self.rest = rest
        """The client's fields to pass on, as a block."""
        self.fields = fields
        """The fields that the proxy adds, as a block."""
        self.address = address
        """The client's address: the last one in the chain that is no trusted proxy's; "" for a unix socket."""
        self.https = https
        """Whether the client's connection is known to use TLS."""


def origin(fields: bytes, host: bytes, peer: str, *, tls: bool, trusted: Sequence[IPNetwork]) -> Origin:
    """Return the origin of a request with these fields that came from `peer`.

    `trusted`: the networks of trusted proxies; empty if the peer is not one of them.
    """
    scheme = b"https" if tls else b"http"
    told = _OURS.search(fields)
    rest = fields if told is None else _without_ours(fields)
    own = peer.encode()
    if told is None or not trusted:
        return Origin(rest, _fields([own] if own else [], scheme, host, own), peer, https=tls)
    received = split_fields(fields)
    chain = _chain([value for name, value in received if name == b"x-forwarded-for"])
    proto = forwarded_host = b""
    if not chain:
        elements = [value for name, value in received if name == b"forwarded"]
        chain = [match[1].strip(b"[]") for value in elements for match in _NODE.finditer(value)]
        if elements:
            pairs = {
                name.lower(): quoted or plain for name, quoted, plain in _PAIR.findall(_last_element(elements[-1]))
            }
            proto, forwarded_host = pairs.get(b"proto", b"").lower(), pairs.get(b"host", b"")
    protos = [value.split(b",")[-1].strip().lower() for name, value in received if name == b"x-forwarded-proto"]
    hosts = [value.split(b",")[-1].strip() for name, value in received if name == b"x-forwarded-host"]
    if protos:
        proto = protos[-1]
    if proto in (b"http", b"https"):
        scheme = proto
    if hosts and hosts[-1]:
        forwarded_host = hosts[-1]
    ports = [value.split(b",")[-1].strip() for name, value in received if name == b"x-forwarded-port"]
    port = ports[-1] if ports and ports[-1].isdigit() and len(ports[-1]) <= 5 else b""
    chain = [*chain[-MAX_CHAIN:], *([own] if own else [])]
    real = peer
    for each in reversed(chain):
        real = each.decode("latin-1")
        if not is_trusted(real, trusted):
            break
    try:
        real = str(ip_address(real))
    except ValueError:  # "unknown" or an obfuscated name: the peer's address is used
        real = peer
    return Origin(
        rest,
        _fields(chain, scheme, forwarded_host or host, real.encode(), port),
        real,
        https=scheme == b"https",
    )


def _chain(values: Sequence[bytes]) -> list[bytes]:
    return [each for value in values for part in value.split(b",") if (each := part.strip())]


def _last_element(value: bytes) -> bytes:
    """Return the last element of a Forwarded field; commas in quotes are no separators."""
    start = 0
    quoted = False
    for match in re.finditer(rb'[",]', value):
        if match[0] == b'"':
            quoted = not quoted
        elif not quoted:
            start = match.end()
    return value[start:]


def _without_ours(fields: bytes) -> bytes:
    return b"".join([line + b"\r\n" for line in fields.split(b"\r\n")[:-1] if _OURS.match(line) is None])


def _fields(chain: Sequence[bytes], scheme: bytes, host: bytes, real: bytes, port: bytes = b"") -> bytes:
    lines = []
    if chain:
        lines.append(b"X-Forwarded-For: %b\r\n" % b", ".join(chain))
    lines.append(b"X-Forwarded-Proto: %b\r\n" % scheme)
    if host:
        lines.append(b"X-Forwarded-Host: %b\r\n" % host)
    if not port:
        written = _PORT.search(host)
        port = written[1] if written is not None else b"443" if scheme == b"https" else b"80"
    lines.append(b"X-Forwarded-Port: %b\r\n" % port)
    if real:
        lines.append(b"X-Real-IP: %b\r\n" % real)
    elements = [b"for=%b" % _node(each) for each in chain]
    if not elements:
        elements = [b"for=unknown"]  # the client uses a unix socket
    elements[-1] += b";proto=%b" % scheme
    if host:
        elements[-1] += b";host=%b" % _quoted(host)
    lines.append(b"Forwarded: %b\r\n" % b", ".join(elements))
    return b"".join(lines)


def _node(address: bytes) -> bytes:
    """Return an element's node: an address, IPv6 in brackets and quoted (RFC 7239 6); `unknown` for anything else."""
    text = address.decode("latin-1")
    try:
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return b"unknown"
    return b'"[%b]"' % str(parsed).encode() if parsed.version == 6 else str(parsed).encode()


def _quoted(value: bytes) -> bytes:
    if _TOKEN.fullmatch(value):
        return value
    return b'"%b"' % value.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
