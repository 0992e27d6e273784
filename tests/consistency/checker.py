"""Compares what clients saw with the members' own histories, and reports what was wrong.

Sources: `reference/list-watch.md` (resource versions, reads, members that are down, writes), KEP-5504, KEP-3157.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.consistency.following import Followed
from tests.consistency.history import Branch, Change, Key, MemberHistory, Outcome
from tests.consistency.records import (
    Answer,
    Disturbances,
    Ended,
    Got,
    Item,
    Listed,
    Marked,
    Opened,
    Record,
    Refused,
    Seen,
    Wrote,
)
from tests.consistency.versions import Layout, NoVersion, Version, compare, decode

UNAVAILABLE: Final = (0, 502, 503, 504)
"""What may be answered when something is away; 0: the connection broke."""
GONE: Final = 410
INVALID: Final = 422
NOT_FOUND: Final = 404
TOO_LARGE: Final = 504
TOO_LARGE_TEXT: Final = "Too large resource version"
NO_PART: Final = "the resource version has no part of cluster"
WAITED: Final = 2.5
"""Seconds for which a version is waited for, at least, before it is said to be too large: the page says 3."""
REMEMBERED: Final = 40
"""Versions of lists, and states of an object, with which later ones are compared."""


@dataclass
class _Chain:
    """How far the changes of a branch were checked, and the last data of each object."""

    checked: int = 0
    last: dict[Key, Mapping[str, str]] = field(default_factory=dict)


class Checker:
    """Takes records in their order, for each client, once the histories were read beyond them."""

    def __init__(
        self,
        members: Mapping[str, MemberHistory],
        disturbances: Disturbances,
        several_connections: Collection[str] = (),
    ) -> None:
        """`several_connections` names the members that speak HTTP/1.1: their watches may be late where probes are not,
        so that a read of the most recent state may lack what came while a connection was disturbed."""
        self.members = members
        self.disturbances = disturbances
        self.several_connections = frozenset(several_connections)
        self.layouts: list[Layout] = []
        """All that the aggregate has had, the present one last."""
        self.wrong: list[str] = []
        self.counts: dict[str, int] = {}
        self.followed: dict[str, Followed] = {}
        self._lists: deque[Version] = deque(maxlen=REMEMBERED)
        self._states: dict[tuple[str, Key, str, Layout], deque[tuple[int, str]]] = {}
        self._chained: dict[tuple[str, int], _Chain] = {}

    def read_histories(self) -> None:
        """Read what the members have written until now, and check the chains of their own changes."""
        for member in self.members.values():
            member.read()
            for number, branch in enumerate(member.branches):
                self._chains(member.name, number, branch)

    def take(self, record: Record) -> None:
        """Check one record."""
        name = type(record).__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        match record:
            case Refused():
                self._refused(record)
            case Listed():
                self._listed(record)
            case Got():
                self._got(record)
            case Wrote():
                self._wrote(record)
            case Opened() | Seen() | Marked():
                self._follower(record.follower).take(record)
            case Ended():
                self._ended(record)

    def _follower(self, name: str) -> Followed:
        found = self.followed.get(name)
        if found is None:
            found = self.followed[name] = Followed(name, self)
        return found

    def say(self, text: str) -> None:
        self.wrong.append(text)

    # -- versions -----------------------------------------------------------------------------------------------

    def version(self, text: str, about: object, at: float) -> Version | None:
        """Read a version that has left the proxy: nothing in it is beyond what its member has reached."""
        try:
            version = decode(text, reversed(self.layouts))
        except NoVersion as error:
            self.say(f"{about}: {error}")
            return None
        for name, part in version.parts.items():
            member = self.members[name]
            head = max(branch.head_at(at) for branch in member.branches if branch.began <= at)
            if part > head:
                self.say(f"{about}: the version says {part} for {name}, which had reached {head}")
        return version

    def _leads(self, version: Version, about: object) -> None:
        """A list's and a bookmark's version is led by its greatest part, of equal ones by the last."""
        if not version.comparable or not version.parts:
            return
        greatest = max(version.parts.values())
        last = [name for name in version.layout if version.part(name) == greatest][-1]
        if version.lead != greatest or version.owner not in ("", last):
            self.say(f"{about}: {version.parts} is led by {version.lead} of {version.owner or 'nobody'}")

    def item(self, item: Item, about: object, at: float, *, whole: bool) -> tuple[Version | None, Change | None]:
        """Check one object: a state that was, with its version; `whole`: the vector is, not the owner's part alone."""
        version = self.version(item.version, f"{about}: {item.key}", at)
        member = self.members.get(item.cluster)
        if member is None or item.annotated != item.cluster:
            self.say(f"{about}: {item.key} is said to be of {item.cluster!r} and cached from {item.annotated!r}")
            return version, None
        found = [branch.find(*item.ident) for branch in member.branches]
        change = next((one for one in reversed(found) if one is not None), None)
        if change is None or change.data != item.data:
            self.say(f"{about}: {item.key} of {item.cluster} never was {dict(item.data)} (uid {item.uid})")
            return version, None
        if version is not None and not whole:
            # Of two branches the same state may have two revisions only if it was written twice, which it was not.
            if version.parts != {item.cluster: change.revision}:
                self.say(f"{about}: {item.key} of {item.cluster}, {change.revision}, has the version {version.parts}")
            if version.comparable and version.lead != change.revision:
                self.say(f"{about}: {item.key} of {item.cluster}, {change.revision}, is led by {version.lead}")
        return version, change

    def ordered(self, item: Item, version: Version | None, revision: int, about: object) -> None:
        """A newer state of an object compares greater, whatever replica and whatever answer it came from."""
        if version is None or not version.comparable:
            return
        branches = len(self.members[item.cluster].branches)
        ident = (item.cluster, item.key, f"{item.uid}/{branches}", version.layout)
        states = self._states.setdefault(ident, deque(maxlen=8))
        for other, text in states:
            order = compare(item.version, text)
            if (order > 0) != (revision > other) and other != revision:
                self.say(f"{about}: {item.key} at {revision} does not compare with {other}: {item.version}, {text}")
                break
        states.append((revision, item.version))

    # -- reads --------------------------------------------------------------------------------------------------

    def _refused(self, record: Refused) -> None:
        answer = record.answer
        if answer.status == GONE:
            # A page is 410, too, where a member is away and its state is not held.
            page = "continue=" in answer.request
            away = page and self.disturbances.explain(answer.proxy, answer.begun, answer.ended)
            if not away and not self.disturbances.forgot(record.version_at or answer.begun, answer.ended):
                self.say(f"nothing explains: {answer}")
        elif answer.status == INVALID and self.disturbances.removed("", answer.begun, answer.ended):
            return  # it was for a member that is no member
        elif answer.status not in UNAVAILABLE:
            self.say(f"never to be answered: {answer}")
        elif not self.disturbances.explain(answer.proxy, answer.begun, answer.ended):
            self.say(f"nothing explains: {answer}")
        elif answer.status == TOO_LARGE and TOO_LARGE_TEXT in answer.message:
            restored = any(len(member.branches) > 1 for member in self.members.values())
            if answer.ended - answer.begun < WAITED and not restored:
                self.say(f"it was not waited for: {answer}")

    def _warnings(self, answer: Answer) -> None:
        for member in answer.warnings:
            if not self.disturbances.explain(answer.proxy, answer.begun, answer.ended, member):
                self.say(f"nothing explains the warning of {member}: {answer}")

    def _listed(self, record: Listed) -> None:
        answer = record.answer
        self._warnings(answer)
        version = self.version(record.version, answer, answer.ended)
        if version is None:
            return
        self._leads(version, answer)
        for other in record.page_versions:
            if other != record.version:
                self.say(f"{answer}: its pages have the versions {record.version} and {other}")
        found: dict[str, dict[Key, Item]] = {name: {} for name in self.members}
        for item in record.items:
            of_item, change = self.item(item, answer, answer.ended, whole=False)
            if change is not None:
                if item.key in found[item.cluster]:
                    self.say(f"{answer}: {item.key} of {item.cluster} stands in it twice")
                self.ordered(item, of_item, change.revision, answer)
                found[item.cluster][item.key] = item
        branches = {name: self._member_listed(record, version, name, found[name]) for name in self.members}
        self._wanted(record, version)
        self._compares(version, answer)
        if record.follower:
            self._follower(record.follower).listed(record, version, branches)

    def _member_listed(self, record: Listed, version: Version, name: str, items: Mapping[Key, Item]) -> tuple[int, ...]:
        """Check one member's objects in a list; return the numbers of the branches that they may be of."""
        answer, member, part = record.answer, self.members[name], version.part(name)
        numbers = [number for number, branch in enumerate(member.branches) if branch.began <= answer.ended]
        if not part:
            if items:
                self.say(f"{answer}: {len(items)} objects of {name}, which has no part in {version.parts}")
            explained = self.disturbances.explain(answer.proxy, answer.begun, answer.ended, name)
            if not explained:
                self.say(f"{answer}: nothing explains that {name} is not in it")
            return tuple(numbers[-1:])
        right = [
            number
            for number in numbers
            if part <= member.branches[number].head_at(answer.ended)
            and _is(member.branches[number].state(part, record.selection), items)
        ]
        if not right:
            state = member.branches[numbers[-1]].state(part, record.selection)
            self.say(f"{answer}: {name} at {part} is not what the list has: {_difference(state, items)}")
            return tuple(numbers[-1:])
        if record.asked == "" and not self._may_be_late(answer, name):
            self._fresh(record, member, part, right)
        return tuple(right)

    def _may_be_late(self, answer: Answer, name: str) -> bool:
        """Whether an answer may be older than the request, of this member. That one is away excuses no 404."""
        if name in answer.warnings and answer.status != NOT_FOUND:
            return True
        late = self.disturbances.explain(answer.proxy, answer.begun, answer.ended, name)
        return late and name in self.several_connections

    def _fresh(self, record: Listed, member: MemberHistory, part: int, right: list[int]) -> None:
        """What was there when the most recent state was asked for is in the answer."""
        begun, missing = record.answer.begun, list[Outcome]()
        for number in right:
            if number >= member.branch_at(begun):
                branch = member.branches[number]
                missing = branch.between(part, branch.head_at(begun), record.selection)
                if not missing:
                    return
        late = "; ".join(f"{one.kind} {one.change.key} at {one.revision}" for one in missing[:3]) or "it was undone"
        self.say(f"{record.answer}: older than the request, {member.name} at {part} lacks: {late}")

    def _wanted(self, record: Listed, version: Version) -> None:
        if not record.wanted or record.asked not in ("NotOlderThan", "Exact"):
            return
        wanted = decode(record.wanted, reversed(self.layouts))
        for name, part in wanted.parts.items():
            if self.disturbances.removed(name, record.answer.begun, record.answer.ended):
                continue
            has = version.part(name)
            if has < part or (record.asked == "Exact" and has != part):
                self.say(f"{record.answer}: {has} of {name} is not {record.asked} {part}")

    def _compares(self, version: Version, about: object) -> None:
        """A vector that is nowhere less than another one does not compare less, and is not equal if it is greater."""
        if not version.comparable:
            return
        for other in self._lists:
            if other.layout != version.layout or other.parts.keys() != version.parts.keys():
                continue
            for low, high in ((other, version), (version, other)):
                if all(low.parts[name] <= high.parts[name] for name in low.parts):
                    order = compare(low.text, high.text)
                    if order > 0 or (order == 0) != (low.parts == high.parts):
                        self.say(f"{about}: {low.parts} and {high.parts} compare {order}: {low.text}, {high.text}")
        self._lists.append(version)

    def _got(self, record: Got) -> None:
        answer, member = record.answer, self.members[record.member]
        self._warnings(answer)
        if record.item is not None:
            of_item, change = self.item(record.item, answer, answer.ended, whole=False)
            if change is None:
                return
            self.ordered(record.item, of_item, change.revision, answer)
        if record.asked == "" and not self._may_be_late(answer, record.member):
            ident = None if record.item is None else record.item.ident
            self._valid(member, record.key, ident, answer)
        elif record.item is None and not self.disturbances.explain(answer.proxy, answer.begun - 5, answer.ended):
            # What is cached may be a moment old; what has been there for long may not be missing.
            self._valid(member, record.key, None, answer, slack=5.0)

    def _valid(
        self, member: MemberHistory, key: Key, ident: tuple[str, str] | None, answer: Answer, *, slack: float = 0.0
    ) -> None:
        if ident is None and self.disturbances.removed(member.name, answer.begun, answer.ended):
            return
        spans = lifetimes(member, key)
        found = [one for since, until, one in spans if since <= answer.ended and until >= answer.begun - slack]
        if ident not in found:
            self.say(f"{answer}: it was {_states(found)} in {member.name} then, and {_states([ident])} was answered")

    # -- writes -------------------------------------------------------------------------------------------------

    def _wrote(self, record: Wrote) -> None:
        answer, member = record.answer, self.members[record.member]
        spans = lifetimes(member, record.key)
        found = [one for since, until, one in spans if since <= answer.ended and until >= answer.begun]
        if answer.status == NOT_FOUND:
            if None not in found and not self.disturbances.removed(member.name, answer.begun, answer.ended):
                self.say(f"{answer}: it was there all the time: {_states(found)}")
        elif answer.status == 409:
            if record.verb == "create":
                if all(one is None for one in found):
                    self.say(f"{answer}: there was none")
            elif (record.base is None or found == [record.base.ident]) and not self._of_another_layout(answer):
                self.say(f"{answer}: it was {_states(found)} all the time, which is what the write was for")
        else:
            self._succeeded(record, member)

    def _of_another_layout(self, answer: Answer) -> bool:
        """Whether a write had a version of a layout that its replica did not have, or not any more: it is read anew."""
        return NO_PART in answer.message and self.disturbances.reloaded(answer.begun, answer.ended)

    def _succeeded(self, record: Wrote, member: MemberHistory) -> None:
        answer = record.answer
        made = [change for branch in member.branches for change in branch.of(record.key) if _made(change, record)]
        if not made:
            self.say(f"{answer}: {record.member} has never seen the write {record.write}")
            return
        if record.verb != "delete" and record.version:
            version = self.version(record.version, answer, answer.ended)
            if version is not None and version.part(record.member) != made[0].revision:
                self.say(f"{answer}: written at {made[0].revision}, and the answer's version is {version.parts}")
            if version is not None and version.comparable and version.lead != made[0].revision:
                self.say(f"{answer}: written at {made[0].revision}, and the answer's version is led by {version.lead}")

    def _chains(self, name: str, number: int, branch: Branch) -> None:
        """No update is lost: a PUT counts on from the state that it replaces, a patch leaves the rest as it is."""
        chain = self._chained.setdefault((name, number), _Chain())
        for change in branch.changes[chain.checked :]:
            before, data = chain.last.get(change.key, {}), change.data
            if change.kind == "MODIFIED" and "n" in data:
                put = data.get("k") == "put"
                counted = int(data["n"]) == int(before.get("n", -1)) + put
                if not counted or (put and data.get("p") != before.get("p")):
                    self.say(f"{name} at {change.revision}: {change.key}: {dict(before)} became {dict(data)}")
            chain.last[change.key] = data
        chain.checked = len(branch.changes)

    # -- watches ------------------------------------------------------------------------------------------------

    def _ended(self, record: Ended) -> None:
        self._follower(record.follower).closed()
        about = f"{record.follower} at {record.proxy}, {record.at:.3f}: its watch: {record.how}"
        if record.how == "silence":
            self.say(f"{about}: nothing came, no bookmark either")
        elif record.how == "error" and record.code == GONE:
            if not self.disturbances.forgot(record.version_at, record.at):
                self.say(f"{about}: nothing explains {record.code} {record.message}")
        elif record.how == "error" and record.code not in UNAVAILABLE:
            self.say(f"{about}: {record.code} {record.message}")
        elif record.how != "end" and not self.disturbances.explain(record.proxy, record.at, record.at):
            self.say(f"{about}: nothing explains it: {record.code} {record.message}")

    def behind(self) -> dict[str, str]:
        """Return which informers do not have what the members have now, and what they lack."""
        found = {}
        for name, followed in self.followed.items():
            difference = followed.difference()
            if difference:
                found[name] = difference
        return found


def lifetimes(member: MemberHistory, key: Key) -> list[tuple[float, float, tuple[str, str] | None]]:
    """Return since when and until when an object was in which state; None: there was none."""
    found: list[tuple[float, float, tuple[str, str] | None]] = []
    for number, branch in enumerate(member.branches):
        last = number + 1 == len(member.branches)
        end = float("inf") if last else member.branches[number + 1].began
        since, ident = branch.began, None
        for change in branch.of(key):
            at = max(change.at, branch.began)
            if at > since or not found:
                found.append((since, at, ident))
            since, ident = at, None if change.kind == "DELETED" else change.ident
        found.append((since, end, ident))
    return found


def _made(change: Change, record: Wrote) -> bool:
    if record.verb == "delete":
        return change.kind == "DELETED"
    return change.data.get("w") == record.write and change.kind != "DELETED"


def _is(state: Mapping[Key, Change], items: Mapping[Key, Item]) -> bool:
    return state.keys() == items.keys() and all(items[key].ident == change.ident for key, change in state.items())


def _difference(state: Mapping[Key, Change], items: Mapping[Key, Item]) -> str:
    return describe(
        {key: change.ident for key, change in state.items()}, {key: one.ident for key, one in items.items()}
    )


def describe(truth: Mapping[Key, tuple[str, str]], found: Mapping[Key, tuple[str, str]]) -> str:
    """Say what is missing, too much or in another state."""
    texts = [f"no {key}, {truth[key][1]}" for key in truth if key not in found]
    texts += [f"{key} is gone, and there is {found[key][1]}" for key in found if key not in truth]
    both = [key for key in truth if key in found and truth[key] != found[key]]
    texts += [f"{key} is {found[key][1]} and should be {truth[key][1]}" for key in both]
    return "; ".join(texts[:4]) + (f"; {len(texts) - 4} more" if len(texts) > 4 else "")


def _states(idents: Iterable[tuple[str, str] | None]) -> str:
    return ", ".join("absent" if ident is None else ident[1] or "of no write" for ident in idents)
