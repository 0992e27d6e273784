"""The programs of a simulated container, and a shell that runs them one after the other.

They are what kubectl's exec and cp, the demo and the tests run; none accesses the machine. A script is simple commands
between `;`, `&&`, `||` and newlines, with quotes, `$NAME` and `>&2`: no pipes, loops or files as redirections.

`serve` runs the command of exec or attach over any stream protocol, and returns its result as a Status.
"""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import re
import shlex
import tarfile
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from kubesim.apimachinery.resources import JSONDict
from kubesim.streaming import pod_proxy
from kubesim.streaming.byte_streams import (
    BrokenPipe,
    Empty,
    Input,
    LineReader,
    Null,
    Output,
    TerminalInput,
    TerminalOutput,
)
from kubesim.streaming.containers import Container, FileSystem, FileSystemError

SHELLS = frozenset({"sh", "bash", "ash"})
CHUNK = 1 << 15
_VARIABLE = re.compile(r"'[^']*'|\$(\w+)")  # none within single quotes


class CommandNotFound(Exception):
    """The container has no such executable; exec then fails with the container runtime's message."""


class _Exit(Exception):
    """`exit N` was run."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass
class Process:
    """The input, output and environment of a command.

    `now` returns Unix time; `size` is the terminal's [columns, rows].
    `ask_service` returns the answer of a pod of a service to /hostname: "" if none answers, None for no such service.
    """

    files: FileSystem
    stdin: Input
    stdout: Output
    stderr: Output
    environment: dict[str, str]
    now: Callable[[], float]
    ask_service: Callable[[str], Awaitable[str | None]]
    size: list[int] = field(default_factory=lambda: [80, 24])
    tty: bool = False
    resized: asyncio.Event = field(default_factory=asyncio.Event)

    async def print(self, text: str) -> None:
        await self.stdout.write(text.encode())

    async def complain(self, text: str) -> int:
        """Write a line to stderr; return the exit code 1."""
        await self.stderr.write(f"{text}\n".encode())
        return 1


async def run(process: Process, argv: list[str]) -> int:
    """Run one command to its end; return its exit code. Raises CommandNotFound for an unknown executable."""
    if process.tty:
        process.stdout = TerminalOutput(process.stdout)
        process.stderr = process.stdout
        process.stdin = TerminalInput(process.stdin, process.stdout)
    process.files.now = int(process.now())
    name = _executable(argv[0])
    if name not in SHELLS and name not in COMMANDS:
        raise CommandNotFound(argv[0])
    try:
        if name not in SHELLS:
            return await _command(process, argv)
        if "-c" in argv[1:-1]:
            return await _script(process, argv[argv.index("-c") + 1])
        return await _interactive(process)
    except _Exit as done:
        return done.code
    except BrokenPipe:
        return 141


def _executable(name: str) -> str:
    return name.rpartition("/")[2] if name.startswith(("/bin/", "/usr/bin/")) else name


async def _interactive(process: Process) -> int:
    """Run `sh`: one line at a time from stdin, with a prompt on a terminal, until the end of the input or `exit`."""
    process.stdin = lines = LineReader(process.stdin)
    status = 0
    while True:
        if process.tty:
            await process.print("/ # ")
        line = await lines.readline()
        if not line:
            return status
        status = await _script(process, line.decode("utf-8", "replace"))


async def _script(process: Process, text: str) -> int:
    expanded = _VARIABLE.sub(lambda found: process.environment.get(found[1], "") if found[1] else found[0], text)
    lexer = shlex.shlex(expanded.replace(" 1>&2", " >&2"), posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split = " \t", True
    try:
        tokens = list(lexer)
    except ValueError:
        await process.complain("sh: syntax error: unterminated quoted string")
        return 2
    status, operator, position = 0, "", 0
    while position < len(tokens):
        end = next(
            (at for at in range(position, len(tokens)) if tokens[at].strip(";\n") in ("", "&&", "||")), len(tokens)
        )
        if not (operator == "&&" and status) and not (operator == "||" and not status):
            status = await _simple_command(process, tokens[position:end])
        operator, position = "".join(tokens[end : end + 1]), end + 1
    return status


async def _simple_command(process: Process, words: list[str]) -> int:
    if words[-2:] == [">&", "2"]:
        process, words = replace(process, stdout=process.stderr), words[:-2]
    unknown = next((word for word in words if word and not word.strip(";&|<>\n")), None)
    if unknown is not None:
        await process.complain(f"sh: syntax error: unexpected {unknown!r}")
        return 2
    if not words:
        return 0
    if words[0] == "exit":
        raise _Exit(int(words[1]) & 0xFF if words[1:] and words[1].isdigit() else 0)
    if _executable(words[0]) not in COMMANDS:
        await process.complain(f"sh: {words[0]}: not found")
        return 127
    return await _command(process, words)


async def _command(process: Process, argv: list[str]) -> int:
    try:
        return await COMMANDS[_executable(argv[0])](process, argv[1:])
    except FileSystemError as error:
        return await process.complain(f"{argv[0]}: {error}")


async def _cat(process: Process, args: list[str]) -> int:
    for name in args:
        await process.stdout.write(process.files.read(name))
    while not args and (data := await process.stdin.read()):
        await process.stdout.write(data)
    return 0


async def _echo(process: Process, args: list[str]) -> int:
    await process.print(" ".join(args) + "\n")
    return 0


async def _env(process: Process, args: list[str]) -> int:
    await process.print("".join(f"{name}={value}\n" for name, value in process.environment.items()))
    return 0


async def _head(process: Process, args: list[str]) -> int:
    """`head -n COUNT`: the first lines of stdin."""
    lines = LineReader(process.stdin)
    for _ in range(int(args[1]) if args[:1] == ["-n"] else 10):
        await process.stdout.write(await lines.readline())
    return 0


async def _hostname(process: Process, args: list[str]) -> int:
    await process.print(process.environment["HOSTNAME"] + "\n")
    return 0


async def _ls(process: Process, args: list[str]) -> int:
    for name in args or ["/"]:
        path = process.files.resolve("/", name)
        found = (other for other, _ in process.files.below(path) if posixpath.dirname(other) == path != other)
        await process.print("".join(f"{posixpath.basename(other)}\n" for other in found))
    return 0


async def _rm(process: Process, args: list[str]) -> int:
    """`rm -rf PATH`"""
    for name in args:
        if not name.startswith("-"):
            process.files.remove(name)
    return 0


async def _sleep(process: Process, args: list[str]) -> int:
    await asyncio.sleep(float(args[0]))
    return 0


async def _stty(process: Process, args: list[str]) -> int:
    """`stty size` prints rows and columns; `stty wait` waits for a resize first (for tests, unlike a real stty)."""
    if args == ["wait"]:
        await process.resized.wait()
    await process.print(f"{process.size[1]} {process.size[0]}\n")
    return 0


async def _tar(process: Process, args: list[str]) -> int:
    """Write an archive to stdout (c) or extract one from stdin (x), in the directory of -C, as kubectl cp does it."""
    directory = "/"
    if "-C" in args:
        at = args.index("-C")
        directory, args = args[at + 1], args[:at] + args[at + 2 :]
    letters, *names = (arg for arg in args if arg != "-" and not arg.startswith("--"))
    return await (_extract(process, directory) if "x" in letters else _archive(process, directory, names))


async def _archive(process: Process, directory: str, names: list[str]) -> int:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in names:
            path = process.files.resolve(directory, name)
            for member, entry in process.files.below(path):
                info = tarfile.TarInfo((name.rstrip("/") + member.removeprefix(path)).lstrip("/") or ".")
                info.mode, info.mtime, info.size = entry.mode, entry.mtime, len(entry.data or b"")
                info.type = tarfile.DIRTYPE if entry.data is None else tarfile.REGTYPE
                archive.addfile(info, io.BytesIO(entry.data or b""))
    data = packed.getvalue()
    for start in range(0, len(data), CHUNK):
        await process.stdout.write(data[start : start + CHUNK])
    return 0


async def _extract(process: Process, directory: str) -> int:
    packed = bytearray()
    while data := await process.stdin.read():
        packed += data
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            for info in archive:
                path = process.files.resolve(directory, info.name)
                content = archive.extractfile(info)
                if info.isdir():
                    process.files.make_directory(path, mode=info.mode)
                elif content is not None:
                    process.files.write(path, content.read(), mode=info.mode)
    except tarfile.TarError as error:
        return await process.complain(f"tar: {error}")
    return 0


async def _test(process: Process, args: list[str]) -> int:
    """`test -d PATH`, with which kubectl cp finds the directory to copy to."""
    entry = process.files.entries.get(process.files.resolve("/", args[1]))
    return int(entry is None or entry.data is not None)


async def _wget(process: Process, args: list[str]) -> int:
    """Get http://SERVICE/hostname, the name of the pod that answers for a service; nothing else is served."""
    host, _, path = args[-1].removeprefix("http://").partition("/")
    found = await process.ask_service(host.partition(":")[0])
    if found is None:
        return await process.complain(f"wget: bad address '{host}'")
    if path != "hostname" or not found:
        return await process.complain("wget: server returned error: HTTP/1.1 404 Not Found")
    await process.print(found)
    return 0


COMMANDS: dict[str, Callable[[Process, list[str]], Awaitable[int]]] = {
    "cat": _cat,
    "echo": _echo,
    "env": _env,
    "head": _head,
    "hostname": _hostname,
    "ls": _ls,
    "rm": _rm,
    "sleep": _sleep,
    "stty": _stty,
    "tar": _tar,
    "test": _test,
    "wget": _wget,
}


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
        ask_service=lambda host: pod_proxy.ask_service(container.cluster, container.namespace, host),
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
