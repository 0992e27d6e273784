"""A digest of plain values that is the same in every process of a daemon, unlike `hash()`, pickles and `repr`.

Values are what configurations consist of. Secrets are part of it, so a fingerprint is neither logged nor sent beyond
the daemon's own processes.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from hashlib import blake2b
from typing import Any

from mcproxy.config.model import Secret


def fingerprint(value: Any) -> str:
    """Return 32 hexadecimal digits; equal for equal values, of whatever process."""
    digest = blake2b(digest_size=16)
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    """Add a value with its type and length, so that no two values have the same bytes."""
    if isinstance(value, Secret):
        _add(digest, ("secret", value.reveal()))
    elif isinstance(value, Enum):
        _add(digest, (type(value).__name__, value.name))
    elif is_dataclass(value):
        _add(digest, (type(value).__name__, *(getattr(value, field.name) for field in fields(value))))
    elif isinstance(value, tuple | list):
        digest.update(b"(%d" % len(value))
        for item in value:
            _add(digest, item)
    elif isinstance(value, str | bytes):
        data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
        digest.update(b"%c%d:" % (b"s" if isinstance(value, str) else b"b", len(data)))
        digest.update(data)
    elif value is None or isinstance(value, bool | int | float):
        _add(digest, repr(value).encode())
    else:
        raise TypeError(f"no fingerprint of {type(value).__name__}")
