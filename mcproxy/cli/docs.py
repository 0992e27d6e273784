"""`mcproxy docs`: shows the manual of this version, which is installed with the program, in the pager.

Pages are plain Markdown, the reference is made from the manual pages; `mcproxy files` also has them as HTML.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcproxy.cli import FAILED, OK, USAGE
from mcproxy.cli.files import contents, installed_files
from mcproxy.cli.manual_page import Block, as_text, blocks

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
examples:
  mcproxy docs
  mcproxy docs install
  mcproxy docs troubleshooting#endpoint_out
  mcproxy docs mcproxy.yaml | grep -A 5 drainTimeout
"""

_FIRST = {
    "doc/mcproxy/README.md": ("overview", "what it is, the configuration by examples, the commands"),
    "man/man8/mcproxy.8": ("mcproxy", "reference of the commands: mcproxy(8)"),
    "man/man5/mcproxy.yaml.5": ("mcproxy.yaml", "reference of the configuration: mcproxy.yaml(5)"),
    "doc/mcproxy/CHANGELOG.md": ("changelog", "what has changed"),
}
"""Pages that are not in docs/, by the names of their files: name and subject."""
_FOLDER = "doc/mcproxy/docs/"
_INDEX = _FOLDER + "README.md"
_HTML = "doc/mcproxy/html/index.html"


_WIDTH = 100  # columns of the reference; pages have their own lines


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    about: str
    path: Path

    def text(self) -> str:
        """Return the page for a terminal. Raises OSError."""
        text = contents(self.path).decode()
        return as_text(blocks(text), _width()) if self._is_reference else text

    def sections(self) -> dict[str, str]:
        """Return the page's sections by their anchors, each with its subsections. Raises OSError."""
        text = contents(self.path).decode()
        if not self._is_reference:
            return sections(text)
        parts: dict[str, list[Block]] = {}
        anchors = Anchors()
        above = name = ""
        for block in blocks(text):
            if block.kind in ("section", "subsection"):
                name = anchors.of(block.text)
            if block.kind == "section":
                above = name
            for each in {above, name}:
                parts.setdefault(each, []).append(block)
        return {name: as_text(part, _width()) for name, part in parts.items()}

    @property
    def _is_reference(self) -> bool:
        return self.path.name.removesuffix(".gz")[-2:] in (".5", ".8")


def _width() -> int:
    return min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "docs",
        help="read the manual that comes with the program",
        description="Show a page of the manual in the pager (PAGER, else less), or print it where there is no "
        "terminal; without a name list the pages.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "page",
        nargs="?",
        metavar="PAGE",
        help="its name in the list; with #ANCHOR, the words of a heading, that section",
    )


def run(args: argparse.Namespace) -> int:
    """List the pages, or show one; 1 if none are installed, 2 if there is none of that name."""
    files = dict(installed_files())
    known = pages(files)
    if not known:
        print(
            "mcproxy docs: the manual is not beside this program (images of containers often leave out share/doc)",
            file=sys.stderr,
        )
        return FAILED
    if args.page is None:
        width = max(map(len, known))
        for each in known.values():
            print(f"{each.name:<{width}}  {each.about}")
        if _HTML in files:
            print(f"\nAs HTML: {files[_HTML]}")
        return OK
    wanted, _, anchor = args.page.partition("#")
    page = known.get(_name(wanted))
    if page is None:
        return _unknown(f"no page {wanted}", _name(wanted), known, "`mcproxy docs` lists them")
    if not anchor:
        show(page.text(), os.environ)
        return OK
    parts = page.sections()
    if anchor not in parts:
        return _unknown(f"no section #{anchor} in {page.name}", anchor, parts, f"see `mcproxy docs {page.name}`")
    show(parts[anchor], os.environ)
    return OK


def pages(files: Mapping[str, Path]) -> dict[str, Page]:
    """Return the pages of `installed_files` by name, in the order of the index. Raises OSError."""
    found = [Page(name, about, files[file]) for file, (name, about) in _FIRST.items() if file in files]
    index = contents(files[_INDEX]).decode() if _INDEX in files else ""
    rest = {
        file.removeprefix(_FOLDER).removesuffix(".md"): path
        for file, path in files.items()
        if file.startswith(_FOLDER) and file.endswith(".md") and file != _INDEX
    }
    for line in index.splitlines():
        cells = line.strip("|").split(" | ")
        about = cells[-1].replace("`", "").strip()
        names = re.findall(r"\(([\w-]+)\.md\)", cells[0])
        found += [Page(name, about, rest.pop(name)) for name in names if name in rest]
    found += [Page(name, "", path) for name, path in sorted(rest.items())]
    return {page.name: page for page in found}


def _name(wanted: str) -> str:
    """Return the name of a page given in another form: docs/install.md, mcproxy.yaml(5), README.md."""
    name = re.sub(r"\([58]\)$|\.md$", "", wanted.rpartition("/")[2])
    names = {"README": "overview", "readme": "overview", "CHANGELOG": "changelog", "mcproxy.yaml.5": "mcproxy.yaml"}
    return names.get(name, "mcproxy" if name == "mcproxy.8" else name)


def _unknown(what: str, wanted: str, known: Sequence[str] | Mapping[str, object], where: str) -> int:
    meant = difflib.get_close_matches(wanted, known, 1, 0.5) or [name for name in known if wanted and wanted in name]
    right = f"did you mean {meant[0]}? " if meant else ""
    print(f"mcproxy docs: {what}; {right}{where}", file=sys.stderr)
    return USAGE


class Anchors:
    """The anchors of a page's headings, as GitHub makes them: of equal ones the second is HEADING-1."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def of(self, heading: str) -> str:
        """Return the anchor of the next heading."""
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        count = self._counts[anchor] = self._counts.get(anchor, -1) + 1
        return f"{anchor}-{count}" if count else anchor


def sections(text: str) -> dict[str, str]:
    """Return the sections of a Markdown page by their anchors, each with its subsections."""
    lines = text.splitlines(keepends=True)
    headings: list[tuple[int, int, str]] = []
    fenced = False
    for number, line in enumerate(lines):
        fenced ^= line.lstrip().startswith("```")
        heading = None if fenced else re.match(r"(#+) (.*)", line)
        if heading is not None:
            headings.append((number, len(heading[1]), heading[2]))
    found: dict[str, str] = {}
    anchors = Anchors()
    for place, (number, level, heading_text) in enumerate(headings):
        end = next((after for after, other, _ in headings[place + 1 :] if other <= level), len(lines))
        found[anchors.of(heading_text)] = "".join(lines[number:end])
    return found


def show(text: str, environ: Mapping[str, str]) -> None:
    """Write a text by the pager if standard output is a terminal, else plainly."""
    command = _pager(environ) if sys.stdout.isatty() else None
    if command is None:
        sys.stdout.write(text)
        return
    # F: a short text is only printed; X: the text stays on the screen afterwards.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={"LESS": "FRX", **environ})
    try:
        process.communicate(text.encode())
    except KeyboardInterrupt:  # the pager gets the signal too, and handles it
        while True:
            try:
                process.wait()
                return
            except KeyboardInterrupt:
                continue


def _pager(environ: Mapping[str, str]) -> list[str] | None:
    """Return the command: that of PAGER, else less; None without any."""
    for wanted in (environ.get("PAGER"), "less"):
        if wanted is None:
            continue
        try:
            command = shlex.split(wanted)
        except ValueError:
            continue
        if not command:
            return None  # PAGER is empty: none is wanted
        program = shutil.which(command[0])
        if program is not None:
            return [program, *command[1:]]
    return None
