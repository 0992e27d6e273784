"""An aggregate of members in memory: real views and stores, and API servers that know what writes need."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl

from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from mcproxy.aggregate.authorization import MemberAnswer as Answer_
from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.aggregate.cache.store import Store
from mcproxy.aggregate.freshness import Readable
from mcproxy.aggregate.request import LeftOut, MemberResponse
from mcproxy.aggregate.view.aggregate_views import AggregateViews
from mcproxy.aggregate.view.view import View
from mcproxy.aggregate.writes.held_bodies import BodyBuffers
from mcproxy.aggregate.writes.write_handler import WriteHandler
from mcproxy.config.model import Aggregate, Cache, CachedResource, ConflictRule, CreateRule, ResourceVersions, Show
from mcproxy.http.messages import Header, RequestHead
from mcproxy.identity.authorization.attributes import Attributes, forbidden
from mcproxy.kube import requestinfo
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import Clock
from tests.support.fake_members import FakeDiscovery, FakeMember, as_member, as_members

VERBS = frozenset({"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})
CONFIG_MAPS = APIResource(GroupVersionResource("", "v1", "configmaps"), "ConfigMap", "configmap", True, VERBS)
LEASES = APIResource(GroupVersionResource("coordination.k8s.io", "v1", "leases"), "Lease", "lease", True, VERBS)
NODE_METRICS = APIResource(
    GroupVersionResource("metrics.k8s.io", "v1beta1", "nodes"), "NodeMetrics", "", False, frozenset({"get", "list"})
)
RESOURCES = {resource.gvr: resource for resource in (CONFIG_MAPS, LEASES, NODE_METRICS)}
BOB = UserInfo("bob", ("dev",))
EVERYTHING = tuple(
    CachedResource(group=resource.gvr.group, version=resource.gvr.version, resource=resource.gvr.resource)
    for resource in RESOURCES.values()
)
LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"
JSON_TYPE = (b"Content-Type", b"application/json")
LIST = "/api/v1/namespaces/demo/configmaps"


class MemberAPI:
    """One member's API server; `sent` are (method, target, body) of all requests, `rules` refuse or change answers."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.stores: dict[tuple[GroupVersionResource, str], Store] = {}
        self.sent: list[tuple[bytes, bytes, bytes]] = []
        self.fields: list[dict[bytes, bytes]] = []
        self.rule: Callable[[bytes, str], StatusError | tuple[int, Any] | None] = lambda method, path: None
        self.may: bool | None = None  # whether the user has all rights; None: as `rule` says
        self.lagging = False  # the cache does not see writes
        self.unseen: list[Callable[[], None]] = []

    def put(
        self, name: str, namespace: str = "demo", resource: APIResource = CONFIG_MAPS, **more: Any
    ) -> dict[str, Any]:
        """Make or replace an object, and tell the cache."""
        self.version += 1
        key = resource.gvr.resource, namespace, name
        uid = self.objects[key]["metadata"]["uid"] if key in self.objects else f"{self.name}-{name}-{self.version}"
        metadata = {**more.pop("metadata", {}), "name": name, "namespace": namespace, "uid": uid}
        metadata["resourceVersion"] = str(self.version)
        self.objects[key] = {
            "kind": resource.kind,
            "apiVersion": resource.gvr.api_version,
            "metadata": metadata,
            **more,
        }
        self._tell(resource, self.objects[key], EventType.MODIFIED)
        return self.objects[key]

    def remove(self, name: str, namespace: str = "demo", resource: APIResource = CONFIG_MAPS) -> dict[str, Any]:
        self.version += 1
        found = self.objects.pop((resource.gvr.resource, namespace, name))
        last = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        self._tell(resource, last, EventType.DELETED)
        return found

    def allows(self, method: bytes) -> bool:
        """Whether a review says that the user may use a method."""
        if self.may is not None:
            return self.may
        return not (isinstance(self.rule, Forbids) and self.rule.forbids(method))

    def catch_up(self) -> None:
        """Let the cache see what it has missed."""
        unseen, self.unseen = self.unseen, []
        for tell in unseen:
            tell()

    def _tell(self, resource: APIResource, obj: dict[str, Any], event: EventType) -> None:
        store = self.stores.get((resource.gvr, obj["metadata"]["namespace"])) or self.stores.get((resource.gvr, ""))
        if store is None:
            return
        decoded = store.decoder.decode_item(json.dumps(obj).encode(), 0.0)
        assert isinstance(decoded, CachedObject), decoded
        if self.lagging:
            self.unseen.append(partial(store.apply, event, decoded))
        else:
            store.apply(event, decoded)

    def answer(self, method: bytes, target: bytes, body: bytes, fields: Sequence[Header]) -> MemberResponse:
        path, _, query = target.decode().partition("?")
        self.sent.append((method, target, body))
        self.fields.append(dict(fields))
        ruled = self.rule(method, path)
        if isinstance(ruled, StatusError):
            raise ruled
        code, content = ruled or self._serve(method, path, dict(parse_qsl(query)), body)
        data = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode() + b"\n"
        return MemberResponse(
            self.name,
            code,
            ((b"Content-Type", b"application/json"), (b"Warning", b'299 - "of the member"'), (b"Set-Cookie", b"x")),
            data,
        )

    def _serve(self, method: bytes, path: str, query: dict[str, str], body: bytes) -> tuple[int, Any]:
        info = requestinfo.parse(method, path.encode())
        resource = RESOURCES[GroupVersionResource(info.group, info.version, info.resource)]
        key = info.resource, info.namespace, info.name
        if method == b"POST" and not info.subresource:
            sent = json.loads(body)
            name = sent["metadata"]["name"]
            if (info.resource, info.namespace, name) in self.objects:
                return 409, status(409, "AlreadyExists")
            metadata = sent.pop("metadata")
            return 201, self.put(name, info.namespace, resource, **{**sent, "metadata": metadata})
        if method == b"DELETE" and not info.name:
            found = [obj for (plural, space, _), obj in self.objects.items() if (plural, space) == key[:2]]
            partial_list = 0 < int(query.get("limit", "0")) < len(found)
            assert query.get("continue", "more") == "more"
            found = found[: int(query["limit"])] if partial_list else found
            for obj in found:
                self.remove(obj["metadata"]["name"], info.namespace, resource)
            items = [{key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found]
            return 200, {
                "kind": f"{resource.kind}List",
                "apiVersion": "v1",
                "metadata": {"continue": "more"} if partial_list else {},
                "items": items,
            }
        creates = (method == b"PATCH" and query.get("apply")) or (method == b"PUT" and resource is LEASES)
        if key not in self.objects and not creates:
            return 404, status(404, "NotFound")
        if method == b"GET" or info.subresource:
            return 200, self.objects[key]
        if method == b"DELETE":
            options = json.loads(body or b"{}")
            wanted = options.get("preconditions", {}).get("resourceVersion")
            if wanted not in (None, self.objects[key]["metadata"]["resourceVersion"]):
                return 409, status(409, "Conflict")
            uid = self.remove(info.name, info.namespace, resource)["metadata"]["uid"]
            return 200, {"kind": "Status", "status": "Success", "details": {"name": info.name, "uid": uid}}
        sent = json.loads(body)
        version = sent.get("metadata", {}).get("resourceVersion") if isinstance(sent, dict) else None
        if version not in (None, "", self.objects.get(key, {}).get("metadata", {}).get("resourceVersion")):
            return 409, status(409, "Conflict")
        before = self.objects.get(key, {"metadata": {}})
        if isinstance(sent, dict):
            merged = {**before["metadata"], **sent.pop("metadata", {})}
            more = {name: value for name, value in {**before, **sent}.items() if name not in ("kind", "apiVersion")}
            return 200, self.put(info.name, info.namespace, resource, **{**more, "metadata": merged})
        return 200, self.put(info.name, info.namespace, resource, **{**before, "metadata": before["metadata"]})


def status(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "message": f"no: {reason}", "reason": reason, "code": code}


class Forbids:
    """A rule by which the user may not use some methods; all where none is given."""

    def __init__(self, *methods: bytes) -> None:
        self._methods = methods

    def forbids(self, method: bytes) -> bool:
        return not self._methods or method in self._methods

    def __call__(self, method: bytes, path: str) -> tuple[int, Any] | None:
        return (403, status(403, "Forbidden")) if self.forbids(method) else None


def forbids(*methods: bytes) -> Forbids:
    return Forbids(*methods)


class Decisions:
    """What the members answer to reviews (`authorization.MemberAuthorizer`)."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.asked: list[tuple[str, Attributes]] = []
        self.held: dict[str, Deferred[None]] = {}  # by member: what it waits for before it decides

    async def of_writes(
        self, request: Any, clusters: Sequence[str], attributes: Attributes, beyond: Collection[str] = ()
    ) -> dict[str, Answer_]:
        for name in clusters:
            if name in self.held:
                await self.held[name]
        return {name: self._answer(request, name, attributes, request.head.method, beyond) for name in clusters}

    async def readers(
        self, request: Any, clusters: Sequence[str], attributes: Attributes, beyond: Collection[str] = ()
    ) -> frozenset[str]:
        answers = {name: self._answer(request, name, attributes, b"GET", beyond) for name in clusters}
        return frozenset(name for name, answer in answers.items() if answer.refusal is None)

    def _answer(
        self, request: Any, name: str, attributes: Attributes, method: bytes, beyond: Collection[str]
    ) -> Answer_:
        self.asked.append((name, attributes))
        for each in request.left_out:
            if each.member == name and name not in beyond:
                return Answer_(StatusError(503 if each.undecided else 403, each.why, details={}), each.undecided)
        member = self._fleet.members.get(name)
        if member is None or member.allows(method):
            return Answer_()
        return Answer_(forbidden(BOB, attributes))


class RecordedExchange:
    """An exchange whose client has sent everything; `status` is 0 until it was answered."""

    def __init__(self, head: RequestHead, body: bytes) -> None:
        self.head = head
        self.handler: Any = None
        self.body_complete = True
        self.ended = False
        self.status = 0
        self.fields: list[tuple[str, str]] = []
        self.body = b""
        self._sent = body

    def attach(self, handler: Any) -> None:
        self.handler = handler
        if self._sent:
            handler.body_data(self._sent)
        handler.body_end([])

    def resume_body(self) -> None:
        """All of it has come."""

    def answer(self, status: int, fields: bytes, body: bytes, reason: bytes = b"") -> None:
        assert not self.status
        self.status, self.body = status, body
        for line in fields.decode().split("\r\n")[:-1]:
            name, _, value = line.partition(": ")
            self.fields.append((name, value))


class FleetRequest(FakeRequest):
    def __init__(self, fleet: Fleet, method: str, target: str, body: bytes, fields: Sequence[Header]) -> None:
        allowed = [name for name in fleet.names if name not in [each[0] for each in fleet.left_out]]
        super().__init__(target.encode(), BOB, allowed, method=method.encode(), left_out=fleet.left_out)
        head = self.head = RequestHead()
        head.method, head.target, head.length = method.encode(), self.target, len(body)
        head.fields = b"".join(b"%b: %b\r\n" % field for field in fields)
        head.upgrade, head.expects_continue = None, False
        self.recorded = RecordedExchange(head, body)
        self.exchange = cast(Any, self.recorded)
        self._fleet = fleet
        self.served: tuple[str, ...] = ()

    def served_by(self, *members: str, cached: bool) -> None:
        self.served = members

    async def send(
        self,
        member: str,
        method: bytes,
        target: bytes,
        *,
        fields: Sequence[Header] = (),
        body: bytes = b"",
        timeout: float | None = None,
    ) -> MemberResponse:
        self._check(member)
        return self._fleet.members[member].answer(method, target, body, fields)

    async def forward(self, member: str, target: bytes, body: bytes | None = None) -> None:
        self._check(member)
        if body is None:
            await super().forward(member, target)
        else:
            response = self._fleet.members[member].answer(self.head.method, target, body, ())
            self.recorded.answer(response.status, b"", response.body)

    def _check(self, member: str) -> None:
        for each in self.left_out:
            if each.member == member:
                raise StatusError(503 if each.undecided else 403, f"policy: not {member}", details={})


class Answer:
    """What a client got."""

    def __init__(self, request: FleetRequest, result: Any) -> None:
        if isinstance(result, Failure):
            refusal = result.value
            if not isinstance(refusal, StatusError):
                result.raiseException()
            assert isinstance(refusal, StatusError)
            self.code, self.body = refusal.code, refusal.body()
            self.fields = [(name.decode(), value.decode()) for name, value in refusal.headers]
        else:
            recorded = request.recorded
            self.code, self.body, self.fields = recorded.status, recorded.body, recorded.fields
        self.forwarded = request.forwarded
        self.served = request.served

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> str:
        return str(self.json["message"])

    @property
    def warnings(self) -> list[str]:
        return [value for name, value in self.fields if name.lower() == "warning"]


class Fleet:
    """The aggregate of `east` and `west`, with caches that have what the members have."""

    def __init__(
        self,
        *names: str,
        create: Sequence[CreateRule] = (),
        conflicts: Sequence[ConflictRule] = (),
        scope: Sequence[CachedResource] = EVERYTHING,
        primary: str | None = None,
        versions: ResourceVersions = ResourceVersions.NUMBER,
        unknown: Sequence[str] = (),
    ) -> None:
        """`unknown` are members that were never reached."""
        self.clock = Clock()
        self.names = names or ("east", "west")
        self.members = {name: MemberAPI(name, 100 * (place + 1)) for place, name in enumerate(self.names)}
        self.left_out: tuple[tuple[str, str] | LeftOut, ...] = ()
        self.aggregate = Aggregate(
            name="fleet",
            clusters=self.names,
            primary=primary,
            resource_versions=versions,
            cache=Cache(resources=tuple(scope)),
            create=tuple(create),
            conflicts=tuple(conflicts),
        )
        found = self.found = [
            FakeMember(name, FakeDiscovery(*(() if name in unknown else RESOURCES.values()))) for name in self.names
        ]
        self.views = AggregateViews(self.aggregate, as_members(found), cast(Any, self))
        self.clusters = {member.name: as_member(member) for member in found}
        in_thread = lambda function, *data: succeed(function(*data))  # noqa: E731
        self.decisions = Decisions(self)
        self.bodies = BodyBuffers(cast(Any, self.clock))
        self.writes = WriteHandler(
            self.views, self.clock, in_thread, cast(Any, self.decisions), self.fresh, self.bodies, self.clusters
        )

    async def fresh(self, view: View, members: Sequence[str], namespace: str) -> Readable:
        """The caches are as new as now, but those that lag, or are not followed."""
        away = [name for name in members if not view.member(name).synced or self.members[name].lagging]  # type: ignore[union-attr]
        return Readable(away=away)

    def acquire(self, member: str, resource: APIResource, namespace: str, options: Any) -> Store:
        api = self.members[member]
        store = api.stores[resource.gvr, namespace] = Store(self.clock, member, resource, namespace)
        store.replace().commit(api.version)
        return store

    def release(self, store: Store) -> None:
        pass

    def begin(self, method: str, target: str, body: Any = b"", *fields: Header) -> tuple[FleetRequest, Deferred[None]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if data and not any(name.lower() == b"content-type" for name, _ in fields):
            fields = (*fields, JSON_TYPE)
        request = FleetRequest(self, method, target, data, fields)
        info = request.info
        resource = RESOURCES[GroupVersionResource(info.group, info.version, info.resource)]
        view = self.views.view(resource.gvr)
        if view is None and info.verb in ("get", "list") and not info.subresource:
            waiting = self.writes.read_uncached(request, resource)
        else:
            waiting = self.writes.serve(request, resource, None if view is None else view.pinned())
        return request, Deferred.fromCoroutine(waiting)

    def asks(self, method: str, target: str, body: Any = b"", *fields: Header) -> Answer:
        """Send a request and return the answer, which must be there at once."""
        request, waiting = self.begin(method, target, body, *fields)
        results: list[Any] = []
        waiting.addBoth(results.append)
        assert results, "not answered yet"
        return Answer(request, results[0])

    def review(self, target: str, body: bytes, *fields: Header) -> Answer:
        request = FleetRequest(self, "POST", target, body, fields)
        results: list[Any] = []
        Deferred.fromCoroutine(self.writes.self_review(request)).addBoth(results.append)
        return Answer(request, results[0])

    def writes_to(self, member: str) -> list[tuple[bytes, bytes, bytes]]:
        """What was sent to a member, but GETs."""
        return [sent for sent in self.members[member].sent if sent[0] != b"GET"]

    def object_version(self, member: str, version: int) -> str:
        view = self.views.view(CONFIG_MAPS.gvr)
        assert view is not None
        return view.format.object(self.names.index(member), version)


def served(obj: dict[str, Any], cluster: str, version: str) -> dict[str, Any]:
    """An object of a member as the aggregate serves it."""
    metadata = {**obj["metadata"], "resourceVersion": version}
    metadata["labels"] = {**metadata.get("labels", {}), LABEL: cluster}
    metadata["annotations"] = {**metadata.get("annotations", {}), ANNOTATION: cluster}
    return {**obj, "metadata": metadata}


def rule(to: str, resource: str = "*") -> CreateRule:
    return CreateRule(api_groups=("*",), resources=(resource,), to=to)


def conflict(to: str, *namespaces: str, resource: str = "*", show: Show = Show.ALL) -> ConflictRule:
    return ConflictRule(api_groups=("*",), resources=(resource,), namespaces=namespaces, to=to, show=show)


def scoped(resource: APIResource, *namespaces: str, clusters: tuple[str, ...] = ()) -> CachedResource:
    gvr = resource.gvr
    return CachedResource(
        group=gvr.group, version=gvr.version, resource=gvr.resource, namespaces=namespaces, clusters=clusters
    )


__all__ = ["Fleet", "conflict", "rule", "scoped", "served"]
