"""pods/log: a few lines for each container, more while it is followed, and a log of any size for benchmarks.

Controlled by annotations of the pod: `mcproxy.example.com/log-lines` (number of lines), `…/log-interval` (seconds
between the lines while following) and `…/log-bytes` (a log of that many bytes in large pieces). The control API adds
lines with `append`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from kubesim.apimachinery.status import (
    StatusCause,
    bad_request,
    field_forbidden,
    field_invalid,
    invalid,
    not_acceptable,
)
from kubesim.cluster import SimulatedCluster
from kubesim.request import negotiation
from kubesim.request.call import Call
from kubesim.request.upgrade import Hijacked, close_websocket, is_websocket, take_over, websocket_head
from kubesim.streaming.containers import Container, find_container
from mcproxy.kube import media_types
from mcproxy.kube.query_parameters import boolean
from mcproxy.kube.websocket_frames import BINARY, frame

ANNOTATION = "mcproxy.example.com/log-"
DEFAULT_LINES, DEFAULT_INTERVAL = 5, 0.5
MAX_APPENDED = 100_000
BLOCK = 1 << 18
MEDIA_TYPES = ("text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


@dataclass
class AddedLines:
    """The lines that tests added to one container's log; `more` is set, and replaced, when one is added."""

    lines: list[tuple[float, bytes]] = field(default_factory=list)
    dropped: int = 0
    """The number of oldest lines that were dropped."""
    more: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Options:
    """PodLogOptions."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    limit: int | None = None
    since: float | None = None
    """Unix time."""


def _added_lines(cluster: SimulatedCluster, uid: str, container: str) -> AddedLines:
    all_added = cluster.state.setdefault("logs", {})
    found = all_added.setdefault((uid, container), AddedLines())
    assert isinstance(found, AddedLines)
    return found


def append(cluster: SimulatedCluster, namespace: str, pod: str, container: str, text: str) -> None:
    """Add lines to a container's log; followers get them at once. Raises APIError 404, 400."""
    found = find_container(cluster, namespace, pod, container)
    added = _added_lines(cluster, found.pod["metadata"].get("uid", ""), found.name)
    now = cluster.now().timestamp()
    added.lines += [(now, line.encode() + b"\n") for line in text.splitlines()]
    added.dropped += max(0, len(added.lines) - MAX_APPENDED)
    del added.lines[:-MAX_APPENDED]
    added.more.set()
    added.more = asyncio.Event()


def _number(call: Call, name: str, least: int) -> tuple[int | None, StatusCause | None]:
    value = call.query.get(name)
    if value is None:
        return None, None
    try:
        number = int(value)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{value}": invalid syntax') from None
    if number >= least:
        return number, None
    bound = "greater than 0" if least else "greater than or equal to 0"
    return None, field_invalid(name, number, f"must be {bound}")


def _options(call: Call) -> Options:
    """Parse the query. Raises APIError 400, 422."""
    causes: list[StatusCause] = []
    numbers: dict[str, int | None] = {}
    for name, least in (("tailLines", 0), ("limitBytes", 1), ("sinceSeconds", 1)):
        numbers[name], cause = _number(call, name, least)
        causes += [cause] if cause else []
    since_time = call.query.get("sinceTime")
    if numbers["sinceSeconds"] is not None and since_time:
        causes.append(field_forbidden("[]", "at most one of `sinceTime` or `sinceSeconds` may be specified"))
    if causes:
        raise invalid("", "PodLogOptions", call.info.name, causes)
    seconds = numbers["sinceSeconds"]
    since = call.cluster.now().timestamp() - seconds if seconds is not None else _time(since_time)
    return Options(
        follow=boolean(call.query.get("follow")),
        previous=boolean(call.query.get("previous")),
        timestamps=boolean(call.query.get("timestamps")),
        tail=numbers["tailLines"],
        limit=numbers["limitBytes"],
        since=since,
    )


def _time(text: str | None) -> float | None:
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise bad_request(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse') from None


def _check_accept(call: Call) -> None:
    accept = call.request.headers.get("Accept", "")
    wanted = media_types.clauses(accept)
    if accept and not any(
        media_types.matches(served, clause.media_type) for clause in wanted for served in MEDIA_TYPES
    ):
        raise not_acceptable(f"406: Not Acceptable\n\nAvailable representations: {', '.join(MEDIA_TYPES)}")


def _state(container: Container) -> Mapping[str, Any]:
    statuses = (container.pod.get("status") or {}).get("containerStatuses") or ()
    return next((item for item in statuses if item.get("name") == container.name), {})


def _check_state(container: Container, options: Options) -> None:
    """Check the states that a kubelet refuses. Raises APIError 400."""
    state = _state(container)
    ended = "terminated" in (state.get("lastState") or {})
    if options.previous and not ended:
        text = f'previous terminated container "{container.name}" in pod "{container.pod_name}" not found'
        raise bad_request(text)
    waiting = (state.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") in ("ContainerCreating", "PodInitializing") and not ended:
        text = f'container "{container.name}" in pod "{container.pod_name}" is waiting to start: {waiting["reason"]}'
        raise bad_request(text)


async def handle(call: Call) -> web.StreamResponse:
    """Serve GET pods/{name}/log. Raises APIError 400, 404, 406, 422."""
    _check_accept(call)
    options = _options(call)
    container = find_container(call.cluster, call.info.namespace, call.info.name, call.query.get("container", ""))
    if not container.node_name:
        return web.Response(status=204, headers=negotiation.base_headers(call))
    _check_state(container, options)
    pieces = _limited(_pieces(container, options), options.limit)
    if is_websocket(call.request):
        return await _over_websocket(call, pieces)
    response = web.StreamResponse(headers={**negotiation.base_headers(call), "Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(call.request)
    try:
        async for piece in pieces:
            await response.write(piece)
    except ConnectionError:
        response.force_close()  # the client has disconnected
    return response


async def _over_websocket(call: Call, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    stream = take_over(call.request, websocket_head(call.request, ""))
    await stream.write(frame(BINARY, b""))
    async for piece in pieces:
        if stream.closed.is_set():
            break
        await stream.write(frame(BINARY, piece))
    await close_websocket(stream)
    stream.close()
    return Hijacked()


async def _limited(pieces: AsyncIterator[bytes], limit: int | None) -> AsyncIterator[bytes]:
    left = limit
    async for piece in pieces:
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def _annotation(container: Container, name: str, default: float) -> float:
    value = (container.pod["metadata"].get("annotations") or {}).get(ANNOTATION + name)
    return default if value is None else float(value)


def _stamped(moment: float, line: bytes, options: Options) -> bytes:
    if not options.timestamps:
        return line
    text = datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z "
    return text.encode() + line


def _line(container: Container, number: int, options: Options) -> bytes:
    which = "previous log line" if options.previous else "log line"
    return f"{which} {number} of {container.namespace}/{container.pod_name}/{container.name}\n".encode()


async def _pieces(container: Container, options: Options) -> AsyncIterator[bytes]:
    size = int(_annotation(container, "bytes", 0))
    if size:
        async for block in _large_log(container, size):
            yield block
        return
    count = int(_annotation(container, "lines", DEFAULT_LINES))
    cluster = container.cluster
    added = _added_lines(cluster, container.pod["metadata"].get("uid", ""), container.name)
    start = _started(container)
    past = [(start + number, _line(container, number, options)) for number in range(count)]
    past += [] if options.previous else added.lines
    seen = added.dropped + len(added.lines)
    if options.since is not None:
        past = [item for item in past if item[0] >= options.since]
    if options.tail is not None:
        past = past[len(past) - min(options.tail, len(past)) :]
    if past:
        yield b"".join(_stamped(moment, line, options) for moment, line in past)
    if options.follow and not options.previous and "terminated" not in (_state(container).get("state") or {}):
        async for piece in _follow(container, options, added, seen, count):
            yield piece


def _started(container: Container) -> float:
    """Return the time of the first line: the start of the container, else the pod's creation."""
    running = (_state(container).get("state") or {}).get("running") or {}
    text = running.get("startedAt") or container.pod["metadata"].get("creationTimestamp") or "1970-01-01T00:00:00Z"
    return datetime.fromisoformat(text).timestamp()


async def _follow(
    container: Container, options: Options, added: AddedLines, seen: int, number: int
) -> AsyncIterator[bytes]:
    """Yield new lines one by one, until the pod is deleted."""
    cluster = container.cluster
    interval = _annotation(container, "interval", DEFAULT_INTERVAL)
    pods = cluster.store.collection(("", "pods"))
    changed = pods.subscribe()
    loop = asyncio.get_running_loop()
    due = loop.time() + interval
    try:
        while _alive(container):
            fresh = added.lines[max(0, seen - added.dropped) :]
            seen = added.dropped + len(added.lines)
            for moment, line in fresh:
                yield _stamped(moment, line, options)
            if interval > 0 and loop.time() >= due:
                due += interval
                yield _stamped(cluster.now().timestamp(), _line(container, number, options), options)
                number += 1
                continue
            await _wait(changed, added.more, max(0.0, due - loop.time()) if interval > 0 else None)
            changed.clear()
    finally:
        pods.unsubscribe(changed)


def _alive(container: Container) -> bool:
    pod = container.cluster.store.get(("", "pods"), container.namespace, container.pod_name)
    if pod is None or pod["metadata"].get("uid") != container.pod["metadata"].get("uid"):
        return False
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


async def _wait(changed: asyncio.Event, more: asyncio.Event, seconds: float | None) -> None:
    waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(more.wait())]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


async def _large_log(container: Container, size: int) -> AsyncIterator[bytes]:
    """Yield a log of `size` bytes, from one prepared block of lines."""
    line = (
        f"a long log of {container.namespace}/{container.pod_name}/{container.name} ".encode().ljust(127, b".") + b"\n"
    )
    block = line * (BLOCK // len(line))
    left = size
    while left > 0:
        yield block if left >= len(block) else block[:left]
        left -= len(block)
