"""The Lease in its cluster, by the proxy's own requests (`upstream.control`)."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from mcproxy.config.model import LeaseName
from mcproxy.net.causes import code_of_status
from mcproxy.net.connect_errors import ConnectError
from mcproxy.services.leader_election.leader_elector import LeaseConflictError, LeaseUnavailableError
from mcproxy.services.leader_election.lease import MAX_BODY, Lease, MalformedLeaseError, Record, body_of, parse
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, ControlResponse
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.endpoint import Endpoint
from mcproxy.upstream.remedies import remedy

_HEADERS = (("content-type", "application/json"), ("accept", "application/json"))


class LeaseLock:
    """The Lease of a cluster (`leader_elector.ResourceLock`)."""

    def __init__(self, cluster: Callable[[], Cluster], clock: IReactorTime, where: LeaseName) -> None:
        """`cluster` returns the one in force: a reload may replace it."""
        self._where = where
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{where.namespace}/leases"
        self._path = f"{self._collection}/{where.name}"
        self._cluster = cluster
        self._clock = clock

    async def get(self, timeout: float) -> Lease | None:
        """Read it; None if there is none."""
        answer = await self._send("GET", self._path, b"", timeout)
        if answer.status == 404:
            return None
        return self._lease(answer)

    async def create(self, record: Record, timeout: float) -> Lease:
        """Create it. Raises `LeaseConflictError`."""
        return self._lease(await self._send("POST", self._collection, body_of(record, *self._names, None), timeout))

    async def update(self, lease: Lease, record: Record, timeout: float) -> Lease:
        """Replace exactly `lease`. Raises `LeaseConflictError`."""
        body = body_of(record, *self._names, lease)
        return self._lease(await self._send("PUT", self._path, body, timeout))

    @property
    def _names(self) -> tuple[str, str]:
        return self._where.namespace, self._where.name

    def _lease(self, answer: ControlResponse) -> Lease:
        if answer.status == 409:
            raise LeaseConflictError
        if answer.status not in (200, 201):
            raise self._refused(answer.status)
        try:
            return parse(answer.body)
        except MalformedLeaseError as error:
            todo = f"see what answers there, and remove the Lease {self._where.text} if it is broken"
            raise LeaseUnavailableError(f"what was answered for the lease cannot be used: {error}", todo) from None

    def _refused(self, status: int) -> LeaseUnavailableError:
        cluster = self._cluster()
        if status in (401, 403):
            todo = (
                "let the proxy get, create and update leases of coordination.k8s.io in"
                f" {self._where.namespace} (`mcproxy rbac`)"
            )
            return LeaseUnavailableError(f"answered {status} for the lease", todo)
        if status == 404:
            todo = f"see that the cluster serves coordination.k8s.io/v1 and has the namespace {self._where.namespace}"
            return LeaseUnavailableError("answered 404 when the lease was created", todo)
        keys = cluster.endpoints[0].keys
        return LeaseUnavailableError(f"answered {status} for the lease", remedy(code_of_status(status), keys))

    async def _send(self, method: str, path: str, body: bytes, timeout: float) -> ControlResponse:
        """Send it to one endpoint after the other until one answers, all within `timeout`."""
        cluster = self._cluster()
        deadline = self._clock.seconds() + timeout
        share = timeout if len(cluster.endpoints) == 1 else timeout / 2  # of an endpoint that hangs
        tried: list[Endpoint] = []
        failure: LeaseUnavailableError | None = None
        while True:
            endpoint = cluster.pick(tried)
            left = deadline - self._clock.seconds()
            if endpoint is None or left <= 0:
                break
            tried.append(endpoint)
            try:
                answer = await cluster.control.request(
                    endpoint,
                    method,
                    path,
                    headers=_HEADERS,
                    body=body,
                    timeout=max(0.1, round(min(left, share), 1)),
                    max_body=MAX_BODY,
                )
            except CredentialError as error:
                raise LeaseUnavailableError(error.cause, f"give cluster {cluster.name} a usable credential") from None
            except ConnectError as error:
                endpoint.request_check()
                failure = LeaseUnavailableError(error.cause, remedy(error.cause, endpoint.keys))
            except ControlError as error:
                failure = LeaseUnavailableError(error.cause, remedy(error.cause, endpoint.keys))
                if method != "GET":
                    break  # it may have been written: only a read tells
            else:
                if answer.status < 500 and answer.status != 429:
                    return answer
                cause = f"{endpoint.name} answered {answer.status}"
                failure = LeaseUnavailableError(cause, remedy(code_of_status(answer.status), endpoint.keys))
        if failure is None:
            failure = LeaseUnavailableError(
                cluster.unavailable_message(times=False), "see that the cluster's API server runs and can be reached"
            )
        raise failure
