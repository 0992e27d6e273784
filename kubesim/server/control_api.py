"""The control API of a simulated cluster: plain HTTP on a separate loopback port, for tests and benchmarks.

GET    /audit?since=N&path=PREFIX&method=M   {"last": N, "records": [...]}: the requests that reached the cluster
DELETE /audit                                drops the records
GET    /faults (the kinds of the active faults), POST /faults, DELETE /faults[?id=N]
POST   /compact[?revision=N]                 compacts, so that older watches and continue tokens get 410
POST   /snapshot                             {"snapshot": N, "revision": N}: a backup of all objects
POST   /restore?snapshot=N                   restores it, its revision too, and resets all connections
POST   /objects                              {"items": [object, ...]}: creates the objects
POST   /logs?namespace=&pod=&container=      body: lines for a container's log
GET    /files?namespace=&pod=&container=&path=   a file in a container
GET    /stats                                connections, requests in flight, watches, endpoints
POST   /endpoints/N/stop[?reset=false] | start[?starting=SECONDS] | finish | hang | resume | reset
POST   /endpoints/N/goaway[?code=N][&last=N]     GOAWAY on all open HTTP/2 connections
POST   /endpoints/N/http2[?offer=false][&maxConcurrentStreams=N][&initialWindow=N]

`starting` is the time for which the endpoint has not read the roles and answers 403; `finish` ends it at once. GOAWAY's
`code` is NO_ERROR by default, `last` the last stream begun; greater ones are dropped. `http2` changes what new
connections are offered by ALPN, and the settings of open and new ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from aiohttp import web

from kubesim.apimachinery.status import StatusError
from kubesim.cluster import SimulatedCluster
from kubesim.faults import Fault, FaultError
from kubesim.registry import crd, objects
from kubesim.server.endpoint import Endpoint
from kubesim.storage.store import Snapshot
from kubesim.streaming import logs
from kubesim.streaming.containers import FileSystemError, find_container

if TYPE_CHECKING:
    from kubesim.server.http2_connections import HTTP2Connections

MAX_BODY = 1 << 28


async def start(cluster: SimulatedCluster, endpoints: Sequence[Endpoint] = ()) -> tuple[web.AppRunner, str]:
    """Serve the control API on a free loopback port; return the runner, to be cleaned up, and the URL."""
    control = _Control(cluster, endpoints)
    app = web.Application(client_max_size=MAX_BODY, middlewares=[_errors])
    app.add_routes(
        [
            web.get("/audit", control.audit),
            web.delete("/audit", control.forget),
            web.get("/faults", control.faults),
            web.post("/faults", control.add_fault),
            web.delete("/faults", control.remove_faults),
            web.post("/compact", control.compact),
            web.post("/snapshot", control.snapshot),
            web.post("/restore", control.restore),
            web.post("/objects", control.objects),
            web.post("/logs", control.logs),
            web.get("/files", control.read_file),
            web.get("/stats", control.stats),
            web.post("/endpoints/{index}/{action}", control.endpoint),
        ]
    )
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    return runner, f"http://127.0.0.1:{port}"


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except StatusError as error:
        return web.json_response({"error": error.message}, status=error.code)
    except (ValueError, KeyError, TypeError, FileSystemError) as error:
        return web.json_response({"error": f"{type(error).__name__}: {error}"}, status=400)


class _Control:
    def __init__(self, cluster: SimulatedCluster, endpoints: Sequence[Endpoint]) -> None:
        self._cluster = cluster
        self._endpoints = endpoints
        self._snapshots: list[Snapshot] = []

    async def audit(self, request: web.Request) -> web.Response:
        log = self._cluster.audit
        since = int(request.query.get("since", "0"))
        records = log.since(since, path_prefix=request.query.get("path", ""), method=request.query.get("method", ""))
        return web.json_response({"last": log.last, "records": [record.as_dict() for record in records]})

    async def forget(self, request: web.Request) -> web.Response:
        self._cluster.audit.clear()
        return web.json_response({"last": self._cluster.audit.last})

    async def faults(self, request: web.Request) -> web.Response:
        return web.json_response({"faults": [fault.kind for fault in self._cluster.faults.active()]})

    async def add_fault(self, request: web.Request) -> web.Response:
        try:
            fault = Fault.from_dict(await request.json())
        except FaultError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response({"id": self._cluster.faults.add(fault)})

    async def remove_faults(self, request: web.Request) -> web.Response:
        ident = request.query.get("id")
        self._cluster.faults.remove(None if ident is None else int(ident))
        return web.json_response({})

    async def compact(self, request: web.Request) -> web.Response:
        revision = request.query.get("revision")
        self._cluster.store.compact(None if revision is None else int(revision))
        return web.json_response({"revision": self._cluster.store.revision})

    async def snapshot(self, request: web.Request) -> web.Response:
        self._snapshots.append(self._cluster.store.snapshot())
        return web.json_response({"snapshot": len(self._snapshots) - 1, "revision": self._cluster.store.revision})

    async def restore(self, request: web.Request) -> web.Response:
        number = int(request.query["snapshot"])
        if not 0 <= number < len(self._snapshots):
            return web.json_response({"error": f"there is no snapshot {number}"}, status=404)
        self._cluster.store.restore(self._snapshots[number])
        crd.sync_all(self._cluster)
        for endpoint in self._endpoints:
            endpoint.reset_connections()
        return web.json_response({"revision": self._cluster.store.revision})

    async def objects(self, request: web.Request) -> web.Response:
        for item in (await request.json())["items"]:
            group, _, version = str(item["apiVersion"]).rpartition("/")
            resource = self._cluster.resources.by_kind(group, version, item["kind"])
            if resource is None:
                raise ValueError(f"nothing serves {item['apiVersion']} {item['kind']}")
            namespace = item.get("metadata", {}).get("namespace", "")
            objects.create(self._cluster, resource, namespace, item, manager="control")
        return web.json_response({"revision": self._cluster.store.revision})

    async def logs(self, request: web.Request) -> web.Response:
        query = request.query
        text = (await request.read()).decode()
        logs.append(self._cluster, query["namespace"], query["pod"], query.get("container", ""), text)
        return web.json_response({})

    async def read_file(self, request: web.Request) -> web.Response:
        query = request.query
        container = find_container(self._cluster, query["namespace"], query["pod"], query.get("container", ""))
        return web.Response(body=container.files.read(query["path"]))

    async def stats(self, request: web.Request) -> web.Response:
        collections = self._cluster.store.collections().values()
        endpoints = [endpoint.as_dict() for endpoint in self._endpoints]
        stats = {
            "revision": self._cluster.store.revision,
            "objects": sum(len(collection.objects) for collection in collections),
            "watches": sum(collection.watchers for collection in collections),
            "inFlight": self._cluster.audit.in_flight,
            "requests": self._cluster.audit.last,
            "connections": sum(int(endpoint["connections"]) for endpoint in endpoints),
            "connectionsSeen": self._cluster.audit.connections_seen,
            "http2Connections": sum(len(each.http2.connections) for each in self._endpoints if each.http2 is not None),
            "endpoints": endpoints,
        }
        return web.json_response(stats)

    async def endpoint(self, request: web.Request) -> web.Response:
        index, action = int(request.match_info["index"]), request.match_info["action"]
        if not 0 <= index < len(self._endpoints):
            return web.json_response({"error": f"there is no endpoint {index}"}, status=404)
        endpoint = self._endpoints[index]
        if action == "stop":
            await endpoint.stop(reset=request.query.get("reset", "true") != "false")
        elif action == "reset":
            endpoint.reset_connections()
        elif action == "start":
            await endpoint.start(starting=float(request.query.get("starting", "0")))
        elif action == "finish":
            self._cluster.starting.finish(index)
        elif action in ("goaway", "http2") and endpoint.http2 is not None:
            _change_http2(endpoint.http2, action, request.query)
        elif action in ("hang", "resume"):
            await getattr(endpoint, action)()
        else:
            return web.json_response({"error": f"unknown action {action}"}, status=404)
        return web.json_response(endpoint.as_dict())


def _change_http2(http2: HTTP2Connections, action: str, query: Mapping[str, str]) -> None:
    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    if action == "goaway":
        http2.goaway(number("code") or 0, number("last"))
        return
    if "offer" in query:
        http2.offer(http2=query["offer"] != "false")
    http2.change_settings(max_concurrent_streams=number("maxConcurrentStreams"), initial_window=number("initialWindow"))
