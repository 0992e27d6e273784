"""ServiceAccount tokens of a simulated cluster: signing key, JWTs (RFC 7519, RS256), the issuer's OIDC documents."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from kubesim.apimachinery.user import User
from kubesim.cluster import SimulatedCluster

__all__ = ["ISSUER", "Invalid", "Issuer", "Verified", "issuer_of", "service_account_groups"]

JSONDict = dict[str, Any]
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


def service_account_groups(namespace: str) -> tuple[str, str]:
    return ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")


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
