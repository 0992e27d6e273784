"""Runs the commands of exec and attach, over any stream protocol, and returns their results as a Status."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from kubesim.container import pod_network
from kubesim.container.byte_streams import BrokenPipe, Empty, Input, Null, Output
from kubesim.container.commands import CommandNotFound, Process, run
from kubesim.container.containers import Container

__all__ = ["Request", "Streams", "attach", "execute", "exit_status", "serve"]

JSONDict = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """The parameters of pods/exec or pods/attach."""

    container: Container
    attach: bool
    command: tuple[str, ...]
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


@dataclass
class Streams:
    """The streams of a process; `closed` is set when the client has disconnected."""

    stdin: Input
    stdout: Output
    stderr: Output
    size: list[int]
    resized: asyncio.Event
    closed: asyncio.Event


async def serve(request: Request, streams: Streams) -> JSONDict | None:
    """Run the request to its end; return the kubelet's Status, or None when the client disconnected first."""
    work: Coroutine[Any, Any, JSONDict] = attach(request, streams) if request.attach else execute(request, streams)
    job = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(streams.closed.wait())
    try:
        await asyncio.wait((job, gone), return_when=asyncio.FIRST_COMPLETED)
        return job.result() if job.done() else None
    finally:
        job.cancel()
        gone.cancel()


def _process(request: Request, streams: Streams) -> Process:
    container = request.container
    return Process(
        files=container.files,
        stdin=streams.stdin if request.stdin else Empty(),
        stdout=streams.stdout if request.stdout else Null(),
        stderr=streams.stderr if request.stderr and not request.tty else Null(),
        environment=container.environment | ({"TERM": "xterm"} if request.tty else {}),
        now=lambda: container.cluster.now().timestamp(),
        ask_service=lambda host: pod_network.ask_service(container.cluster, container.namespace, host),
        size=streams.size,
        tty=request.tty,
        resized=streams.resized,
    )


async def execute(request: Request, streams: Streams) -> JSONDict:
    """Run a command (pods/exec)."""
    try:
        return exit_status(await run(_process(request, streams), list(request.command)))
    except CommandNotFound as error:
        quoted = json.dumps(str(error), ensure_ascii=False)
        text = (
            "error executing command in container: OCI runtime exec failed: exec failed: unable to start container "
            f"process: exec: {quoted}: executable file not found in $PATH"
        )
        return internal_error(text)


async def attach(request: Request, streams: Streams) -> JSONDict:
    """Attach to the container's process, which writes three lines and then echoes its input."""
    process = _process(request, streams)
    newline = "\r\n" if request.tty else "\n"
    try:
        for number in range(3):
            await process.stdout.write(f"attached line {number}{newline}".encode())
        while request.stdin and (data := await process.stdin.read()):
            await process.stdout.write(data)
    except BrokenPipe:
        pass
    return exit_status(0)


def exit_status(code: int) -> JSONDict:
    """Return the Status on the error channel for an exit code (k8s.io/kubelet's remotecommand v4 protocol)."""
    if code == 0:
        return {"status": "Success"}
    return {
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def internal_error(text: str) -> JSONDict:
    return {
        "status": "Failure",
        "message": f"Internal error occurred: {text}",
        "reason": "InternalError",
        "details": {"causes": [{"message": text}]},
        "code": 500,
    }
