"""The `tar` of a simulated container, which `kubectl cp` runs (`tar cf - PATH`, `tar -xmf - -C DIR`).

Archives are written and read as streams of 512-byte blocks, so that a large copy shows back-pressure.
"""

from __future__ import annotations

import posixpath
import tarfile

from kubesim.container.filesystem import Entry, FileSystemError
from kubesim.container.process import Process
from kubesim.container.shell_io import Input

__all__ = ["tar"]

BLOCK = 512
CHUNK = 1 << 15


async def tar(process: Process, args: list[str]) -> int:
    """Run c or x, with f (`-` or a file), C, m, p and v; z is refused. Exit code 2 as real tar's for a fatal error."""
    letters, operands, directory, archive = "", [], process.cwd, "-"
    pending = iter(args)
    for index, arg in enumerate(pending):
        if arg == "-C":
            directory = process.path(next(pending, ""))
        elif arg == "--":
            continue
        elif (arg.startswith("-") and arg != "-" and not arg.startswith("--")) or index == 0:
            letters += arg.lstrip("-")
            if letters.endswith("f"):
                archive = next(pending, "-")
        elif not arg.startswith("--"):
            operands.append(arg)
    if archive != "-" or "z" in letters or not {"c", "x", "t"} & set(letters):
        await process.stderr.write(b"tar: only archives on stdin and stdout, uncompressed\n")
        return 2
    if "c" in letters:
        return await _create(process, directory, operands)
    return await _extract(process, directory, listing="t" in letters)


def _header(name: str, entry: Entry) -> bytes:
    info = tarfile.TarInfo(name)
    info.mode, info.mtime = entry.mode, entry.mtime
    if entry.is_directory:
        info.type = tarfile.DIRTYPE
    else:
        info.size = len(entry.data or b"")
    return info.tobuf(tarfile.GNU_FORMAT)


async def _create(process: Process, directory: str, operands: list[str]) -> int:
    status = 0
    for operand in operands:
        path = process.files.resolve(directory, operand)
        if path not in process.files.entries:
            await process.stderr.write(f"tar: {operand}: No such file or directory\n".encode())
            status = 1
            continue
        for member in process.files.below(path):
            entry = process.files.entries[member]
            name = (operand.rstrip("/") + member.removeprefix(path)).lstrip("/")
            data = bytes(entry.data or b"")
            await process.stdout.write(_header(name or ".", entry))
            for start in range(0, len(data), CHUNK):
                await process.stdout.write(data[start : start + CHUNK])
            await process.stdout.write(bytes(-len(data) % BLOCK))
    await process.stdout.write(bytes(2 * BLOCK))
    return status


class _Blocks:
    """Exact reads from an input."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._buffer = bytearray()

    async def take(self, size: int) -> bytes:
        """Return `size` bytes, or fewer at the end."""
        while len(self._buffer) < size and (data := await self._source.read()):
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def drain(self) -> None:
        while await self._source.read():
            pass


async def _extract(process: Process, directory: str, *, listing: bool) -> int:
    blocks = _Blocks(process.stdin)
    long_name = ""
    while True:
        head = await blocks.take(BLOCK)
        if len(head) < BLOCK:
            await process.stderr.write(b"tar: short read\n")
            return 1
        if not any(head):
            await blocks.drain()
            return 0
        try:
            info = tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            await process.stderr.write(f"tar: invalid tar header: {error}\n".encode())
            return 1
        padded = info.size + -info.size % BLOCK
        if info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE):
            long_name = _extended_name(info, await blocks.take(padded)) or long_name
            continue
        info.name, long_name = long_name or info.name, ""
        try:
            await _member(process, directory, info, blocks, padded, listing=listing)
        except FileSystemError as error:
            await process.stderr.write(f"tar: can't open '{info.name}': {error}\n".encode())
            return 1


def _extended_name(info: tarfile.TarInfo, data: bytes) -> str:
    if info.type == tarfile.GNUTYPE_LONGNAME:
        return data[: info.size].rstrip(b"\0").decode("utf-8", "surrogateescape")
    for record in data[: info.size].split(b"\n"):  # pax: "LENGTH path=NAME"
        _, _, item = record.partition(b" ")
        if item.startswith(b"path="):
            return item[5:].decode("utf-8", "surrogateescape")
    return ""


async def _member(
    process: Process, directory: str, info: tarfile.TarInfo, blocks: _Blocks, padded: int, *, listing: bool
) -> None:
    path = process.files.resolve(directory, info.name.lstrip("/"))
    if listing:
        await process.stdout.write(f"{info.name}\n".encode())
    elif info.isdir():
        process.files.make_directory(path, parents=True, mode=info.mode)
    elif info.isreg():
        process.files.make_directory(posixpath.dirname(path), parents=True)
        buffer = process.files.open_for_writing(path, mode=info.mode, mtime=int(process.now()))
        left = info.size
        while left and (data := await blocks.take(min(left, CHUNK))):
            process.files.append(buffer, data)
            left -= len(data)
        if left:
            raise FileSystemError("unexpected end of file")
        await blocks.take(padded - info.size)
        return
    await blocks.take(padded)
