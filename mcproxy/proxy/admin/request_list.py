"""/debug/requests: lists the requests in flight without secrets. Pure, except that it reads the live requests.

A query can contain a token or a command, and so can another server's path below `proxy`. Of a query, only parameters of
the Kubernetes API are shown, and only the plain values of some. Of a path, nothing after `/proxy/` is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from mcproxy.proxy.request import Request

MAX_SHOWN = 1000
"""Maximum number of shown requests per process, the oldest first."""
_MAX_PATH = 300
_HIDDEN = "…"
# Parameters whose values are words and numbers and never secret; the values of other parameters are not shown.
_PLAIN = frozenset(
    (
        *("allowWatchBookmarks", "container", "dryRun", "fieldManager", "fieldValidation", "follow", "limit"),
        *("gracePeriodSeconds", "orphanDependents", "pretty", "previous", "propagationPolicy", "resourceVersion"),
        *("resourceVersionMatch", "sendInitialEvents", "stderr", "stdin", "stdout", "tailLines", "timeout"),
        *("timeoutSeconds", "timestamps", "tty", "verbose", "watch"),
    )
)
_SHOWN_NAMES = _PLAIN | {"command", "continue", "fieldSelector", "labelSelector", "sinceTime", "ports"}
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9.-]{0,64}")

Described = dict[str, Any]


def described(requests: Iterable[Request], now: float, process: str) -> list[Described]:
    """Return a JSON object for each request, the oldest first, at most MAX_SHOWN."""
    oldest = nsmallest(MAX_SHOWN, requests, key=lambda request: request.exchange.started_at)
    return [_described(request, now, process) for request in oldest]


def _described(request: Request, now: float, process: str) -> Described:
    exchange, info = request.exchange, request.info
    found: Described = {
        "process": process,
        "ageSeconds": round(max(0.0, now - exchange.started_at), 3),
        "state": _state(request),
        "client": request.client.log_address,
        "user": request.caller.user.name,
        "impersonated": request.user.name if request.impersonates else "",
        "server": request.server.name if request.server is not None else "",
        "cluster": request.cluster.name if request.cluster is not None else "",
        "endpoint": request.endpoint.name if request.endpoint is not None else "",
        "policy": request.plan.policy if request.plan is not None else "",
        "protocol": exchange.protocol,
        "method": exchange.head.method.decode("latin-1"),
        "verb": info.request_verb if info is not None else "",
        "path": masked_target(exchange.head.target),
        "status": exchange.status,
        "bytesIn": exchange.bytes_in,
        "bytesOut": exchange.bytes_out,
    }
    return {key: value for key, value in found.items() if value not in ("", 0) or key in ("ageSeconds", "bytesOut")}


def _state(request: Request) -> str:
    exchange = request.exchange
    if exchange.upgraded:
        return "tunnel"
    if exchange.responded:
        return "responding"
    if request.endpoint is not None:
        return "sent"
    return (
        "queued" if request.plan is not None and request.permit is None and request.waiting is not None else "waiting"
    )


def masked_target(target: bytes) -> str:
    """Return path and query of a target, with possible secrets masked."""
    path, mark, query = target.decode("latin-1").partition("?")
    if len(path) > _MAX_PATH:
        path = path[:_MAX_PATH] + _HIDDEN
    segments = path.split("/")
    for index, segment in enumerate(segments):  # decoded as by the API server, so `%70roxy` is recognized
        if unquote(segment) == "proxy" and any(segments[index + 1 :]):
            path = "/".join((*segments[: index + 1], _HIDDEN))
            break
    if not mark:
        return path
    shown = dict.fromkeys(_masked_parameter(each) for each in query[: 4 * _MAX_PATH].split("&"))
    return f"{path}?{'&'.join(shown)}"[: 2 * _MAX_PATH]


def _masked_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    if name not in _SHOWN_NAMES:
        return _HIDDEN
    if not equals:
        return name
    return f"{name}={value}" if name in _PLAIN and _PLAIN_VALUE.fullmatch(value) else f"{name}={_HIDDEN}"


def merged(parts: Sequence[Described], missing: Sequence[str] = ()) -> Described:
    """Return the document of several processes; the processes in `missing` have not answered.

    Each part has the number of requests in flight (`total`) and the oldest of them (`requests`).
    """
    requests = [request for part in parts for request in part["requests"]]
    requests.sort(key=lambda request: -float(request["ageSeconds"]))
    return {
        "total": sum(part["total"] for part in parts),
        "requests": requests[:MAX_SHOWN],
        "missing": list(missing),
    }


_COLUMNS = ("age", "state", "process", "client", "user", "server", "cluster", "endpoint", "verb", "path")


def table(document: Described) -> str:
    """Return the document as an aligned text table; unprintable characters are replaced."""
    rows = [list(_COLUMNS), *(_row(request) for request in document["requests"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS) - 1)]
    lines = [
        "  ".join((*(f"{text:<{width}}" for text, width in zip(row, widths, strict=False)), row[-1])) for row in rows
    ]
    shown, total = len(document["requests"]), document["total"]
    lines.append(f"{total} in flight" + (f", the oldest {shown} are shown" if shown < total else ""))
    if document["missing"]:
        lines.append("no answer from: " + ", ".join(document["missing"]))
    return "\n".join(lines) + "\n"


def _row(request: Described) -> list[str]:
    user = str(request.get("user", ""))
    if request.get("impersonated"):
        user += f" as {request['impersonated']}"
    fields = {**request, "age": f"{request['ageSeconds']:.1f}s", "user": user, "verb": request.get("verb") or "-"}
    if "ingress" in request:
        fields |= {"server": request["ingress"], "verb": request.get("method", ""), "path": request.get("rule", "")}
    return [_cell(str(fields.get(column, ""))) for column in _COLUMNS]


def _cell(text: str) -> str:
    cut = "".join(char if char.isprintable() else "?" for char in text)
    return cut if cut else "-"
