"""Makes the single file: the launcher, and behind it the tree (tree.py), compressed.

usage: binary.py TREE FOLDER [LEVEL]     (zstd's, 1 to 19)
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import tree as program_tree
import zstandard

MAGIC = b"mcproxy1"
WINDOW = 25
"""log2 of the bytes that the decoder keeps: 32 MiB while it unpacks."""


def entries(tree: Path) -> Iterator[bytes]:
    """Yield the files of the tree as launcher.c reads them, sorted by kind, as that compresses best."""
    files = (path for path in tree.rglob("*") if path != tree / "made")
    paths = sorted(files, key=lambda path: (0, "", str(path)) if path.is_dir() else (1, path.suffix, str(path)))
    for path in paths:
        mode = path.lstat().st_mode
        if path.is_symlink():
            data = os.fsencode(os.readlink(path))
        elif path.is_dir():
            data = b""
        else:
            data = path.read_bytes()
        name = os.fsencode(path.relative_to(tree))
        permissions = 0o755 if mode & 0o100 else 0o644
        yield struct.pack("<QII", len(data), stat.S_IFMT(mode) | permissions, len(name)) + name + data


def launcher(tree: Path, target: Path) -> bytes:
    """Compile it: static, so that it says itself what is wrong with a host."""
    source = Path(__file__).with_name("launcher.c")
    needs = {"LOADER": program_tree.loader(tree), "GLIBC": program_tree.needed_glibc(tree)}
    options = ("-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", *(f'-D{name}="{needs[name]}"' for name in needs))
    command = [os.environ.get("CC", "cc"), *options, str(source), "-lzstd", "-o", str(target)]
    subprocess.run(command, check=True)
    return target.read_bytes()


def main(arguments: Sequence[str]) -> int:
    """Write the file; return the exit status."""
    tree, folder = (Path(argument).resolve() for argument in arguments[:2])
    target = folder / f"mcproxy-{program_tree.version()}-linux-{platform.machine()}"
    level = int(arguments[2]) if len(arguments) > 2 else 12
    stream = b"".join(entries(tree))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=WINDOW, threads=-1, write_checksum=True
    )
    packed = zstandard.ZstdCompressor(compression_params=parameters).compress(stream)
    head = launcher(tree, target.with_name(target.name + ".launcher"))
    trailer = struct.pack("<QQ32s8s", len(head), len(packed), hashlib.sha256(stream).hexdigest()[:32].encode(), MAGIC)
    making = target.with_name(target.name + ".making")
    making.write_bytes(head + packed + trailer)
    making.chmod(0o755)
    making.replace(target)
    target.with_name(target.name + ".launcher").unlink()
    sizes = f"{target.stat().st_size / 2**20:.1f} MiB, {len(stream) / 2**20:.0f} MiB unpacked"
    print(f"{target}: {sizes}; needs glibc {program_tree.needed_glibc(tree)} or newer")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
