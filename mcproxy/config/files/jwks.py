"""JSON Web Key Sets (RFC 7517): checks that tokens can be verified with the keys of a file.

The OIDC authenticator parses the keys again and ignores unusable keys. This module reports a key that lacks a required
member of its type as an error of the file. As the RFC specifies, it ignores keys of other types and for other uses. But
a set without any usable key is an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mcproxy.config.model import JWKSFile
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place, quote

_PARTS = {"RSA": ("n", "e"), "EC": ("x", "y")}
_CURVES: dict[str, type[ec.EllipticCurve]] = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}
_ALGORITHMS = re.compile(r"(RS|PS|ES)(256|384|512)\Z")
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+\Z")
_RSA_BITS = (2048, 8192)
_MAX_KEYS = 100
_RIGHT = "download the set from the issuer's jwks_uri again"


def read(context: Context, place: Place) -> JWKSFile | None:
    """Return the key set in the file that `place` names; None if it is invalid (reported)."""
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return JWKSFile(path, data)
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # raises for a lone surrogate
    except (ValueError, RecursionError) as error:
        fault = "that all readers understand alike"
        if isinstance(error, json.JSONDecodeError):
            fault = f"at line {error.lineno}, column {error.colno}"
        context.error(place, f"{path} is not JSON {fault}", _RIGHT)
        return None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        context.error(place, f"{path} is not a set of keys", 'give a JSON object {"keys": […]}')
        return None
    _check_keys(context, place, path, keys)
    return JWKSFile(path, data)


def _check_keys(context: Context, place: Place, path: str, keys: list[Any]) -> None:
    if len(keys) > _MAX_KEYS:
        what = f"{path} has {len(keys)} keys, and the first {_MAX_KEYS} count"
        context.error(place, what, "keep those that are in use")
        return
    faults = [f"{_shown(number, key)} {fault}" for number, key in enumerate(keys) if (fault := _fault(key)) is not None]
    for fault in faults:
        context.error(place, f"{path}: {fault}", _RIGHT)
    if not faults and not any(_usable(key) for key in keys):
        what = f"{path} has no key that signatures of tokens could be verified by"
        context.error(place, what, "give it an RSA key, or an EC key of P-256, P-384 or P-521")
    for number, key in enumerate(keys):
        if isinstance(key, dict) and _usable(key) and "d" in key:
            what = f"{path}: {_shown(number, key)} holds the private half, with which anyone could make tokens"
            context.warn(place, "private-key", what, "keep the public half only")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _shown(number: int, key: Any) -> str:
    kid = key.get("kid") if isinstance(key, dict) else None
    return f"keys[{number}] (kid {quote(kid)})" if isinstance(kid, str) else f"keys[{number}]"


def _usable(key: dict[str, Any]) -> bool:
    """Return whether a key's type and use show a signature key that the proxy supports."""
    kind, curve, operations, algorithm = (key.get(name) for name in ("kty", "crv", "key_ops", "alg"))
    if kind not in tuple(_PARTS) or key.get("use", "sig") != "sig":
        return False
    if kind == "EC" and "crv" in key and curve not in tuple(_CURVES):
        return False
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return False
    return algorithm is None or not isinstance(algorithm, str) or _ALGORITHMS.match(algorithm) is not None


def _fault(key: Any) -> str | None:
    if not isinstance(key, dict):
        return "is not a JSON object"
    kind = key.get("kty")
    if not isinstance(kind, str):
        return "has no kty"
    if not _usable(key):
        return None
    for name in ("kid", "alg"):
        if name in key and not isinstance(key[name], str):
            return f"has a {name} that is not a string"
    if kind == "EC" and "crv" not in key:
        return "has no crv"
    parts = _PARTS[kind]
    numbers = [_number(key.get(part)) for part in parts]
    for part, number in zip(parts, numbers, strict=True):
        if number is None:
            return f"has no {part}" if part not in key else f"has a value of {part} that is not base64url"
    first, second = (number or 0 for number in numbers)
    return _rsa_fault(first, second) if kind == "RSA" else _ec_fault(first, second, _CURVES[key["crv"]]())


def _rsa_fault(modulus: int, exponent: int) -> str | None:
    low, high = _RSA_BITS
    if not low <= modulus.bit_length() <= high:
        return f"has {modulus.bit_length()} bits, and {low} to {high} are usable"
    try:
        rsa.RSAPublicNumbers(exponent, modulus).public_key()
    except ValueError:
        return "is not a RSA key"
    return None


def _ec_fault(x: int, y: int, curve: ec.EllipticCurve) -> str | None:
    try:
        ec.EllipticCurvePublicNumbers(x, y, curve).public_key()
    except ValueError:
        return f"is not a point of {curve.name}"
    return None


def _number(text: Any) -> int | None:
    """Return the number that a JWK encodes as base64url without padding, most significant byte first."""
    if not isinstance(text, str) or not _BASE64URL.match(text):
        return None
    try:
        number = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
    # RFC 4648 3.5: unused trailing bits must be zero; not all libraries that read keys check this.
    if base64.urlsafe_b64encode(number).rstrip(b"=").decode() != text:
        return None
    return int.from_bytes(number, "big")
