"""Parses query parameters, and converts them as Kubernetes converts url.Values.

Sources: Go `net/url` (ParseQuery); apimachinery `runtime/converter.go` (Convert_Slice_string_To_bool and _To_int64).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote_to_bytes

from mcproxy.kube import duration
from mcproxy.kube.status import StatusError

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_INT64_DIGITS = 19


def parse_query(query: bytes) -> dict[str, str]:
    """Return the first value of each parameter of a query string.

    Pairs with a semicolon or a malformed escape are dropped, as in Go.
    """
    found: dict[str, str] = {}
    for pair in query.split(b"&"):
        if not pair or b";" in pair or (b"%" in pair and _BAD_ESCAPE.search(pair)):
            continue
        key, _, value = pair.partition(b"=")
        found.setdefault(_unescape(key), _unescape(value))
    return found


def without_dropped_pairs(target: bytes) -> bytes:
    """Return a target without the pairs of its query that Go drops (`parse_query`).

    Another server might interpret them, and perform an action that was not authorized.
    """
    path, _, query = target.partition(b"?")
    if b";" not in query and not (b"%" in query and _BAD_ESCAPE.search(query)):
        return target
    kept = b"&".join(pair for pair in query.split(b"&") if b";" not in pair and not _BAD_ESCAPE.search(pair))
    return b"%b?%b" % (path, kept) if kept else path


def _unescape(text: bytes) -> str:
    return unquote_to_bytes(text.replace(b"+", b" ")).decode("utf-8", "replace")


def boolean(value: str | None) -> bool:
    """Return a boolean: any value except "0" and "false" is true, also ""; a missing parameter (None) is false."""
    return value is not None and value.lower() not in ("false", "0")


def check_timeout(query: Mapping[str, str]) -> None:
    """Check the `timeout` of a request that is not long-running (apiserver `WithRequestDeadline`).

    Raises StatusError 400.
    """
    text = query.get("timeout", "")
    if text and (problem := duration.problem(text)):
        raise StatusError(400, f"invalid timeout specified in the request URL - {problem}")


def integer(text: str) -> int:
    """Parse as Go's strconv.ParseInt for 64 bits. Raises StatusError 400 with Go's error."""
    if not _INTEGER.fullmatch(text):
        raise StatusError(400, f'strconv.ParseInt: parsing "{text}": invalid syntax')
    if len(text.lstrip("+-0")) > _INT64_DIGITS or not -(1 << 63) <= (value := int(text)) < 1 << 63:
        raise StatusError(400, f'strconv.ParseInt: parsing "{text}": value out of range')
    return value
