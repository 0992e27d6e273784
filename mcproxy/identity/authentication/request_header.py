"""The authenticator `requestHeader`: X-Remote-* headers of a front proxy that authenticates by a client certificate.

The headers are used only with a certificate that is verified by the CAs of `requestHeader` and has one of the allowed
names, if these are configured. A front proxy's certificate does not name a user; only X-Remote-User does.
Source: k8s.io/apiserver `pkg/authentication/request/headerrequest`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from mcproxy.config.model import RequestHeader
from mcproxy.http.messages import Header
from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser, authenticated, without_system_names
from mcproxy.identity.authentication.x509.peer import HubPeer, TLSPeer
from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier
from mcproxy.identity.client_identity_headers import IdentityHeaders
from mcproxy.kube.user import ANONYMOUS_NAME, UserInfo

#: Maximum number of cached sets of headers with their user, and maximum bytes of one set; only front proxies fill it.
_CACHED = 2048
_LONGEST_CACHED = 1024

_EXTRA = b"x-remote-extra-"
_ANONYMOUS = ANONYMOUS_NAME.encode()
_SPELLING_TODO = "the front proxy must write these headers with hyphens, and percent-encode their values"
_MISSPELT = re.compile(rb"x[-_]remote[-_](?:(?:user|uid|group)$|extra[-_])")
_ESCAPES = re.compile(rb"(?:[^%]|%[0-9a-f]{2})*", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class RequestHeaderRefusedError(Exception):
    """A front proxy named a user that it must not name; `cause` and `todo` are for operators.

    The request is refused, since a front proxy that names a user must never be authenticated as a user itself.
    """

    def __init__(self, cause: str, todo: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


class RequestHeaderAuthenticator:
    """Authenticates requests of front proxies."""

    __slots__ = ("_allow_system_names", "_allowed_names", "_cached", "_hub_caller", "_hubs", "_verifier")

    def __init__(
        self, config: RequestHeader, verifier: ClientCertificateVerifier | None, *, allow_system_names: bool
    ) -> None:
        """`verifier` None: no certificate is accepted, only the hubs of `config.listeners`."""
        self._verifier = verifier
        self._hubs = frozenset(config.listeners)
        self._hub_caller = AuthenticatedUser(
            authenticated(UserInfo(config.hub_user or "")), authenticator="requestHeader"
        )
        self._allowed_names = frozenset(config.allowed_names)
        self._allow_system_names = allow_system_names
        self._cached = lru_cache(_CACHED)(_caller)

    @property
    def verifier(self) -> ClientCertificateVerifier | None:
        """Verifies the certificates of front proxies."""
        return self._verifier

    def of_hub(self, peer: HubPeer, headers: IdentityHeaders) -> AuthenticatedUser | None:
        """Return the user of a request that a hub has sent through a tunnel; None if the hub names no user for it.

        A hub that passes on its clients' own credentials names system:anonymous, so that a request without a
        credential never has the rights of the hub itself. Raises RequestHeaderRefusedError.
        """
        if peer.listener not in self._hubs:
            return None
        if headers.remote:
            if any(name == b"x-remote-user" and value == _ANONYMOUS for name, value in headers.remote):
                return None
            caller = self._user_of(headers.remote)
            if caller is not None:
                return caller
        if headers.token is not None or headers.bad_token:
            return None
        return self._hub_caller

    def refusal_cause(self, peer: TLSPeer, now: float) -> str:
        """Return the reason why a peer is not a front proxy, "" if it is one; `now` is seconds since 1970."""
        if self._verifier is None:
            return "this set accepts no certificates of front proxies"
        cause = peer.verification(self._verifier, now).cause
        if not cause and self._allowed_names and peer.certificate_user().common_name not in self._allowed_names:
            cause = "its common name is not among requestHeader.allowedNames"
        return cause

    def caller(self, peer: TLSPeer, remote: tuple[Header, ...], now: float) -> AuthenticatedUser | None:
        """Return the user, None if no front proxy names a user; raises RequestHeaderRefusedError."""
        return None if self.refusal_cause(peer, now) else self._user_of(remote)

    def _user_of(self, remote: tuple[Header, ...]) -> AuthenticatedUser | None:
        if sum([len(name) + len(value) for name, value in remote]) > _LONGEST_CACHED:
            return _caller(remote, self._allow_system_names)
        return self._cached(remote, self._allow_system_names)


def _caller(remote: tuple[Header, ...], allow_system_names: bool) -> AuthenticatedUser | None:
    """Return the user that a front proxy names; raises RequestHeaderRefusedError."""
    try:
        user = remote_user(remote)
    except ValueError as error:
        raise RequestHeaderRefusedError(
            str(error), "the front proxy must write these headers with hyphens, and percent-encode their values"
        ) from None
    if user is None:
        return None
    if not allow_system_names:
        user = without_system_names(user)
        if user is None:
            raise RequestHeaderRefusedError(
                "a front proxy named a user of Kubernetes itself (system:)", "allowSystemNames would accept it"
            )
    return AuthenticatedUser(authenticated(user), authenticator="requestHeader")


def remote_user(remote: tuple[Header, ...]) -> UserInfo | None:
    """Return the user that X-Remote-* headers (`IdentityHeaders.remote`) name, None if they name none.

    Of several X-Remote-User or -Uid headers, the first is used, even if it is empty; empty groups are omitted. Raises
    ValueError for text that is not UTF-8 or has control characters (keys can contain them in percent-encoding), and for
    an X-Remote header that is spelled with underscores.
    """
    name: str | None = None
    uid: str | None = None
    groups: dict[str, None] = {}
    extra: dict[str, list[str]] = {}
    for header, raw in remote:
        if header == b"x-remote-user":
            name = _text(raw) if name is None else name
        elif header == b"x-remote-uid":
            uid = _text(raw) if uid is None else uid
        elif header == b"x-remote-group":
            if raw:
                groups[_text(raw)] = None
        elif header.startswith(_EXTRA):
            extra.setdefault(_extra_key(header[len(_EXTRA) :]), []).append(_text(raw))
        elif _MISSPELT.match(header):  # if it were ignored, the user would lack this group
            raise ValueError("an X-Remote- header is written with underscores")
    if not name:
        return None
    return UserInfo(name, tuple(groups), uid or "", tuple([(key, tuple(extra[key])) for key in sorted(extra)]))


def _extra_key(encoded: bytes) -> str:
    """Decode a key, which is already in lower case; a key with invalid percent-encoding stays unchanged."""
    return _text(unquote_to_bytes(encoded) if _ESCAPES.fullmatch(encoded) else encoded)


def _text(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ValueError("an X-Remote- header is no UTF-8") from None
    if _CONTROL.search(text):
        raise ValueError("an X-Remote- header holds control characters")
    return text
