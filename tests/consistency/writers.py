"""Writers at the members and through the proxies; each write has an ident, and each object counts its updates."""

from __future__ import annotations

import copy
import http.client
import itertools
import json
from typing import Any
from urllib.parse import urlencode

from tests.consistency.client import ClientThread, JSONDict, Reply, UpstreamContext, collection
from tests.consistency.fleet import NAMES, NAMESPACES, NUMBER, TOKEN
from tests.consistency.history import GROUP, Key
from tests.consistency.records import CLUSTER, Got, Item, Wrote, item_of
from tests.e2e.http_client import Client

GROUPS = ("a", "b")
MERGE, JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
_ADMIN = [("Authorization", "Bearer admin-test-token"), ("Content-Type", "application/json")]


def new_object(key: Key, group: str, write: str) -> JSONDict:
    """Return an object that nobody has updated yet."""
    metadata = {"name": key[1], "namespace": key[0], "labels": {GROUP: group}}
    data = {"n": "0", "p": "", "w": write, "k": "create"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def updated(found: JSONDict, write: str, group: str = "") -> JSONDict:
    """Return an object as a PUT counts it on."""
    new = copy.deepcopy(found)
    data = new["data"]
    data.update(n=str(int(data["n"]) + 1), w=write, k="put")
    if group:
        new["metadata"]["labels"][GROUP] = group
    return new


class _Idents:
    """Idents of writes, of one writer."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, itertools.count(1)

    def __call__(self) -> str:
        return f"{self._name}.{next(self._count)}"


class MemberWriter(ClientThread):
    """Writes to one member past proxies and relays, and to objects that the aggregate does not have: these only make
    the member's revision rise."""

    pause = (0.1, 0.5)

    def __init__(self, shared: UpstreamContext, name: str, seed: str, member: str) -> None:
        super().__init__(shared, name, seed)
        self._member = member
        self._new_ident = _Idents(name)
        self._client: Client | None = None

    def turn(self) -> None:
        for _ in range(self.chance.choice((1, 1, 1, 2, 5))):
            try:
                self._write()
            except (OSError, http.client.HTTPException, ValueError):
                if self._client is not None:
                    self._client.close()
                self._client = None
                self.shared.stopping.wait(0.2)

    def _write(self) -> None:
        member = self.shared.fleet.members[self._member]
        if member.quiet:
            return
        if self._client is None:
            self._client = Client(member.address)
            self._client.socket.settimeout(2.0)
        if self.chance.random() < 0.2:
            self._noise(self._client)
            return
        key = self.chance.choice(NAMESPACES), f"{self._member}-{self.chance.randrange(NAMES)}"
        path, write = f"{collection(key[0])}/{key[1]}", self._new_ident()
        found = self._client.request("GET", path, _ADMIN)
        if found.status == 404:
            self._send("POST", collection(key[0]), new_object(key, self.chance.choice(GROUPS), write))
            self.shared.created.append((self._member, key))
        elif self.chance.random() < 0.25:
            self._send("DELETE", path)
        elif "n" in found.json.get("data", {}):
            group = self.chance.choice(("", "", "", *GROUPS))
            self._send("PUT", path, updated(found.json, write, group))

    def _send(self, method: str, path: str, body: JSONDict | None = None) -> None:
        assert self._client is not None
        self._client.request(method, path, _ADMIN, None if body is None else json.dumps(body).encode())

    def _noise(self, client: Client) -> None:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "noise"}, "data": {}}
        secret["metadata"] = {"name": "noise", "labels": {"write": self._new_ident()}}
        path = f"/api/v1/namespaces/{NAMESPACES[0]}/secrets"
        answer = client.request("PUT", f"{path}/noise", _ADMIN, json.dumps(secret).encode())
        if answer.status == 404:
            client.request("POST", path, _ADMIN, json.dumps(secret).encode())


class ProxyWriter(ClientThread):
    """Writes through proxies, and reads what it has written; what it replaces it has from a get or from a watch."""

    pause = (0.1, 0.5)

    def __init__(self, shared: UpstreamContext, name: str, seed: str, server: str = NUMBER) -> None:
        super().__init__(shared, name, seed, server)
        self._new_ident = _Idents(name)

    def turn(self) -> None:
        proxy = self.any_proxy()
        found = self._base(proxy)
        if found is None:
            return
        base = item_of(found)
        self._change(proxy, found, base)

    def _base(self, proxy: str) -> JSONDict | None:
        """Return an object to change, as a watch has shown it or as a get gives it; creates it if there is none."""
        seen, drawn = list(self.shared.objects.get(self.server, ())), self.chance.random()
        if drawn < 0.2:
            return self._last_of_watch_list(proxy)
        if seen and drawn < 0.6:
            found: JSONDict = self.chance.choice(seen[-5:])
            return found if "n" in (found.get("data") or {}) else None
        member, key = self.shared.any_object(self.chance)
        reply = self._get(proxy, member, key)
        if reply.answer.status == 404:
            self._create(proxy, member, key)
        if reply.answer.status != 200:
            return None
        found = reply.json
        return found if "n" in (found.get("data") or {}) else None

    def _last_of_watch_list(self, proxy: str) -> JSONDict | None:
        """Return the last object of the initial events of a WatchList; None if there is none, or it is refused."""
        query = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        query |= {"allowWatchBookmarks": "true", "timeoutSeconds": "5"}
        path = collection(self.chance.choice(NAMESPACES))
        headers, last = [("Authorization", f"Bearer {TOKEN}"), ("Accept", "application/json")], None
        try:
            with Client(self.address(proxy), self.server) as client:
                response = client.begin("GET", f"{path}?{urlencode(query)}", headers)
                while response.status == 200 and (line := response.readline()):
                    event: JSONDict = json.loads(line)
                    if event["type"] != "ADDED":
                        break
                    if "n" in (event["object"].get("data") or {}):
                        last = event["object"]
        except (OSError, http.client.HTTPException, ValueError):
            return None
        return last

    def _get(self, proxy: str, member: str, key: Key) -> Reply:
        reply = self.ask(proxy, "GET", f"{collection(key[0])}/{key[1]}")
        if reply.answer.status in (200, 404):
            item = item_of(reply.json) if reply.answer.status == 200 else None
            self.put(Got(reply.answer, member, key, "", item))
        else:
            self.refused(reply)
        return reply

    def _create(self, proxy: str, member: str, key: Key) -> None:
        write = self._new_ident()
        body = new_object(key, self.chance.choice(GROUPS), write)
        body["metadata"]["labels"][CLUSTER] = member
        reply = self.send(proxy, "POST", collection(key[0]), None, body)
        self._checked(reply, "create", member, key, write, None)

    def _change(self, proxy: str, found: JSONDict, base: Item) -> None:
        member, key, write = base.cluster, base.key, self._new_ident()
        path, drawn = f"{collection(key[0])}/{key[1]}", self.chance.random()
        if drawn < 0.5:
            group = self.chance.choice(("", "", "", *GROUPS))
            reply = self.send(proxy, "PUT", path, None, updated(found, write, group))
            self._checked(reply, "put", member, key, write, base)
        elif drawn < 0.7:
            data = {"p": write, "w": write, "k": "patch"}
            patch: Any = {"metadata": {"resourceVersion": base.version}, "data": data}
            reply = self.send(proxy, "PATCH", path, None, patch, MERGE)
            self._checked(reply, "patch", member, key, write, base)
        elif drawn < 0.85:
            data = {"p": write, "w": write, "k": "patch"}
            patch = [{"op": "replace", "path": f"/data/{name}", "value": value} for name, value in data.items()]
            reply = self.send(proxy, "PATCH", path, None, patch, JSON_PATCH)
            self._checked(reply, "patch", member, key, write, None)
        else:
            conditions = {"uid": base.uid, "resourceVersion": base.version}
            options: JSONDict = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": conditions}
            reply = self.send(proxy, "DELETE", path, None, options)
            self._checked(reply, "delete", member, key, write, base)

    def _checked(self, reply: Reply, verb: str, member: str, key: Key, write: str, base: Item | None) -> None:
        answer = reply.answer
        if answer.status not in (200, 201, 404, 409):
            self.refused(reply)
            return
        version = ""
        if answer.status in (200, 201):
            version = str((reply.json.get("metadata") or {}).get("resourceVersion", ""))
            if verb != "delete":
                self.shared.saw(self.server, version)
        self.put(Wrote(answer, verb, member, key, write, base, version))
        if answer.status in (200, 201):
            self._get(answer.proxy, member, key)
