"""API servers whose objects are in memory: what is written to them shows in the caches when the test lets it.

An apply replaces what was there, but for labels of others (`label`): the only writer of whole objects is the one that
is tested. What others put there (`put`) they own: as with server-side apply, a field that somebody else has set to
another value is a conflict. What has an owner goes with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, MutableSet
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from twisted.internet.defer import Deferred

from mcproxy.aggregate.cache.cached_object import CachedObject, EventType
from mcproxy.services.cache_scopes import FollowedKind
from mcproxy.upstream.control import ControlError, ControlResponse, NotPermittedError
from tests.services.fake_members import FakeMembers
from tests.services.objects import cached

_KINDS = {kind.resource: kind for kind in FollowedKind}
_NAMES = {
    "services": "Service",
    "endpointslices": "EndpointSlice",
    "serviceexports": "ServiceExport",
    "serviceimports": "ServiceImport",
}


@dataclass
class Endpoint:
    name: str

    def request_check(self) -> None:
        pass


class FakeAPIServer:
    """One cluster, as `upstream.cluster.Cluster` shows it to a writer."""

    def __init__(self, name: str, members: FakeMembers) -> None:
        self.name = name
        self.control = self
        self.members = members
        self.objects: dict[tuple[FollowedKind, str, str], dict[str, Any]] = {}
        self.writes: list[tuple[str, str]] = []
        """Method and path of what has changed something."""
        self.requests: list[tuple[str, str]] = []
        self.namespaces = Namespaces(self)
        self.away = False
        self.hung: list[Deferred[None]] | None = None
        """Requests wait here, if it is a list."""
        self.delay_events = False
        """What is written does not show in the caches until `show`."""
        self.refuse: Callable[[str, str], tuple[int, dict[str, Any]] | None] = lambda method, path: None
        self._applied: dict[tuple[FollowedKind, str, str], dict[str, Any]] = {}
        """What was applied last, of which nobody else has changed the fields."""
        self._labels: dict[tuple[FollowedKind, str, str], dict[str, str]] = {}
        """What other field managers have added."""
        self._uids = 0
        self._unseen: list[tuple[FollowedKind, str, str]] = []
        self.namespaces.add("demo")

    # -- as a cluster -------------------------------------------------------------------------------------------------

    def pick(self, tried: Any = ()) -> Any:
        return None if self.away else Endpoint("a")

    def unavailable_message(self, *, times: bool = True) -> str:
        return "away"

    async def request(
        self,
        endpoint: Any,
        method: str,
        path: str,
        *,
        headers: Any,
        body: bytes,
        timeout: float,
        max_body: int,
        permit: Callable[[], bool],
    ) -> ControlResponse:
        if not permit():
            raise NotPermittedError
        self.requests.append((method, path))
        if self.hung is not None:
            waiting: Deferred[None] = Deferred()
            self.hung.append(waiting)
            await waiting
            raise ControlError("no answer")
        return self._answer(method, path, body)

    def _answer(self, method: str, path: str, body: bytes) -> ControlResponse:
        url = urlsplit(path)
        refused = self.refuse(method, url.path)
        status, answer = refused or self._handle(method, url.path, parse_qs(url.query), json.loads(body))
        return ControlResponse(status, (), json.dumps(answer).encode())

    # -- its objects --------------------------------------------------------------------------------------------------

    def _handle(self, method: str, path: str, query: Mapping[str, Any], sent: Any) -> tuple[int, dict[str, Any]]:
        if (method, path) == ("POST", "/api/v1/namespaces"):
            name = sent["metadata"]["name"]
            if name in self.namespaces:
                return 409, _status(409, f'namespaces "{name}" already exists')
            self.namespaces.add(name)
            return 201, sent
        parts = path.split("/")
        where = parts.index("namespaces")
        namespace, resource, name, *subresource = parts[where + 1 :]
        key = (_KINDS[resource], namespace, name)
        live = self.objects.get(key)
        if namespace not in self.namespaces:
            details = {"name": namespace, "kind": "namespaces"}
            return 404, _status(404, f'namespaces "{namespace}" not found', details)
        if method == "DELETE":
            if live is None:
                return 404, _status(404, "not found", {"kind": resource})
            wanted = sent["preconditions"]
            if (wanted["uid"], wanted["resourceVersion"]) != _identity(live):
                return 409, _status(409, "the precondition failed")
            self.writes.append((method, path))
            self.remove(*key)
            return 200, {"kind": "Status", "status": "Success"}
        assert (method, query["fieldManager"]) == ("PATCH", ["mcproxy"])
        assert "force" not in query
        assert sent["kind"] == _NAMES[resource]
        metadata = sent["metadata"]
        if live is None:
            if subresource:
                return 404, _status(404, "not found", {"kind": resource})
            if metadata.get("uid"):
                return 409, _status(409, "uid mismatch")
        elif metadata.get("uid", _identity(live)[0]) != _identity(live)[0]:
            return 422, _status(422, "metadata.uid: Invalid value: field is immutable")
        elif metadata["resourceVersion"] != _identity(live)[1]:
            return 409, _status(409, "the object has been modified")
        if subresource:
            assert live is not None
            new = {**live, "status": sent["status"]}
        else:
            labels = {**self._labels.get(key, {}), **metadata.get("labels", {})}
            new = {**sent, "metadata": {**metadata, **({"labels": labels} if labels else {})}}
            new |= {"status": live["status"]} if live and "status" in live else {}
        if live is not None and not subresource and (conflict := self._conflict(key, sent, live)):
            return 409, conflict
        if live is not None and _content(new) == _content(live):
            return 200, live
        self.writes.append((method, path))
        made = self.put(key[0], new)
        if not subresource:
            self._applied[key] = sent
        return (200 if live else 201), made

    def _conflict(self, key: tuple[FollowedKind, str, str], sent: Any, live: Any) -> dict[str, Any] | None:
        """Return the refusal of an apply that sets what somebody else has set (golden/services, 15)."""
        before = self._applied.get(key, {})
        for name in sorted(sent.keys() - {"apiVersion", "kind", "metadata"}):
            if live.get(name) not in (None, before.get(name), sent[name]) and name != "spec":
                message = f'Apply failed with 1 conflict: conflict with "putter" using {sent["apiVersion"]}: .{name}'
                details = {"causes": [{"reason": "FieldManagerConflict", "message": "conflict", "field": f".{name}"}]}
                return _status(409, message, details)
        return None

    def put(self, kind: FollowedKind, found: Mapping[str, Any]) -> dict[str, Any]:
        """Create or replace an object, whoever's it is."""
        metadata = dict(found["metadata"])
        key = (kind, metadata.get("namespace", ""), metadata["name"])
        live = self.objects.get(key)
        if live is None:
            self._uids += 1
            metadata["uid"] = f"{self.name}-{self._uids}"
        else:
            metadata["uid"] = live["metadata"]["uid"]
        self.members.versions += 1
        metadata["resourceVersion"] = str(self.members.versions)
        new = self.objects[key] = {**found, "metadata": metadata}
        self._changed(key)
        return new

    def label(self, key: tuple[FollowedKind, str, str], name: str, value: str) -> None:
        """Add a label to an object, by another field manager."""
        found = self.objects[key]
        self._labels.setdefault(key, {})[name] = value
        labels = {**found["metadata"].get("labels", {}), name: value}
        self.put(key[0], {**found, "metadata": {**found["metadata"], "labels": labels}})

    def back_up(self) -> Callable[[], None]:
        """Return what brings everything back to what it is now, as etcd from a backup."""
        objects, applied, labels = (
            dict(self.objects),
            dict(self._applied),
            {k: dict(v) for k, v in self._labels.items()},
        )

        def restore() -> None:
            self.objects, self._applied, self._labels = dict(objects), dict(applied), labels

        return restore

    def remove(self, kind: FollowedKind, namespace: str, name: str) -> None:
        """Remove an object, if it is there, and what it owns."""
        gone = self.objects.pop((kind, namespace, name), None)
        self._applied.pop((kind, namespace, name), None)
        self._labels.pop((kind, namespace, name), None)
        if gone is None:
            return
        self._changed((kind, namespace, name))
        uid = gone["metadata"]["uid"]
        for key, each in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ())):
                self.remove(*key)

    def show(self) -> None:
        """Show in the caches what has changed."""
        unseen, self._unseen = self._unseen, []
        for key in dict.fromkeys(unseen):
            self._show(key)

    def list(self) -> None:
        """Fill the caches of this cluster with what there is."""
        for (cluster, resource, namespace), store in self.members.stores.items():
            if cluster != self.name:
                continue
            found = [
                each for key, each in self.objects.items() if key[0].resource == resource and namespace in ("", key[1])
            ]
            replacement = store.replace()
            for item in sorted(map(_item, found), key=lambda item: item.key):
                replacement.add(item)
            store.available()
            self.members.versions += 1
            replacement.commit(self.members.versions)

    def _changed(self, key: tuple[FollowedKind, str, str]) -> None:
        self._unseen.append(key)
        if not self.delay_events:
            self.show()

    def _show(self, key: tuple[FollowedKind, str, str]) -> None:
        kind, namespace, name = key
        stores = self.members.stores
        store = stores.get((self.name, kind.resource, namespace)) or stores.get((self.name, kind.resource, ""))
        if store is None:
            return
        live = self.objects.get(key)
        if live is not None:
            store.apply(EventType.ADDED, _item(live))
            return
        item = store.get(namespace, name)
        if item is not None:
            self.members.versions += 1
            store.apply(EventType.DELETED, item.deleted_at(self.members.versions))


class Namespaces(MutableSet[str]):
    """The namespaces of a cluster, by name."""

    def __init__(self, server: FakeAPIServer) -> None:
        self._server = server

    def __contains__(self, name: object) -> bool:
        return (FollowedKind.NAMESPACES, "", name) in self._server.objects

    def __iter__(self) -> Iterator[str]:
        return iter([name for kind, _, name in self._server.objects if kind is FollowedKind.NAMESPACES])

    def __len__(self) -> int:
        return len(list(iter(self)))

    def add(self, value: str) -> None:
        if value not in self:
            self._server.put(FollowedKind.NAMESPACES, {"metadata": {"name": value}})

    def discard(self, value: str) -> None:
        for key in [key for key in self._server.objects if key[1] == value]:
            self._server.remove(*key)
        self._server.remove(FollowedKind.NAMESPACES, "", value)


def _item(live: Mapping[str, Any]) -> CachedObject:
    uid, version = _identity(live)
    return msgspec.structs.replace(cached(live, int(version)), uid=uid)


def _identity(live: Mapping[str, Any]) -> tuple[str, str]:
    return live["metadata"]["uid"], live["metadata"]["resourceVersion"]


def _content(found: Mapping[str, Any]) -> Any:
    kept = {key: value for key, value in found["metadata"].items() if key not in ("uid", "resourceVersion")}
    return {**found, "metadata": kept}


def _status(code: int, message: str, details: Any = None) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "message": message, **({"details": details} if details else {})}
