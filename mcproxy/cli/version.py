"""`mcproxy version`: prints the versions of the program, its libraries and its platform, for bug reports."""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mcproxy import BUILD, __version__
from mcproxy.cli import OK

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)[^;]*(?:;\s*(.*))?\Z")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_SHOWN_EXTRAS = ("demo", "import", "otel")
"""The extras whose installed libraries are shown; `test` is only for the project itself."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "version",
        help="print the versions of mcproxy, Python, OpenSSL and the libraries",
        description="Print the versions of mcproxy, Python, OpenSSL and the libraries that it uses, as a bug report "
        "needs them, and whether mcproxy is compiled or runs from its sources (pure). `mcproxy --version` prints the "
        "first alone.",
        epilog="examples:\n  mcproxy version\n  mcproxy version -o json | jq -r .openssl",
    )
    parser.add_argument(
        "-o", "--output", metavar="FORMAT", choices=("text", "json"), default="text", help="text (default) or json"
    )


def run(args: argparse.Namespace) -> int:
    """Print the versions."""
    found = versions()
    if args.output == "json":
        print(json.dumps(found, indent=2))
        return OK
    print(f"mcproxy {found['mcproxy']}")
    for name in ("build", "python", "openssl", "system"):
        print(f"  {name:<18} {found[name]}")
    for name, version in found["libraries"].items():
        print(f"  {name:<18} {version}")
    return OK


def versions() -> dict[str, Any]:
    """Return the versions, for JSON, without libraries of extras that are not installed."""
    return {
        "mcproxy": __version__,
        "build": BUILD,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "openssl": _openssl(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "executable": sys.executable,
        "libraries": dict(_libraries()),
    }


def _openssl() -> str:
    """Return the version of the OpenSSL that listeners and connections to clusters use (that of `cryptography`)."""
    from cryptography.hazmat.backends.openssl.backend import backend

    return backend.openssl_version_text()


def _libraries() -> Iterator[tuple[str, str]]:
    """Yield the required libraries, from the metadata of the installation, and installed libraries of extras."""
    from importlib.metadata import PackageNotFoundError, requires, version

    try:
        needed = requires("mcproxy") or []
    except PackageNotFoundError:  # run from a checkout
        needed = []
    seen = set()
    for requirement in needed:
        match = _REQUIREMENT.match(requirement)
        extra = _EXTRA.search(match[2] or "") if match else None
        if match is None or match[1] in seen or (extra is not None and extra[1] not in _SHOWN_EXTRAS):
            continue
        name = match[1]
        try:
            found = version(name)
        except PackageNotFoundError:
            if extra is None:
                yield name, "not installed"
            continue
        seen.add(name)
        yield name, found
