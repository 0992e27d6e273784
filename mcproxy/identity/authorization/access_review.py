"""SubjectAccessReviews: asks a cluster whether a user's request is allowed, and caches its decisions.

Source: authorization.k8s.io, v1 and v1beta1 (where the field `groups` is `group`), and k8s.io/apiserver
`plugin/pkg/authorizer/webhook`. As there, allowed and denied decisions have separate cache lifetimes, and reviews with
long client-chosen text are not cached. Unlike there, an unavailable reviewer is never "no opinion": the request ends
with 503.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from mypy_extensions import mypyc_attr
from twisted.internet.interfaces import IReactorTime

from mcproxy.config import model
from mcproxy.identity.authorization.attributes import Attributes
from mcproxy.identity.review_client import SUCCESS, TIMEOUT, LiveCluster, create_review
from mcproxy.identity.reviewer_log import ReviewerLog, UnavailableError
from mcproxy.identity.singleflight import FairSemaphore, ReviewLoad, SingleFlight, SingleFlightError
from mcproxy.identity.strict_json import json_object
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.observe.metrics.families import CACHE_LOOKUPS
from mcproxy.requests.coroutines import OrPending
from mcproxy.upstream.control import ControlResponse

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster

_GROUP = "authorization.k8s.io"

_PLACES = 64  # maximum number of concurrent reviews by one cluster
_MAX_WAITING = 4096
_MAX_REASON = 1000  # maximum characters of a reason, which the client gets
_CACHED = 8192
_MAX_CACHED_REVIEW = 1000  # maximum client-chosen characters; with `_CACHED`, it limits the cache to about 16 MiB

_EFFECT = "requests that it has to allow get 503"
_SLOW_TODO = "see that the cluster's API server answers quickly, and which user causes the load (access log)"
_NO_REVIEW = "see what answers there: it must speak {kind} of authorization.k8s.io in the `version` that it is asked in"


class Decision(NamedTuple):
    """The decision of an authorizer. `reason` is for the 403 message, "" without a reason."""

    allowed: bool
    reason: str = ""


ALLOWED = Decision(True)

#: A placeholder user for reviews of the proxy's own rights, which have no user.
NOBODY = UserInfo("")

#: Kinds of failure (`UnavailableError.kind`) which mean that the cluster is unreachable. No client can cause them.
_UNREACHABLE = frozenset({"connection", "endpoints"})


@mypyc_attr(native_class=False)  # its base is interpreted
class ReviewUnavailable(StatusError):
    """503: a cluster did not answer the review of a request.

    `unreachable`: the cluster cannot be reached. Otherwise it refuses the proxy, or reviews wait too long, which a
    client can cause.
    """

    def __init__(self, cluster: str, *, unreachable: bool) -> None:
        super().__init__(503, f'cluster "{cluster}" could not review whether this is allowed')
        self.unreachable = unreachable


_Review = tuple[UserInfo, Attributes]


class Reviewer(Protocol):
    """Gets decisions from one cluster, and caches them."""

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        """Return the cluster's decision if it is cached, else a review that must be awaited.

        The review raises ReviewUnavailable.
        """


class SubjectAccessReviewer:
    """Sends reviews to one cluster, in turns of the users, and caches its decisions."""

    def __init__(
        self,
        cluster: LiveCluster,
        settings: model.SubjectAccessReview,
        clock: IReactorTime,
        *,
        of_the_proxy: bool = False,
    ) -> None:
        """If `cluster` returns another cluster after a reload, cached decisions are dropped.

        `of_the_proxy`: the cluster knows only the proxy as a user (`identity: Proxy`), so the review for any user is
        about the proxy itself (SelfSubjectAccessReview).
        """
        self._of_the_proxy = of_the_proxy
        self._kind = "SelfSubjectAccessReview" if of_the_proxy else "SubjectAccessReview"
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._decided_by: Cluster | None = None
        self._decisions: OrderedDict[_Review, tuple[float, Decision]] = OrderedDict()
        self._places = FairSemaphore(_PLACES, share=_PLACES, max_waiting=_MAX_WAITING, seconds=clock.seconds)
        self._singleflight: SingleFlight[tuple[Cluster, _Review], Decision] = SingleFlight(
            clock, self._places, timeout=TIMEOUT
        )
        counts = cluster().metrics.counts
        self._hits = counts.series(CACHE_LOOKUPS, ("decisions", "hit"))
        self._misses = counts.series(CACHE_LOOKUPS, ("decisions", "miss"))
        what = "selfSubjectAccessReview" if of_the_proxy else "subjectAccessReview"
        self._log = ReviewerLog(f"{what} by cluster {cluster().name}")

    @property
    def load(self) -> ReviewLoad:
        """The number of present reviews and of cached decisions."""
        calls = self._singleflight
        return ReviewLoad(
            waiting=calls.waiting,
            running=len(calls) - calls.waiting,
            cached=len(self._decisions),
            places=self._places.places,
            largest_share=self._places.largest_share,
        )

    def decide(self, user: UserInfo, attributes: Attributes) -> OrPending[Decision]:
        """Return the cached decision, or a review; it joins an equal review in flight (`Reviewer`)."""
        review = (NOBODY if self._of_the_proxy else user, attributes)
        kept = self._decisions.get(review)
        if kept is not None:
            if kept[0] > self._clock.seconds() and self._cluster() is self._decided_by:
                self._decisions.move_to_end(review)
                self._hits[0] += 1
                return kept[1]
            del self._decisions[review]
        return self._review(review)

    async def _review(self, review: _Review) -> Decision:
        self._misses[0] += 1
        try:
            # The key includes the cluster: a request after a reload must not get the decision of the earlier cluster.
            key = (self._cluster(), review)
            return await self._singleflight.join(key, lambda: self._create(review), turn=review[0].name)
        except (UnavailableError, SingleFlightError) as error:
            known = error if isinstance(error, UnavailableError) else UnavailableError("slow", str(error), _SLOW_TODO)
            self._log.fails(known, _EFFECT)
            raise ReviewUnavailable(self._cluster().name, unreachable=known.kind in _UNREACHABLE) from None

    async def _create(self, review: _Review) -> Decision:
        cluster = self._cluster()
        version = self._settings.version
        body = _body(*review, self._kind, version)
        response = await create_review(cluster, _GROUP, self._kind, body, self._clock, version)
        decision = _decision(response, self._kind)
        self._log.works()
        self._cache(cluster, review, decision)
        return decision

    def _cache(self, cluster: Cluster, review: _Review, decision: Decision) -> None:
        if cluster is not self._cluster():
            return
        if cluster is not self._decided_by:
            self._decisions.clear()
            self._decided_by = cluster
        seconds = self._settings.cache_allowed if decision.allowed else self._settings.cache_denied
        if seconds <= 0 or _length(review) > _MAX_CACHED_REVIEW:
            return
        if len(self._decisions) >= _CACHED:
            self._decisions.popitem(last=False)
        self._decisions[review] = (self._clock.seconds() + seconds, decision)


def _decision(response: ControlResponse, kind: str) -> Decision:
    try:
        if response.status not in SUCCESS:
            raise ValueError(f"has status {response.status}")
        status = _status(json_object(response.body), kind)
    except ValueError as error:
        raise UnavailableError("answer", f"its answer {error}", _NO_REVIEW.format(kind=kind)) from None
    if status["allowed"] and not status.get("denied", False):
        return ALLOWED  # the reason (the binding) is not used, and would fill the cache
    return Decision(False, status.get("reason", "")[:_MAX_REASON])


def _status(answer: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the `status` of a response whose fields all have the right types; raises ValueError otherwise."""
    status = answer.get("status")
    if answer.get("kind") != kind or not isinstance(status, dict):
        raise ValueError(f"is no {kind}")
    if not isinstance(status.get("allowed"), bool) or not isinstance(status.get("denied", False), bool):
        raise ValueError("says neither yes nor no")
    if not isinstance(status.get("reason", ""), str):
        raise ValueError("has a reason that is no string")
    return status


def _body(user: UserInfo, attributes: Attributes, kind: str, version: model.ReviewVersion) -> bytes:
    spec: dict[str, Any] = {}
    if attributes.is_resource:
        spec["resourceAttributes"] = _resource_attributes(attributes)
    else:
        spec["nonResourceAttributes"] = {"path": attributes.path, "verb": attributes.verb}
    if user.name:
        spec["user"] = user.name
    if user.groups:
        spec["groups" if version is model.ReviewVersion.V1 else "group"] = user.groups
    if user.extra:
        spec["extra"] = dict(user.extra)
    if user.uid:
        spec["uid"] = user.uid
    review = {"apiVersion": f"{_GROUP}/{version}", "kind": kind, "spec": spec}
    return json.dumps(review, separators=(",", ":")).encode()


def _resource_attributes(attributes: Attributes) -> dict[str, Any]:
    """Return the attributes for a review, without empty fields. In a review a missing field can mean "all"."""
    resource: dict[str, Any] = {
        name: value
        for name in ("namespace", "verb", "group", "version", "resource", "subresource", "name")
        if (value := getattr(attributes, name))
    }
    if attributes.field_selector:
        resource["fieldSelector"] = {"rawSelector": attributes.field_selector}
    if attributes.label_selector:
        resource["labelSelector"] = {"rawSelector": attributes.label_selector}
    return resource


def _length(review: _Review) -> int:
    """Return the number of characters in a review that a client can choose, including the user's names."""
    user, attributes = review
    of_user = len(user.name) + len(user.uid) + sum(map(len, user.groups))
    of_extra = sum(len(key) + sum(map(len, values)) for key, values in user.extra)
    return of_user + of_extra + sum(len(field) for field in attributes if isinstance(field, str))
