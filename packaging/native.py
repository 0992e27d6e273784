"""Compiles the modules of the data plane (native_modules.py) with mypyc, one extension module beside each source.

usage: native.py [--opt LEVEL] [--jobs N] [--into FOLDER] [--symbols]     (`make native`)
       native.py --clean

All are one group: their code is in one shared library, mcproxy__mypyc.*.so, in the folder that holds the package, for
mypyc looks there; the extension module of each is a shim that calls it. What is made on the way is kept in
build/native/SOABI, and C is compiled anew only where it, a header or an option has changed. The names of all files have
the ABI of this interpreter, so builds for several Pythons stand side by side.

In the checkout a record (mcproxy/compiled.py) of the sources is written last: a build that was broken off is not taken
for one. A wheel (hatch_hook.py) has them put into a folder of their own instead.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from native_modules import ROOT, compiled_files

sys.path.insert(0, str(ROOT))
os.environ["MCPROXY_PURE"] = "1"  # this program imports mcproxy.compiled only, whatever is compiled already
from mcproxy import compiled

SOABI = str(sysconfig.get_config_var("SOABI"))
SUFFIX = f".{SOABI}.so"
GROUP = "mcproxy"
BUILD = ROOT / "build" / "native" / SOABI

#: No debug information, and only what Python calls is visible: the smallest shared library.
FLAGS = ("-g0", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")
LINK_FLAGS = ("-Wl,--gc-sections", "-Wl,-O1")
STRIP = "-Wl,-s"

#: Where a class says that its instances take weak references, in the C of mypyc.
_WEAK = ".tp_weaklistoffset = "


class NativeError(Exception):
    """Why nothing was built, for the user."""


def build(into: Path, optimization: str, jobs: int, *, symbols: bool = False) -> None:
    """Compile, and put the extension modules into `into`, a folder that holds the package. Raises NativeError.

    `symbols`: with the names of all functions, for profilers (`python -m bench instructions`, perf).
    """
    compiler = _compiler()
    begun = time.monotonic()
    files = compiled_files()
    modules = _generate(files, optimization)
    generated = time.monotonic()
    library, *shims = modules
    link_flags = LINK_FLAGS if symbols else (*LINK_FLAGS, STRIP)
    built = {library.name: _link(compiler, library, jobs, link_flags)}
    with ThreadPoolExecutor(jobs) as pool:
        paths = pool.map(lambda shim: _link(compiler, shim, 1, link_flags), shims)
        built |= dict(zip((shim.name for shim in shims), paths, strict=True))
    _install(built, into)
    if into == ROOT:
        compiled.write_record(into, SOABI, [*files, *_imported(files)], files)
    size = sum(path.stat().st_size for path in built.values()) / 2**20
    print(
        f"{len(files)} modules compiled for {SOABI}, {size:.1f} MiB, in {time.monotonic() - begun:.0f} s "
        f"({generated - begun:.0f} s of these to C)"
    )


def clean(into: Path, soabi: str = "*") -> None:
    """Remove the extension modules, for all Pythons or that of one ABI, so that the sources run."""
    for pattern in (
        f"mcproxy/**/*.{soabi}.so",
        f"{compiled.LIBRARY}.{soabi}.so",
        f"mcproxy/{compiled.RECORD}-{soabi}.txt",
    ):
        for path in into.glob(pattern):
            path.unlink()


def _compiler() -> list[str]:
    """Return the command that compiles C for this Python."""
    command = shlex.split(os.environ.get("CC") or "cc")
    if shutil.which(command[0]) is None:
        raise NativeError(
            f"the C compiler {command[0]!r} is missing: install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev)"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        raise NativeError(
            f"Python's headers are missing, {header}: install them (Debian, Ubuntu: apt-get install {name}-dev)"
        )
    return command


def _generate(files: Sequence[str], optimization: str) -> Sequence[Any]:
    """Write the C of the modules; return setuptools' descriptions of the library and of the shims.

    mypy says on standard output what is wrong, and ends the program.
    """
    from mypyc.build import mypycify

    BUILD.mkdir(parents=True, exist_ok=True)
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    options = configparser.ConfigParser()
    for section in settings.sections():
        if section.startswith("mypy"):
            options[section] = settings[section]
    del options["mypy"]["files"]
    options["mypy"]["python_version"] = f"{sys.version_info[0]}.{sys.version_info[1]}"
    options["mypy"]["cache_dir"] = str(BUILD / "mypy_cache")
    file = BUILD / "mypy.cfg"
    with file.open("w") as target:
        options.write(target)
    os.chdir(ROOT)
    found: Sequence[Any] = mypycify(
        ["--config-file", str(file), *files],
        opt_level=optimization,
        debug_level="0",
        multi_file=True,
        target_dir=str(BUILD / "c"),
        group_name=GROUP,
    )
    return found


def _link(compiler: Sequence[str], module: Any, jobs: int, link_flags: Sequence[str]) -> Path:
    """Compile what setuptools' `module` lists, and link it, unless nothing has changed; return the file."""
    include = [sysconfig.get_path("include"), *module.include_dirs]
    flags = [
        *("-fPIC", "-fwrapv", "-DNDEBUG", "-pthread"),
        *module.extra_compile_args,
        *FLAGS,
        *(f"-I{folder}" for folder in dict.fromkeys(include)),
    ]
    common = _digest(
        [*compiler, *flags],
        (header for folder in dict.fromkeys(include) for header in sorted(Path(folder).glob("*.h"))),
    )

    def compile_one(source: str) -> Path:
        target = BUILD / "objects" / Path(source).resolve().relative_to(ROOT).with_suffix(".o")
        mended = str(_without_weak_references(Path(source)))
        _make(target, _digest([common], [Path(mended)]), [*compiler, *flags, "-c", mended, "-o"])
        return target

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, module.sources))
    target: Path = BUILD / "modules" / (module.name.replace(".", "/") + SUFFIX)
    _make(target, _digest(link_flags, objects), [*compiler, "-shared", *link_flags, *map(str, objects), "-o"])
    return target


def _without_weak_references(source: Path) -> Path:
    """Return C whose classes refuse weak references with a TypeError: `source`, or a mended copy.

    On Python 3.11 mypyc lets those with a `__dict__` take them (exceptions, generics), and clears none when the
    instance is freed: what the reference returns then is freed memory.
    """
    code = source.read_text()
    if _WEAK not in code:
        return source
    mended = BUILD / "mended" / source.resolve().relative_to(ROOT)
    mended.parent.mkdir(parents=True, exist_ok=True)
    mended.write_text("".join(line for line in code.splitlines(keepends=True) if _WEAK not in line))
    return mended


def _make(target: Path, digest: str, command: Sequence[str]) -> None:
    """Run `command` with `target` added, unless it was made from the same; the digest of that is kept beside it."""
    kept = target.with_name(target.name + ".from")
    if target.exists() and kept.exists() and kept.read_text() == digest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    kept.unlink(missing_ok=True)
    done = subprocess.run([*command, str(target)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NativeError(f"{shlex.join(command)} failed:\n{done.stderr}")
    kept.write_text(digest)


def _digest(words: Iterable[str], files: Iterable[Path]) -> str:
    found = hashlib.sha256("\0".join(words).encode())
    for file in files:
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()


def _install(built: dict[str, Path], into: Path) -> None:
    """Put the files in place, each at once: a process that has an old one open keeps it."""
    library = into / (compiled.LIBRARY + SUFFIX)
    (into / "mcproxy" / f"{compiled.RECORD}-{SOABI}.txt").unlink(missing_ok=True)
    kept = {into / (name.replace(".", "/") + SUFFIX) for name in built}
    if built and not library.exists():
        library.touch()  # a library without a record is an unfinished build
    for path in into.glob(f"mcproxy/**/*{SUFFIX}"):
        if path not in kept:
            path.unlink()
    for name, path in built.items():
        target = into / (name.replace(".", "/") + SUFFIX)
        target.parent.mkdir(parents=True, exist_ok=True)
        new = target.with_name(target.name + ".new")
        shutil.copy2(path, new)
        new.replace(target)


def _imported(files: Sequence[str]) -> list[str]:
    """Return the interpreted modules that these import: mypyc writes their constants into what it compiles."""
    found = set()
    for file in files:
        for node in ast.walk(ast.parse((ROOT / file).read_bytes())):
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
    paths = {f"{name.replace('.', '/')}.py" for name in found if name.startswith("mcproxy.")} - set(files)
    return sorted(path for path in paths if (ROOT / path).is_file())


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--opt", default="2", choices=("0", "1", "2", "3"), help="optimization of C")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--into", type=Path, default=ROOT, help="folder for them, instead of the checkout")
    parser.add_argument("--symbols", action="store_true", help="keep the names of functions, for profilers")
    parser.add_argument("--clean", action="store_true", help="remove what was built instead")
    options = parser.parse_args(arguments)
    into = options.into.resolve()
    if options.clean:
        clean(into)
        return 0
    try:
        build(into, options.opt, max(1, options.jobs), symbols=options.symbols)
    except (NativeError, ValueError) as problem:
        print(f"native.py: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
