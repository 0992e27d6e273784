"""SubjectAccessReviews: asking a cluster whether somebody may do something, and remembering what it said.

Source: authorization.k8s.io/v1 and k8s.io/apiserver `plugin/pkg/authorizer/webhook`, whose cache this follows: allowed
and refused are kept for times of their own, and a question that a client made long is not kept at all. Unlike there a
reviewer that does not answer is never a "no opinion": the request ends with 503.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from mcproxy.config import model
from mcproxy.identity.attributes import Attributes
from mcproxy.identity.flights import Flights, TooLate
from mcproxy.identity.json_text import json_object
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.net.errors import ConnectError
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError

if TYPE_CHECKING:
    from mcproxy.upstream.cluster import Cluster
    from mcproxy.upstream.endpoint import Endpoint

log = Logger()

PATH = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_HEADERS = (("content-type", "application/json"), ("accept", "application/json"))

_TIMEOUT = 5.0  # seconds for one endpoint
_PATIENCE = 10.0  # seconds for a question, over all endpoints that are tried
_AT_ONCE = 64  # questions that one cluster is asked at the same time
_MAX_ANSWER = 1024 * 1024  # it repeats the question
_MAX_REASON = 1000  # characters: it is repeated to the client
_KEPT = 8192
_MAX_KEPT_QUESTION = 1000  # characters that a client chose; with `_KEPT` it bounds the cache to some 16 MiB


class Decision(NamedTuple):
    """What an authorizer says. `reason` is its own, for the refusal's sentence; "" where it gave none."""

    allowed: bool
    reason: str = ""


_ALLOWED = Decision(True)


class _Trouble(Exception):
    """A question had no answer; `cause` and `todo` are sentences for operators."""

    def __init__(self, cause: str, todo: str = "see whether the cluster is well and reachable from here") -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


_Question = tuple[UserInfo, Attributes]


class AccessReviews:
    """The reviews of one cluster."""

    def __init__(
        self, cluster: Callable[[], Cluster], settings: model.SubjectAccessReview, clock: IReactorTime
    ) -> None:
        """`cluster` gives the live cluster of now: a reload replaces it, and the decisions of another are forgotten."""
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._asked: Cluster | None = None
        self._decisions: OrderedDict[_Question, tuple[float, Decision]] = OrderedDict()
        self._flights: Flights[tuple[Cluster, _Question], Decision] = Flights(
            clock, at_once=_AT_ONCE, timeout=_PATIENCE
        )
        self._told_trouble = ""

    def known(self, user: UserInfo, attributes: Attributes) -> Decision | None:
        """Return what the cluster said lately; None: it has to be asked."""
        question = (user, attributes)
        kept = self._decisions.get(question)
        if kept is None:
            return None
        if kept[0] <= self._clock.seconds() or self._cluster() is not self._asked:
            del self._decisions[question]
            return None
        self._decisions.move_to_end(question)
        return kept[1]

    async def review(self, user: UserInfo, attributes: Attributes) -> Decision:
        """Ask the cluster, or join who asks it the same; raises StatusError (503) if it does not answer."""
        question = (user, attributes)
        try:
            # With the cluster: who comes after a reload must not be given the answer of the one before.
            return await self._flights.join((self._cluster(), question), lambda: self._ask(question))
        except (_Trouble, TooLate) as error:
            trouble = error if isinstance(error, _Trouble) else _Trouble(str(error))
            self._tell(trouble)
            name = self._cluster().name
            raise StatusError(503, f'cluster "{name}" could not be asked whether this is allowed') from None

    async def _ask(self, question: _Question) -> Decision:
        cluster = self._cluster()
        decision = await _answer(cluster, _body(*question))
        self._told_trouble = ""
        self._keep(cluster, question, decision)
        return decision

    def _keep(self, cluster: Cluster, question: _Question, decision: Decision) -> None:
        if cluster is not self._cluster():
            return
        if cluster is not self._asked:
            self._decisions.clear()
            self._asked = cluster
        seconds = self._settings.cache_allowed if decision.allowed else self._settings.cache_denied
        if seconds <= 0 or _length(question) > _MAX_KEPT_QUESTION:
            return
        if len(self._decisions) >= _KEPT:
            self._decisions.popitem(last=False)
        self._decisions[question] = (self._clock.seconds() + seconds, decision)

    def _tell(self, trouble: _Trouble) -> None:
        """One line for a trouble, not one for each request that it fails."""
        if trouble.cause != self._told_trouble:
            self._told_trouble = trouble.cause
            log.warn(
                "requests are refused: cluster cannot be asked who may do what",
                cluster=self._cluster().name,
                cause=trouble.cause,
                todo=trouble.todo,
            )


async def _answer(cluster: Cluster, body: bytes) -> Decision:
    """Ask one endpoint after the other, each once."""
    tried: list[Endpoint] = []
    trouble: _Trouble | None = None
    while (endpoint := cluster.pick(tried)) is not None:
        tried.append(endpoint)
        try:
            response = await cluster.control.request(
                endpoint, "POST", PATH, headers=_HEADERS, body=body, timeout=_TIMEOUT, max_body=_MAX_ANSWER
            )
            return _decision(response)
        except (ControlError, ConnectError) as error:
            trouble = _Trouble(error.cause)
        except CredentialError as error:
            raise _Trouble(error.cause, "see what the proxy's credential for the cluster is") from None
        except _Trouble as error:
            trouble = error
    raise trouble or _Trouble(cluster.unavailable_message())


def _decision(response: ControlResponse) -> Decision:
    if response.status == 403:
        raise _Trouble(
            "the proxy may not create subjectaccessreviews.authorization.k8s.io there",
            "grant it what `mcproxy rbac` prints",
        )
    if response.status == 401:
        raise _Trouble("the cluster does not accept the proxy's credential", "give the cluster a valid credential")
    if response.status not in (200, 201):
        raise _Trouble(f"a SubjectAccessReview was answered with status {response.status}")
    try:
        status = _status(json_object(response.body))
    except ValueError:
        raise _Trouble("the answer to a SubjectAccessReview is none") from None
    if status["allowed"] and not status.get("denied", False):
        return _ALLOWED  # its reason (which binding it was) is nobody's business here, and would fill the cache
    return Decision(False, status.get("reason", "")[:_MAX_REASON])


def _status(answer: Any) -> dict[str, Any]:
    """Return the `status` of an answer in which all is of the right type; raises ValueError for any other."""
    if not isinstance(answer, dict) or answer.get("kind") != "SubjectAccessReview":
        raise ValueError
    status = answer.get("status")
    if not isinstance(status, dict) or not isinstance(status.get("allowed"), bool):
        raise ValueError
    if not isinstance(status.get("denied", False), bool) or not isinstance(status.get("reason", ""), str):
        raise ValueError
    return status


def _body(user: UserInfo, attributes: Attributes) -> bytes:
    spec: dict[str, Any] = {}
    if attributes.is_resource:
        spec["resourceAttributes"] = _resource_attributes(attributes)
    else:
        spec["nonResourceAttributes"] = {"path": attributes.path, "verb": attributes.verb}
    spec["user"] = user.name
    if user.groups:
        spec["groups"] = user.groups
    if user.extra:
        spec["extra"] = dict(user.extra)
    if user.uid:
        spec["uid"] = user.uid
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    return json.dumps(review, separators=(",", ":")).encode()


def _resource_attributes(attributes: Attributes) -> dict[str, Any]:
    """An empty field means "all" to the cluster, and that is what it means in a request too."""
    asked: dict[str, Any] = {
        name: value
        for name in ("namespace", "verb", "group", "version", "resource", "subresource", "name")
        if (value := getattr(attributes, name))
    }
    if attributes.field_selector:
        asked["fieldSelector"] = {"rawSelector": attributes.field_selector}
    if attributes.label_selector:
        asked["labelSelector"] = {"rawSelector": attributes.label_selector}
    return asked


def _length(question: _Question) -> int:
    """What of a question a client chose freely, or could have: a user's names come from its credential."""
    user, attributes = question
    of_user = len(user.name) + len(user.uid) + sum(map(len, user.groups))
    of_extra = sum(len(key) + sum(map(len, values)) for key, values in user.extra)
    return of_user + of_extra + sum(len(field) for field in attributes if isinstance(field, str))
