"""The API server as a program: `python -m tests.apiserver.server --help`.

/apis…, /openapi…            its API, over TLS: the front proxy's certificate or a bearer token
/audit, /mode, /resources    over plain HTTP on a port of its own: what it saw, how it behaves, what it has
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from tests.apiserver import documents, faults
from tests.apiserver.documents import Resource
from tests.apiserver.identity import ALWAYS_ALLOWED, Delegate, FrontProxy, User
from tests.apiserver.objects import Key, Objects, merged

JSONDict = dict[str, Any]
_TABLE_COLUMNS = [
    {"name": "Name", "type": "string", "format": "name", "description": "", "priority": 0},
    {"name": "Size", "type": "integer", "format": "", "description": "", "priority": 0},
]
_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed"}
_REASONS |= {409: "Conflict", 415: "UnsupportedMediaType", 500: "InternalError"}
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


def refused(code: int, message: str, reason: str = "") -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return web.json_response({**status, "reason": reason or _REASONS[code], "code": code}, status=code)


class APIServer:
    """One group-version and its objects."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.group, self.version = str(options.group), str(options.version)
        self.resources = {each.name: each for each in map(_resource, options.resource)}
        self.looks_up = bool(options.lookup)  # the file is what Python's TLS needs to show certificates at all
        self.front_proxy = FrontProxy("" if self.looks_up else options.requestheader_ca, options.allowed_name)
        self.delegate = Delegate(options.kubeconfig) if options.kubeconfig else None
        self.objects = Objects()
        self.audit: list[JSONDict] = []
        self.mode, self.mode_prefix = "", "/"

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    # -- who calls ------------------------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request of the API."""
        entry: JSONDict = {"method": request.method, "path": request.path_qs, "headers": list(request.headers.items())}
        entry["mode"] = self.mode
        self.audit.append(entry)
        if request.path in ALWAYS_ALLOWED and not self._misbehaves(request):
            return web.Response(text="ok")
        if self._misbehaves(request):
            answer = await faults.misbehave(self.mode, request)
            if answer is not None:
                return answer
        try:
            user = await self._user(request)
            entry["user"] = None if user is None else vars(user)
            if user is None:
                return refused(401, "Unauthorized")
            attributes = self._attributes(request)
            entry["attributes"] = attributes
            if self.delegate is not None and "system:masters" not in user.groups:
                allowed, reason = await self.delegate.allowed(user, attributes)
                if not allowed:
                    what = f'User "{user.name}" cannot {next(iter(attributes.values()))["verb"]}: {reason}'
                    return refused(403, f"forbidden: {what}")
        except (aiohttp.ClientError, TimeoutError) as error:
            entry["error"] = str(error)
            return refused(500, f"delegation failed: {error}")
        return await self._answer(request, user)

    def _misbehaves(self, request: web.Request) -> bool:
        return bool(self.mode) and request.path.startswith(self.mode_prefix)

    async def _user(self, request: web.Request) -> User | None:
        if self.looks_up and self.delegate is not None and not self.front_proxy.knows:
            self.front_proxy.trust(await self.delegate.front_proxies())
        user = self.front_proxy.user(request)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if user is None and scheme == "Bearer" and self.delegate is not None:
            user = await self.delegate.token_user(token)
        return user

    def _attributes(self, request: web.Request) -> JSONDict:
        found = self._parsed(request.path)
        if found is None:
            return {"nonResourceAttributes": {"path": request.path, "verb": request.method.lower()}}
        resource, namespace, name, subresource = found
        verb = _VERBS.get(request.method, "")
        if verb == "get" and not name:
            verb = "watch" if request.query.get("watch") in ("true", "1") else "list"
        attributes = {"verb": verb, "group": self.group, "version": self.version, "resource": resource}
        more = {"namespace": namespace, "name": name, "subresource": subresource}
        return {"resourceAttributes": attributes | {key: value for key, value in more.items() if value}}

    def _parsed(self, path: str) -> tuple[str, str, str, str] | None:
        """Return resource, namespace, name and subresource of a path."""
        prefix = f"/apis/{self.group_version}/"
        if not path.startswith(prefix):
            return None
        parts = path.removeprefix(prefix).strip("/").split("/")
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        resource, name, subresource, *_ = [*parts, "", ""]
        return resource, namespace, name, subresource

    # -- the API --------------------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request, user: User) -> web.StreamResponse:
        found = self._parsed(request.path)
        if found is None:
            return self._document(request)
        resource, namespace, name, subresource = found
        if resource not in self.resources:
            return refused(404, "the server could not find the requested resource")
        if subresource:
            return await self._ping(request, name, user)
        if request.method == "GET" and not name:
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, resource, namespace)
            return self._list(request, resource, namespace)
        return await self._one(request, (resource, namespace, name))

    def _document(self, request: web.Request) -> web.Response:
        path, resources = request.path.rstrip("/"), self.resources.values()
        name, version = self.group, self.version
        if path == "/apis" and "as=APIGroupDiscoveryList" in request.headers.get("Accept", ""):
            own = documents.group_discovery(name, version, resources)
            answer: JSONDict = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}}
            answer["items"] = faults.groups_of(self.mode, own)
            return web.Response(body=json.dumps(answer).encode(), headers={"Content-Type": documents.AGGREGATED})
        if path == "/apis":
            groups = faults.groups_of(self.mode, documents.group(name, version))
            return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        if path == f"/apis/{name}":
            return web.json_response({"kind": "APIGroup", "apiVersion": "v1", **documents.group(name, version)})
        if path == f"/apis/{name}/{version}":
            return web.json_response(documents.resource_list(self.group_version, resources))
        if path.startswith("/openapi/"):
            return self._openapi(path)
        if path == "/version":
            return web.json_response({"major": "0", "minor": "1", "gitVersion": "v0.1.0-aiohttp"})
        return refused(404, "the server could not find the requested resource")

    def _openapi(self, path: str) -> web.Response:
        known = self.group, self.version, self.resources.values()
        document = documents.openapi_v3(*known)
        if path == "/openapi/v3":
            return web.json_response(documents.openapi_v3_index(self.group, self.version, document))
        if path == f"/openapi/v3/apis/{self.group_version}":
            return web.Response(body=document, content_type="application/json")
        if path == "/openapi/v2":
            return web.json_response(documents.openapi_v2(*known))
        return refused(404, "the server could not find the requested resource")

    async def _ping(self, request: web.Request, name: str, user: User) -> web.StreamResponse:
        """Answer the subresource: in one line, or over a WebSocket that answers each message."""
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return web.json_response({"pong": name, "user": user.name})
        socket = web.WebSocketResponse(protocols=("ping.example.com",))
        await socket.prepare(request)
        async for message in socket:
            if message.type == aiohttp.WSMsgType.TEXT:
                await socket.send_str(f"{name} for {user.name}: {message.data}")
        return socket

    def _kinds(self, resource: str) -> JSONDict:
        return {"apiVersion": self.group_version, "kind": self.resources[resource].kind}

    def _list(self, request: web.Request, resource: str, namespace: str) -> web.Response:
        items, meta = self.objects.list(resource, namespace), {"resourceVersion": str(self.objects.version)}
        if _wants_table(request):
            return web.json_response(_table(items, meta))
        kinds = {**self._kinds(resource), "kind": f"{self.resources[resource].kind}List"}
        return web.json_response({**kinds, "metadata": meta, "items": items})

    async def _watch(self, request: web.Request, resource: str, namespace: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
        await response.prepare(request)
        since = request.query.get("resourceVersion", "")
        after = int(since) if since not in ("", "0") else self.objects.version

        async def send(kind: str, found: JSONDict) -> None:
            shown = _table([found], {}) if _wants_table(request) else found
            await response.write(json.dumps({"type": kind, "object": shown}).encode() + b"\n")

        if since in ("", "0"):
            for each in self.objects.list(resource, namespace):
                await send("ADDED", each)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "300"))):
                async for kind, found in self.objects.changes(resource, namespace, after):
                    await send(kind, found)
        return response

    async def _one(self, request: web.Request, key: Key) -> web.Response:
        resource, namespace, _ = key
        body: JSONDict = yaml.safe_load(await request.read()) if request.can_read_body else {}
        known = self.objects.now.get(key)
        if request.method == "POST":
            key = (resource, namespace, str((body.get("metadata") or {}).get("name") or ""))
            if key in self.objects.now:
                return self._refused(409, key, "already exists", "AlreadyExists")
            known = None
        elif known is None and not _is_apply(request):
            return self._refused(404, key, "not found")
        if request.method == "GET":
            return self._shown(request, 200, known or {})
        if request.method == "DELETE":
            return self._shown(request, 200, await self.objects.delete(key))
        sent = (body.get("metadata") or {}).get("resourceVersion")
        if known is not None and sent and sent != known["metadata"]["resourceVersion"]:
            text = "the object has been modified; please apply your changes to the latest version and try again"
            return self._refused(409, key, text)
        whole = merged(known, body) if request.method == "PATCH" else body
        whole = {**whole, **self._kinds(resource)}
        own = {"name": key[2], **({"namespace": namespace} if namespace else {})}
        whole["metadata"] = {**(whole.get("metadata") or {}), **own}
        created = 201 if known is None else 200
        if "dryRun" in request.query:
            return self._shown(request, created, whole)
        return self._shown(request, created, await self.objects.put(key, whole))

    def _refused(self, code: int, key: Key, why: str, reason: str = "") -> web.Response:
        return refused(code, f'{key[0]}.{self.group} "{key[2]}" {why}', reason)

    def _shown(self, request: web.Request, code: int, found: JSONDict) -> web.Response:
        if _wants_table(request):
            return web.json_response(_table([found], {}), status=code)
        return web.json_response(found, status=code)

    # -- the control ----------------------------------------------------------------------------------------------

    async def control(self, request: web.Request) -> web.Response:
        """Tell what was seen, or change how it behaves."""
        body: Any = await request.json() if request.can_read_body else None
        if request.path == "/audit":
            seen = self.audit
            if request.method == "DELETE":
                self.audit = []
            return web.json_response(seen)
        if request.path == "/mode":
            self.mode, self.mode_prefix = body["mode"], body.get("prefix", "/")
        elif request.path == "/resources":
            self.resources = {each["name"]: Resource(**each) for each in body}
        else:
            return refused(404, "no such control")
        return web.json_response({})


def _wants_table(request: web.Request) -> bool:
    return "as=Table" in request.headers.get("Accept", "").partition(",")[0]


def _is_apply(request: web.Request) -> bool:
    return request.method == "PATCH" and "apply-patch" in request.headers.get("Content-Type", "")


def _table(items: list[JSONDict], meta: JSONDict) -> JSONDict:
    rows = []
    for each in items:
        partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": each["metadata"]}
        cells = [each["metadata"]["name"], (each.get("spec") or {}).get("size", 0)]
        rows.append({"cells": cells, "object": partial})
    kinds = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
    return {**kinds, "columnDefinitions": _TABLE_COLUMNS, "rows": rows}


def _resource(text: str) -> Resource:
    name, kind, *more = text.split(":")
    return Resource(name, kind, namespaced="cluster" not in more)


async def _bound(
    handler: Callable[..., Awaitable[web.StreamResponse]], port: int, context: ssl.SSLContext | None
) -> int:
    """Serve on a port of 127.0.0.1, 0 for any; return it."""
    runner = web.ServerRunner(web.Server(handler, access_log=None), shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True)
    await site.start()
    return int(runner.addresses[0][1])


async def _serve(options: argparse.Namespace) -> None:
    server = APIServer(options)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.cert, options.key)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(options.requestheader_ca)
    port = await _bound(server.handle, options.port, context)
    control = await _bound(server.control, 0, None)
    print(json.dumps({"port": port, "control": control}), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="an aggregated API server")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cert", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--version", default="v1alpha1")
    parser.add_argument("--resource", action="append", default=[], help="plural:Kind[:cluster]; may be repeated")
    parser.add_argument("--requestheader-ca", required=True)
    parser.add_argument(
        "--lookup", action="store_true", help="trust what the ConfigMap of the kubeconfig's cluster says"
    )
    parser.add_argument("--allowed-name", action="append", default=[])
    parser.add_argument("--kubeconfig", default="", help="whom to ask of tokens and rights, in JSON; without: all may")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))
    sys.exit(0)


if __name__ == "__main__":
    main()
