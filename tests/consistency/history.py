"""What really happened in each member: read from the files that the simulated clusters keep of their data.

A restored backup begins another branch of a member's history: it has the changes up to the backup, and then others with
the same revisions as those that were undone.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Key = tuple[str, str]
"""(namespace, name)"""
Kind = Literal["ADDED", "MODIFIED", "DELETED"]
COLLECTION = ["", "configmaps"]
GROUP = "group"
"""The label that selectors ask for."""


@dataclass(frozen=True)
class Change:
    """One change of an object. That of a deletion has the object's last data."""

    revision: int
    kind: Kind
    key: Key
    uid: str
    data: Mapping[str, str]
    group: str
    at: float
    """Seconds of the machine's monotonic clock."""

    @property
    def ident(self) -> tuple[str, str]:
        """What tells this state of the object from all others: its uid and the write that made it."""
        return self.uid, self.data.get("w", "")


@dataclass(frozen=True)
class Selection:
    """What a list or watch asks for; "" is everything."""

    namespace: str = ""
    group: str = ""
    name: str = ""

    def has(self, change: Change) -> bool:
        return (
            (not self.namespace or change.key[0] == self.namespace)
            and (not self.group or change.group == self.group)
            and (not self.name or change.key[1] == self.name)
        )

    def __str__(self) -> str:
        found = {"namespace": self.namespace, "group": self.group, "name": self.name}
        return ",".join(f"{key}={value}" for key, value in found.items() if value) or "everything"


@dataclass(frozen=True)
class Outcome:
    """What a watch with a selection is told of a change: into the selection is ADDED, out of it DELETED."""

    kind: Kind
    change: Change
    shown: Change
    """The state that is shown: of a deletion the last one that was selected."""

    @property
    def revision(self) -> int:
        return self.change.revision


State = dict[Key, Change]


@dataclass
class _Selected:
    """The changes of a branch as a selection sees them."""

    outcomes: list[Outcome] = field(default_factory=list)
    present: State = field(default_factory=dict)
    taken: int = 0


class Branch:
    """One member's history between two restored backups, with what came before the first of them."""

    def __init__(self, began: float, forked: int = 0) -> None:
        self.began = began
        self.forked = forked
        """The revision of the backup; what is up to it is also in the branch before."""
        self.changes: list[Change] = []
        self._heads: list[tuple[float, int]] = [(began, forked)]
        self._by_ident: dict[tuple[str, str], Change] = {}
        self._of_key: dict[Key, list[Change]] = {}
        self._selected: dict[Selection, _Selected] = {}

    @property
    def head(self) -> int:
        return self._heads[-1][1]

    def head_at(self, at: float) -> int:
        """Return the greatest revision at a time; that of the backup before the branch began."""
        place = bisect.bisect_right(self._heads, (at, 1 << 62)) - 1
        return self._heads[max(place, 0)][1]

    def passed(self, at: float, revision: int) -> None:
        """Note a revision, of any resource."""
        if revision > self.head:
            self._heads.append((at, revision))

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self._of_key.setdefault(change.key, []).append(change)
        if change.kind != "DELETED":
            self._by_ident[change.ident] = change

    def find(self, uid: str, write: str) -> Change | None:
        """Return the change that made a state."""
        return self._by_ident.get((uid, write))

    def of(self, key: Key) -> list[Change]:
        """Return all changes of an object, and of others that had its name."""
        return self._of_key.get(key, [])

    def outcomes(self, selection: Selection) -> list[Outcome]:
        """Return what a watch of all the history would see."""
        return self._refreshed(selection).outcomes

    def after(self, revision: int, selection: Selection) -> Iterator[Outcome]:
        """Yield what a watch from a revision has to see, as far as it is known."""
        outcomes = self.outcomes(selection)
        place = bisect.bisect_right(outcomes, revision, key=lambda outcome: outcome.revision)
        while place < len(outcomes):
            yield outcomes[place]
            place += 1

    def between(self, after: int, upto: int, selection: Selection) -> list[Outcome]:
        """Return what happened after a revision, up to another."""
        found = []
        for outcome in self.after(after, selection):
            if outcome.revision > upto:
                break
            found.append(outcome)
        return found

    def state(self, revision: int, selection: Selection) -> State:
        """Return what is selected at a revision."""
        selected = self._refreshed(selection)
        if revision >= self.head:
            return dict(selected.present)
        found: State = {}
        for changes in self._of_key.values():
            place = bisect.bisect_right(changes, revision, key=lambda change: change.revision)
            if place and (last := changes[place - 1]).kind != "DELETED" and selection.has(last):
                found[last.key] = last
        return found

    def _refreshed(self, selection: Selection) -> _Selected:
        selected = self._selected.setdefault(selection, _Selected())
        for change in self.changes[selected.taken :]:
            before = selected.present.get(change.key)
            has = change.kind != "DELETED" and selection.has(change)
            if has:
                selected.outcomes.append(Outcome("ADDED" if before is None else "MODIFIED", change, change))
                selected.present[change.key] = change
            elif before is not None:
                shown = change if change.kind == "DELETED" else before
                selected.outcomes.append(Outcome("DELETED", change, shown))
                del selected.present[change.key]
        selected.taken = len(self.changes)
        return selected


class MemberHistory:
    """All that one member's file says. `read` takes in what was added to it."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.branches = [Branch(0.0)]
        self.forgotten: list[tuple[float, int]] = []
        """When states before a revision became unavailable: compactions, starts, restored backups."""
        self._path = path
        self._offset = 0

    @property
    def present(self) -> Branch:
        return self.branches[-1]

    def branch_at(self, at: float) -> int:
        """Return the number of the branch at a time."""
        return max(number for number, branch in enumerate(self.branches) if branch.began <= at or number == 0)

    def read(self) -> None:
        """Read on to the last whole line."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for text in whole.splitlines():
            self.take(json.loads(text))

    def take(self, line: Mapping[str, Any]) -> None:
        """Take one line (`kubesim.storage.store` has their form)."""
        at = float(line["at"])
        if "revision" in line:
            if line["storage"] == COLLECTION:
                self.present.add(_change(line, at))
            self.present.passed(at, int(line["revision"]))
        elif "restored" in line:
            self._restored(at, int(line["restored"]))
        else:
            self.forgotten.append((at, int(line["compacted"] if "compacted" in line else line["started"])))

    def _restored(self, at: float, revision: int) -> None:
        before, branch = self.present, Branch(at, revision)
        for change in before.changes:
            if change.revision <= revision:
                branch.add(change)
        self.branches.append(branch)
        self.forgotten.append((at, revision))


def _change(line: Mapping[str, Any], at: float) -> Change:
    item = line["object"]
    metadata = item["metadata"]
    key = metadata.get("namespace", ""), metadata["name"]
    group = (metadata.get("labels") or {}).get(GROUP, "")
    return Change(int(line["revision"]), line["type"], key, metadata["uid"], item.get("data") or {}, group, at)
