"""`Warning` headers of aggregated answers: missing or old parts, and the cause.

Source: RFC 7234 5.5 and KEP-1693: warn-code 299, warn-agent "-", the text as a quoted string; kubectl prints each once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from mcproxy.net.wall_time import WallSeconds

MAX_WARNINGS = 50
"""The most Warnings in one answer; the last one names the remaining members together, so that clients accept the head.
"""
MAX_LENGTH = 512
"""Characters of one text; a client refuses a head that is too long."""
MAX_OF_A_MEMBER = 10
"""Warnings that are kept of one answer of a member."""
Field = tuple[bytes, bytes]
_VALUE = re.compile(r'[0-9]{3} [^\s",]{1,128} "((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def warning(text: str) -> Field:
    """Return a field `Warning: 299 - "text"`. Control characters become spaces; a long text is cut."""
    if len(text) > MAX_LENGTH:
        text = text[: MAX_LENGTH - 1] + "…"
    shown = "".join(char if char.isprintable() else " " for char in text)
    quoted = shown.replace("\\", "\\\\").replace('"', '\\"')
    return b"Warning", f'299 - "{quoted}"'.encode()


def warnings(texts: Iterable[str]) -> list[Field]:
    """Return a field for each text, equal ones once; the last one says how many more there would be."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) > MAX_WARNINGS:
        more = len(distinct) - MAX_WARNINGS + 1
        distinct = [*distinct[: MAX_WARNINGS - 1], f"{more} more warnings are not shown"]
    return [warning(text) for text in distinct]


def texts_of(fields: Iterable[Field]) -> tuple[str, ...]:
    """Return the texts of a member's `Warning` headers, as `warning` takes them; malformed ones are left out."""
    values = (value[: 4 * MAX_LENGTH] for name, value in fields if name.lower() == b"warning")
    matches = (match for value in values for match in _VALUE.finditer(value.decode("utf-8", "replace")))
    found = (_ESCAPED.sub(r"\1", match[1]) for match in matches)
    return tuple(islice(dict.fromkeys(found), MAX_OF_A_MEMBER))


def block(fields: Sequence[Field]) -> bytes:
    """Return fields as lines of a head."""
    return b"".join(b"%b: %b\r\n" % field for field in fields)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why the cached objects of a member may be old, as far as users may know it; the log has more.

    `words` follow the name of the member. `since` is known where the member is not followed.
    """

    words: str
    since: WallSeconds | None = None

    def text(self, member: str, *, stale: bool) -> str:
        """Return the text of a Warning; `stale`: the member's last known objects are shown, else none."""
        if stale:
            return f"cluster {member}: {self.words}, showing its last known objects"
        return f"cluster {member}: {self.words}" + (", its objects are left out" if self.since is None else "")


SLOW = Trouble("did not answer in time")
LATE = Trouble("its newest changes have not arrived in time")
NO_ANSWER = Trouble("did not answer")


def unreachable(since: WallSeconds) -> Trouble:
    """The member cannot be reached."""
    moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Trouble(f"unavailable since {moment}", since)


def refused(resource: object) -> Trouble:
    """The member does not let the proxy list a resource (401, 403): users learn no more about its credentials."""
    return Trouble(f"the proxy may not list {resource} there")


def answered(status: int) -> Trouble:
    """The member answered with an error."""
    return Trouble(f"answered {status}")


def never_synced_text(member: str) -> str:
    """Return the text for a member whose objects are not known yet."""
    return f"cluster {member}: its objects are left out, they could not be listed yet"


def unreadable_text(member: str, count: int, *, more: bool) -> str:
    """Return the text for a member with unreadable objects: how many, or `more` than are known."""
    objects = "1 object is left out, it" if count == 1 and not more else f"{count} objects are left out, they"
    return f"cluster {member}: {'more than ' if more else ''}{objects} cannot be read"


def left_out_text(member: str, why: str) -> str:
    """Return the text for a member whose objects are left out for a reason."""
    return f"cluster {member}: its objects are left out: {why}"
