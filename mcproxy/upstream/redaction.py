"""Secrets in text of other programs that goes into the log: what an exec plugin wrote to stderr.

A plugin knows its configuration and the issuer's response, and some print both when they fail. Everything that looks
like a secret is replaced; the rest helps an operator and stays. Clients never get any of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"

_SHORTEST = 6  # characters of a configured value that is masked wherever it occurs; shorter ones would mask words

_SECRET_WORD = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credentials?|api[_-]?key|private[_-]?key|assertion|sig|code)"
)
_FLAG = re.compile(rf"--?[\w-]*{_SECRET_WORD}[\w-]*", re.IGNORECASE)
_PATTERNS = (
    # a JWT, and anything else in base64 or hex that is too long for a word, a path's part or a UUID
    re.compile(r"eyJ[\w-]+(?:\.[\w-]*)*"),
    re.compile(r"(?<![\w/+=.-])(?=[\w+=-]*\d)(?=[\w+=-]*[A-Za-z])[\w+=-]{37,}"),
    # NAME=VALUE, "name": "value", --name value, of names that mean a secret
    re.compile(rf"(?i)((?<![A-Za-z])[\w-]*{_SECRET_WORD}[\w-]*[\"']?\s*[=:]\s*[\"']?)(?!\s)[^\s\"',;&]+"),
    re.compile(rf"(?i)(--?[\w-]*{_SECRET_WORD}[\w-]*\s+[\"']?)[^\s\"'-][^\s\"']*"),
    re.compile(r"(?i)((?:bearer|basic)\s+)[^\s\"',;]+"),
    # user:password@ in a URL
    re.compile(r"(://)[^\s/@]+(?=@)"),
)


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without `secrets` (configured values) and without what looks like one."""
    for secret in sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda match: (match[1] if match.lastindex else "") + MASK, text)
    return text


def secret_arguments(arguments: Iterable[str]) -> list[str]:
    """Return those of a command's arguments that are values of flags like --client-secret."""
    found: list[str] = []
    follows = False
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if follows and not argument.startswith("-"):
            found.append(argument)
        follows = False
        if _FLAG.fullmatch(name):
            if separator:
                found.append(value)
            follows = not separator
    return found
