"""Values of log lines: masks credentials in the query of a request target, cuts long strings, formats times. Pure."""

from __future__ import annotations

import re
import time
from urllib.parse import unquote_plus

LONGEST = 4096
"""Limit of a value that a client chose (characters); a longer value is cut and ends in three dots."""
LONGEST_IN_EVENTS = 512
"""Limit of a URI in a line of the daemon's log (characters); the access log allows more."""
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

    def __call__(self, second: int) -> str:
        """Return the text for a time in seconds since the epoch."""
        if second != self._second:
            self._second = second
            self._text = time.strftime(self._pattern, time.gmtime(second))
        return self._text
