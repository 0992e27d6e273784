"""`mcproxy files`: what comes with the program for an operator: manual pages, unit, example configuration, dashboards.

They are below share/ of the installation, wherever that is; a checkout has them where they are edited. The single-file
program unpacks them with itself, so there `--copy-to` is the way to them.
"""

from __future__ import annotations

import argparse
import shutil
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
    "man/mcproxy.8": "man/man8/mcproxy.8",
    "man/mcproxy.yaml.5": "man/man5/mcproxy.yaml.5",
    "packaging/logrotate": "mcproxy/logrotate",
    "packaging/mcproxy.sysusers": "mcproxy/sysusers.conf",
    "packaging/mcproxy.tmpfiles": "mcproxy/tmpfiles.conf",
    "schema/mcproxy.schema.json": "mcproxy/mcproxy.schema.json",
}
"""Names in a checkout, and those that pyproject.toml gives them; etc/ and systemd/ go to mcproxy/ as they are."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "files",
        help="find or copy the manual pages, the systemd unit and the examples that come with the program",
        description="List the files that come with the program, each with where it is; or print the one that is named.",
        epilog=_EPILOG,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("name", nargs="?", metavar="NAME", help="print this one, by its name in the list")
    what.add_argument("--copy-to", metavar="DIR", type=Path, help="copy all to this folder, by their names")


def run(args: argparse.Namespace) -> int:
    """List, print or copy; 1 if there are none, or none of that name."""
    found = dict(sorted(installed_files()))
    if not found:
        print("mcproxy files: none are installed beside this program", file=sys.stderr)
        return FAILED
    if args.copy_to is not None:
        for name, path in found.items():
            target = args.copy_to / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            print(target)
    elif args.name is None:
        width = max(map(len, found))
        for name, path in found.items():
            print(f"{name:<{width}}  {path}")
    elif args.name in found:
        sys.stdout.write(found[args.name].read_text("utf-8"))
    else:
        print(f"mcproxy files: no file of the name {args.name}; `mcproxy files` lists them", file=sys.stderr)
        return FAILED
    return OK


def installed_files() -> Iterator[tuple[str, Path]]:
    """Yield name and path of each: below share/ of the installation, or in the checkout that this is."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "packaging" / "tree.py").is_file():
        for source, name in _CHECKOUT.items():
            yield name, checkout / source
        for folder in ("etc", "systemd"):
            for path in (checkout / folder).rglob("*"):
                if path.is_file():
                    yield f"mcproxy/{path.relative_to(checkout)}", path
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
            if path.is_file():
                yield name.removeprefix("share/"), path
