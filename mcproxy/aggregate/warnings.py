"""`Warning` headers of aggregated answers: which members' objects are missing or old, and why.

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
"""Maximum number of Warnings in one answer, so that clients accept the head; the last one counts the omitted ones.
"""
MAX_LENGTH = 512
"""Maximum characters of one text, since clients reject a response head that is too long."""
MAX_OF_A_MEMBER = 10
"""Maximum number of Warnings that are kept from one answer of a member."""
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
    """Return a field for each distinct text; if there are too many, the last field has the number of omitted ones."""
    distinct = list(dict.fromkeys(texts))
    if len(distinct) > MAX_WARNINGS:
        more = len(distinct) - MAX_WARNINGS + 1
        distinct = [*distinct[: MAX_WARNINGS - 1], f"{more} more warnings are not shown"]
    return [warning(text) for text in distinct]


def texts_of(fields: Iterable[Field]) -> tuple[str, ...]:
    """Return the texts of a member's `Warning` headers, for `warning`; malformed headers are left out."""
    values = (value[: 4 * MAX_LENGTH] for name, value in fields if name.lower() == b"warning")
    matches = (match for value in values for match in _VALUE.finditer(value.decode("utf-8", "replace")))
    found = (_ESCAPED.sub(r"\1", match[1]) for match in matches)
    return tuple(islice(dict.fromkeys(found), MAX_OF_A_MEMBER))


def block(fields: Sequence[Field]) -> bytes:
    """Return fields as header lines."""
    return b"".join(b"%b: %b\r\n" % field for field in fields)


@dataclass(frozen=True, slots=True)
class Trouble:
    """The reason why the cached objects of a member may be old, in the form for users; the log has more details.

    `words` is the text after the member's name. `since` is the start of the outage, if the member is not followed.
    """

    words: str
    since: WallSeconds | None = None

    def text(self, member: str, *, stale: bool) -> str:
        """Return the text of a Warning; `stale`: the member's last known objects are shown, otherwise none."""
        if stale:
            return f"cluster {member}: {self.words}, showing its last known objects"
        return f"cluster {member}: {self.words}" + (", its objects are left out" if self.since is None else "")


SLOW = Trouble("did not answer in time")
LATE = Trouble("its newest changes have not arrived in time")
NO_ANSWER = Trouble("did not answer")


def unreachable(since: WallSeconds) -> Trouble:
    """Return the trouble of a member that cannot be reached."""
    moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Trouble(f"unavailable since {moment}", since)


def refused(resource: object) -> Trouble:
    """Return the trouble of a member that refuses the proxy's list (401, 403), without details of the credential."""
    return Trouble(f"the proxy may not list {resource} there")


def answered(status: int) -> Trouble:
    """Return the trouble of a member that answered with an error."""
    return Trouble(f"answered {status}")


def never_synced_text(member: str) -> str:
    """Return the text for a member whose objects are not known yet."""
    return f"cluster {member}: its objects are left out, they could not be listed yet"


def unreadable_text(member: str, count: int, *, more: bool) -> str:
    """Return the text for a member with `count` unreadable objects; `more`: there are more than `count`."""
    objects = "1 object is left out, it" if count == 1 and not more else f"{count} objects are left out, they"
    return f"cluster {member}: {'more than ' if more else ''}{objects} cannot be read"


def left_out_text(member: str, why: str) -> str:
    """Return the text for a member whose objects are left out for a reason."""
    return f"cluster {member}: its objects are left out: {why}"
