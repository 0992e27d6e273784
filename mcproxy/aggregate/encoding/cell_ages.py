"""Ages in Table cells: computed for each response, since a member printed them when its object was cached.

A cell shows only how long ago something was ("47h"). The time is found in the object: the timestamp that agrees with
the cell at the time of printing. If none agrees, the printed age itself is advanced. Source of the printed forms:
k8s.io/kubernetes `pkg/printers/internalversion`, apimachinery `duration.HumanDuration`.
"""

from __future__ import annotations

import re
from calendar import timegm
from collections.abc import Iterable, Iterator

from mcproxy.kube.duration import human_duration

TOLERANCE = 5.0
"""Seconds between the member's clock as it printed and ours as we read it."""
_DURATION = re.compile(
    r"(?=[0-9])(?:(\d{1,4})y)?(?:(\d{1,6})d)?(?:(\d{1,3})h)?(?:(\d{1,4})m)?(?:(\d{1,3})s)?", re.ASCII
)
_SECONDS = (365 * 86400, 86400, 3600, 60, 1)
_TIMESTAMP = re.compile(rb'"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.\d{1,9})?Z"')
_MAX_TIMESTAMPS = 200
_RESTARTS = re.compile(r"(\d+ \()(\w+)( ago\))", re.ASCII)


def parse_human_duration(text: str) -> int | None:
    """Return the least number of seconds that is shown as `text`; None for what is no duration."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    return sum(int(number) * seconds for number, seconds in zip(found.groups("0"), _SECONDS, strict=True))


def granularity(seconds: int) -> int:
    """Return how many seconds longer a duration may be without being shown otherwise."""
    if seconds < 600:
        return 1
    if seconds < 8 * 3600:
        return 60
    if seconds < 8 * 86400:
        return 3600
    return 86400 if seconds < 8 * 365 * 86400 else 365 * 86400


def timestamps(*documents: bytes) -> Iterator[float]:
    """Yield the RFC 3339 times in JSON documents, in seconds since 1970, at most the first 200."""
    count = 0
    for document in documents:
        for found in _TIMESTAMP.finditer(document):
            count += 1
            if count > _MAX_TIMESTAMPS:
                return
            year, month, day, hour, minute, second = map(int, found.groups())
            if 1 <= month <= 12 and 1 <= day <= 31 and year:
                yield float(timegm((year, month, day, hour, minute, second)))


def aged(text: str, printed: float, now: float, candidates: Iterable[float]) -> str:
    """Return a cell that showed `text` at `printed` as it is to be shown at `now`.

    Text that is no duration (`<unknown>`, `<none>`, `<invalid>`) stays.
    """
    least = parse_human_duration(text)
    if least is None:
        return text
    most = least + granularity(least) - 1
    best, distance = float(least), TOLERANCE
    for candidate in candidates:
        seconds = printed - candidate
        # A cell holds while its age is below `most` + 1; beyond that the two clocks differ.
        fitting = min(max(seconds, least), most + 0.999)
        off = abs(seconds - fitting)
        if off < distance:
            best, distance = fitting, off
            if not off:
                break
    return human_duration(max(best + now - printed, 0.0))


def aged_restarts(text: str, printed: float, now: float, candidates: Iterable[float]) -> str:
    """Return a pod's Restarts, `3 (5m ago)`, as they are to be shown at `now`."""
    found = _RESTARTS.fullmatch(text)
    if found is None:
        return text
    return found[1] + aged(found[2], printed, now, candidates) + found[3]
