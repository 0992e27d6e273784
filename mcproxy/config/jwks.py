"""JSON Web Key Sets (RFC 7517): is a file one that tokens could be verified by?

Only the form is judged here; who verifies makes keys of it. As the RFC says, keys of unknown kinds and for other uses
are passed over; but a set without any usable key, or a key that lacks what its kind needs, is a fault of the file.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from mcproxy.config.context import Context
from mcproxy.config.model import JWKSFile
from mcproxy.config.nodes import Place, quote

_PARTS = {"RSA": ("n", "e"), "EC": ("x", "y")}
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+\Z")
_CURVES = ("P-256", "P-384", "P-521")
_MIN_RSA_BYTES = 256
_RIGHT = "get the set from the issuer's jwks_uri anew"


def read(context: Context, place: Place) -> JWKSFile | None:
    """Return the key set that `place` names; None where it is none (reported)."""
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        context.error(place, f"{path} is no JSON{where}", _RIGHT)
        return None
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        context.error(place, f"{path} is no set of keys", 'give a JSON object {"keys": […]}')
        return None
    faults = [f"{_shown(number, key)} {fault}" for number, key in enumerate(keys) if (fault := _fault(key)) is not None]
    for fault in faults:
        context.error(place, f"{path}: {fault}", _RIGHT)
    if not faults and not any(_usable(key) for key in keys):
        what = f"{path} has no key that signatures of tokens could be verified by"
        context.error(place, what, "give it an RSA key, or an EC key of P-256, P-384 or P-521")
    for number, key in enumerate(keys):
        if isinstance(key, dict) and _usable(key) and "d" in key:
            what = f"{path}: {_shown(number, key)} holds the private half, with which anyone could make tokens"
            context.warn(place, what, "keep the public half only")
    return JWKSFile(path, data)


def _shown(number: int, key: Any) -> str:
    kid = key.get("kid") if isinstance(key, dict) else None
    return f"keys[{number}] (kid {quote(kid)})" if isinstance(kid, str) else f"keys[{number}]"


def _usable(key: Any) -> bool:
    return key.get("kty") in _PARTS and key.get("use", "sig") == "sig" and key.get("crv", _CURVES[0]) in _CURVES


def _fault(key: Any) -> str | None:
    if not isinstance(key, dict):
        return "is no JSON object"
    kind = key.get("kty")
    if not isinstance(kind, str):
        return "has no kty"
    if kind not in _PARTS or not _usable(key):
        return None
    if kind == "EC" and "crv" not in key:
        return "has no crv"
    numbers = [_number(key.get(part)) for part in _PARTS[kind]]
    for part, number in zip(_PARTS[kind], numbers, strict=True):
        if number is None:
            return f"has no {part}" if part not in key else f"has a {part} that is not base64url"
    if kind == "RSA" and len((numbers[0] or b"").lstrip(b"\0")) < _MIN_RSA_BYTES:
        return "has fewer than 2048 bits"
    return None


def _number(text: Any) -> bytes | None:
    """Return the bytes of a number, which JWKs have in base64url without padding."""
    if not isinstance(text, str) or not _BASE64URL.match(text):
        return None
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return None
