"""What a bearer token that was refused says about where it is from, for the log. Nothing of it is verified. Pure."""

from __future__ import annotations

import base64
import binascii
import json

from mcproxy.identity.reviewer_log import shown

_LONGEST = 256 * 1024
"""Longest payload that is decoded (bytes)."""


def claimed_issuer(token: bytes) -> str:
    """Return the issuer that a JWT claims to be of, bounded and printable; "" for any other token."""
    parts = token.split(b".")
    if len(parts) != 3 or not 0 < len(parts[1]) <= _LONGEST:
        return ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + b"=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return ""
    issuer = claims.get("iss") if isinstance(claims, dict) else None
    return shown(issuer) if isinstance(issuer, str) else ""
