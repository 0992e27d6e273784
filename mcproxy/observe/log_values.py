"""Values of log lines: masks credentials in a query, cuts and quotes strings, formats times. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Final
from urllib.parse import unquote_plus

import msgspec

LONGEST: Final = 4096
"""Limit of a value that a client chose (characters); a longer value is cut and ends in three dots."""
LONGEST_IN_EVENTS = 512
"""Limit of a URI in a line of the daemon's log (characters); the access log allows more."""
THREE_DIGITS: Final = tuple(f"{number:03d}" for number in range(1000))
"""The numbers from 0 to 999 as they are in fractions of a second: formatting a number takes ten times as long."""
_THOUSANDTHS: Final = tuple(f"0.{digits}" for digits in THREE_DIGITS)
_LONGEST_ID: Final = 64  # characters
_SHORT: Final = 24  # characters; `quote` is slower than msgspec for longer strings
_encode = msgspec.json.Encoder().encode
_MASK = "***"
_SECRET_NAME = re.compile(
    r"token|secret|passw|passphrase|authorization|(?:api|access|private)_?key|bearer|credential|signature|assertion|"
    r"sess(?:ion)?_?id|^(?:jwt|code|code_verifier|sig|auth|command|pass|pwd|key|otp|sid|ticket|samlresponse)$"
)
_MAYBE_SECRET = re.compile(_SECRET_NAME.pattern.replace("^", "").replace("$", ""))


def mask_query(uri: str) -> str:
    """Return `uri` with ``***`` instead of the values of query parameters that can be credentials.

    Applications behind `proxy` accept credentials in a query (``?token=…``, ``?code=…``), and the `command` of exec
    often contains passwords.
    """
    path, mark, query = uri.partition("?")
    if not mark:
        return uri
    if "%" not in query and _MAYBE_SECRET.search(query.lower()) is None:
        return uri
    return path + "?" + "&".join(_mask_parameter(parameter) for parameter in query.split("&"))


def _mask_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    plain = unquote_plus(name).lower()
    if equals and value and _SECRET_NAME.search(plain):
        return name + "=" + _MASK
    return parameter


def bounded(text: str) -> str:
    """Return a client's string cut to `LONGEST`."""
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."


def json_string(text: str) -> str:
    """Return a client's string as a string of JSON, cut to `LONGEST` and escaped to ASCII."""
    if len(text) > LONGEST:
        text = bounded(text)
    if len(text) < _SHORT or "\x7f" in text:  # DEL, which msgspec does not escape
        return quote(text)
    try:
        return _encode(text).decode("ascii")
    except UnicodeError:  # not ASCII, or a surrogate without its other half
        return quote(text)


def json_id(identifier: str) -> str:
    """Return an Audit-ID (printable ASCII) as a string of JSON."""
    if '"' in identifier or "\\" in identifier or len(identifier) > _LONGEST_ID:
        return json_string(identifier)
    return f'"{identifier}"'


def json_members(names: Sequence[str], values: Sequence[object]) -> str:
    """Return members of an object, each after a comma, without those whose value is None or an empty string."""
    text = ""
    for name, value in zip(names, values, strict=True):
        if isinstance(value, str):
            text += f',"{name}":{json_string(value)}' if value else ""
        elif value is not None:
            text += f',"{name}":{str(value).lower()}'
    return text


def json_seconds(seconds: float) -> str:
    """Return a duration as a decimal number with six digits after the point."""
    micros = max(0, int(seconds * 1e6))
    thousandth = micros // 1000
    if thousandth < 1000:
        return _THOUSANDTHS[thousandth] + THREE_DIGITS[micros % 1000]
    return f"{thousandth // 1000}.{THREE_DIGITS[thousandth % 1000]}{THREE_DIGITS[micros % 1000]}"


def masked(uri: str, longest: int = LONGEST) -> str:
    """Return `uri` cut, then masked, because masking takes time for each parameter.

    Cut values are masked, too."""
    return mask_query(uri) if len(uri) <= longest else mask_query(uri[:longest]) + "..."


class Seconds:
    """Formats a time in whole seconds. It caches the last result, because most lines have the previous line's time."""

    __slots__ = ("_pattern", "_second", "_text")

    def __init__(self, pattern: str) -> None:
        """`pattern` is a format of `time.strftime`, for UTC."""
        self._pattern = pattern
        self._second = -1
        self._text = ""

    def text(self, second: int) -> str:
        """Return the text for a time in seconds since the epoch."""
        if second != self._second:
            self._second = second
            self._text = time.strftime(self._pattern, time.gmtime(second))
        return self._text
