"""`mcproxy docs`: shows the installed manual of this version in the pager.

Pages are plain Markdown. The reference is made from the manual pages. `mcproxy files` also has the pages as HTML.
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
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcproxy.cli import FAILED, OK, USAGE
from mcproxy.cli.files import contents, installed_files

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
"""Name and subject of pages outside docs/, by their file names."""
_FOLDER = "doc/mcproxy/docs/"
_INDEX = _FOLDER + "README.md"
_HTML = "doc/mcproxy/html/index.html"


_WIDTH = 100  # columns of the reference; other pages are not wrapped


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
    """List the pages, or show one; 1 if no pages are installed, 2 for an unknown name."""
    files = dict(installed_files())
    known = pages(files)
    if not known:
        print(
            "mcproxy docs: the manual is not installed with this program (container images often leave out share/doc)",
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
    """Return the name of a page that is given in another form: docs/install.md, mcproxy.yaml(5), README.md."""
    name = re.sub(r"\([58]\)$|\.md$", "", wanted.rpartition("/")[2])
    names = {"README": "overview", "readme": "overview", "CHANGELOG": "changelog", "mcproxy.yaml.5": "mcproxy.yaml"}
    return names.get(name, "mcproxy" if name == "mcproxy.8" else name)


def _unknown(what: str, wanted: str, known: Sequence[str] | Mapping[str, object], where: str) -> int:
    meant = difflib.get_close_matches(wanted, known, 1, 0.5) or [name for name in known if wanted and wanted in name]
    right = f"did you mean {meant[0]}? " if meant else ""
    print(f"mcproxy docs: {what}; {right}{where}", file=sys.stderr)
    return USAGE


class Anchors:
    """The anchors of a page's headings, by GitHub's rules: the second of equal headings gets HEADING-1."""

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
    """Show a text in the pager if standard output is a terminal, else print it."""
    command = _pager(environ) if sys.stdout.isatty() else None
    if command is None:
        sys.stdout.write(text)
        return
    # F: a short text is only printed; X: the text stays on the screen when the pager ends.
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
    """Return the pager command: PAGER, else less; None if there is no pager."""
    for wanted in (environ.get("PAGER"), "less"):
        if wanted is None:
            continue
        try:
            command = shlex.split(wanted)
        except ValueError:
            continue
        if not command:
            return None  # an empty PAGER disables the pager
        program = shutil.which(command[0])
        if program is not None:
            return [program, *command[1:]]
    return None


# -- converts the mdoc(7) of man/ to blocks of text, for hosts without man(1) and for HTML ----------------------------

_CODE = frozenset({"Cm", "Dv", "Ev", "Fl", "Ic", "Li", "Nm", "Pa", "Va"})
_CLOSING = frozenset(".,:;)]?!")
_OPENING = frozenset("([")
_INDENT = 4
_ENCLOSED = {"Op": ("[", "]"), "Pq": ("(", ")"), "Ql": ("\u2018", "\u2019"), "Sq": ("\u2018", "\u2019")}
_OPENED, _CLOSED = {"Oo": "[", "Po": "("}, {"Oc": "]", "Pc": ")"}
_MACROS = _CODE | frozenset({"Ar", "Nd", "No", "Ns", "Sx", "Xr", *_ENCLOSED})


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text. `style` is "code", "argument" or ""."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """`kind` is "section", "subsection", "paragraph", "item" (the term of a list's entry), "literal", or "usage".

    `depth` is the number of enclosing lists; the text of an item is one level deeper than the item.
    """

    kind: str
    depth: int
    runs: tuple[Run, ...]
    """In literal text, each run is a line."""

    @property
    def text(self) -> str:
        return "".join(run.text for run in self.runs)


class _Reader:
    """Collects blocks from the lines of a page."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.name = ""
        self._joined = False  # no space before the next word
        self._usage = False  # whether the current section is SYNOPSIS
        self._lists: list[int] = []  # the number of entries of each open list
        self._runs: list[Run] = []
        self._literal: list[str] | None = None

    def line(self, line: str) -> None:
        macro, words = _macro(line)
        if macro == "Ed" and self._literal is not None:
            self._add("literal", [Run(text) for text in self._literal])
            self._literal = None
        elif self._literal is not None:
            self._literal.append(_plain(line))
        elif macro is None:
            self._append([Run(_plain(line))])
        elif macro in ("Sh", "Ss"):
            self.end()
            self._usage = words == ["SYNOPSIS"]
            self._add("section" if macro == "Sh" else "subsection", [Run(" ".join(words))])
        elif macro == "It" and self._lists:
            self.end()
            self._lists[-1] += 1
            head = self._inline(words) if words else [Run(f"{self._lists[-1]}.")]
            self.blocks.append(Block("item", len(self._lists) - 1, tuple(head)))
        elif macro == "Bl":
            self.end()
            self._lists.append(0)
        elif macro == "El" and self._lists:
            self.end()
            self._lists.pop()
        elif macro == "Bd":
            self.end()
            self._literal = []
        elif macro == "Dl":
            self.end()
            self._add("literal", [Run(" ".join(words))])
        elif macro == "Pp":
            self.end()
        elif macro in _OPENED:
            self._append([Run(_OPENED[macro]), *self._inline(words)])
            self._joined = not words
        elif macro in _CLOSED:
            self._joined = True
            self._append([Run(_CLOSED[macro]), *self._inline(words)])
        elif macro in _MACROS:
            if macro == "Nm" and words and not self.name:
                self.name = words[0]
            if macro == "Nm" and self._usage:
                self.end()
            self._append(self._inline([macro, *words]))

    def end(self) -> None:
        """End the paragraph."""
        if self._runs:
            self._add("usage" if self._usage else "paragraph", self._runs)
            self._runs = []

    def _add(self, kind: str, runs: Sequence[Run]) -> None:
        self.blocks.append(Block(kind, len(self._lists), tuple(runs)))

    def _append(self, runs: Sequence[Run]) -> None:
        if self._runs and not self._joined:
            self._runs.append(Run(" "))
        self._runs += runs
        self._joined = False

    def _inline(self, words: Sequence[str]) -> list[Run]:
        """Return the text of macros with their arguments: `Op Fl c Ar file` is [-c file]."""
        runs: list[Run] = []
        closing: list[str] = []
        macro, space, first = "", False, False
        end = len(words)
        while end and words[end - 1] in _CLOSING:
            end -= 1
        for word in words[:end]:
            if word in _ENCLOSED:
                runs.append(Run((" " if space else "") + _ENCLOSED[word][0]))
                closing.append(_ENCLOSED[word][1])
                macro, space, first = "", False, False
            elif word == "Ns":
                macro, space = "", False
            elif word in _MACROS:
                macro, first = word, True
                if word == "Nd":
                    runs.append(Run("—"))
                    space = True
                elif word == "Nm" and word == words[end - 1]:
                    runs.append(Run((" " if space else "") + self.name, "code"))
                    space = True
            else:
                is_delimiter = word in _CLOSING or word in _OPENING or word == "|"
                text = f"({word})" if macro == "Xr" and not first else word
                text = f"-{text}" if macro == "Fl" and not is_delimiter else text
                style = "code" if macro in _CODE else "argument" if macro == "Ar" else ""
                if space and word not in _CLOSING and not (macro == "Xr" and not first):
                    runs.append(Run(" "))
                runs.append(Run(_plain(text), "" if is_delimiter else style))
                space, first = word not in _OPENING, False
        runs += [Run(text) for text in reversed(closing)]
        return [*runs, *(Run(text) for text in words[end:])]


def blocks(source: str) -> list[Block]:
    """Return the blocks of a page in mdoc(7), in order. Macros that man/ does not use are ignored."""
    reader = _Reader()
    for line in source.splitlines():
        reader.line(line)
    reader.end()
    return reader.blocks


def _macro(line: str) -> tuple[str | None, list[str]]:
    """Return a line's macro and arguments. The macro is "" for a comment, None for text."""
    if not line.startswith("."):
        return None, []
    if line.startswith('.\\"'):
        return "", []
    name, _, rest = line[1:].partition(" ")
    return name, [quoted or word for quoted, word in re.findall(r'"([^"]*)"|(\S+)', rest)]


def _plain(text: str) -> str:
    """Return a text without roff's escapes."""
    return text.replace("\\(dq", '"').replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


def as_text(page: Sequence[Block], width: int = 100) -> str:
    """Return a page for a terminal of this many columns."""
    return "\n".join(_lines(page, width)).strip("\n") + "\n"


def _lines(page: Sequence[Block], width: int) -> Iterator[str]:
    before = ""
    for block in page:
        indent = " " * _INDENT * (block.depth + 1)
        if (before, block.kind) != ("usage", "usage") and (before != "item" or block.kind == "item"):
            yield ""
        if block.kind == "section":
            yield block.text
        elif block.kind == "subsection":
            yield "  " + block.text
        elif block.kind == "item":
            yield indent + block.text
        elif block.kind == "literal":
            yield from (f"{indent}    {run.text}".rstrip() for run in block.runs)
        else:
            yield from textwrap.wrap(
                block.text,
                width,
                initial_indent=indent,
                subsequent_indent=indent + " " * _INDENT * (block.kind == "usage"),
                break_long_words=False,
                break_on_hyphens=False,
            )
        before = block.kind
