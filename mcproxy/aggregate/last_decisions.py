"""The last authorization decisions of each member about users' reads, which stay valid while the member is unavailable.

Source: reference "list-watch", Who may read (`staleDecisions`). Users and attributes are stored as digests, so the size
of an entry does not depend on the client, and the file under `stateDir` contains no user names.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate import state_file
from mcproxy.aggregate.reflector.reflectors import Reflectors
from mcproxy.config import model
from mcproxy.identity.authorization.access_review import Decision, Reviewer, ReviewUnavailable
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.authorization.authorizer import ReviewersByCluster
from mcproxy.kube.user import UserInfo
from mcproxy.requests.coroutines import OrPending, known, settled

log = Logger(__name__)

_KIND, _VERSION = "decisions", 1
_MAX_DECISIONS = 65_536  # entries of about 200 bytes each
_MAX_PER_USER = 4096  # a user who keeps sending new selectors displaces only the user's own entries
_CLOCK_STEP = 60.0  # maximum seconds by which an entry's time may be in the future, since the clock can be set back


class _Last(NamedTuple):
    uid: str  # UID of the member's cluster at the decision; "" if unknown
    allowed: bool
    at: float  # seconds since 1970


class LastDecisions:
    """A bounded table of decisions, one per process; `seconds` returns the wall-clock time in seconds since 1970."""

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._users: OrderedDict[bytes, OrderedDict[bytes, _Last]] = OrderedDict()  # ordered by last record
        self._count = 0
        self.changed = False  # whether an entry has changed since `load` or the last `writer`

    def __len__(self) -> int:
        return self._count

    def record(self, member: str, uid: str, user: UserInfo, attributes: Attributes, *, allowed: bool) -> None:
        """Record a member's decision; `uid` is that of its cluster, "" if unknown."""
        self._put(_digest(user), _key(member, attributes), _Last(uid, allowed, self._seconds()))
        self.changed = True

    def find(self, member: str, uid: str, user: UserInfo, attributes: Attributes, max_age: float) -> bool | None:
        """Return the member's last decision; None if it is unknown, or older than `max_age` seconds.

        A decision of another cluster of the same name does not count.
        """
        known = self._users.get(_digest(user))
        last = None if known is None else known.get(_key(member, attributes))
        if last is None or (uid and last.uid and uid != last.uid):
            return None
        age = self._seconds() - last.at
        return last.allowed if -_CLOCK_STEP <= age <= max_age else None

    def _put(self, user: bytes, key: bytes, last: _Last) -> None:
        entries = self._users.get(user)
        if entries is None:
            entries = self._users[user] = OrderedDict()
        if key not in entries:
            self._count += 1
        entries[key] = last
        entries.move_to_end(key)
        self._users.move_to_end(user)
        if len(entries) > _MAX_PER_USER:
            entries.popitem(last=False)
            self._count -= 1
        while self._count > _MAX_DECISIONS:
            oldest = next(iter(self._users))
            self._users[oldest].popitem(last=False)
            self._count -= 1
            if not self._users[oldest]:
                del self._users[oldest]

    # -- stateDir -----------------------------------------------------------------------------------------------

    def writer(self, path: Path, max_age: float) -> Callable[[], None]:
        """Return a function that writes the present entries that are at most `max_age` seconds old.

        The function can run in a thread. It raises OSError.
        """
        payload = self._encoded(max_age)
        self.changed = False

        def write() -> None:
            try:
                state_file.write(path, _KIND, _VERSION, payload)
            except OSError:
                self.changed = True
                raise

        return write

    def _encoded(self, max_age: float) -> bytes:
        """Return the payload of the file, the oldest users first."""
        limit = self._seconds() - max_age
        entries = [
            (user, key, last) for user, known in self._users.items() for key, last in known.items() if last.at >= limit
        ]
        return msgspec.msgpack.encode(entries)

    def load(self, path: Path) -> None:
        """Load the entries of the file, if it can be read."""
        payload = state_file.read(path, _KIND, _VERSION)
        if payload is None:
            return
        try:
            entries = msgspec.msgpack.decode(payload, type=list[tuple[bytes, bytes, _Last]])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            state_file.put_aside(path, f"its contents have another form: {error}")
            return
        for user, key, last in entries:
            self._put(user, key, last)


def _digest(user: UserInfo) -> bytes:
    return _hash((user.name, user.groups, user.uid, user.extra))


def _key(member: str, attributes: Attributes) -> bytes:
    return _hash((member, *attributes))


def _hash(fields: tuple[object, ...]) -> bytes:
    # repr is unambiguous for tuples of strings, and escapes characters that UTF-8 cannot encode
    return hashlib.blake2b(repr(fields).encode(), digest_size=20).digest()


# -- reviewers ------------------------------------------------------------------------------------------------
#
# SubjectAccessReviews by members that may be unavailable: their last decisions stay valid (`staleDecisions`).
#
# Source: reference "list-watch", Who may read. A client must not be able to make a member count as unavailable. A
# review can be late because its user has too many reviews in flight. So a late review does not prove an outage: it
# extends an earlier decision by at most a minute.
#
# A review of the verb list also starts a review of watch, and the reverse: an informer lists, and then watches from the
# list's version. If only one decision were known when the member becomes unavailable, no watch could continue the list
# during the outage.


_PATIENCE = 6.0  # seconds for a member that seems healthy; longer than the timeout of a review (5 s)
_PATIENCE_DOWN = 1.0  # seconds for a member that is known to be down
_LATE = 60.0  # seconds by which a decision stays valid after its cache time while a new review is late
_MAX_NOTED = 2048
_BESIDE = {"list": "watch", "watch": "list"}


class StaleReviewers:
    """The reviewers of the members of one aggregate, by name."""

    def __init__(
        self,
        reviewers: ReviewersByCluster,
        reflectors: Reflectors,
        last: LastDecisions,
        clock: IReactorTime,
        settings: model.ReadsConfig,
    ) -> None:
        """`reviewers` send the reviews to the members, and cache the decisions."""
        self._reviewers = reviewers
        self._reflectors = reflectors
        self._last = last
        self._clock = clock
        self._settings = settings
        self._live: dict[str, Reviewer] = {}

    def __call__(self, member: str) -> Reviewer:
        """Return the reviewer of a member."""
        live = self._live.get(member)
        if live is None:
            live = self._live[member] = StaleReviewer(
                member, self._reviewers(member), self._reflectors, self._last, self._clock, self._settings
            )
        return live


class StaleReviewer:
    """Reviews by one member; while it is unreachable, its last decision for the same user and attributes is valid."""

    def __init__(
        self,
        member: str,
        reviewer: Reviewer,
        reflectors: Reflectors,
        last: LastDecisions,
        clock: IReactorTime,
        settings: model.ReadsConfig,
    ) -> None:
        self._member = member
        self._reviewer = reviewer
        self._reflectors = reflectors
        self._last = last
        self._clock = clock
        self._settings = settings
        # The time when a cached decision was recorded, by a hash of user and attributes: a hash has a fixed size.
        self._noted: dict[int, float] = {}

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        """Return the member's decision, or its last decision while it is unreachable (`Reviewer`)."""
        decision = known(self._reviewer.decide(user, attributes))
        if decision is None:
            return self._review(user, attributes)
        noted = self._noted.get(hash((user, attributes)))
        if noted is None or noted + self._settings.cache_allowed < self._clock.seconds():
            self._record(user, attributes, decision)  # not recorded yet: another reader had requested the review
        return decision

    async def _review(self, user: UserInfo, attributes: Attributes) -> Decision:
        stale = self._settings.stale_decisions
        down = self._is_down()
        last = self._find(user, attributes, stale) if down else None
        if last is not None:
            return last
        review = Deferred.fromCoroutine(settled(self._reviewer.decide(user, attributes)))
        try:
            decision = await review.addTimeout(_PATIENCE_DOWN if down else _PATIENCE, self._clock)
        except TimeoutError:
            unreachable = self._is_down()
        except ReviewUnavailable as problem:
            unreachable = problem.unreachable or self._is_down()
        else:
            self._record(user, attributes, decision)
            return decision
        late = min(stale, self._settings.cache_allowed + _LATE)
        last = self._find(user, attributes, stale if unreachable else late)
        if last is None:
            raise ReviewUnavailable(self._member, unreachable=unreachable)
        return last

    def _is_down(self) -> bool:
        """Whether the member is known to be unavailable; False for a cluster that is not a member."""
        member = self._reflectors.members.get(self._member)
        return member is not None and member.unavailable_since is not None

    def _uid(self) -> str:
        """Return the UID of the member's cluster, "" if it is not known."""
        member = self._reflectors.members.get(self._member)
        return "" if member is None else member.uid

    def _find(self, user: UserInfo, attributes: Attributes, max_age: float) -> Decision | None:
        uid = self._uid()
        allowed = self._last.find(self._member, uid, user, attributes, max_age)
        if allowed is None and (attributes.field_selector or attributes.label_selector):
            # A user who may read all objects may also read with selectors (KEP-4601). A refusal for all objects does
            # not apply to reads with selectors.
            everything = attributes._replace(field_selector="", label_selector="")
            allowed = self._last.find(self._member, uid, user, everything, max_age) or None
        return None if allowed is None else Decision(allowed)

    def _record(self, user: UserInfo, attributes: Attributes, decision: Decision) -> None:
        """Record the member's decision. For list or watch, also request the decision about the other of these verbs."""
        self._keep(user, attributes, decision)
        verb = _BESIDE.get(attributes.verb)
        if verb is not None and self._settings.stale_decisions:
            beside = attributes._replace(verb=verb)
            if self._find(user, beside, max(self._settings.cache_allowed, _LATE)) is None:
                Deferred.fromCoroutine(self._decide_beside(user, beside)).addErrback(_log_failure)

    async def _decide_beside(self, user: UserInfo, attributes: Attributes) -> None:
        """Request a decision in the background. If there is no answer, the next request that needs it asks again."""
        review = Deferred.fromCoroutine(settled(self._reviewer.decide(user, attributes)))
        try:
            decision = await review.addTimeout(_PATIENCE, self._clock)
        except (TimeoutError, ReviewUnavailable, CancelledError):
            return
        self._keep(user, attributes, decision)

    def _keep(self, user: UserInfo, attributes: Attributes, decision: Decision) -> None:
        if len(self._noted) >= _MAX_NOTED:
            self._noted.clear()
        self._noted[hash((user, attributes))] = self._clock.seconds()
        self._last.record(self._member, self._uid(), user, attributes, allowed=decision.allowed)


def _log_failure(failure: Failure) -> None:
    log.failure("a review that nobody waits for failed", event="internal_error", failure=failure)
