"""Writes docs/log-events.md from `mcproxy.observe.events`: run it after a change there, or in troubleshooting.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from mcproxy.cli.docs import Anchors
from mcproxy.observe.events import EVENTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "log-events.md"
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"

_HEADING = re.compile(r"^### (.+)$", re.MULTILINE)
_INTRO = """\
# Events of the log

Every line of the daemon's log has an `event`: a name that stays the same over versions, to alert on and to look up
here. `msg` says in words what happened, other fields what it is about (`process`, `server`, `listener`, `cluster`,
`endpoint`, `client`, `user`, `uri`, …), `cause` why, and `todo` what mends it; the latter fits the cause. mcproxy(8)
describes the forms of a line: text, JSON (`logging.format: json`), with priorities in the journal.

Lines that clients can cause are at most ten a minute for each event and client; the last of a minute counts the others
in `suppressed`. Of those about a connection that carries no request yet (TLS, PROXY headers, a listener's limits) there
is one a minute for each listener, client and cause; metrics such as `mcproxy_tls_handshakes_total` count them all. Of
several processes, one speaks for all about what all of them see.

A name leads to its entry in [troubleshooting](troubleshooting.md), where there is something to do.

| event | level | meaning | what to do |
|---|---|---|---|
"""


def entries(page: str) -> dict[str, str]:
    """Return the anchor of each event that has an entry in troubleshooting.md, as GitHub makes it of the heading."""
    found: dict[str, str] = {}
    anchors = Anchors()
    for heading in _HEADING.findall(page):
        found.update(dict.fromkeys(heading.split(", "), anchors.of(heading)))
    return found


def page() -> str:
    """Return the page."""
    anchors = entries(TROUBLESHOOTING.read_text())
    rows = []
    for name, event in EVENTS.items():
        shown = f"[`{name}`](troubleshooting.md#{anchors[name]})" if name in anchors else f"`{name}`"
        rows.append(f"| {shown} | {event.level} | {event.meaning} | {event.todo or '-'} |\n")
    return _INTRO + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
