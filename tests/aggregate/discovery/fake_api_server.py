"""API servers of other makes, as the cluster entries that they are behind, for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from mcproxy.aggregate.reflector.member_calls import MemberError
from mcproxy.kube.discovery import AGGREGATED_MEDIA_TYPE
from mcproxy.net.wall_time import WallSeconds
from mcproxy.upstream.control import ControlResponse
from tests.support.stub import Stub

JSONDict = dict[str, Any]


def answer(document: Any, status: int = 200, content_type: str = "application/json", **fields: str) -> ControlResponse:
    """A response; `document` is made into JSON unless it is bytes. `fields`: `_` stands for `-`."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    more = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in fields.items())
    return ControlResponse(status, ((b"Content-Type", content_type.encode()), *more), body)


def aggregated(*group_versions: str, etag: str = "", resources: tuple[str, ...] = ("things",)) -> ControlResponse:
    """An aggregated document of /apis."""
    groups: dict[str, list[JSONDict]] = {}
    for group_version in group_versions:
        group, _, version = group_version.partition("/")
        found = [
            {
                "resource": name,
                "responseKind": {"group": group, "version": version, "kind": "Thing"},
                "scope": "Namespaced",
                "singularResource": "thing",
                "verbs": ["get", "list"],
            }
            for name in resources
        ]
        groups.setdefault(group, []).append({"version": version, "resources": found, "freshness": "Current"})
    items = [{"metadata": {"name": name}, "versions": versions} for name, versions in groups.items()]
    document = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}
    made = answer(document, content_type=AGGREGATED_MEDIA_TYPE)
    return ControlResponse(200, (*made.headers, (b"ETag", etag.encode())), made.body) if etag else made


def resource_list(group_version: str, *resources: str, says: str = "") -> ControlResponse:
    """A legacy document of a group-version, which may say that it is another's."""
    found = [
        {"name": name, "kind": "Thing", "namespaced": True, "singularName": "", "verbs": ["get"]} for name in resources
    ]
    return answer({"kind": "APIResourceList", "groupVersion": says or group_version, "resources": found})


class FakeAPIServer(Stub):  # type: ignore[misc]
    """Has the interface of `service_source.ServiceMember`; what is in no `answers` is 404. None: it hangs."""

    def __init__(self, name: str = "metrics", **answers: ControlResponse | MemberError | None) -> None:
        self.name = name
        self.source: object = "here"
        self.unavailable_since: WallSeconds | None = None
        self.answers: dict[str, ControlResponse | MemberError | None] = dict(answers)
        self.asked: list[str] = []
        self.conditions: list[str] = []
        self.hanging: list[Deferred[ControlResponse]] = []
        self._listeners: list[Callable[..., None]] = []

    async def get(self, path: str, *, headers: tuple[tuple[str, str], ...] = (), max_body: int) -> ControlResponse:
        self.asked.append(path)
        condition = dict(headers).get("if-none-match", "")
        self.conditions.append(condition)
        found = self.answers.get(path, answer(b"", 404))
        if found is None:
            hanging: Deferred[ControlResponse] = Deferred()
            self.hanging.append(hanging)
            return await hanging
        if isinstance(found, MemberError):
            raise found
        if len(found.body) > max_body:
            raise MemberError(f"the cluster answered with more than {max_body} bytes on {path}")
        etag = next((value.decode() for name, value in found.headers if name.lower() == b"etag"), "")
        if condition and condition == etag:
            return ControlResponse(304, found.headers, b"")
        return found

    def subscribe(self, notify: Callable[..., None]) -> Callable[[], None]:
        self._listeners.append(notify)
        return lambda: self._listeners.remove(notify)

    def set_unavailable(self, since: WallSeconds | None) -> None:
        self.unavailable_since = since
        for notify in tuple(self._listeners):
            notify()
