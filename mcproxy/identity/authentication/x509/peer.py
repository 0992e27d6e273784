"""The peer of a TLS connection: its client certificate, the intermediates that it sent, and the user that it names.

The handshake accepts any chain, and only proves that the client has the private key of its certificate. The CAs depend
on a request's virtual server. So a TLSPeer is verified later, separately by each `ClientCertificateVerifier`, and
caches each result while it is valid. The common name is the user, the organizations are its groups.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser, authenticated
from mcproxy.identity.authentication.x509.verifier import ClientCertificateVerifier, Verification
from mcproxy.kube.user import UserInfo

# The user that a client certificate names: the common name is the user, the organizations are its groups.
#
# The subject may be used only if the certificate is verified (`verifier`). Source: k8s.io/apiserver
# `pkg/authentication/request/x509`, CommonNameUserConversion.

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"

_UID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")


class CertificateUser:
    """The user that a certificate names.

    `authenticated` is None if it names no user; then `cause` is the error, "" if only the common name is missing.
    """

    __slots__ = ("authenticated", "cause", "common_name")

    def __init__(self, common_name: str, authenticated: AuthenticatedUser | None, cause: str = "") -> None:
        self.common_name = common_name
        self.authenticated = authenticated
        self.cause = cause


def certificate_user(leaf: x509.Certificate) -> CertificateUser:
    """Parse a certificate's subject. Of several common names the last is used, as in Go.

    An attribute that is not text makes the subject unreadable, as in Go (`crypto/x509` parseName): without it, the user
    might lack one of its groups.
    """
    common_name = ""
    groups: list[str] = []
    uids: list[str] = []
    try:
        for attribute in leaf.subject:
            value = attribute.value
            if isinstance(value, bytes):
                return CertificateUser("", None, "its subject has a name that is no text")
            if attribute.oid == _UID:
                uids.append(value)
            elif attribute.oid == NameOID.COMMON_NAME:
                common_name = value
            elif attribute.oid == NameOID.ORGANIZATION_NAME and value:
                groups.append(value)
    except (ValueError, TypeError):  # TypeError: a bit string in place of a string
        return CertificateUser("", None, "its subject cannot be read")
    if not common_name:
        return CertificateUser("", None)
    uid = uids[0] if uids else ""
    if len(uids) > 1 or (uids and not uid):
        return CertificateUser(common_name, None, "the user's UID in its subject is not exactly one string")
    identifier = "X509SHA256=" + hashlib.sha256(leaf.public_bytes(Encoding.DER)).hexdigest()
    user = UserInfo(common_name, tuple(dict.fromkeys(groups)), uid, ((CREDENTIAL_ID, (identifier,)),))
    return CertificateUser(
        common_name, AuthenticatedUser(authenticated(user), ambient=True, authenticator="clientCertificates")
    )


#: Maximum number of cached results: each set of authenticators that a connection uses needs two. Without this limit
#: the cache would grow with reloads and virtual servers.
_KEPT = 8


UNREADABLE = CertificateUser("", None, "it cannot be read")


class _Transport(Protocol):
    """The used part of `http.transport.Transport`; only TLS connections have a chain."""

    is_tls: bool

    def peer_certificate(self) -> x509.Certificate | None: ...


class TLSPeer:
    """An unverified client certificate; one object for each connection with a certificate.

    `leaf` is None if the client's certificate cannot be parsed; then no verifier accepts it.
    """

    __slots__ = ("_user", "_verifications", "chain", "leaf")

    def __init__(self, leaf: x509.Certificate | None, chain: tuple[x509.Certificate, ...] = ()) -> None:
        self.leaf = leaf
        self.chain = chain  # intermediates as sent, for building a path to a CA
        self._user: CertificateUser | None = None
        self._verifications: dict[ClientCertificateVerifier, Verification] = {}

    @classmethod
    def of(cls, transport: _Transport) -> TLSPeer | None:
        """Return the peer of a connection after its handshake; None if it sent no certificate."""
        if not transport.is_tls:
            return None
        try:
            leaf = transport.peer_certificate()
            if leaf is None:
                return None
            chain: list[x509.Certificate] = transport.peer_chain()  # type: ignore[attr-defined]
        except (ValueError, x509.InvalidVersion):  # OpenSSL accepts certificates that the cryptography package refuses
            return cls(None)
        return cls(leaf, tuple(chain))

    def certificate_user(self) -> CertificateUser:
        """Return the user that the certificate names; it is valid only if a verifier accepts the certificate."""
        if self._user is None:
            self._user = UNREADABLE if self.leaf is None else certificate_user(self.leaf)
        return self._user

    def verification(self, verifier: ClientCertificateVerifier, now: float) -> Verification:
        """Return the result of a verifier, cached while it is valid; `now` is seconds since 1970."""
        result = self._verifications.get(verifier)
        if result is not None and result.since <= now <= result.until:
            return result
        if len(self._verifications) >= _KEPT:
            self._verifications.clear()
        result = self._verifications[verifier] = verifier.verify(self, now)
        return result


class HubPeer(TLSPeer):
    """The hub at the other end of a connection that a listener has dialled (`listeners[].dial`).

    The handshake has verified the hub's certificate, which is that of a server, so it never names a user.
    """

    __slots__ = ("listener",)

    def __init__(self, listener: str) -> None:
        """`listener`: the name of the listener that has dialled."""
        super().__init__(None)
        self.listener = listener
