"""Requests to `AggregateDiscovery` through the real HTTP engine, and clusters that answer from recordings."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.python.failure import Failure

from mcproxy.aggregate.discovery.discovery_handler import AggregateDiscovery
from mcproxy.aggregate.discovery.merge_cache import VisibleClusters
from mcproxy.aggregate.view.scope import Scope
from mcproxy.config.model.aggregates import Aggregate, Cache, CachedResource, CreateRule
from mcproxy.http.exchange import Exchange
from mcproxy.kube.discovery import APIGroupDiscovery, api_resources
from mcproxy.kube.resource import APIResource, GroupVersionResource
from mcproxy.kube.status import StatusError
from mcproxy.kube.user import UserInfo
from mcproxy.net.wall_time import WallSeconds
from mcproxy.proxy.request import own_fields, refusal_fields
from mcproxy.requests.coroutines import InThread
from mcproxy.upstream.control import ControlResponse
from tests.aggregate.discovery.recorded import GOLDEN
from tests.http.h1.harness import ServerHarness
from tests.support.aggregated_request import FakeRequest
from tests.support.clock import Clock
from tests.support.stub import Stub

NOW = WallSeconds(1_795_253_316.0)  # Sat, 21 Nov 2026 09:28:36 GMT, when most recordings were made


@dataclass
class Response:
    """A response as the client read it; names of fields in lower case."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for known, value in self.fields if known == name), None)


class Request(FakeRequest):
    """An aggregated request on an exchange of the engine."""

    def __init__(self, exchange: Exchange, members: Sequence[str]) -> None:
        super().__init__(exchange.head.target, UserInfo("alice"), members, method=exchange.head.method)
        self.exchange = exchange
        self.head = exchange.head

    def own_fields(self, more: bytes = b"", *, cache_control: bytes = b"no-cache, private") -> bytes:
        return own_fields(b"audit", NOW, more, cache_control=cache_control)


def ask(
    serve: Callable[[Request, VisibleClusters], Coroutine[Deferred[Any], Any, bool]],
    path: str,
    accept: str | None = "application/json",
    *,
    method: str = "GET",
    members: Sequence[str] | VisibleClusters = ("east", "west", "a", "b", "hub"),
    **fields: str,
) -> Deferred[Response | None]:
    """Send a request; the result is the response, None where it is not served. `fields`: `_` stands for `-`.

    `members` are the clusters, a primary too, that the user may discover.
    """
    shown = members if isinstance(members, VisibleClusters) else VisibleClusters(members)
    harness = ServerHarness(attach=False)
    lines = [f"{method} {path} HTTP/1.1", "Host: fleet.example.com:6443"]
    lines += [f"Accept: {accept}"] if accept is not None else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    harness.wire.deliver("\r\n".join([*lines, "", ""]).encode())
    (handled,) = harness.requests
    exchange = handled.exchange

    def done(served: bool | Failure) -> Response | None:
        if isinstance(served, Failure):
            refusal = served.value
            if not isinstance(refusal, StatusError):
                served.raiseException()
            exchange.answer(refusal.code, refusal_fields(refusal, b"audit", NOW), refusal.body())
        elif not served:
            assert not exchange.responded
            return None
        return read(harness.wire.taken())

    work: Deferred[Any] = Deferred.fromCoroutine(serve(Request(exchange, tuple(shown.clusters)), shown))
    return work.addBoth(done)


def read(data: bytes) -> Response:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    fields = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    response = Response(int(first.split()[1]), fields, body)
    length = response.header("content-length")
    assert length is None or not body or int(length) == len(body)
    return response


def now(deferred: Deferred[Response | None]) -> Response:
    """The response that is there at once."""
    found: list[Any] = []
    deferred.addBoth(found.append)
    assert found, "there is no response yet"
    (result,) = found
    if isinstance(result, Failure):
        result.raiseException()
    assert result is not None, "the path is not served"
    assert isinstance(result, Response)
    return result


@dataclass(eq=False)
class FakeDiscovery:
    """Discovery documents of a cluster."""

    groups: tuple[APIGroupDiscovery, ...] = ()
    fresh: bool = True
    known: bool = True
    listeners: list[Callable[[Any], None]] = field(default_factory=list)
    refreshes: int = 0
    on_refresh: dict[str, Any] | None = None
    """What a refresh finds."""
    slow: bool = False
    priorities: Mapping[tuple[str, str], Any] = field(default_factory=dict)

    def want_priorities(self) -> None:
        pass

    @property
    def resources(self) -> Mapping[GroupVersionResource, APIResource]:
        return api_resources(self.groups)

    def subscribe(self, notify: Callable[[Any], None]) -> Callable[[], None]:
        self.listeners.append(notify)
        return lambda: self.listeners.remove(notify)

    def renew(self, age: float) -> Deferred[None]:
        self.refreshes += 1
        if self.on_refresh is not None:
            self.change(**self.on_refresh)
        return Deferred() if self.slow else succeed(None)

    def change(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)
        for notify in tuple(self.listeners):
            notify(self)


Answer = ControlResponse | Exception


@dataclass(eq=False)
class FakeSource(Stub):  # type: ignore[misc]
    """A cluster: its discovery, and its answers by path; one that is missing is never answered."""

    name: str
    discovery: FakeDiscovery
    answers: dict[str, Answer] = field(default_factory=dict)
    unavailable_since: WallSeconds | None = None
    unavailable_cause: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    black_hole: bool = False

    async def get(self, path: str, *, headers: tuple[tuple[str, str], ...] = (), max_body: int) -> ControlResponse:
        self.asked.append((path, dict(headers)))
        if self.black_hole:
            await Deferred()
        answer = self.answers.get(path) or ControlResponse(404, (), b"")
        if isinstance(answer, Exception):
            raise answer
        assert len(answer.body) <= max_body
        return answer

    def go_away(self, *, since: WallSeconds = NOW, cause: str = "connection refused") -> None:
        self.unavailable_since, self.unavailable_cause = since, cause
        self.discovery.change(fresh=False)


def source(name: str, groups: Sequence[APIGroupDiscovery], **answers: Answer) -> FakeSource:
    return FakeSource(name, FakeDiscovery(tuple(groups)), answers)


def recorded_response(name: str) -> ControlResponse:
    """A recorded response as the control client returns it."""
    path = GOLDEN / f"{name}.json"
    zipped = GOLDEN / f"{name}.json.gz"
    text = gzip.decompress(zipped.read_bytes()).decode() if zipped.exists() else path.read_text()
    response = json.loads(text)["response"]
    fields = tuple((key.encode(), value.encode()) for key, value in response["headers"])
    return ControlResponse(response["status"], fields, response["body"].encode())


class EverythingCached(Stub):  # type: ignore[misc]
    """A scope that has all of the group-versions that `resources` names; empty: all."""

    def __init__(self, *group_versions: tuple[str, str]) -> None:
        self.group_versions = group_versions

    def namespaces(self, member: str, resource: APIResource) -> tuple[str, ...]:
        return ("",) if not self.group_versions or resource.gvr[:2] in self.group_versions else ()


CREATE_ANYWHERE = (CreateRule(api_groups=("*",), resources=("*",), to="Label"),)


def fleet(**values: Any) -> Aggregate:
    cache = Cache(resources=(CachedResource(group="", version="v1", resource="*"),))
    return Aggregate(
        **{"name": "fleet", "clusters": ("east", "west"), "cache": cache, "create": CREATE_ANYWHERE, **values}
    )


def discovery_of(
    *sources: FakeSource,
    config: Aggregate | None = None,
    scope: Scope | None = None,
    clock: Clock | None = None,
    in_thread: InThread = maybeDeferred,
) -> AggregateDiscovery:
    found = AggregateDiscovery(clock or Clock(), in_thread)
    config = config or fleet(clusters=tuple(one.name for one in sources))
    found.update(config, {one.name: one for one in sources}, scope or EverythingCached())
    return found
