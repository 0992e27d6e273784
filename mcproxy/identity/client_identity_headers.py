"""Separates the identity headers of a client from all other fields of the request's head.

Kubernetes trusts headers for the user (Authorization, Impersonate-*, X-Remote-*) and for the client's address
(X-Forwarded-For and others). An upstream server could treat any of them as an identity if the proxy passed it on by
mistake. So all of them are removed here from every head, and other modules get them as attributes. Whole families are
removed, since Kubernetes adds headers to them. When headers are removed, an underscore counts as a hyphen, because some
servers treat it so. When headers are used, it never does.

Sources: k8s.io/apiserver `pkg/authentication/request/bearertoken` and `.../websocket`; Kubernetes "User impersonation"
and "Authenticating proxy".
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable

from mcproxy.http.messages import Header
from mcproxy.kube.status import StatusError

_MOST_PROTOCOLS = 100  # Kubernetes has about ten; they are parsed before authentication

BEARER_PROTOCOL = b"base64url.bearer.authorization.k8s.io."

# A line of a `fields` block (lower case, after a line feed) about identity or origin. It includes synonyms of
# X-Forwarded-For, which the proxy does not set: a kube-apiserver's audit log would use X-Real-Ip.
_SUSPECT = re.compile(
    rb"\n(authorization|impersonate[^:\n]*|forwarded|x[-_](?:remote|forwarded)[-_][^:\n]*|x[-_]real[-_]ip"
    rb"|sec[-_]websocket[-_]protocol):([^\n]*)\r"
)
_BROWSER = re.compile(rb"\n(origin|sec-fetch-site):([^\n]*)\r")
_BASE64URL = re.compile(rb"[A-Za-z0-9_-]*")


class IdentityHeaders:
    """The identity headers of a head, and its other fields.

    This object contains the client's token, so it must not be logged, and its repr shows nothing.
    """

    __slots__ = (
        "_browser_fields",
        "_impersonate_block",
        "_token_block",
        "_token_key",
        "bad_token",
        "fields",
        "impersonate",
        "noted",
        "own",
        "remote",
        "token",
    )

    fields: bytes  # the block without fields about identity or origin; all others as sent, in their order
    own: bytes  # block of the client's Authorization, Impersonate-* and bearer subprotocol, for Passthrough
    token: bytes | None  # bearer token from Authorization, else from the WebSocket subprotocols
    bad_token: str  # the reason why the request's token is malformed, for the log; "" if it is not
    remote: tuple[Header, ...]  # X-Remote-*, names in lower case, in order, and X_Remote_*, which must be refused
    impersonate: tuple[Header, ...]  # Impersonate-*, likewise, and Impersonate_*, which must be refused
    noted: object  # results that higher layers derive from `fields`, once for all requests with this block

    def __init__(self, fields: bytes) -> None:
        self.fields = fields
        self.own = b""
        self.token = None
        self.bad_token = ""
        self.noted = None
        self.remote = self.impersonate = ()
        self._token_block = self._impersonate_block = b""
        self._token_key: tuple[Callable[[bytes], bytes], bytes] | None = None
        self._browser_fields: tuple[tuple[bytes, ...], tuple[bytes, ...]] | None = None

    def __repr__(self) -> str:
        return "<IdentityHeaders>"

    def with_fields(self, fields: bytes) -> IdentityHeaders:
        """Return the same identity with other fields, for a request that the proxy sends for the user.

        Raises ValueError for fields about identity or origin.
        """
        headers = split_identity_headers(fields)
        if headers.fields != fields:
            raise ValueError("a field about identity or origin in a request of the proxy's own")
        headers.own = self.own
        headers.token, headers.bad_token = self.token, self.bad_token
        headers.remote, headers.impersonate = self.remote, self.impersonate
        headers._token_block, headers._impersonate_block = self._token_block, self._impersonate_block
        return headers

    def browser_fields(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Return the values of Origin and of Sec-Fetch-Site."""
        if self._browser_fields is None:
            found = _BROWSER.findall(b"\n" + self.fields.lower())
            self._browser_fields = (
                tuple(value.strip(b" \t") for name, value in found if name == b"origin"),
                tuple(value.strip(b" \t") for name, value in found if name != b"origin"),
            )
        return self._browser_fields

    def token_key(self, key_of: Callable[[bytes], bytes]) -> bytes:
        """Return `key_of(token)`; it is computed only once, since many requests have the same headers."""
        known = self._token_key
        if known is None or known[0] is not key_of:
            assert self.token is not None
            known = self._token_key = key_of, key_of(self.token)
        return known[1]

    def passed_through(self, *, authenticates: bool, by_token: bool) -> bytes:
        """Return the block of identity headers for a cluster with `Passthrough`.

        If the server `authenticates`, only the token that authenticated the user (`by_token`) is passed on: with a
        second credential, or another scheme, the cluster could see another user.
        """
        if not authenticates:
            return self.own
        return self._token_block + self._impersonate_block if by_token else self._impersonate_block


def split_identity_headers(fields: bytes) -> IdentityHeaders:
    """Split the fields of a head (a block as in `RequestHead.fields`).

    Raises StatusError (400) for two Authorization headers: Kubernetes uses the first, and another server could use the
    second, so the user would be ambiguous. Raises it also for a bearer token with so many WebSocket subprotocols that
    their parsing would take longer than the rest of the request.
    """
    headers = IdentityHeaders(fields)
    suspects = list(_SUSPECT.finditer(b"\n" + fields.lower()))
    if suspects:
        _Sorting(headers).run(suspects)
    return headers


class _Sorting:
    """One pass over a block with fields that may have to be removed."""

    __slots__ = (
        "_authorization",
        "_identity_headers",
        "_impersonate",
        "_kept",
        "_others_offered",
        "_own",
        "_protocol_tokens",
    )

    def __init__(self, headers: IdentityHeaders) -> None:
        self._identity_headers = headers
        self._kept: list[bytes] = []
        self._own: list[bytes] = []
        self._impersonate: list[bytes] = []
        self._authorization: bytes | None = None
        self._protocol_tokens: list[bytes] = []
        self._others_offered = False

    def run(self, suspects: list[re.Match[bytes]]) -> None:
        headers = self._identity_headers
        block = headers.fields
        remote: list[Header] = []
        impersonate: list[Header] = []
        position = 0
        for match in suspects:
            # The search begins one byte before the block, and a line ends one byte after its match.
            begin, end = match.span()
            self._kept.append(block[position:begin])
            position = end
            name = match[1]
            value = block[match.start(2) - 1 : match.end(2) - 1].strip(b" \t")
            if name == b"authorization":
                if self._authorization is not None:
                    raise StatusError(400, "a request has one Authorization header at the most")
                self._authorization = value
                self._own.append(block[begin:end])
            elif name.startswith(b"impersonate-"):
                impersonate.append((name, value))
                self._own.append(block[begin:end])
                self._impersonate.append(block[begin:end])
            elif name.startswith(b"impersonate_"):
                impersonate.append((name, value))  # refused, since without it the request could have more rights
            elif name.startswith((b"x-remote", b"x_remote")):
                remote.append((name, value))  # with underscores never used; from a front proxy it is refused
            elif name.endswith(b"protocol") and name.startswith(b"sec"):
                self._sort_protocols(name == b"sec-websocket-protocol", block[begin:end], value)
        self._kept.append(block[position:])
        headers.fields = b"".join(self._kept)
        headers.own = b"".join(self._own)
        headers._impersonate_block = b"".join(self._impersonate)
        headers.remote = tuple(remote)
        headers.impersonate = tuple(impersonate)
        self._find_token()

    def _sort_protocols(self, standard: bool, line: bytes, value: bytes) -> None:
        """Remove bearer tokens from the offered WebSocket subprotocols (browsers cannot send tokens otherwise)."""
        if BEARER_PROTOCOL not in value.lower():
            self._kept.append(line)
            self._others_offered = self._others_offered or (standard and bool(value))
            return
        if value.count(b",") > _MOST_PROTOCOLS:
            raise StatusError(400, f"more than {_MOST_PROTOCOLS} WebSocket subprotocols beside a bearer token")
        others = []
        for protocol in value.split(b","):
            protocol = protocol.strip(b" \t")
            if not protocol.lower().startswith(BEARER_PROTOCOL):
                others.append(protocol)
            elif standard and protocol.startswith(BEARER_PROTOCOL):
                self._protocol_tokens.append(protocol[len(BEARER_PROTOCOL) :])
                # A separate field line is equivalent to an item in the list of another line (RFC 6455 11.3.4).
                self._own.append(b"Sec-WebSocket-Protocol: %b\r\n" % protocol)
        offered = b", ".join(filter(None, others))
        if offered:
            self._kept.append(b"%b: %b\r\n" % (line.partition(b":")[0], offered))
            self._others_offered = self._others_offered or standard

    def _find_token(self) -> None:
        """Set `token` and its block, or `bad_token`."""
        headers = self._identity_headers
        token = None if self._authorization is None else _bearer_token(self._authorization)
        if token is not None:
            line = b"Authorization: Bearer %b\r\n" % token
        elif self._protocol_tokens:
            try:
                token = self._protocol_token()
            except ValueError as error:
                headers.bad_token = str(error)
                return
            line = b"Sec-WebSocket-Protocol: %b%b\r\n" % (BEARER_PROTOCOL, self._protocol_tokens[0])
        if token is None:
            return
        headers.token = token
        headers._token_block = line

    def _protocol_token(self) -> bytes | None:
        """Return the token in the subprotocols, None if it is empty; raises ValueError, whose text has no token."""
        if len(self._protocol_tokens) > 1:
            raise ValueError("more than one WebSocket subprotocol is a bearer token")
        encoded = self._protocol_tokens[0]
        if not _BASE64URL.fullmatch(encoded) or len(encoded) % 4 == 1:
            raise ValueError("the bearer token among the WebSocket subprotocols is no unpadded base64url")
        token = a2b_base64(encoded.translate(_TO_STANDARD) + b"=" * (-len(encoded) % 4))
        try:
            token.decode()
        except UnicodeDecodeError:
            raise ValueError("the bearer token among the WebSocket subprotocols is no UTF-8") from None
        if token and not self._others_offered:
            raise ValueError("no other WebSocket subprotocol is offered beside the bearer token")
        return token or None


_TO_STANDARD = bytes.maketrans(b"-_", b"+/")


def _bearer_token(authorization: bytes) -> bytes | None:
    """Return the token of an Authorization value, None if it has no token.

    As in Kubernetes, the token is the text between the first and the second space. So with two spaces after the scheme
    there is no token, and text after the token is ignored.
    """
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    return rest.partition(b" ")[0] or None
