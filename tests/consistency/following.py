"""The checker's picture of one informer: what it holds, and how far it has been told of each member's changes.

A watch that goes on from a version sees every change once and in each member's order (`exact`). It may leave changes
out only where the member itself had forgotten them: then it is told the difference, and until it holds a state that was
(settling) only this counts: no object goes back, and no version claims what has not come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.consistency.history import Branch, Change, Key, Outcome, Selection
from tests.consistency.records import Listed, Marked, Opened, Seen
from tests.consistency.versions import Layout, Version

if TYPE_CHECKING:
    from tests.consistency.checker import Checker

TOLD_WITHIN = 3.0
"""Seconds within which initial events, or a difference, are told; a state that was before may be one by chance."""


@dataclass
class _Place:
    """How far a watch has been told of one member's changes."""

    branches: tuple[int, ...]
    """The numbers of those that it may be of: what was told so far may be in several."""
    position: int
    exact: bool
    claimed: int = 0
    """The greatest part that a version of this watch had."""
    lost: bool = False
    """Something was wrong already: what comes of that is not told."""
    known: bool = True
    """Whether it is known what branch it is of; not while initial events come."""
    settles: float = 0.0
    """The time from which on a state that was shows that a difference is told to its end."""
    difference: int = 0
    """The revision up to which it may be told a difference, at most: the member had forgotten what came after an
    earlier position, and the list that its replica made then is beyond what the member had forgotten."""


class Followed:
    """One informer. The checker feeds it what the informer saw, in its order."""

    def __init__(self, name: str, checker: Checker) -> None:
        self.name = name
        self.selection = Selection()
        self.held: dict[str, dict[Key, Change]] = {}
        self.relists = 0
        self.events = 0
        self._checker = checker
        self._places: dict[str, _Place] = {}
        self._branches: dict[str, tuple[int, ...]] = {}
        self._initial: dict[str, dict[Key, Change]] | None = None
        self._opened_at = 0.0
        self._layout: Layout = ()
        self._about = ""

    # -- what the informer saw ----------------------------------------------------------------------------------

    def listed(self, record: Listed, version: Version, branches: Mapping[str, tuple[int, ...]]) -> None:
        """It holds a list now."""
        self.selection = record.selection
        self.relists += 1
        self.held = {}
        self._branches = dict(branches)
        for item in record.items:
            found = [branch.find(*item.ident) for branch in self._checker.members[item.cluster].branches]
            change = next((one for one in reversed(found) if one is not None), None)
            if change is not None:
                self.held.setdefault(item.cluster, {})[item.key] = change

    def take(self, record: Opened | Seen | Marked) -> None:
        if isinstance(record, Opened):
            self._opened(record)
        elif isinstance(record, Seen):
            self._seen(record)
        else:
            self._marked(record)

    def closed(self) -> None:
        """Its watch has ended."""
        for name, place in self._places.items():
            if place.known:
                self._branches[name] = place.branches
            else:  # the version that it is resumed from tells more
                self._branches.pop(name, None)
        self._initial = None

    def _opened(self, record: Opened) -> None:
        self._about = f"{self.name} at {record.proxy}, watch of {record.selection} from {record.version or 'now'}"
        self.selection, self._places = record.selection, {}
        self._opened_at, self._layout, self._initial = record.at, (), None
        if record.initial:
            self._initial, self._branches = {}, {}
            return
        version = self._checker.version(record.version, self._about, record.at) if record.version else None
        for name, part in version.parts.items() if version is not None else ():
            self._places[name] = _Place(self._branches_at(record, name, part), part, exact=True)

    def _branches_at(self, record: Opened, name: str, part: int) -> tuple[int, ...]:
        """Return the branches that a watch may be of: the informer's, and undone ones that reached its version.

        A replica that has not seen yet that its member was restored goes on with what it has, until it ends the watch
        with 410; so does a kube-apiserver whose etcd was restored. Nothing in a version tells the branches apart.
        """
        known = self._branches_of(name, part, record.at)
        if not self._checker.disturbances.explain(record.proxy, record.at, record.at, name):
            return known
        branches = self._checker.members[name].branches
        undone = (n for n in range(min(known)) if branches[n].head_at(record.at) >= part)
        return (*undone, *known)

    def _branches_of(self, name: str, part: int, at: float) -> tuple[int, ...]:
        """Return the branches that the informer's state may be of, or all that reached its version."""
        if name in self._branches:
            return self._branches[name]
        branches = self._checker.members[name].branches
        return tuple(n for n, one in enumerate(branches) if one.began <= at and one.head_at(at) >= part) or (0,)

    def _seen(self, record: Seen) -> None:
        self.events += 1
        item, about = record.item, f"{self._about}: {record.at:.3f}"
        version, change = self._checker.item(item, about, record.at, whole=True)
        if change is None or version is None:
            return
        place = self._place(item.cluster)
        may_skip = self._may_skip(item.cluster, place, record.at)
        outcome = self._matched(place, record, change, version) if place.exact else None
        undone = any(self._of_branch(item.cluster, number, change) for number in place.branches)
        if outcome is None and record.kind != "DELETED" and not undone and self._left(item.cluster, place):
            self._goes_on(item.cluster, place, about)
        if place.exact and outcome is None:
            self._unexpected(place, record, change, about, may_skip=may_skip)
        held = self._held(item.cluster)
        if outcome is None:
            known = held.get(item.key)
            older = known is not None and known.uid == change.uid and known.revision > change.revision
            if older and not self._left(item.cluster, place):
                self._say(f"{about}: {item.key} of {item.cluster} goes back to {change.revision}")
        if record.kind == "DELETED":
            held.pop(item.key, None)
        else:
            held[item.key] = change
            self._checker.ordered(item, version, change.revision, about)
        revision = outcome.revision if outcome is not None else 0 if record.kind == "DELETED" else change.revision
        if record.kind == "DELETED" and version.lead != revision and may_skip:
            # A difference: what is gone comes first, at the version before it; what has left the selection comes with
            # its last change.
            place.exact, place.settles, revision = False, record.at + TOLD_WITHIN, 0
        if revision and version.comparable and version.lead != revision and not place.lost:
            self._say(f"{about}: {record.kind} {item.key} at {revision} is led by {version.lead}")
        self._claims(version, record.at, about)

    def _marked(self, record: Marked) -> None:
        about = f"{self._about}: bookmark at {record.at:.3f}"
        version = self._checker.version(record.version, about, record.at)
        if record.initial_end and self._initial is not None:
            self.held, self._initial = self._initial, None
            for place in self._places.values():
                place.settles = 0.0
            self.relists += 1
        if version is not None:
            self._claims(version, record.at, about)

    def _place(self, name: str) -> _Place:
        """Return how far the watch is with a member; at first all its objects have to come."""
        found = self._places.get(name)
        if found is None:
            known = name in self._branches
            settles = self._opened_at + TOLD_WITHIN
            branches = self._branches.get(name, (0,))
            found = self._places[name] = _Place(branches, 0, exact=False, known=known, settles=settles)
        return found

    # -- what must hold -----------------------------------------------------------------------------------------

    def _matched(self, place: _Place, record: Seen, change: Change, version: Version) -> Outcome | None:
        """Return the outcome that had to come next, if this is it.

        Where the branches have it at different revisions, the event's version tells which of them the watch is of.
        """
        name = record.item.cluster
        found: dict[int, Outcome] = {}
        for number in self._reachable(name, place):
            outcome = next(self._checker.members[name].branches[number].after(place.position, self.selection), None)
            if outcome is not None and outcome.kind == record.kind and outcome.shown.ident == change.ident:
                found[number] = outcome
        if not found:
            return None
        said = version.lead if version.comparable else version.part(name)
        first = min(found.values(), key=lambda outcome: (outcome.revision != said, outcome.revision))
        place.branches = tuple(number for number, one in found.items() if one.revision == first.revision)
        place.position = first.revision
        return first

    def _unexpected(self, place: _Place, record: Seen, change: Change, about: str, *, may_skip: bool) -> None:
        """An event that is not the next one is explained by what the member has forgotten, or by a reload."""
        name = record.item.cluster
        place.exact, place.settles = False, record.at + TOLD_WITHIN
        if may_skip:
            return
        expected = [
            next(self._checker.members[name].branches[number].after(place.position, self.selection), None)
            for number in self._reachable(name, place)
        ]
        texts = [f"{one.kind} {one.change.key} at {one.revision}" for one in expected if one is not None]
        place.lost = True
        self._say(
            f"{about}: {record.kind} {record.item.key} ({change.ident[1]}, {change.revision}) of {name} came after "
            f"{place.position}, and {' or '.join(dict.fromkeys(texts)) or 'nothing'} was next"
        )

    def _may_skip(self, name: str, place: _Place, at: float) -> bool:
        """Whether the next event may be of a difference: the member had forgotten what comes after the position."""
        member = self._checker.members[name]
        if any(when <= at and revision > place.position for when, revision in member.forgotten):
            # Some changes of a difference are as they were told singly, so this may be the first one of it.
            place.difference = max(place.difference, *(one.head_at(at) for one in member.branches if one.began <= at))
        removed = self._checker.disturbances.removed(name, at, at)
        return place.position < place.difference or removed or self._left(name, place)

    def _left(self, name: str, place: _Place) -> bool:
        """Whether the member went back behind what this watch has seen: it has to end, and until then it may be told
        that all is gone."""
        branches, stands = self._checker.members[name].branches, max(place.position, place.claimed)
        return place.known and all(
            any(branch.forked < stands for branch in branches[number + 1 :]) for number in place.branches
        )

    def _of_branch(self, name: str, number: int, change: Change) -> bool:
        return self._checker.members[name].branches[number].find(*change.ident) is not None

    def _goes_on(self, name: str, place: _Place, about: str) -> None:
        branches, at = self._checker.members[name].branches, max(place.position, place.claimed)
        backup = branches[place.branches[-1] + 1].forked
        place.branches, place.exact = (len(branches) - 1,), False
        if not place.lost:
            place.lost = True
            self._say(f"{about}: it goes on beyond the backup of {name}: from {at} to what came after {backup}")

    def _reachable(self, name: str, place: _Place) -> list[int]:
        """Return the branches that a watch at this place may be of: what is up to a backup is in both."""
        branches, found = self._checker.members[name].branches, set[int]()
        for begin in place.branches:
            found.add(begin)
            for number in range(begin + 1, len(branches)):
                if branches[number].forked < place.position:
                    break
                found.add(number)
        return sorted(found)

    def _claims(self, version: Version, at: float, about: str) -> None:
        """A version says: whoever resumes here misses nothing."""
        if self._layout and len(version.layout) <= len(self._layout) and version.layout != self._layout:
            self._say(f"{about}: the watch began with versions of {self._layout}, and goes on with {version.layout}")
        self._layout = version.layout
        for name, part in version.parts.items():
            place = self._place(name)
            if self._checker.disturbances.removed(name, at, at):
                # Its objects are told to be gone, and later to be there; a resume from here is 410 meanwhile.
                place.exact, place.known, place.claimed = False, False, 0
            elif self._left(name, place):
                if part < place.claimed:
                    self._goes_on(name, place, about)
                continue
            if version.comparable and part < place.claimed and not place.lost:
                place.lost = True
                self._say(f"{about}: the part of {name} went back from {place.claimed} to {part}")
            place.claimed = max(place.claimed, part)
            if place.exact:
                self._claims_exactly(name, place, part, at, about)
            else:
                self._claims_settling(name, place, part, at, about)

    def _claims_exactly(self, name: str, place: _Place, part: int, at: float, about: str) -> None:
        right: list[int] = []
        missing: list[Outcome] = []
        for number in self._reachable(name, place):
            missing = self._checker.members[name].branches[number].between(place.position, part, self.selection)
            if not missing:
                right.append(number)
        if right:
            place.position = max(place.position, part)
            place.branches = tuple(right)
        elif self._may_skip(name, place, at):
            # A difference says nothing of what came and went before its list, whose version this is.
            place.exact, place.settles = False, at + TOLD_WITHIN
            self._claims_settling(name, place, part, at, about)
        else:
            lost = f"{missing[0].kind} {missing[0].change.key} at {missing[0].revision}"
            self._say(f"{about}: it claims {part} of {name}, and {lost} has not come")
            place.exact, place.lost = False, True

    def _claims_settling(self, name: str, place: _Place, part: int, at: float, about: str) -> None:
        held, member = self._held(name), self._checker.members[name]
        known = [(number, one) for number, one in enumerate(member.branches) if one.began <= at]
        numbers = [number for number, one in known if number >= place.branches[0] and one.head_at(at) >= part]
        if at >= place.settles and self._initial is None:
            same = [n for n in numbers if _same(held, member.branches[n].state(part, self.selection))]
            if same:
                place.branches, place.position, place.exact, place.known = tuple(same), part, True, True
                place.difference = 0
                return
        if self._checker.disturbances.removed(name, at, at):
            return
        lacks = [_lacks(held, member.branches[number], part, at, self.selection) for number in numbers]
        if numbers and all(lacks) and not place.lost and not self._left(name, place):
            place.lost = True
            self._say(f"{about}: it claims {part} of {name}, and {lacks[-1]}")

    def _held(self, name: str) -> dict[Key, Change]:
        found = self.held if self._initial is None else self._initial
        return found.setdefault(name, {})

    def _say(self, text: str) -> None:
        self._checker.say(text)

    def difference(self) -> str:
        """Return how what it holds differs from what the members have now; "" if it does not."""
        from tests.consistency.checker import describe

        texts = []
        for name, member in self._checker.members.items():
            state = member.present.state(member.present.head, self.selection)
            wanted = {key: change.ident for key, change in state.items()} if name in self._checker.layouts[-1] else {}
            found = {key: change.ident for key, change in self.held.get(name, {}).items()}
            if wanted != found:
                texts.append(f"{name}: {describe(wanted, found)}")
        return "; ".join(texts)


def _same(held: Mapping[Key, Change], state: Mapping[Key, Change]) -> bool:
    return held.keys() == state.keys() and all(held[key].ident == one.ident for key, one in state.items())


def _lacks(held: Mapping[Key, Change], branch: Branch, part: int, at: float, selection: Selection) -> str:
    """Say what a watch that is resumed at `part` would never tell; "" if it would tell everything."""
    present = branch.state(branch.head_at(at), selection)
    for key, change in present.items():
        last = _last(branch, key, at, selection)
        if last is not None and last.revision <= part and (key not in held or held[key].ident != change.ident):
            return f"{key} at {last.revision} has not come"
    for key in held:
        if key not in present:
            last = _last(branch, key, at, selection)
            # What has left the selection, and has changed again, is told with the latest change.
            later = [change for change in branch.of(key) if change.at <= at][-1].revision > part
            if last is not None and last.revision <= part and not later:
                return f"the end of {key} at {last.revision} has not come"
    return ""


def _last(branch: Branch, key: Key, at: float, selection: Selection) -> Change | None:
    """Return the last change of an object until a time that the selection is told of."""
    changes = [change for change in branch.of(key) if change.at <= at]
    while changes:
        change = changes.pop()
        if change.kind != "DELETED" and selection.has(change):
            return change
        if changes and changes[-1].kind != "DELETED" and selection.has(changes[-1]):
            return change
    return None
