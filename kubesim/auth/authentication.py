"""Authenticators in a real apiserver's order: front proxy, client certificate, bearer token, anonymous.

Source: k8s.io/apiserver pkg/authentication and the recorded answers. One valid credential wins over invalid ones; a
request with only an invalid one gets 401 even where anonymous requests are allowed; basic authentication is ignored.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from urllib.parse import unquote

from aiohttp import web
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from kubesim.apimachinery.status import unauthorized
from kubesim.apimachinery.user import User
from kubesim.auth.service_account_tokens import CREDENTIAL_ID, ISSUER, Invalid, Verified, issuer_of
from kubesim.cluster import SimulatedCluster
from kubesim.diagnostics.audit import note_user, peer_certificate

__all__ = ["ANONYMOUS", "AUTHENTICATED", "UNAUTHENTICATED", "authenticate", "extra_headers", "verify_token"]

AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
ANONYMOUS = User("system:anonymous", groups=(UNAUTHENTICATED,))
MAX_CERTIFICATES = 1000
BEARER_PROTOCOL = "base64url.bearer.authorization.k8s.io."


class _Refused(Exception):
    """A credential was presented and is invalid."""


def authenticate(cluster: SimulatedCluster, request: web.BaseRequest) -> User:
    """Return the user of a request. Raises APIError 401."""
    refused = False
    for method in (_by_certificate, _by_token):
        try:
            user = method(cluster, request)
        except _Refused:
            refused = True
            continue
        if user is not None:
            user = _with_group(user)
            note_user(request, user)
            return user
    if refused or not cluster.options.anonymous_auth:
        raise unauthorized()
    note_user(request, ANONYMOUS)
    return ANONYMOUS


def _with_group(user: User) -> User:
    if user.name == ANONYMOUS.name or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return User(user.name, user.uid, (*user.groups, AUTHENTICATED), user.extra)


def _by_certificate(cluster: SimulatedCluster, request: web.BaseRequest) -> User | None:
    der = peer_certificate(request)
    if not der:
        return None
    front_proxy, user = _verify_certificate(cluster, der)
    if front_proxy and (named := _front_proxy_user(request)) is not None:
        return named
    if front_proxy and user is None:
        raise _Refused
    return user


def _verify_certificate(cluster: SimulatedCluster, der: bytes) -> tuple[bool, User | None]:
    """Return (whether it is a front proxy's, its user if it is a client's). Raises _Refused."""
    known = cluster.state.setdefault("authentication", {})
    key = (der, cluster.client_ca_pem, cluster.front_proxy_ca_pem)
    if key not in known:
        if len(known) >= MAX_CERTIFICATES:
            known.clear()
        certificate = x509.load_der_x509_certificate(der)
        front_proxy = _issued_by(certificate, cluster.front_proxy_ca_pem)
        client = _issued_by(certificate, cluster.client_ca_pem)
        known[key] = (front_proxy, client, _certificate_user(certificate, der) if client else None)
    front_proxy, client, user = known[key]
    if not front_proxy and not client:
        raise _Refused
    return front_proxy, user


def _certificate_user(certificate: x509.Certificate, der: bytes) -> User | None:
    subject = certificate.subject
    names = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names or not names[0]:
        return None
    groups = tuple(str(item.value) for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    return User(names[0], "", groups, {CREDENTIAL_ID: (f"X509SHA256={hashlib.sha256(der).hexdigest()}",)})


def _issued_by(certificate: x509.Certificate, ca_pem: bytes) -> bool:
    """Return whether one of these CAs signed it; the TLS handshake has checked dates and purpose."""
    for ca in x509.load_pem_x509_certificates(ca_pem) if ca_pem else ():
        try:
            certificate.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def extra_headers(headers: Sequence[tuple[str, str]], prefix: str) -> dict[str, tuple[str, ...]]:
    """Return the values of `{prefix}{key}` headers by key, in their order; keys are lower-cased and percent-decoded."""
    found: dict[str, tuple[str, ...]] = {}
    for name, value in headers:
        if name.lower().startswith(prefix):
            key = unquote(name[len(prefix) :].lower())
            found[key] = (*found.get(key, ()), value)
    return found


def _front_proxy_user(request: web.BaseRequest) -> User | None:
    name = request.headers.get("X-Remote-User", "").strip()
    if not name:
        return None
    groups = tuple(request.headers.getall("X-Remote-Group", ()))
    extra = extra_headers(list(request.headers.items()), "x-remote-extra-")
    return User(name, request.headers.get("X-Remote-Uid", ""), groups, extra)


def _bearer(request: web.BaseRequest) -> str:
    """Return the token of the Authorization header, or of the WebSocket subprotocol that browsers use."""
    scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip().split(" ")[0]
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return ""
    offered = [
        item.strip() for value in request.headers.getall("Sec-WebSocket-Protocol", ()) for item in value.split(",")
    ]
    encoded = [item.removeprefix(BEARER_PROTOCOL) for item in offered if item.startswith(BEARER_PROTOCOL)]
    if not encoded:
        return ""
    if len(encoded) > 1 or len(offered) < 2:
        raise _Refused
    try:
        return base64.urlsafe_b64decode(encoded[0] + "=" * (-len(encoded[0]) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _Refused from None


def _by_token(cluster: SimulatedCluster, request: web.BaseRequest) -> User | None:
    token = _bearer(request)
    if not token:
        return None
    try:
        return verify_token(cluster, token).user
    except Invalid:
        raise _Refused from None


def verify_token(cluster: SimulatedCluster, token: str, audiences: Sequence[str] = ()) -> Verified:
    """Return the user of a bearer token, with system:authenticated, and the accepted audiences. Raises Invalid."""
    static = cluster.tokens.get(token)
    if static is not None:
        wanted = tuple(audiences) or (ISSUER,)
        if ISSUER not in wanted:
            raise Invalid
        return Verified(_with_group(static), (ISSUER,))
    verified = issuer_of(cluster).verify(token, audiences)
    return Verified(_with_group(verified.user), verified.audiences)
