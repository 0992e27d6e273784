"""`mcproxy schema`: prints the JSON Schema of the configuration file, for editors and other programs.

An editor with yaml-language-server (VS Code with the YAML extension, Neovim, Helix, Emacs with LSP) completes and
checks a file whose first line names the schema. This needs no network, because the schema is an installed file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mcproxy.cli import FAILED, OK
from mcproxy.daemon.interpreter import single_file

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
An editor with yaml-language-server (VS Code's YAML extension, Neovim, Helix, Emacs) completes and checks the
configuration once its first line is what --modeline prints:

  # yaml-language-server: $schema=/usr/lib/python3/dist-packages/mcproxy/config/mcproxy.schema.json

The path is that of this installation, so no network is needed. Where the file is edited on another machine, print
the schema into a file there and name that one.

examples:
  mcproxy schema > mcproxy.schema.json
  sed -i "1i $(mcproxy schema --modeline)" mcproxy.yaml
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "schema",
        help="print the JSON Schema of the configuration file",
        description="Print the JSON Schema of the configuration file, with a description and the default of every key.",
        epilog=_EPILOG,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--path", action="store_true", help="print the name of the file with the schema instead")
    what.add_argument(
        "--modeline", action="store_true", help="print the comment by which editors find it, for the first line"
    )


def run(args: argparse.Namespace) -> int:
    """Print the schema; 1 if its path was requested and there is no file."""
    if not (args.path or args.modeline):
        sys.stdout.write(schema_text())
        if sys.stdout.isatty():
            print("mcproxy schema: how an editor finds it: mcproxy schema -h", file=sys.stderr)
        return OK
    path = schema_path()
    if path is None:
        what = "this program is a single file, and has the schema in it"
        print(f"mcproxy schema: {what}; print it into a file: mcproxy schema > mcproxy.schema.json", file=sys.stderr)
        return FAILED
    print(f"# yaml-language-server: $schema={path}" if args.modeline else path)
    return OK


def schema_text() -> str:
    """Return the schema as JSON."""
    import importlib.resources

    return importlib.resources.files("mcproxy.config").joinpath("mcproxy.schema.json").read_text("utf-8")


def schema_path() -> Path | None:
    """Return the schema's file; None if its path is temporary (a single-file program unpacks itself)."""
    path = Path(__file__).parents[1] / "config" / "mcproxy.schema.json"
    return path.resolve() if path.is_file() and single_file() is None else None
