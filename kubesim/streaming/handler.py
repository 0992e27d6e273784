"""pods/exec, pods/attach and pods/portforward: checks, the choice of protocol, the 101, and then the session."""

from __future__ import annotations

from dataclasses import replace
from email.utils import formatdate

from aiohttp import web

from kubesim.apimachinery.status import APIError, bad_request, details
from kubesim.auth.rbac import Attributes, decide
from kubesim.request.call import Call
from kubesim.request.upgrade import (
    Hijacked,
    KubeletAnswer,
    is_websocket,
    offered_protocols,
    response_head,
    take_over,
    websocket_head,
)
from kubesim.streaming import exec_sessions, portforward
from kubesim.streaming.commands import Request
from kubesim.streaming.containers import Container, find_container, find_pod
from kubesim.streaming.spdy_connection import WebSocketTunnel
from mcproxy.kube.query_parameters import boolean


async def handle(call: Call) -> web.StreamResponse:
    """Answer GET and POST on pods/{name}/exec, attach and portforward. Raises APIError 400, 403, 404."""
    websocket = is_websocket(call.request)
    if websocket:
        _require_create(call)
    namespace, name = call.info.namespace, call.info.name
    if call.info.subresource == "portforward":
        container = _first_container(find_container_pod(call))
    else:
        container = find_container(call.cluster, namespace, name, call.query.get("container", ""))
    if not container.node_name:
        raise bad_request(f"pod {name} does not have a host assigned")
    upgrade = call.request.headers.get("Upgrade", "").lower()
    if not upgrade or "upgrade" not in call.request.headers.get("Connection", "").lower():
        raise bad_request("Upgrade request required")
    if websocket and call.request.method != "GET":
        return _refuse_method(call)
    if call.info.subresource == "portforward":
        return await (_portforward_websocket if websocket else _portforward_spdy)(call, container)
    return await (_exec_websocket if websocket else _exec_spdy)(call, _exec_request(call, container))


def _require_create(call: Call) -> None:
    """Authorize `create` in addition to `get` for a WebSocket (1.35, AuthorizePodWebsocketUpgradeCreatePermission)."""
    wanted = replace(Attributes.of(call.info), verb="create")
    decision = decide(call.cluster, call.user, wanted, starting=call.starting)
    if not decision.allowed:
        name = call.info.name
        raise APIError(403, "Forbidden", f'pods "{name}" is forbidden: {decision.reason}', details(name, "", "pods"))


def find_container_pod(call: Call) -> Container:
    pod = find_pod(call.cluster, call.info.namespace, call.info.name)
    return Container(call.cluster, pod, "", {})


def _first_container(container: Container) -> Container:
    specs = (container.pod.get("spec") or {}).get("containers") or [{}]
    return replace(container, name=specs[0].get("name", ""), spec=specs[0])


def _exec_request(call: Call, container: Container) -> Request:
    return Request(
        container=container,
        attach=call.info.subresource == "attach",
        command=tuple(call.request.query.getall("command", ())),
        stdin=boolean(call.query.get("stdin")),
        stdout=boolean(call.query.get("stdout")),
        stderr=boolean(call.query.get("stderr")),
        tty=boolean(call.query.get("tty")),
    )


def _check_exec(request: Request) -> None:
    """Check for requests that the kubelet refuses. Raises APIError 400."""
    if not (request.stdin or request.stdout or request.stderr):
        raise bad_request("you must specify at least 1 of stdin, stdout, stderr")
    if not request.attach and not any(request.command):
        raise bad_request("you must specify a command")


def _refuse_method(call: Call) -> Hijacked:
    head = response_head("405 Method Not Allowed", [("Connection", "close")])
    take_over(call.request, head + b"bad method").close()
    return Hijacked(405)


def _refuse_protocol(call: Call) -> Hijacked:
    take_over(call.request, response_head("403 Forbidden", [("Connection", "close")])).close()
    return Hijacked(403)


async def _exec_websocket(call: Call, request: Request) -> web.StreamResponse:
    offered = offered_protocols(call.request) or [""]
    protocol = next((item for item in offered if item in exec_sessions.WEBSOCKET_PROTOCOLS), None)
    if exec_sessions.V5 in offered:
        protocol = exec_sessions.V5
    if protocol is None:
        return _refuse_protocol(call)
    _check_exec(request)
    stream = take_over(call.request, websocket_head(call.request, protocol))
    await exec_sessions.run_websocket(stream, protocol, request)
    return Hijacked()


def _spdy_protocol(call: Call, served: tuple[str, ...], default: str) -> str:
    """Return the first of the client's protocols that is served. Raises _NoCommonProtocol."""
    headers = call.request.headers.getall("X-Stream-Protocol-Version", ())
    offered = [item.strip() for value in headers for item in value.split(",")]
    if not offered:
        return default
    chosen = next((item for item in offered if item in served), None)
    if chosen is None:
        text = (
            "unable to upgrade: unable to negotiate protocol: "
            f"client supports [{' '.join(offered)}], server accepts [{' '.join(served)}]"
        )
        raise _NoCommonProtocol(text, served)
    return chosen


class _NoCommonProtocol(Exception):
    def __init__(self, text: str, served: tuple[str, ...]) -> None:
        super().__init__(text)
        self.text = text
        self.served = served

    def response(self) -> web.Response:
        response = KubeletAnswer(status=403, text=f"{self.text}\n", content_type="text/plain", charset="utf-8")
        for item in self.served:
            response.headers.add("X-Accepted-Stream-Protocol-Versions", item)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def _spdy_head(call: Call, protocol: str) -> bytes:
    headers = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1")]
    if call.request.headers.get("X-Stream-Protocol-Version"):
        headers.append(("X-Stream-Protocol-Version", protocol))
    headers.append(("Date", formatdate(call.cluster.now().timestamp(), usegmt=True)))
    return response_head("101 Switching Protocols", headers)


async def _exec_spdy(call: Call, request: Request) -> web.StreamResponse:
    _check_exec(request)
    try:
        protocol = _spdy_protocol(call, exec_sessions.SPDY_PROTOCOLS, "channel.k8s.io")
    except _NoCommonProtocol as error:
        return error.response()
    stream = take_over(call.request, _spdy_head(call, protocol))
    await exec_sessions.run_spdy(stream, protocol, request)
    return Hijacked()


async def _portforward_spdy(call: Call, container: Container) -> web.StreamResponse:
    try:
        protocol = _spdy_protocol(call, (portforward.SPDY_PROTOCOL,), portforward.SPDY_PROTOCOL)
    except _NoCommonProtocol as error:
        return error.response()
    stream = take_over(call.request, _spdy_head(call, protocol))
    await portforward.run_spdy(stream, container)
    return Hijacked()


def _ports(call: Call) -> list[int]:
    """Return the ports of the old WebSocket protocol. Raises APIError 400."""
    values = [part for value in call.request.query.getall("ports", ()) for part in value.split(",")]
    if not values:
        raise bad_request('query parameter "port" is required')
    try:
        return [int(value) for value in values]
    except ValueError:
        raise bad_request(f'unable to parse "{values[0]}" as a port') from None


async def _portforward_websocket(call: Call, container: Container) -> web.StreamResponse:
    offered = offered_protocols(call.request)
    if portforward.TUNNEL_PROTOCOL in offered:
        stream = take_over(call.request, websocket_head(call.request, portforward.TUNNEL_PROTOCOL))
        await portforward.run_spdy(WebSocketTunnel(stream), container)
        return Hijacked()
    protocol = next((item for item in offered or [""] if item in ("", "v4.channel.k8s.io")), None)
    if protocol is None:
        return _refuse_protocol(call)
    ports = _ports(call)
    stream = take_over(call.request, websocket_head(call.request, protocol))
    await portforward.run_channels(stream, container, ports)
    return Hijacked()
