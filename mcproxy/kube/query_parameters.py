"""Query parameters, converted as Kubernetes converts url.Values.

Sources: Go `net/url` (ParseQuery); apimachinery `runtime/converter.go` (Convert_Slice_string_To_bool and _To_int64).
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from mcproxy.kube.status import StatusError

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INT64_DIGITS = 19


def parse_query(query: bytes) -> dict[str, str]:
    """Return the first value of each parameter of a query string.

    Go drops a pair that holds a semicolon or a malformed escape, so this does.
    """
    found: dict[str, str] = {}
    for pair in query.split(b"&"):
        if not pair or b";" in pair or (b"%" in pair and _BAD_ESCAPE.search(pair)):
            continue
        key, _, value = pair.partition(b"=")
        found.setdefault(_unescape(key), _unescape(value))
    return found


def _unescape(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")


def boolean(value: str | None) -> bool:
    """Anything but "0" and "false" is true, the empty value too; a missing parameter (None) is false."""
    return value is not None and value.lower() not in ("false", "0")


def integer(text: str) -> int:
    """strconv.ParseInt for 64 bits. Raises StatusError 400 with its error."""
    if not _INTEGER.fullmatch(text):
        raise StatusError(400, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(text.lstrip("+-0")) > _INT64_DIGITS or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise StatusError(400, f'strconv.ParseInt: parsing "{text}": value out of range')
    return value
