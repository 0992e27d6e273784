"""`mcproxy files`: lists the files that come with the program: manual, unit, example configuration, dashboards.

The files are below share/ of the installation, or in the source folders of a checkout. The single-file program unpacks
them only temporarily, so use `--copy-to` with it.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mcproxy.cli import FAILED, OK

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
examples:
  mcproxy files
  mcproxy files mcproxy/systemd/mcproxy.service
  mcproxy files --copy-to /usr/local/share
"""

_CHECKOUT = {
    "CHANGELOG.md": "doc/mcproxy/CHANGELOG.md",
    "README.md": "doc/mcproxy/README.md",
    "man/mcproxy.8": "man/man8/mcproxy.8",
    "man/mcproxy.yaml.5": "man/man5/mcproxy.yaml.5",
    "packaging/logrotate": "mcproxy/logrotate",
    "packaging/mcproxy.sysusers": "mcproxy/sysusers.conf",
    "packaging/mcproxy.tmpfiles": "mcproxy/tmpfiles.conf",
    "schema/mcproxy.schema.json": "mcproxy/mcproxy.schema.json",
}
"""Installed names of files (pyproject.toml), by their names in a checkout."""
_FOLDERS = {"docs": "doc/mcproxy/docs", "etc": "mcproxy/etc", "systemd": "mcproxy/systemd"}
"""Installed names of folders, by their names in a checkout."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "files",
        help="find or copy the manual, the systemd unit and the examples that come with the program",
        description="List the files that come with the program, each with where it is; or print the one that is named.",
        epilog=_EPILOG,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("name", nargs="?", metavar="NAME", help="print this one, by its name in the list")
    what.add_argument("--copy-to", metavar="DIR", type=Path, help="copy all to this folder, by their names")


def run(args: argparse.Namespace) -> int:
    """List, print or copy files; 1 if there are no files, or none with that name."""
    found = dict(sorted(installed_files()))
    if not found:
        print("mcproxy files: none are installed with this program", file=sys.stderr)
        return FAILED
    if args.copy_to is not None:
        for name, path in found.items():
            target = args.copy_to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(contents(path))
            print(target)
    elif args.name is None:
        width = max(map(len, found))
        for name, path in found.items():
            print(f"{name:<{width}}  {path}")
    elif args.name in found:
        sys.stdout.flush()
        sys.stdout.buffer.write(contents(found[args.name]))
    else:
        ends = [name for name in found if name.endswith(f"/{args.name}")]
        meant = ends or difflib.get_close_matches(args.name, found)
        right = f"did you mean {meant[0]}? " if meant else ""
        print(f"mcproxy files: no file of the name {args.name}; {right}`mcproxy files` lists them", file=sys.stderr)
        return FAILED
    return OK


def contents(path: Path) -> bytes:
    """Return the content of a file of `installed_files`. Raises OSError."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def installed_files() -> Iterator[tuple[str, Path]]:
    """Yield name and path of each file: below share/ of the installation, or in the checkout.

    The path, unlike the name, can end in .gz, because Debian compresses manual pages.
    """
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "packaging" / "tree.py").is_file():
        for source, name in _CHECKOUT.items():
            yield name, checkout / source
        for folder, place in _FOLDERS.items():
            for path in (checkout / folder).rglob("*"):
                if path.is_file():
                    yield f"{place}/{path.relative_to(checkout / folder)}", path
        return
    from importlib.metadata import PackageNotFoundError, files

    try:
        listed = files("mcproxy") or []
    except PackageNotFoundError:
        listed = []
    for file in listed:
        _, shared, name = str(file).rpartition("../share/")
        if shared or str(file).startswith("share/"):
            path = Path(str(file.locate())).resolve()
            for form in (path, path.with_name(path.name + ".gz")):
                if form.is_file():
                    yield name.removeprefix("share/"), form
                    break
