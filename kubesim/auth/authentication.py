"""Authenticators in a real apiserver's order: front proxy, client certificate, bearer token, anonymous.

Source: k8s.io/apiserver pkg/authentication and the recorded answers. One valid credential wins over invalid ones; a
request with only an invalid one gets 401 even where anonymous requests are allowed; basic authentication is ignored.

ServiceAccount tokens are JWTs (RFC 7519, RS256), signed by a key of the cluster, whose OIDC documents are served.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.status import unauthorized
from kubesim.apimachinery.user import User
from kubesim.audit import note_user, peer_certificate
from kubesim.cluster import SimulatedCluster
from kubesim.request.upgrade import BEARER_PROTOCOL
from mcproxy.kube.user import AUTHENTICATED, UNAUTHENTICATED, service_account_groups

ISSUER = "https://kubernetes.default.svc.cluster.local"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"


class Invalid(Exception):
    """The token is invalid. `reason` is what a TokenReview appends to "invalid bearer token"; "" appends nothing."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Verified:
    user: User
    audiences: tuple[str, ...]
    """The audiences of the token that were requested."""


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def issuer_of(cluster: SimulatedCluster) -> Issuer:
    """Return the cluster's issuer; its key is generated on first use, which takes some 50 ms."""
    found = cluster.state.get("tokens")
    if found is None:
        found = cluster.state["tokens"] = Issuer(cluster)
    assert isinstance(found, Issuer)
    return found


class Issuer:
    """Signs and verifies the ServiceAccount tokens of one cluster."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._key = rsa.generate_private_key(65537, 2048)
        public = self._key.public_key()
        der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.key_id = _encode(hashlib.sha256(der).digest())
        self._verified: dict[str, JSONDict] = {}

    def issue(
        self,
        namespace: str,
        account: Mapping[str, Any],
        *,
        audiences: Sequence[str] = (ISSUER,),
        seconds: int = 3600,
        bound: Mapping[str, JSONDict] | None = None,
    ) -> str:
        """Issue a token for a ServiceAccount object; `bound` are claims (pod, secret, node) with name and uid."""
        now = int(self._cluster.now().timestamp())
        name, uid = account["metadata"]["name"], account["metadata"].get("uid", "")
        private = {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}, **(bound or {})}
        claims = {
            "aud": list(audiences),
            "exp": now + seconds,
            "iat": now,
            "iss": ISSUER,
            "jti": self._cluster.uid(),
            "kubernetes.io": dict(sorted(private.items())),
            "nbf": now,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        head = {"alg": "RS256", "kid": self.key_id}
        signed = ".".join(_encode(json.dumps(part, separators=(",", ":")).encode()) for part in (head, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encode(signature)}"

    def verify(self, token: str, audiences: Sequence[str] = ()) -> Verified:
        """Return the user of a token. Raises Invalid. Without audiences, the API server's own is required."""
        wanted = tuple(audiences) or (ISSUER,)
        claims = self._signed_claims(token)
        now = self._cluster.now().timestamp()
        if now >= claims.get("exp", 0):
            raise Invalid("service account token has expired")
        if now < claims.get("nbf", 0):
            raise Invalid("service account token is not valid yet")
        had = claims.get("aud") or []
        common = tuple(audience for audience in had if audience in wanted)
        if not common:
            listed = " ".join(json.dumps(audience) for audience in had), " ".join(map(json.dumps, wanted))
            raise Invalid(f"token audiences [{listed[0]}] is invalid for the target audiences [{listed[1]}]")
        return Verified(self._user(claims), common)

    def _signed_claims(self, token: str) -> JSONDict:
        known = self._verified.get(token)
        if known is not None:
            return known
        parts = token.split(".")
        try:
            head, claims, signature = json.loads(_decode(parts[0])), json.loads(_decode(parts[1])), _decode(parts[2])
        except (ValueError, IndexError):
            raise Invalid from None
        if not isinstance(head, dict) or not isinstance(claims, dict) or claims.get("iss") != ISSUER:
            raise Invalid
        if head.get("alg") != "RS256" or head.get("kid") != self.key_id:
            raise Invalid("invalid signature, no keys found")
        try:
            signed = f"{parts[0]}.{parts[1]}".encode()
            self._key.public_key().verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            raise Invalid("go-jose/go-jose: error in cryptographic primitive") from None
        if len(self._verified) > 1000:
            self._verified.clear()
        self._verified[token] = claims
        return claims

    def _user(self, claims: JSONDict) -> User:
        private = claims["kubernetes.io"]
        namespace, name = private["namespace"], private["serviceaccount"]["name"]
        account = self._cluster.store.get(("", "serviceaccounts"), namespace, name)
        if account is None:
            raise Invalid("service account token has been invalidated")
        if account["metadata"].get("uid", "") != private["serviceaccount"]["uid"]:
            uids = account["metadata"].get("uid", ""), private["serviceaccount"]["uid"]
            raise Invalid(f"service account UID ({uids[0]}) does not match claim ({uids[1]})")
        extra = {CREDENTIAL_ID: (f"JTI={claims['jti']}",)}
        for kind in ("node", "pod"):
            if kind in private:
                extra[f"authentication.kubernetes.io/{kind}-name"] = (private[kind]["name"],)
                extra[f"authentication.kubernetes.io/{kind}-uid"] = (private[kind]["uid"],)
        if "pod" in private:
            pod = self._cluster.store.get(("", "pods"), namespace, private["pod"]["name"])
            if pod is None or pod["metadata"].get("uid", "") != private["pod"]["uid"]:
                raise Invalid("service account token has been invalidated")
        uid = account["metadata"].get("uid", "")
        return User(claims["sub"], uid, service_account_groups(namespace), extra)

    def discovery(self, authority: str) -> JSONDict:
        """Return /.well-known/openid-configuration of a server at `authority` (host:port)."""
        return {
            "issuer": ISSUER,
            "jwks_uri": f"https://{authority}/openid/v1/jwks",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def jwks(self) -> JSONDict:
        """Return /openid/v1/jwks (RFC 7517)."""
        numbers = self._key.public_key().public_numbers()
        key = {
            "use": "sig",
            "kty": "RSA",
            "kid": self.key_id,
            "alg": "RS256",
            "n": _encode(numbers.n.to_bytes(256, "big")),
            "e": _encode(numbers.e.to_bytes(3, "big")),
        }
        return {"keys": [key]}


ANONYMOUS = User("system:anonymous", groups=(UNAUTHENTICATED,))
MAX_CERTIFICATES = 1000


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
