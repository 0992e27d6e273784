"""Writes changes to one cluster, a few at a time, while this process has its Lease.

`ClusterWriteQueue` determines their order.

A change is dropped after its attempt, successful or not. Then the caller compares the cluster again, and requests the
remaining changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, KeysView

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from mcproxy.aggregate.reflector.member_calls import Backoff
from mcproxy.log_once import LogOnce
from mcproxy.net.connect_errors import ConnectError
from mcproxy.observe.metrics.counts import MetricCounts
from mcproxy.observe.metrics.families import EXPORT_WRITES
from mcproxy.services.exports.object_keys import ObjectKey, ServiceKey, is_discovered
from mcproxy.services.leader_election import LeaderElector
from mcproxy.services.writer.apply_requests import (
    WriteAnswer,
    WriteOutcome,
    WriteRequest,
    answer_of,
    namespace_request,
    place_of,
    request_of,
)
from mcproxy.services.writer.differences import MutationCache, PlannedWrite, Verb
from mcproxy.services.writer.write_queue import LAST_ABSENT, ClusterWriteQueue, place_of_change, scope_of
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, ControlResponse, NotPermittedError
from mcproxy.upstream.credentials import CredentialError

log = Logger(__name__)

WRITES_AT_ONCE = 8
"""Maximum of writes to one cluster in flight."""
WRITE_TIMEOUT = 5.0
"""Timeout of one write in seconds; shorter if the Lease expires earlier."""
_MIN_LEFT = 0.5  # minimum of seconds until the Lease expires for a write to begin
_MAX_BODY = 1024 * 1024  # maximum of bytes of a response, which is the object with the fields of all managers
_MAX_PROBLEMS = 1000  # maximum of refused objects whose last cause is kept
_LINES = 60.0  # seconds between two lines about one kind of refusal


class ClusterWriter:
    """The writes to one cluster."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        permit: LeaderElector,
        clock: IReactorTime,
        random: Callable[[], float],
        counts: MetricCounts,
        ended: Callable[[ServiceKey, bool], None],
        creates: Callable[[str], bool],
    ) -> None:
        """`cluster` returns the current cluster. `random` returns a float in [0, 1).

        `creates` is called with a namespace; it returns whether to create the namespace if it is missing.

        `ended` is called after each write of a service, with the service and whether the write succeeded; the service
        then has to be compared again.
        """
        self.queue = ClusterWriteQueue(clock.seconds)
        self.mutations = MutationCache(clock.seconds)
        self.problems = ObjectProblems(_MAX_PROBLEMS)
        """The API server's reasons for refused objects."""
        self.cause = ""
        """Why no write is possible at present."""
        self._cluster = cluster
        self._permit = permit
        self._clock = clock
        self._counts = counts
        self._ended = ended
        self._creates = creates
        self._backoff = Backoff(random)
        self._paused_until = 0.0
        self._uncertain_until = 0.0
        self._next: IDelayedCall | None = None
        self._running: set[Deferred[None]] = set()
        self._once = LogOnce(_LINES, most=_MAX_PROBLEMS)
        self._stopped = False

    @property
    def is_quiet(self) -> bool:
        """Whether no write is in flight, abandoned writes included."""
        return not self._running and self._clock.seconds() >= self._uncertain_until

    def write(self, service: ServiceKey, changes: list[PlannedWrite]) -> None:
        """Set the pending changes of a service, replacing former ones."""
        self.queue.replace(service, changes)
        self.problems.keep(service, {place_of_change(each) for each in changes})
        self.go_on()

    def clear(self) -> None:
        """Drop all pending changes; writes in flight continue to their end."""
        self.queue.clear()
        self.problems.clear()
        self._stop_waiting()

    def wake(self) -> None:
        """End a pause, because the cluster may be reachable again."""
        self._paused_until = 0.0
        self.go_on()

    def unblock(self, namespace: str) -> None:
        """Retry the changes of a namespace at once, because it was created or deleted."""
        self.queue.unblock(namespace)
        self.go_on()

    def stop(self) -> None:
        """Stop everything at once."""
        self._stopped = True
        self.clear()
        for each in tuple(self._running):
            each.cancel()

    # -- writing ----------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Send the changes that are due, and schedule the next ones."""
        self._stop_waiting()
        now = self._clock.seconds()
        while not self._stopped and len(self._running) < WRITES_AT_ONCE and self._permit.remaining > _MIN_LEFT:
            if self._paused_until > now:
                break
            taken = self.queue.take()
            if taken is None:
                break
            self._begin(*taken)
        if self._stopped or len(self._running) >= WRITES_AT_ONCE or not self._permit.leads:
            return
        at = self.queue.next_at()
        if at is not None:
            self._next = self._clock.callLater(max(0.0, max(at, self._paused_until) - now), self._wait_over)

    def _wait_over(self) -> None:
        self._next = None
        self.go_on()

    def _stop_waiting(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _begin(self, service: ServiceKey, change: PlannedWrite) -> None:
        running: Deferred[None] = Deferred.fromCoroutine(self._write(service, change))
        if running.called:
            running.addErrback(self._crashed)
            return
        self._running.add(running)

        def over(result: object) -> object:
            self._running.discard(running)
            self.go_on()
            return result

        running.addBoth(over)
        running.addErrback(self._crashed)

    async def _write(self, service: ServiceKey, change: PlannedWrite) -> None:
        succeeded = False
        try:
            response = await self._send(lambda timeout: request_of(change, timeout), change.verb.value)
            if response is None:
                self.queue.drop(change)
            else:
                answer = answer_of(change, response.status, response.body)
                missing = answer.outcome is WriteOutcome.NO_NAMESPACE and response.status == 404
                if missing and self._creates(change.key.namespace):
                    succeeded = await self._create_namespace(service, change)
                else:
                    succeeded = self._take(service, change, answer, response)
        except BaseException:
            self.queue.drop(change)
            raise
        if not self._stopped:
            self._ended(service, succeeded)

    async def _create_namespace(self, service: ServiceKey, change: PlannedWrite) -> bool:
        """Create the namespace of a change, and have the change retried. Return False: the change is not done yet."""
        name = change.key.namespace
        response = await self._send(lambda timeout: namespace_request(name, timeout), Verb.CREATE.value)
        if response is None or response.status in (201, 409):
            if response is not None and response.status == 201:
                log.info(
                    "namespace created for exported services",
                    event="export_namespace_created",
                    cluster=change.key.cluster,
                    namespace=name,
                )
            self.queue.drop(change)
            return False
        return self._take(service, change, answer_of(change, response.status, response.body), response)

    async def _send(self, request_in: Callable[[float], WriteRequest], verb: str) -> ControlResponse | None:
        """Send a request with a timeout; None: it was not sent, or its outcome is unknown."""
        cluster = self._cluster()
        endpoint = cluster.pick()
        if endpoint is None:
            self._pause(cluster.unavailable_message(times=False))
            return None
        timeout = min(WRITE_TIMEOUT, self._permit.remaining)
        request = request_in(timeout)
        try:
            return await cluster.control.request(
                endpoint,
                request.method,
                request.path,
                headers=request.headers,
                body=request.body,
                timeout=round(timeout, 1),
                max_body=_MAX_BODY,
                permit=lambda: self._permit.leads,
            )
        except NotPermittedError:
            return None
        except CredentialError as error:
            self._pause(error.cause)
            return None
        except ConnectError as error:
            endpoint.request_check()
            self._pause(error.cause)
            return None
        except ControlError as error:
            self._pause(error.cause)
            self._uncertain_until = self._clock.seconds() + WRITE_TIMEOUT  # by then the API server has abandoned it
            self._counts.increase(EXPORT_WRITES, (cluster.name, verb, "unknown"))
            return None

    def _take(self, service: ServiceKey, change: PlannedWrite, answer: WriteAnswer, response: ControlResponse) -> bool:
        """Process a response; return whether the change is done."""
        place, queue, outcome = place_of_change(change), self.queue, answer.outcome
        self._counts.increase(EXPORT_WRITES, (self._cluster().name, change.verb.value, outcome.value))
        if outcome is not WriteOutcome.LATER:
            self._backoff.worked()
            self.cause = ""
        if outcome in (WriteOutcome.DONE, WriteOutcome.GONE):
            self.problems.remove(place)
            if outcome is WriteOutcome.GONE or change.verb is Verb.DELETE:
                self.mutations.removed(place, change.uid)
            else:
                self.mutations.wrote(place, answer.uid, answer.version, change.digest)
            queue.done(change)
            return True
        if outcome is WriteOutcome.CONFLICT:
            self.mutations.forget(place)
            queue.failed(change, soon=True)
        elif outcome is WriteOutcome.FIELD_CONFLICT:
            queue.hold(change)
            todo = "remove the fields of the other manager, or delete the object, which is created again"
            self._problem(service, change, answer, todo)
        elif outcome is WriteOutcome.LATER:
            queue.drop(change)
            self._pause(answer.message, _retry_after(response))
        elif outcome is WriteOutcome.NO_NAMESPACE:
            scope = scope_of(change.key, of_resource=False)
            if is_discovered(change.key):  # KEP-1645: only clusters with the namespace import
                queue.block(change, scope, LAST_ABSENT)
            else:
                queue.block(change, scope)
                self._problem(
                    service, change, answer, "create the namespace in the cluster, or leave the cluster out of `to`"
                )
        elif outcome is WriteOutcome.FORBIDDEN:
            queue.block(change, scope_of(change.key, of_resource=True))
            self._problem(
                service, change, answer, f"grant it what `mcproxy rbac --cluster {change.key.cluster}` prints"
            )
        else:
            queue.failed(change, soon=False)
            self._problem(
                service, change, answer, "see `cause`: the cluster, or a policy of it, does not accept this object"
            )
        return False

    def _pause(self, cause: str, at_least: float = 0.0) -> None:
        """Pause all writes, because the cluster is unreachable or unavailable."""
        self.cause = cause
        now = self._clock.seconds()
        if self._paused_until <= now:
            self._paused_until = now + max(self._backoff.failed(), at_least)

    def _problem(self, service: ServiceKey, change: PlannedWrite, answer: WriteAnswer, todo: str) -> None:
        self.problems.note(service, place_of_change(change), answer.message)
        if not self._once.allows((answer.outcome, change.key.namespace), self._clock.seconds()):
            return
        log.warn(
            "a cluster refuses an object of an exported service",
            event="export_write_refused",
            cluster=change.key.cluster,
            object=place_of(change.key),
            cause=answer.message,
            todo=todo,
        )

    def _crashed(self, failure: Failure) -> None:
        if not (self._stopped and isinstance(failure.value, CancelledError)):
            log.failure("writing exported services failed unexpectedly", failure, event="internal_error")


def _retry_after(response: ControlResponse) -> float:
    """Return the seconds of Retry-After, at most 30."""
    text = response.header(b"retry-after")
    return min(float(text), 30.0) if text.isdigit() and len(text) < 6 else 0.0


# -- refused objects ------------------------------------------------------------------------------------------
#
# The reasons why single objects are not written, by service. Bounded; pure.


class ObjectProblems:
    """One message for each object with a problem."""

    def __init__(self, most: int) -> None:
        """`most`: maximum of objects; messages of further ones are dropped."""
        self._most = most
        self._notes: dict[ObjectKey, str] = {}
        self._services: dict[ServiceKey, set[ObjectKey]] = {}
        self._owners: dict[ObjectKey, ServiceKey] = {}

    def __len__(self) -> int:
        return len(self._notes)

    def items(self) -> ItemsView[ObjectKey, str]:
        """Return the objects with their messages, oldest first."""
        return self._notes.items()

    def of(self, place: ObjectKey) -> str:
        """Return the message of an object, or ""."""
        return self._notes.get(place, "")

    def services(self) -> KeysView[ServiceKey]:
        """Return the services with a message."""
        return self._services.keys()

    def note(self, service: ServiceKey, place: ObjectKey, text: str) -> bool:
        """Keep a message for an object; return whether it is the object's first, and was kept."""
        is_new = place not in self._notes
        if is_new and len(self._notes) >= self._most:
            return False
        self.remove(place)
        self._notes[place] = text
        self._owners[place] = service
        self._services.setdefault(service, set()).add(place)
        return is_new

    def remove(self, place: ObjectKey) -> None:
        """Remove the message of an object, if it has one."""
        service = self._owners.pop(place, None)
        if service is None:
            return
        del self._notes[place]
        places = self._services[service]
        places.discard(place)
        if not places:
            del self._services[service]

    def keep(self, service: ServiceKey, places: Collection[ObjectKey]) -> None:
        """Remove the messages of a service's objects that are not among these."""
        for place in self._services.get(service, set()).difference(places):
            self.remove(place)

    def clear(self) -> None:
        """Remove all messages."""
        self._notes.clear()
        self._services.clear()
        self._owners.clear()
