"""Answers /healthz, /livez and /readyz at the root of a server with several clusters or with API services.

The answers show the proxy's own view of the server, in the form of a kube-apiserver (`kube.healthz`). `?verbose` lists
every cluster and API service. Liveness needs no cluster. Readiness of a server with several clusters needs one ready
cluster, but no API service. An aggregate answers for its members itself, and the checks of API services are added to
its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from mcproxy.apiservices.availability import Registration, api_service_checks
from mcproxy.config import model
from mcproxy.identity.authorization.attributes import attributes_of, forbidden
from mcproxy.kube import healthz
from mcproxy.kube.healthz import Check
from mcproxy.kube.status import StatusError, method_not_allowed
from mcproxy.requests.coroutines import settled

if TYPE_CHECKING:
    from mcproxy.aggregate.request import MemberResponse
    from mcproxy.apiservices.availability import Availability
    from mcproxy.http.exchange import Exchange
    from mcproxy.identity.authentication.authenticated_user import AuthenticatedUser
    from mcproxy.identity.authorization.authorizer import Authorizer
    from mcproxy.kube.requestinfo import RequestInfo
    from mcproxy.kube.user import UserInfo
    from mcproxy.upstream.cluster import Cluster

_TEXT = b"Content-Type: text/plain; charset=utf-8\r\nX-Content-Type-Options: nosniff\r\n"


class ProbedRequest(Protocol):
    """A request in the pipeline (`proxy.request.Request`)."""

    exchange: Exchange
    caller: AuthenticatedUser
    user: UserInfo

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes: ...


class RootProbes:
    """The probes of one server."""

    def __init__(self, server: model.Server, clusters: Mapping[str, Cluster], known: Availability | None) -> None:
        """`clusters` has every cluster of the configuration, by name."""
        self._clusters = {name: clusters[name] for name in server.clusters}
        self._services = [Registration.of(each) for each in server.api_services]
        self._known = known

    def takes(self, path: str) -> bool:
        """Whether a path is that of a probe, or of a single check of a probe."""
        return path.partition("/")[2].partition("/")[0] in healthz.PROBES

    def answer(self, request: ProbedRequest, info: RequestInfo, target: bytes) -> None:
        """Answer a probe. Raises StatusError: 404 for an unknown check, 405."""
        probe, check, query = _parts(request, info, target)
        found = [Check("ping", ""), *self._of_clusters(probe), *self._of_services()]
        answer = healthz.answer_one(check, found) if check else healthz.answer(probe, found, query, withhold=False)
        if answer is None:
            raise StatusError(404, "the server could not find the requested resource", details={})
        _send(request, *answer)

    def answer_with_aggregate(
        self, request: ProbedRequest, info: RequestInfo, target: bytes, aggregate: MemberResponse
    ) -> None:
        """Answer a probe with the aggregate's answer and the checks of API services. Raises as `answer`."""
        _, check, query = _parts(request, info, target)
        found = list(self._of_services())
        one = healthz.answer_one(check, found) if check else None
        text = aggregate.body.decode("utf-8", "replace")
        if one is not None:
            _send(request, *one)
        elif check or text.count("\n") < 2:
            _send(request, aggregate.status, text)
        else:
            *lines, end, _ = text.split("\n")
            shown = healthz.answer("", found, healthz.ProbeQuery(True, query.excluded), withhold=False)[1].split("\n")
            more = [line for line in shown if "]apiservice/" in line]
            lines = [line for line in lines if not line.startswith("warn: ") or not query.excluded]
            _send(request, aggregate.status, "\n".join([*lines, *more, end, ""]))

    def _of_clusters(self, probe: str) -> Sequence[Check]:
        causes = {name: cluster.unready_cause for name, cluster in self._clusters.items()}
        needed = probe != "livez" and all(causes.values())
        return [Check(f"cluster/{name}", cause, needed) for name, cause in causes.items()]

    def _of_services(self) -> Sequence[Check]:
        known = self._known
        return [] if known is None else list(api_service_checks((each, known.get(each)) for each in self._services))

    async def authorize(self, request: ProbedRequest, info: RequestInfo, target: bytes, authorizer: Authorizer) -> None:
        """Require that the authorizer allows the path in one of the clusters. Raises StatusError (403, 503)."""
        attributes, refusal = attributes_of(info, target), None
        for name in self._clusters:
            try:
                user = request.caller.for_cluster(name)
                decision = await settled(authorizer.decide(user, attributes, name))
            except StatusError as problem:
                refusal = problem
                continue
            if decision.allowed:
                return
        raise refusal or forbidden(request.user, attributes)


def _parts(request: ProbedRequest, info: RequestInfo, target: bytes) -> tuple[str, str, healthz.ProbeQuery]:
    """Return the probe, the name of its check ("": all), and the query. Raises StatusError (405)."""
    if request.exchange.head.method not in (b"GET", b"HEAD"):
        raise method_not_allowed()
    probe, _, check = info.path.strip("/").partition("/")
    try:
        return probe, check, healthz.parse_query(target.partition(b"?")[2])
    except ValueError:
        return probe, check, healthz.ProbeQuery()


def _send(request: ProbedRequest, status: int, text: str) -> None:
    request.exchange.answer(status, request.own_fields(_TEXT), text.encode())
