"""What pods answer: HTTP on ports 80 and 8080, echo on the others, nothing on 9; and /hostname, by address.

The network itself is not simulated. A pod of a cluster whose pod network is routable from here is reached through that
cluster's API server, the only way to its process; the client sees no difference.
"""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import aiohttp

from kubesim.cluster import SimulatedCluster
from kubesim.streaming.byte_streams import Input, LineReader, Output
from kubesim.streaming.containers import Container

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
        found = await hostname(cluster, namespace, addresses[(turn + step) % len(addresses)])
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


async def hostname(cluster: SimulatedCluster, namespace: str, address: str) -> str | None:
    """Return the answer of the pod with an address to /hostname; None if none is reachable."""
    name = own_pod(cluster, namespace, address)
    if name is not None:
        return answer(cluster, name)
    for directory in cluster.routes_to:
        found = await _of_other_cluster(directory, namespace, address)
        if found is not None:
            return found
    return None


def answer(cluster: SimulatedCluster, pod: str) -> str:
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
