"""The executables of a simulated container. Each is a coroutine of (process, arguments) that returns an exit code."""

from __future__ import annotations

import asyncio
import hashlib
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from kubesim.container.filesystem import FileSystemError
from kubesim.container.process import Process
from kubesim.container.shell_io import LineReader
from kubesim.container.tar import tar

__all__ = ["COMMANDS"]

Command = Callable[["Process", list[str]], Awaitable[int]]
CHUNK = 1 << 15
_ZEROS = bytes(CHUNK)


def _split(args: list[str], with_value: str = "") -> tuple[dict[str, str], list[str]]:
    """Split into short options (letters in `with_value` take a value) and operands."""
    options: dict[str, str] = {}
    operands: list[str] = []
    pending = iter(args)
    for arg in pending:
        if not arg.startswith("-") or arg == "-":
            operands.append(arg)
            continue
        for position, letter in enumerate(arg[1:], 1):
            if letter in with_value:
                options[letter] = arg[position + 1 :] or next(pending, "")
                break
            options[letter] = ""
    return options, operands


async def _pieces(process: Process, names: list[str]) -> AsyncIterator[bytes]:
    """Yield the bytes of the named files, or of stdin."""
    for name in names or ["-"]:
        if name == "-":
            while data := await process.stdin.read():
                yield data
        elif name == "/dev/zero":
            while True:
                yield _ZEROS
                await asyncio.sleep(0)
        elif name != "/dev/null":
            try:
                whole = process.files.read(process.path(name))
            except FileSystemError as error:
                raise FileSystemError(f"can't open '{name}': {error}") from None
            for start in range(0, len(whole), CHUNK):
                yield whole[start : start + CHUNK]


async def _echo(process: Process, args: list[str]) -> int:
    newline = "\n"
    while args and args[0] in ("-n", "-e", "-ne", "-en"):
        newline = "" if "n" in args[0] else newline
        args = args[1:]
    await process.stdout.write((" ".join(args) + newline).encode())
    return 0


async def _printf(process: Process, args: list[str]) -> int:
    text = args[0].replace("\\n", "\n").replace("\\t", "\t").replace("%%", "\0")
    values = args[1:]
    while True:
        line = text
        while values and ("%s" in line or "%d" in line):
            at = min(position for position in (line.find("%s"), line.find("%d")) if position >= 0)
            line = line[:at] + values.pop(0) + line[at + 2 :]
        await process.stdout.write(line.replace("%s", "").replace("%d", "0").replace("\0", "%").encode())
        if not values or line == text:
            return 0


async def _cat(process: Process, args: list[str]) -> int:
    async for data in _pieces(process, args):
        await process.stdout.write(data)
    return 0


async def _tee(process: Process, args: list[str]) -> int:
    _, names = _split(args)
    buffers = [process.files.open_for_writing(process.path(name)) for name in names]
    while data := await process.stdin.read():
        for buffer in buffers:
            process.files.append(buffer, data)
        await process.stdout.write(data)
    return 0


async def _head(process: Process, args: list[str]) -> int:
    options, names = _split(args, "nc")
    if "c" in options:
        left = int(options["c"])
        async for data in _pieces(process, names):
            await process.stdout.write(data[:left])
            left -= len(data)
            if left <= 0:
                break
        return 0
    lines = int(options.get("n") or next((key for key in options if key.isdigit()), "10"))
    async for data in _pieces(process, names):
        parts = data.split(b"\n", lines)
        lines -= len(parts) - 1
        await process.stdout.write(data if lines > 0 else data[: len(data) - len(parts[-1])])
        if lines <= 0:
            break
    return 0


async def _tail(process: Process, args: list[str]) -> int:
    options, names = _split(args, "nc")
    whole = b"".join([data async for data in _pieces(process, names)])
    if "c" in options:
        count = options["c"]
        await process.stdout.write(whole[int(count[1:]) - 1 :] if count.startswith("+") else whole[-int(count) :])
        return 0
    lines = whole.splitlines(keepends=True)
    count = options.get("n") or "10"
    await process.stdout.write(b"".join(lines[int(count[1:]) - 1 :] if count.startswith("+") else lines[-int(count) :]))
    return 0


async def _ls(process: Process, args: list[str]) -> int:
    options, names = _split(args)
    status = 0
    for name in names or ["."]:
        path = process.path(name)
        entry = process.files.entries.get(path)
        if entry is None:
            await process.stderr.write(f"ls: {name}: No such file or directory\n".encode())
            status = 1
            continue
        found = process.files.children(path) if entry.is_directory and "d" not in options else [name]
        for child in found:
            if child.startswith(".") and "a" not in options and entry.is_directory:
                continue
            full = process.files.resolve(path, child) if entry.is_directory else path
            await process.stdout.write((_long(process, full, child) if "l" in options else f"{child}\n").encode())
    return status


def _long(process: Process, path: str, name: str) -> str:
    entry = process.files.entries[path]
    kind = stat.S_IFDIR if entry.is_directory else stat.S_IFREG
    when = time.strftime("%b %e %H:%M", time.gmtime(entry.mtime))
    return f"{stat.filemode(kind | entry.mode)} 1 root root {len(entry.data or b''):8} {when} {name}\n"


async def _pwd(process: Process, args: list[str]) -> int:
    await process.stdout.write(f"{process.cwd}\n".encode())
    return 0


async def _env(process: Process, args: list[str]) -> int:
    lines = [process.environment.get(name, "") for name in args]
    lines = lines or [f"{name}={value}" for name, value in process.environment.items()]
    await process.stdout.write("".join(f"{line}\n" for line in lines).encode())
    return 0


async def _date(process: Process, args: list[str]) -> int:
    form = next((arg[1:] for arg in args if arg.startswith("+")), "%a %b %e %H:%M:%S UTC %Y")
    now = process.now()
    text = time.strftime(form.replace("%s", str(int(now))), time.gmtime(now))
    await process.stdout.write(f"{text}\n".encode())
    return 0


async def _sleep(process: Process, args: list[str]) -> int:
    await asyncio.sleep(float(args[0].rstrip("s")) if args else 0)
    return 0


async def _true(process: Process, args: list[str]) -> int:
    return 0


async def _false(process: Process, args: list[str]) -> int:
    return 1


async def _test(process: Process, args: list[str]) -> int:
    args = [arg for arg in args if arg != "]"]
    if args and args[0] == "!":
        return int(not await _test(process, args[1:]))
    if len(args) == 2 and args[0] in ("-d", "-e", "-f", "-s", "-x", "-r"):
        entry = process.files.entries.get(process.path(args[1]))
        if entry is None:
            return 1
        wanted = {"-d": entry.is_directory, "-f": not entry.is_directory, "-s": bool(entry.data)}
        return int(not wanted.get(args[0], True))
    if len(args) == 2 and args[0] in ("-n", "-z"):
        return int(bool(args[1]) != (args[0] == "-n"))
    if len(args) == 3:
        return int(not _compare(*args))
    return int(not (len(args) == 1 and args[0]))


def _compare(left: str, operator: str, right: str) -> bool:
    if operator in ("=", "==", "!="):
        return (left == right) == (operator != "!=")
    try:
        numbers = int(left), int(right)
    except ValueError:
        return False
    comparisons = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}
    return (numbers[0] > numbers[1]) - (numbers[0] < numbers[1]) in comparisons.get(operator, ())


async def _mkdir(process: Process, args: list[str]) -> int:
    options, names = _split(args)
    for name in names:
        process.files.make_directory(process.path(name), parents="p" in options)
    return 0


async def _rm(process: Process, args: list[str]) -> int:
    options, names = _split(args)
    for name in names:
        path = process.path(name)
        if path in process.files.entries or "f" not in options:
            process.files.remove(path, recursive="r" in options or "R" in options)
    return 0


async def _touch(process: Process, args: list[str]) -> int:
    for name in args:
        process.files.open_for_writing(process.path(name), append=True)
    return 0


async def _wc(process: Process, args: list[str]) -> int:
    options, names = _split(args)
    lines = words = size = 0
    async for data in _pieces(process, names):
        lines, words, size = lines + data.count(b"\n"), words + len(data.split()), size + len(data)
    counts = [value for key, value in (("l", lines), ("w", words), ("c", size)) if key in options or not options]
    await process.stdout.write((" ".join(map(str, [*counts, *names])) + "\n").encode())
    return 0


async def _seq(process: Process, args: list[str]) -> int:
    first, last = (1, int(args[0])) if len(args) == 1 else (int(args[0]), int(args[-1]))
    for start in range(first, last + 1, 1000):
        await process.stdout.write("".join(f"{n}\n" for n in range(start, min(start + 1000, last + 1))).encode())
    return 0


async def _sum(process: Process, args: list[str], kind: str) -> int:
    digest = hashlib.new(kind, usedforsecurity=False)
    async for data in _pieces(process, args):
        digest.update(data)
    await process.stdout.write(f"{digest.hexdigest()}  {args[0] if args else '-'}\n".encode())
    return 0


async def _sha256sum(process: Process, args: list[str]) -> int:
    return await _sum(process, args, "sha256")


async def _md5sum(process: Process, args: list[str]) -> int:
    return await _sum(process, args, "md5")


async def _grep(process: Process, args: list[str]) -> int:
    options, operands = _split(args)
    wanted, names = operands[0].encode(), operands[1:]
    whole = b"".join([data async for data in _pieces(process, names)])
    found = [line for line in whole.splitlines(keepends=True) if (wanted in line) != ("v" in options)]
    if "q" not in options:
        await process.stdout.write(f"{len(found)}\n".encode() if "c" in options else b"".join(found))
    return int(not found)


async def _hostname(process: Process, args: list[str]) -> int:
    await process.stdout.write((process.environment.get("HOSTNAME", "") + "\n").encode())
    return 0


async def _wget(process: Process, args: list[str]) -> int:
    """Get http://SERVICE/hostname, the name of the pod that answers for a service; nothing else is served."""
    host, _, path = (args[-1] if args else "").removeprefix("http://").partition("/")
    found = await process.ask_service(host.partition(":")[0]) if process.ask_service is not None else None
    if found is None:
        await process.stderr.write(f"wget: bad address '{host}'\n".encode())
        return 1
    if path != "hostname" or not found:
        await process.stderr.write(b"wget: server returned error: HTTP/1.1 404 Not Found\n")
        return 1
    await process.stdout.write(found.encode())
    return 0


async def _whoami(process: Process, args: list[str]) -> int:
    await process.stdout.write(b"root\n")
    return 0


async def _id(process: Process, args: list[str]) -> int:
    await process.stdout.write(b"uid=0(root) gid=0(root) groups=0(root)\n")
    return 0


async def _uname(process: Process, args: list[str]) -> int:
    name = process.environment.get("HOSTNAME", "")
    await process.stdout.write(f"Linux {name} 6.12.0 x86_64 GNU/Linux\n".encode() if args else b"Linux\n")
    return 0


async def _stty(process: Process, args: list[str]) -> int:
    """`stty size` prints rows and columns; `stty wait` waits for a resize first (for tests, unlike a real stty)."""
    if args == ["wait"]:
        await process.resized.wait()
    await process.stdout.write(f"{process.size[1]} {process.size[0]}\n".encode())
    return 0


async def _yes(process: Process, args: list[str]) -> int:
    block = ((" ".join(args) or "y") + "\n").encode()
    block *= max(1, CHUNK // len(block))
    while True:
        await process.stdout.write(block)
        await asyncio.sleep(0)


async def _rev_lines(process: Process, args: list[str]) -> int:
    lines = LineReader(process.stdin)
    while line := await lines.readline():
        await process.stdout.write(line.rstrip(b"\n")[::-1] + b"\n")
    return 0


COMMANDS: dict[str, Command] = {
    "[": _test,
    "cat": _cat,
    "date": _date,
    "echo": _echo,
    "env": _env,
    "false": _false,
    "grep": _grep,
    "head": _head,
    "hostname": _hostname,
    "wget": _wget,
    "id": _id,
    "ls": _ls,
    "md5sum": _md5sum,
    "mkdir": _mkdir,
    "printenv": _env,
    "printf": _printf,
    "pwd": _pwd,
    "rev": _rev_lines,
    "rm": _rm,
    "seq": _seq,
    "sha256sum": _sha256sum,
    "sleep": _sleep,
    "stty": _stty,
    "tail": _tail,
    "tar": tar,
    "tee": _tee,
    "test": _test,
    "touch": _touch,
    "true": _true,
    "uname": _uname,
    "wc": _wc,
    "whoami": _whoami,
    "yes": _yes,
    ":": _true,
}
