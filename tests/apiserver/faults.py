"""How an API server misbehaves: instead of its answers, on demand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

JSONDict = dict[str, Any]
FOREIGN_GROUP = "apps"


async def misbehave(mode: str, request: web.Request) -> web.StreamResponse | None:
    """Return what a mode answers; None for one that changes documents alone."""
    if mode == "hang":
        await asyncio.sleep(3600)
    if mode == "500":
        return web.json_response({"kind": "Status", "message": "a bug"}, status=500)
    if mode == "404":
        return web.json_response({"kind": "Status", "message": "not found"}, status=404)
    if mode == "redirect":
        return web.Response(status=302, headers={"Location": "https://127.0.0.1:1/login"})
    if mode == "html":
        return web.Response(text="<html><body>It works!</body></html>", content_type="text/html")
    if mode == "truncated":
        return web.Response(body=b'{"kind": "APIResourceList", "resources": [{"na', content_type="application/json")
    if mode == "deep":
        return web.Response(body=b'{"a":' * 200_000, content_type="application/json")
    if mode == "endless":
        return await _endless(request)
    return None


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "')
    while True:  # until the other side has enough
        await response.write(b"a" * 65536)
        await asyncio.sleep(0)


def groups_of(mode: str, own: JSONDict) -> list[JSONDict]:
    """Return the groups that discovery shows in a mode."""
    if mode == "thousand":
        return [own, *(_renamed(own, f"g{number}.example.com") for number in range(1000))]
    if mode == "foreign":
        return [_renamed(own, FOREIGN_GROUP), own, _renamed(own, "metrics.k8s.io")]
    return [own]


def _renamed(own: JSONDict, name: str) -> JSONDict:
    """Return an APIGroup or APIGroupDiscovery by another name."""
    old = own.get("name") or own["metadata"]["name"]
    copied: JSONDict = json.loads(json.dumps(own).replace(f'"{old}', f'"{name}'))
    return copied
