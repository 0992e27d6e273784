"""An OIDC issuer for tests: keys of every kind, and tokens signed with them, well or badly."""

from __future__ import annotations

import base64
import json
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from mcproxy.config import model

ISSUER = "https://login.example.com"
NOW = 1_790_000_000.0
CURVES: dict[str, tuple[ec.EllipticCurve, int]] = {
    "P-256": (ec.SECP256R1(), 32),
    "P-384": (ec.SECP384R1(), 48),
    "P-521": (ec.SECP521R1(), 66),
    "secp256k1": (ec.SECP256K1(), 32),
}
HASHES: dict[str, hashes.HashAlgorithm] = {"256": hashes.SHA256(), "384": hashes.SHA384(), "512": hashes.SHA512()}


@cache
def _key(kind: str, name: str) -> Any:
    if kind.isdecimal():
        return rsa.generate_private_key(65537, int(kind))
    return ec.generate_private_key(CURVES[kind][0])


def rsa_key(name: str = "one", bits: int = 2048) -> rsa.RSAPrivateKey:
    """The same key for the same name and size."""
    key: rsa.RSAPrivateKey = _key(str(bits), name)
    return key


def ec_key(curve: str, name: str = "one") -> ec.EllipticCurvePrivateKey:
    key: ec.EllipticCurvePrivateKey = _key(curve, name)
    return key


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _number(value: int, length: int) -> str:
    return b64(value.to_bytes(length, "big"))


def rsa_jwk(name: str = "one", bits: int = 2048, **more: Any) -> dict[str, Any]:
    numbers = rsa_key(name, bits).public_key().public_numbers()
    return {"kty": "RSA", "kid": name, "n": _number(numbers.n, bits // 8), "e": "AQAB", **more}


def ec_jwk(curve: str = "P-256", name: str = "one", **more: Any) -> dict[str, Any]:
    numbers = ec_key(curve, name).public_key().public_numbers()
    length = CURVES[curve][1]
    x, y = _number(numbers.x, length), _number(numbers.y, length)
    return {"kty": "EC", "kid": name, "crv": curve, "x": x, "y": y, **more}


def jwks(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def claims(**changed: Any) -> dict[str, Any]:
    """Claims of a good token; None takes one out."""
    usual = {"iss": ISSUER, "aud": "k8s", "sub": "alice", "exp": NOW + 600, "iat": NOW - 5}
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def unsigned(payload: Any, **header: Any) -> bytes:
    """Header and payload, both as they go into the signature; bytes go in as they are."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return f"{b64(json.dumps(header).encode())}.{b64(body)}".encode()


def with_signature(start: bytes, signature: bytes) -> bytes:
    return start + b"." + b64(signature).encode()


def token(payload: Any = None, *, alg: str = "RS256", kid: str | None = "one", key: Any = None, **header: Any) -> bytes:
    """A token signed as `alg` says, by the key "one" unless another is given."""
    if kid is not None:
        header["kid"] = kid
    start = unsigned(claims() if payload is None else payload, alg=alg, **header)
    digest = HASHES[alg[2:]]
    if alg.startswith("ES"):
        curve = {"256": "P-256", "384": "P-384", "512": "P-521"}[alg[2:]]
        key = ec_key(curve) if key is None else key
        r, s = decode_dss_signature(key.sign(start, ec.ECDSA(digest)))
        length = (key.curve.key_size + 7) // 8
        return with_signature(start, r.to_bytes(length, "big") + s.to_bytes(length, "big"))
    key = rsa_key() if key is None else key
    if alg.startswith("PS"):
        scheme: Any = padding.PSS(padding.MGF1(digest), digest.digest_size)
    else:
        scheme = padding.PKCS1v15()
    return with_signature(start, key.sign(start, scheme, digest))


def config(**changed: Any) -> model.OIDC:
    """The issuer as the file has it; its keys in a file unless changed."""
    keys = model.JWKSFile("/etc/jwks.json", jwks(rsa_jwk()))
    return model.OIDC(**{"issuer": ISSUER, "audiences": ("k8s", "kubernetes"), "jwks": keys, **changed})
