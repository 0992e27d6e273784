"""pods/proxy, services/proxy and nodes/proxy; and the servers in pods: HTTP on ports 80 and 8080, echo on the others.

The proxy is HTTP through the API server to a backend that echoes the request; /hostname is the name of the pod. Source:
the recorded answers. Authorization and Impersonate-* headers are removed, X-Forwarded-For and -Uri are added, Location
headers and links in HTML are rewritten, and a path without its trailing slash is redirected.

The pod network is not simulated. A pod of a cluster whose pod network is routable from here is reached through that
cluster's API server, the only way to its process; the client sees no difference.
"""

from __future__ import annotations

import ipaddress
import json
import re
import ssl
from pathlib import Path

import aiohttp
from aiohttp import web

from kubesim.apimachinery.status import APIError, StatusError, bad_request, not_found
from kubesim.cluster import SimulatedCluster
from kubesim.request.call import Call
from kubesim.streaming.byte_streams import Input, LineReader, Output
from kubesim.streaming.containers import Container, find_pod

_ERRORS = (OSError, TimeoutError, ValueError, KeyError, aiohttp.ClientError)


def service_addresses(cluster: SimulatedCluster, namespace: str, name: str) -> list[str]:
    """Return the ready addresses of a service, from all its EndpointSlices."""
    found = []
    for (place, _), piece in cluster.store.collection(("discovery.k8s.io", "endpointslices")).objects.items():
        labels = piece["metadata"].get("labels") or {}
        if place == namespace and labels.get("kubernetes.io/service-name") == name:
            ready = (e for e in piece.get("endpoints") or () if (e.get("conditions") or {}).get("ready") is not False)
            found += [address for endpoint in ready for address in endpoint.get("addresses") or ()]
    return sorted(set(found))


def own_pod(cluster: SimulatedCluster, namespace: str, address: str) -> str | None:
    """Return the name of the cluster's own pod with an address."""
    for (place, name), pod in cluster.store.collection(("", "pods")).objects.items():
        if place == namespace and (pod.get("status") or {}).get("podIP") == address:
            return name
    return None


async def service_hostname(cluster: SimulatedCluster, namespace: str, name: str) -> str | None:
    """Return the answer of a pod of a service to /hostname, trying one after the other; None if none is reachable."""
    addresses = service_addresses(cluster, namespace, name)
    turns = cluster.state.setdefault("turns of services", {})
    turn = turns[namespace, name] = turns.get((namespace, name), -1) + 1
    for step in range(len(addresses)):
        found = await hostname_at(cluster, namespace, addresses[(turn + step) % len(addresses)])
        if found is not None:
            return found
    return None


async def ask_service(cluster: SimulatedCluster, namespace: str, host: str) -> str | None:
    """Return the answer to /hostname of a pod of the service `host` (NAME, NAME.NAMESPACE, …) in a namespace.

    "" if none answers, None if there is no such service.
    """
    name, _, rest = host.partition(".")
    namespace = rest.partition(".")[0] or namespace
    if cluster.store.get(("", "services"), namespace, name) is None:
        return None
    return await service_hostname(cluster, namespace, name) or ""


async def hostname_at(cluster: SimulatedCluster, namespace: str, address: str) -> str | None:
    """Return the answer of the pod with an address to /hostname; None if none is reachable."""
    name = own_pod(cluster, namespace, address)
    if name is not None:
        return hostname_of(cluster, name)
    for directory in cluster.routes_to:
        found = await _of_other_cluster(directory, namespace, address)
        if found is not None:
            return found
    return None


def hostname_of(cluster: SimulatedCluster, pod: str) -> str:
    """Return the answer of a pod to /hostname."""
    return f"{pod} in {cluster.name}\n"


async def _of_other_cluster(directory: Path, namespace: str, address: str) -> str | None:
    try:
        server = json.loads((directory / "kubeconfig").read_text())["clusters"][0]["cluster"]["server"]
        context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
        context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        url = f"{server}/api/v1/namespaces/{namespace}/pods"
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            async with session.get(f"{url}?fieldSelector=status.podIP%3D{address}", ssl=context) as response:
                pods = (await response.json())["items"]
            if not pods:
                return None
            async with session.get(f"{url}/{pods[0]['metadata']['name']}/proxy/hostname", ssl=context) as response:
                return await response.text() if response.status == 200 else None
    except _ERRORS:
        return None


HTTP_PORTS = frozenset({80, 8080})
CLOSED_PORT = 9
MAX_HEAD_LINES = 200


async def serve_port(container: Container, port: int, source: Input, output: Output) -> None:
    """Serve one connection until the client half-closes it."""
    if port in HTTP_PORTS:
        await _http(container, port, source, output)
        return
    while data := await source.read():
        await output.write(data)


async def _http(container: Container, port: int, source: Input, output: Output) -> None:
    reader = LineReader(source)
    while request_line := (await reader.readline()).decode("latin-1").strip():
        headers: list[list[str]] = []
        while len(headers) < MAX_HEAD_LINES and (line := (await reader.readline()).decode("latin-1").strip()):
            name, _, value = line.partition(":")
            headers.append([name, value.strip()])
        fields = {name.lower(): value for name, value in headers}
        method, _, rest = request_line.partition(" ")
        body = await _body(reader, int(fields.get("content-length", "0") or 0))
        page = _page(container, port, method, rest.rpartition(" ")[0], headers, body)
        close = fields.get("connection", "").lower() == "close" or rest.endswith("HTTP/1.0")
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(page)}\r\n"
            f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
        )
        await output.write(head.encode() + (b"" if method == "HEAD" else page))
        if close:
            return


async def _body(reader: LineReader, size: int) -> bytes:
    body = bytearray()
    while len(body) < size and (data := await reader.read()):
        body += data
    return bytes(body[:size])


def _page(container: Container, port: int, method: str, path: str, headers: list[list[str]], body: bytes) -> bytes:
    page = {
        "cluster": container.cluster.name,
        "namespace": container.namespace,
        "pod": container.pod_name,
        "port": port,
        "method": method,
        "path": path,
        "headers": headers,
        "body": body.decode("utf-8", "replace"),
    }
    return json.dumps(page).encode() + b"\n"


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
        return hostname_of(call.cluster, name)
    found = await service_hostname(call.cluster, call.info.namespace, name)
    if found is not None:
        return found
    raise _unreachable(f"no pod of {name} answers")


def _split(text: str) -> tuple[str, str, str]:
    """Split [scheme:]name[:port]; scheme and port may be empty."""
    parts = text.split(":")
    if len(parts) == 3:
        return parts[0], parts[1], parts[2]
    return "", parts[0], parts[1] if len(parts) == 2 else ""


def _unreachable(cause: str) -> StatusError:
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
