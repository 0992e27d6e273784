"""Parses a manual page in the mdoc(7) of man/ into blocks of text, for hosts without man(1) and for HTML. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

    `depth` is the number of enclosing lists; an item's text is one deeper than the item.
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
        self._joined = False  # what follows stands without a space
        self._usage = False  # in the section SYNOPSIS
        self._lists: list[int] = []  # of each open one the number of its entries
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
        """Return the text of macros and their words: `Op Fl c Ar file` is [-c file]."""
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
    """Return the blocks of a page in mdoc(7), in order. A macro that man/ does not use is left out."""
    reader = _Reader()
    for line in source.splitlines():
        reader.line(line)
    reader.end()
    return reader.blocks


def _macro(line: str) -> tuple[str | None, list[str]]:
    """Return a line's macro, "" for a comment, and its words; None if it is text."""
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
