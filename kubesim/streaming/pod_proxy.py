"""pods/proxy, services/proxy and nodes/proxy: HTTP through the API server to a backend that echoes the request.

/hostname is the name of the pod.

Source: the recorded answers. Authorization and Impersonate-* headers are removed, X-Forwarded-For and -Uri are added,
Location headers and links in HTML are rewritten, and a path without its trailing slash is redirected.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

from aiohttp import web

from kubesim.apimachinery.status import APIError, bad_request, not_found
from kubesim.request.call import Call
from kubesim.streaming import pod_network
from kubesim.streaming.containers import find_pod
from kubesim.streaming.pod_network import CLOSED_PORT

JSONDict = dict[str, Any]
STOPPED = ("authorization", "connection", "upgrade", "host", "content-length", "x-forwarded-for", "x-forwarded-uri")


async def handle(call: Call) -> web.StreamResponse:
    """Serve any method. Raises APIError 400, 404 and 503."""
    before, _, after = call.request.raw_path.partition(f"/{call.info.name}/proxy")
    if not after.startswith("/"):
        location = f"{before}/{call.info.name}/proxy/{after}"
        return web.Response(status=301, headers={"Location": location, "Content-Length": "0"})
    scheme, name, port = _split(call.info.name)
    if call.info.resource == "nodes":
        _node(call, name)
    elif call.info.resource == "services":
        _service(call, name)
        if scheme == "https":
            raise _unreachable("tls: first record does not look like a TLS handshake")
    else:
        _pod(call, name, port)
    if after.partition("?")[0] == "/hostname" and call.info.resource != "nodes":
        return web.Response(text=await _hostname(call, name))
    return await _backend(call, f"{before}/{call.info.name}/proxy", after)


async def _hostname(call: Call, name: str) -> str:
    """Return the name of the answering pod; pods of a service take turns. Raises APIError 503."""
    if call.info.resource == "pods":
        return pod_network.answer(call.cluster, name)
    found = await pod_network.service_hostname(call.cluster, call.info.namespace, name)
    if found is not None:
        return found
    raise _unreachable(f"no pod of {name} answers")


def _split(text: str) -> tuple[str, str, str]:
    """Split [scheme:]name[:port]; scheme and port may be empty."""
    parts = text.split(":")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    return "", parts[0], parts[1] if len(parts) == 2 else ""


def _unreachable(cause: str) -> APIError:
    return APIError(503, "ServiceUnavailable", f"error trying to reach service: {cause}")


def _node(call: Call, name: str) -> None:
    node = call.cluster.store.get(("", "nodes"), "", name)
    if node is None:
        raise not_found("", "nodes", name)
    addresses = (node.get("status") or {}).get("addresses") or ()
    internal = next((item["address"] for item in addresses if item.get("type") == "InternalIP"), "")
    if internal and ipaddress.ip_address(internal).is_loopback:
        raise bad_request("address not allowed")


def _pod(call: Call, name: str, port: str) -> None:
    pod = find_pod(call.cluster, call.info.namespace, name)
    if port == str(CLOSED_PORT):
        address = (pod.get("status") or {}).get("podIP", "")
        raise _unreachable(f"dial tcp {address}:{port}: connect: connection refused")


def _service(call: Call, name: str) -> None:
    namespace = call.info.namespace
    service = call.cluster.store.get(("", "services"), namespace, name)
    endpoints = call.cluster.store.get(("", "endpoints"), namespace, name)
    if service is None or endpoints is None:
        raise not_found("", "services", name)
    if not any(subset.get("addresses") for subset in endpoints.get("subsets") or ()):
        raise APIError(503, "ServiceUnavailable", f'no endpoints available for service "{name}"')


def _passed_headers(call: Call) -> list[list[str]]:
    """Return the headers for the backend, in the order in which Go writes them."""
    request = call.request
    kept = [
        [name, value]
        for name, value in request.headers.items()
        if name.lower() not in STOPPED and not name.lower().startswith("impersonate-")
    ]
    kept += [["X-Forwarded-For", request.remote or ""], ["X-Forwarded-Uri", request.raw_path.partition("?")[0]]]
    first = [["Host", request.host]]
    if request.headers.get("Content-Length"):
        first.append(["Content-Length", request.headers["Content-Length"]])
    last = [] if "Accept-Encoding" in request.headers else [["Accept-Encoding", "gzip"]]
    return [*first, *sorted(kept), *last]


async def _backend(call: Call, prefix: str, path: str) -> web.StreamResponse:
    """The backend: /redir redirects, /html has a link, /teapot is 418, all else echoes the request."""
    body = await call.request.read()
    plain = path.partition("?")[0]
    if plain == "/redir":
        return web.Response(status=302, headers={"Location": f"{prefix}/elsewhere"})
    cookie = {"Set-Cookie": "a=b"}
    if plain == "/html":
        page = _rewritten('<html><body><a href="/x">x</a></body></html>', prefix)
        return web.Response(body=page.encode(), headers={**cookie, "Content-Type": "text/html"})
    seen = {
        "method": call.request.method,
        "path": path,
        "headers": _passed_headers(call),
        "body": body.decode("utf-8", "replace"),
    }
    status = 418 if plain == "/teapot" else 200
    reason = "I'm a teapot" if status == 418 else None
    headers = {**cookie, "Content-Type": "application/json"}
    return web.Response(status=status, reason=reason, body=json.dumps(seen).encode(), headers=headers)


def _rewritten(page: str, prefix: str) -> str:
    return re.sub(r'(href|src|action)="/', rf'\1="{prefix}/', page)
