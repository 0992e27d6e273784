"""What clients saw: plain records, which the checker compares with what happened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.consistency.history import Key, Kind, Selection

CLUSTER = "mcproxy.io/cluster"
CACHED_FROM = "resource.karmada.io/cached-from-cluster"
_WARNED = re.compile(r'^299 - "cluster ([a-z0-9-]+): ')
Asked = Literal["", "0", "NotOlderThan", "Exact"]
"""The resourceVersion of a read: none, 0, or one with this match."""


@dataclass(frozen=True)
class Item:
    """An object as the aggregate showed it."""

    cluster: str
    key: Key
    uid: str
    data: Mapping[str, str]
    version: str
    annotated: str = ""
    """The cluster that its annotation names."""

    @property
    def ident(self) -> tuple[str, str]:
        return self.uid, self.data.get("w", "")


def item_of(found: Mapping[str, Any]) -> Item:
    """Read an object of JSON."""
    metadata = found["metadata"]
    return Item(
        (metadata.get("labels") or {}).get(CLUSTER, ""),
        (metadata.get("namespace", ""), metadata["name"]),
        metadata["uid"],
        found.get("data") or {},
        metadata["resourceVersion"],
        (metadata.get("annotations") or {}).get(CACHED_FROM, ""),
    )


def warned(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the clusters that the `Warning` headers of an answer name."""
    values = (value for name, value in headers if name.lower() == "warning")
    return frozenset(match[1] for value in values if (match := _WARNED.match(value)) is not None)


@dataclass(frozen=True)
class Answer:
    """An answer, or that there was none (status 0). Times are seconds of the monotonic clock.

    `proxy` is "" where several have given pages of it.
    """

    who: str
    proxy: str
    request: str
    begun: float
    ended: float
    status: int
    message: str = ""
    warnings: frozenset[str] = frozenset()

    def __str__(self) -> str:
        when = f"{self.begun:.3f} to {self.ended:.3f}"
        text = f"{self.who} at {self.proxy or 'several'}, {when}: {self.request}: {self.status}"
        return f"{text} {self.message}" if self.message else text


def joined(answers: Sequence[Answer]) -> Answer:
    """Return the answer that the pages of a list are together."""
    first, last = answers[0], answers[-1]
    if len(answers) == 1:
        return first
    proxies = {answer.proxy for answer in answers}
    warnings = frozenset[str]().union(*(answer.warnings for answer in answers))
    request, proxy = f"{first.request} ({len(answers)} pages)", first.proxy if len(proxies) == 1 else ""
    return Answer(first.who, proxy, request, first.begun, last.ended, last.status, last.message, warnings)


@dataclass(frozen=True)
class Refused:
    """An answer that says nothing about objects; `version` is what the request named, seen at `version_at`."""

    answer: Answer
    version_at: float = 0.0


@dataclass(frozen=True)
class Listed:
    """A list, all pages of it; `follower` is the informer that begins with it."""

    answer: Answer
    selection: Selection
    asked: Asked
    version: str
    items: tuple[Item, ...]
    wanted: str = ""
    page_versions: tuple[str, ...] = ()
    follower: str = ""


@dataclass(frozen=True)
class Got:
    """The answer to a get, 200 or 404."""

    answer: Answer
    member: str
    key: Key
    asked: Asked
    item: Item | None
    wanted: str = ""


@dataclass(frozen=True)
class Wrote:
    """The answer to a write through a proxy: 200, 201, 404 or 409. `base` is the state that it was for, if any."""

    answer: Answer
    verb: str
    member: str
    key: Key
    write: str
    base: Item | None
    version: str = ""


@dataclass(frozen=True)
class Opened:
    """A watch began: 200. `initial`: a WatchList."""

    follower: str
    proxy: str
    at: float
    selection: Selection
    version: str = ""
    initial: bool = False


@dataclass(frozen=True)
class Seen:
    """An event of a watch."""

    follower: str
    at: float
    kind: Kind
    item: Item


@dataclass(frozen=True)
class Marked:
    """A bookmark of a watch; `initial_end`: the one behind the initial events."""

    follower: str
    at: float
    version: str
    initial_end: bool = False


@dataclass(frozen=True)
class Ended:
    """A watch ended: cleanly, broken off, by an ERROR of this code, or because of `silence` seconds without a byte."""

    follower: str
    proxy: str
    at: float
    how: Literal["end", "broken", "error", "silence"]
    code: int = 0
    message: str = ""
    version_at: float = 0.0
    """When the version was seen that the watch could not be resumed from."""


Record = Refused | Listed | Got | Wrote | Opened | Seen | Marked | Ended


@dataclass(frozen=True)
class Disturbance:
    """What explains that something is refused, late, stale or begun anew. `members` and `proxies`: empty is all."""

    what: str
    since: float
    until: float
    members: frozenset[str] = frozenset()
    proxies: frozenset[str] = frozenset()
    forgets: bool = False
    """Versions may be gone afterwards (410)."""
    removes: str = ""
    """The member that the aggregate does not have meanwhile."""


RELOADED = "reloaded"
"""What the disturbance is called in which the replicas are reloaded with other members, or other places of them."""


@dataclass
class Disturbances:
    """All disturbances until now; the faults add to them."""

    each: list[Disturbance] = field(default_factory=list)
    after: float = 10.0
    """Seconds after the end of one in which it still explains."""
    settled: float = 3.0
    """Seconds after the return of a member that was taken out of the file within which its objects come again."""

    def add(self, disturbance: Disturbance) -> None:
        self.each.append(disturbance)

    def explain(self, proxy: str, since: float, until: float, member: str = "") -> bool:
        """Return whether one was there between these times, or shortly before."""
        return any(
            one.since <= until
            and one.until + self.after >= since
            and (not one.proxies or not proxy or proxy in one.proxies)
            and (not member or not one.members or member in one.members)
            for one in self.each
        )

    def removed(self, member: str, since: float, until: float) -> bool:
        """Return whether a member was taken out of the aggregate at some time between these; "" is any."""
        return any(
            one.removes and one.removes == (member or one.removes)
            for one in self.each
            if one.since <= until and one.until + self.settled >= since
        )

    def reloaded(self, since: float, until: float) -> bool:
        """Return whether the replicas had, or were about to have, different members or places at some time."""
        return any(one.what == RELOADED and one.since <= until and one.until >= since for one in self.each)

    def forgot(self, seen: float, until: float) -> bool:
        """Return whether a version that was seen then may be gone."""
        return any(one.forgets and one.since <= until and one.until + 2 * self.after >= seen for one in self.each)
