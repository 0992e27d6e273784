"""Runs commands in a simulated container, for `kubectl exec` and `kubectl cp`.

A small shell over an in-memory file system: pipes, redirections, loops, variables, and the commands of `commands.py`.
It never accesses the machine it runs on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from kubesim.container import shell_syntax as syntax
from kubesim.container.commands import COMMANDS
from kubesim.container.filesystem import FileSystem, FileSystemError
from kubesim.container.process import Process
from kubesim.container.shell_io import (
    BrokenPipe,
    Buffer,
    Empty,
    Fixed,
    LineReader,
    Null,
    Output,
    Pipe,
    TerminalInput,
    TerminalOutput,
)

__all__ = ["CommandNotFound", "run"]

SHELLS = frozenset({"sh", "bash", "ash", "/bin/sh", "/bin/bash", "/bin/ash"})


class CommandNotFound(Exception):
    """The container has no such executable; exec then fails with the container runtime's message."""


class ExitShell(Exception):
    """`exit N` was run."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


async def run(process: Process, argv: list[str]) -> int:
    """Run one command to its end; return its exit code. Raises CommandNotFound for an unknown executable."""
    if process.tty:
        process.stdout = TerminalOutput(process.stdout)
        process.stderr = process.stdout
        process.stdin = TerminalInput(process.stdin, process.stdout)
    process.files.now = int(process.now())
    if argv[0] not in SHELLS and _executable(argv[0]) not in COMMANDS:
        raise CommandNotFound(argv[0])
    try:
        return await _start(process, argv)
    except ExitShell as done:
        return done.code
    except BrokenPipe:
        return 141


def _executable(name: str) -> str:
    return name.rpartition("/")[2] if name.startswith(("/bin/", "/usr/bin/")) else name


async def _start(process: Process, argv: list[str]) -> int:
    name = argv[0]
    if name in SHELLS:
        options = [arg for arg in argv[1:] if arg.startswith("-")]
        if any("c" in option for option in options):
            rest = [arg for arg in argv[1:] if not arg.startswith("-")]
            return await script(process, rest[0] if rest else "")
        return await interactive(process)
    command = COMMANDS.get(_executable(name))
    if command is None:
        await process.stderr.write(f"sh: {name}: not found\n".encode())
        return 127
    try:
        return await command(process, argv[1:])
    except FileSystemError as error:
        await process.stderr.write(f"{name}: {error}\n".encode())
        return 1


async def script(process: Process, text: str) -> int:
    """Run `sh -c text`."""
    try:
        tree = syntax.parse(text)
    except syntax.ShellSyntaxError as error:
        await process.stderr.write(f"sh: syntax error: {error}\n".encode())
        return 2
    try:
        return await _run(process, tree)
    except ExitShell as done:
        return done.code


async def interactive(process: Process) -> int:
    """Run `sh`: one line at a time from stdin, with a prompt on a terminal, until the end of the input or `exit`."""
    lines = LineReader(process.stdin)
    process.stdin = lines
    while True:
        if process.tty:
            await process.stdout.write(f"{process.cwd} # ".encode())
        line = await lines.readline()
        if not line:
            return process.status
        try:
            process.status = await _run(process, syntax.parse(line.decode("utf-8", "replace")))
        except syntax.ShellSyntaxError as error:
            await process.stderr.write(f"sh: syntax error: {error}\n".encode())
            process.status = 2


async def _run(process: Process, node: syntax.Node) -> int:
    if isinstance(node, syntax.Sequence):
        for operator, item in node.items:
            if (operator == "&&" and process.status) or (operator == "||" and not process.status):
                continue
            process.status = await _run(process, item)
        return process.status
    if isinstance(node, syntax.Pipeline):
        status = await _pipeline(process, node.commands)
        return int(not status) if node.negated else status
    if isinstance(node, syntax.For):
        return await _for(process, node)
    if isinstance(node, syntax.While):
        return await _while(process, node)
    if isinstance(node, syntax.If):
        if await _run(process, node.condition) == 0:
            return await _run(process, node.then)
        return await _run(process, node.otherwise) if node.otherwise is not None else 0
    if isinstance(node, syntax.Group):
        child = replace(process, environment=dict(process.environment))
        try:
            return await _redirected(child, node.redirects, lambda inner: _run(inner, node.body))
        except ExitShell as done:
            return done.code
    return await _simple(process, node)


async def _for(process: Process, node: syntax.For) -> int:
    status = 0
    for word in node.words:
        for value in await _expand(process, word):
            process.environment[node.name] = value
            status = await _run(process, node.body)
            await asyncio.sleep(0)
    return status


async def _while(process: Process, node: syntax.While) -> int:
    status = 0
    while (await _run(process, node.condition) == 0) != node.until:
        status = await _run(process, node.body)
        await asyncio.sleep(0)
    return status


async def _pipeline(process: Process, commands: list[syntax.Node]) -> int:
    if len(commands) == 1:
        return await _run(process, commands[0])
    pipes = [Pipe() for _ in commands[1:]]
    jobs = []
    for index, command in enumerate(commands):
        child = replace(
            process,
            environment=dict(process.environment),
            stdin=pipes[index - 1] if index else process.stdin,
            stdout=pipes[index] if index < len(pipes) else process.stdout,
        )
        jobs.append(asyncio.ensure_future(_stage(child, command, pipes, index)))
    try:
        return (await asyncio.gather(*jobs))[-1]
    finally:
        for job in jobs:
            job.cancel()


async def _stage(process: Process, command: syntax.Node, pipes: list[Pipe], index: int) -> int:
    try:
        return await _run(process, command)
    except BrokenPipe:
        return 141
    except ExitShell as done:
        return done.code
    finally:
        if index < len(pipes):
            await pipes[index].close()
        if index:
            pipes[index - 1].abandon()


async def _simple(process: Process, node: syntax.Simple) -> int:
    argv = [text for word in node.words for text in await _expand(process, word)]
    assigned = {name: " ".join(await _expand(process, word)) for name, word in node.assignments}
    if not argv:
        process.environment.update(assigned)
        return 0
    if argv[0] == "exit":
        raise ExitShell(int(argv[1]) & 0xFF if argv[1:] and argv[1].isdigit() else process.status)
    if argv[0] in ("cd", "export", "read"):
        return await _BUILTINS[argv[0]](process, argv[1:])
    child = replace(process, environment={**process.environment, **assigned}) if assigned else process
    return await _redirected(child, node.redirects, lambda inner: _start(inner, argv))


async def _cd(process: Process, args: list[str]) -> int:
    target = process.path(args[0] if args else "/")
    entry = process.files.entries.get(target)
    if entry is None or not entry.is_directory:
        await process.stderr.write(f"sh: cd: can't cd to {args[0]}: No such file or directory\n".encode())
        return 2
    process.cwd = target
    return 0


async def _export(process: Process, args: list[str]) -> int:
    for arg in args:
        name, equals, value = arg.partition("=")
        if equals:
            process.environment[name] = value
    return 0


async def _read(process: Process, args: list[str]) -> int:
    if not isinstance(process.stdin, LineReader):
        process.stdin = LineReader(process.stdin)
    line = await process.stdin.readline()
    names = [arg for arg in args if not arg.startswith("-")] or ["REPLY"]
    values = line.decode("utf-8", "replace").rstrip("\n").split(None, len(names) - 1)
    for index, name in enumerate(names):
        process.environment[name] = values[index] if index < len(values) else ""
    return 0 if line else 1


_BUILTINS = {"cd": _cd, "export": _export, "read": _read}


class _FileOutput:
    def __init__(self, files: FileSystem, buffer: bytearray) -> None:
        self._files = files
        self._buffer = buffer

    async def write(self, data: bytes) -> None:
        self._files.append(self._buffer, data)


async def _redirected(
    process: Process, redirects: list[syntax.Redirect], action: Callable[[Process], asyncio.Future[int] | object]
) -> int:
    child = replace(process) if redirects else process
    for redirect in redirects:
        target = " ".join(await _expand(process, redirect.target))
        try:
            _redirect(child, redirect, target)
        except FileSystemError as error:
            await process.stderr.write(f"sh: can't open {target}: {error}\n".encode())
            return 1
    status = await action(child)  # type: ignore[misc]
    assert isinstance(status, int)
    return status


def _redirect(process: Process, redirect: syntax.Redirect, target: str) -> None:
    if redirect.how == ">&":
        source = process.stderr if target == "2" else process.stdout
        if redirect.fd == 2:
            process.stderr = source
        else:
            process.stdout = source
    elif redirect.how == "<":
        process.stdin = Empty() if target == "/dev/null" else Fixed(process.files.read(process.path(target)))
    else:
        output: Output = Null()
        if target != "/dev/null":
            path = process.path(target)
            output = _FileOutput(process.files, process.files.open_for_writing(path, append=redirect.how == ">>"))
        if redirect.fd == 2:
            process.stderr = output
        else:
            process.stdout = output


async def _expand(process: Process, word: syntax.Word) -> list[str]:
    """Expand a word to its fields: unquoted expansions are split at white space, quoted ones are not."""
    fields: list[str] = []
    current, started = "", False
    for part in word:
        value = await _value(process, part)
        if part.quoted or not part.expand:
            current, started = current + value, True
            continue
        pieces = value.split()
        if value[:1].isspace() and started:
            fields.append(current)
            current, started = "", False
        for index, piece in enumerate(pieces):
            if index:
                fields.append(current)
                current = ""
            current, started = current + piece, True
    return [*fields, current] if started else fields


async def _value(process: Process, part: syntax.Part) -> str:
    if part.expand == "variable":
        return str(process.status) if part.text == "?" else process.environment.get(part.text, "")
    if part.expand == "command":
        output = Buffer()
        child = replace(process, stdout=output, environment=dict(process.environment))
        process.status = await script(child, part.text)
        return output.data.decode("utf-8", "replace").rstrip("\n")
    return part.text
