"""A Markdown page, as far as tests look at it: its commands, its YAML examples, its links. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

PROGRAMS = frozenset(
    """
    apt-get cat chmod chown cp curl dpkg echo git gpg grep groupadd install journalctl jq kill kubectl ls make man
    mcproxy mkdir mv openssl pip promtool python3 rm scp sh sha256sum ssh sudo systemctl systemd-analyze tar useradd
    """.split()  # noqa: SIM905
)
"""The first word of a block of commands."""

# Blocks that are no commands begin with: a line of a log, a place in a file, a JSON object, a key of YAML, a table.
_OTHER = re.compile(
    r'\d{4}-\d\d-\d\dT|/etc/mcproxy/\S+:\d+|\{|\[|[\w.-]+:(\s|$)|- |#|"|[A-Z]{3,}|<\d|\[Unit\]|mcproxy_\w+'
)
_FENCE = re.compile(r"^( *)(```+)\s*(\S*)\s*$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code."""

    line: int
    """Number of its first line, from 1."""
    language: str
    """What its fence names; "" for an indented block."""
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @property
    def first_word(self) -> str:
        return self.lines[0].split(maxsplit=1)[0] if self.lines[0].split() else ""


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    text: str


def blocks(page: str) -> list[Block]:
    """Return the blocks of code of a page, in order; within a list those with a fence."""
    found: list[Block] = []
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is not None:
            indent, marks, language = fence.groups()
            end = next(i for i in range(number + 1, len(lines)) if lines[i].startswith(indent + marks))
            code = tuple(line.removeprefix(indent) for line in lines[number + 1 : end])
            found.append(Block(number + 2, language or "text", code))
            number = end + 1
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            end = number
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            found.append(Block(number + 1, "", tuple(line[4:] for line in lines[number:end])))
            number = end
        else:
            number += 1
    return found


def is_command_block(block: Block) -> bool:
    if block.language:
        return block.language in ("sh", "bash", "console")
    return block.first_word in PROGRAMS and "──" not in block.text  # else a drawing


def unknown_blocks(page: str) -> list[Block]:
    """Return the indented blocks that are neither commands nor anything else that is known."""
    return [
        block
        for block in blocks(page)
        if not (block.language or is_command_block(block) or _OTHER.match(block.lines[0]) or "──" in block.text)
    ]


def commands(page: str) -> list[Command]:
    """Return the commands of a page, in order; a line that ends in a backslash goes on in the next one."""
    found: list[Command] = []
    for block in blocks(page):
        if not is_command_block(block):
            continue
        begun: list[str] = []
        for offset, line in enumerate(block.lines):
            begun.append(line.removeprefix("$ "))
            if line.endswith("\\"):
                continue
            text = "\n".join(begun)
            if text.strip() and not text.lstrip().startswith("#"):
                found.append(Command(block.line + offset - len(begun) + 1, text))
            begun = []
    return found


def links(page: str) -> list[str]:
    """Return the targets of links that are no URLs."""
    return [target for target in _LINK.findall(page) if "://" not in target]
