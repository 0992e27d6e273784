"""Names: the nearest right one for a wrong one, and what a DNS name may look like."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_DNS_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\Z")


def nearest(wrong: str, right: Iterable[str]) -> str | None:
    """Return the name most like `wrong`, or None where none is like it; letter case does not count."""
    lowered: dict[str, str] = {}
    for name in right:
        lowered.setdefault(name.lower(), name)
    found = difflib.get_close_matches(wrong.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def suggest(wrong: str, right: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest right one, else all of them (if few)."""
    names = list(right)
    close = nearest(wrong, names)
    if close is not None:
        return f"did you mean {close}?"
    if not names:
        return "there are none"
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f"known are {listed}"


def is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_server_name(name: str) -> bool:
    """Whether a lower-case name can be in SNI or Host: a DNS name, ``*.`` and a DNS name, or an IP address."""
    if is_ip(name):
        return True
    if len(name) > 253 or not _DNS_NAME.match(name):
        return False
    return not name.rpartition(".")[2].isdigit()


def covers(pattern: str, name: str) -> bool:
    """Whether a certificate name (exact, or a wildcard of one label) covers a server name, itself maybe a wildcard."""
    if pattern == name:
        return True
    head, _, rest = name.partition(".")
    return bool(rest) and head != "*" and not is_ip(name) and pattern == f"*.{rest}"
