"""Pods that are not our own code: aiohttp, for WebSocket and upgrades, and nginx."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.ports import reserved_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


class AiohttpPod:
    """An aiohttp server in a thread of its own: /ws echoes messages, any other path describes the request.

    /sse streams three events, each after the client has confirmed the one before with a POST of /sse/seen.
    """

    def __init__(self) -> None:
        self.port = 0
        self.closed: list[int | None] = []  # close codes of WebSockets
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(60)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/ws", self._websocket)
        app.router.add_get("/sse", self._events)
        app.router.add_post("/sse/seen", self._event_seen)
        self._seen = asyncio.Event()
        app.router.add_route("*", "/{path:.*}", self._tell)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=["chat"])
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                await socket.send_str(f"heard {message.data}")
            elif message.type is WSMsgType.BINARY:
                await socket.send_bytes(message.data)
        self.closed.append(socket.close_code)
        return socket

    async def _events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(3):
            self._seen.clear()
            await response.write(b"data: %d\n\n" % number)
            await asyncio.wait_for(self._seen.wait(), 60)
        return response

    async def _event_seen(self, request: web.Request) -> web.Response:
        self._seen.set()
        return web.Response()

    async def _tell(self, request: web.Request) -> web.Response:
        body = await request.read()
        return web.Response(
            body=f"{request.method} {request.path_qs} {len(body)}".encode(), headers={"X-Host": request.host}
        )


def run_client(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a client of asyncio; for a thread."""
    return asyncio.run(work())


class NginxPod:
    """nginx with HTTP/1.1 (kept connections, limited to some requests) and h2c on two ports."""

    def __init__(self, directory: Path) -> None:
        assert NGINX is not None, "install nginx-light"
        self.http1, self.http2 = reserved_port(), reserved_port()
        (directory / "large").write_bytes(b"x" * 3_000_000)
        file = directory / "nginx.conf"
        places = "\n".join(f"  {name}_temp_path {directory}/{name};" for name in ("fastcgi", "uwsgi", "scgi"))
        served = f"""
    location / {{ default_type text/plain; return 200 "$request_method $request_uri $server_protocol $http_host"; }}
    location = /large {{ default_type text/plain; alias {directory}/large; }}"""
        file.write_text(
            f"""daemon off;
master_process off;
pid {directory}/pid;
error_log stderr;
events {{ worker_connections 200; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
{places}
  keepalive_requests 7;
  server {{
    listen 127.0.0.1:{self.http1};{served}
  }}
  server {{
    listen 127.0.0.1:{self.http2} http2;{served}
  }}
}}
"""
        )
        self.process = subprocess.Popen(
            [NGINX, "-p", str(directory), "-c", str(file)], stderr=subprocess.PIPE, start_new_session=True
        )

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stderr is not None
        self.process.stderr.close()
