"""Text for a terminal: colours, tables that fit its width, short numbers.

Texts can come from remote systems, such as an endpoint's response as the cause of its failure. So control characters
are removed from every text before it is written.
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from mcproxy.kube.numbers import plain_number

GAP = "  "
_LEAST = 8  # minimum width to which a cell is cut
_CODES = {"bold": "1", "dim": "2", "bad": "31", "good": "32", "warn": "33", "title": "1", "reverse": "7"}
_BARS = " ▁▂▃▄▅▆▇█"
_PLAIN_BARS = " ._-=+*#@"


class Cell(NamedTuple):
    """A text with a style: "bad", "warn", "good", "dim", "bold" or ""."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """A column of a table."""

    title: str
    right: bool = False
    """Whether cells are aligned right, as numbers are."""
    gives_way: bool = False
    """Whether cells are cut if the table is too wide."""
    end: bool = False
    """Whether cells are cut at their beginning, since the end of a file name is more useful."""
    wide: bool = False
    """Whether the column is omitted if the table is still too wide."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """The capabilities of a stream."""

    colours: bool = False
    unicode: bool = False
    width: int | None = None
    """Columns of the terminal; None: lines can have any length."""

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str]) -> Terminal:
        """Return the capabilities of `stream`: colours only on a terminal, never with NO_COLOR (no-color.org)."""
        is_terminal = stream.isatty()
        colours = is_terminal and not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
        unicode = (stream.encoding or "").lower().replace("-", "") == "utf8"
        return cls(colours, unicode, max(20, shutil.get_terminal_size().columns) if is_terminal else None)

    def styled(self, text: str, style: str) -> str:
        """Return a text in a style, if the stream has colours."""
        code = _CODES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if code and text and self.colours else text

    def table(self, columns: Sequence[TextColumn], rows: Sequence[Sequence[Cell | str]], indent: str = "") -> list[str]:
        """Return the lines of a table, its titles first."""
        cells = [[_cell(cell) for cell in row] for row in rows]
        titles = [Cell(column.title, "dim") for column in columns]
        every = [titles, *cells]
        widths = [max(width_of(row[index].text) for row in every) for index in range(len(columns))]
        kept = list(range(len(columns)))
        if self.width is not None:
            kept = _fit(columns, widths, self.width - len(indent))
        return [self._line([row[index] for index in kept], columns, kept, widths, indent) for row in every]

    def _line(
        self,
        cells: Sequence[Cell],
        columns: Sequence[TextColumn],
        kept: Sequence[int],
        widths: Sequence[int],
        indent: str,
    ) -> str:
        parts = []
        for place, (cell, index) in enumerate(zip(cells, kept, strict=True)):
            text = self.cut(cell.text, widths[index], end=columns[index].end)
            space = " " * (widths[index] - width_of(text))
            last = place == len(kept) - 1
            shown = self.styled(text, cell.style)
            parts.append(f"{space}{shown}" if columns[index].right else shown if last else f"{shown}{space}")
        return (indent + GAP.join(parts)).rstrip()

    def cut(self, text: str, width: int | None, *, end: bool = False) -> str:
        """Return a text cut to at most `width` columns, with a mark for the cut part. With `end`, its end is kept."""
        if width is None or width_of(text) <= width:
            return text
        if width < 1:
            return ""
        mark = "…" if self.unicode else "~"
        if end:
            return mark + _first(text[::-1], width - 1)[::-1]
        return _first(text, width - 1) + mark

    def bar(self, part: float | None, width: int = 10) -> str:
        """Return a bar that is filled to a fraction, 0 to 1; "" for None."""
        if part is None:
            return ""
        full = round(max(0.0, min(1.0, part)) * width)
        filled, empty = ("█", "░") if self.unicode else ("#", ".")
        return filled * full + empty * (width - full)

    def sparkline(self, values: Sequence[float | None], width: int) -> str:
        """Return the last `width` values as bars in one line, scaled to the highest of them."""
        shown = list(values)[-width:] if width > 0 else []
        highest = max((value for value in shown if value is not None), default=0.0)
        bars = _BARS if self.unicode else _PLAIN_BARS
        steps = len(bars) - 1

        def bar(value: float | None) -> str:
            if not value or not highest:
                return bars[0] if value is None else bars[1]
            return bars[max(1, round(value / highest * steps))]

        return "".join(map(bar, shown))


def _first(text: str, width: int) -> str:
    """Return the longest prefix of a text that fits in `width` columns."""
    found = []
    for character in text:
        width -= _width(character)
        if width < 0:
            break
        found.append(character)
    return "".join(found)


def clean(text: Any) -> str:
    """Return a text without characters that move the cursor or change other text."""
    return "".join(character if _is_safe(character) else "?" for character in str(text))


def width_of(text: str) -> int:
    """Return the width of a text in columns of a terminal."""
    return len(text) if text.isascii() else sum(map(_width, text))


def duration(seconds: float | None) -> str:
    """Return a duration in two units: 0.8 ms, 12 ms, 3.4 s, 5m12s, 3h04m, 12d; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 0.0995:
        return f"{plain_number(seconds * 1000, 2)} ms" if seconds < 0.00995 else f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    total = int(seconds + 0.5)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60}m{total % 60:02}s"
    if total < 86400:
        return f"{total // 3600}h{total % 3600 // 60:02}m"
    return f"{total // 86400}d{total % 86400 // 3600}h" if total < 10 * 86400 else f"{total // 86400}d"


def size(number: float | None) -> str:
    """Return a number of bytes: 512 B, 1.2 KiB, 77 MiB; "-" for None."""
    if number is None:
        return "-"
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 9.95 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB" if value < 9.95 else f"{value:.0f} TiB"


def number(value: float | None) -> str:
    """Return a count or a rate in at most five characters: 0, 0.4, 12.3, 999, 12.3k, 4.5M; "-" for None."""
    if value is None:
        return "-"
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            whole = value >= 99.95 or (unit == "" and float(value).is_integer())
            return f"{value:.0f}{unit}" if whole else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}T"


def _fit(columns: Sequence[TextColumn], widths: list[int], width: int) -> list[int]:
    """Reduce `widths` so that a table is at most `width` wide; return the indices of remaining columns."""
    kept = list(range(len(columns)))
    while True:
        over = sum(widths[index] for index in kept) + len(GAP) * (len(kept) - 1) - width
        if over <= 0:
            return kept
        least = {index: max(_LEAST, len(columns[index].title)) for index in kept}
        flexible = [index for index in kept if columns[index].gives_way and widths[index] > least[index]]
        spare = sum(widths[index] - least[index] for index in flexible)
        optional = [index for index in kept if columns[index].wide]
        if over > spare and optional:
            kept.remove(optional[-1])
            continue
        if flexible:
            widest = max(flexible, key=lambda index: widths[index])
            widths[widest] -= 1
        elif len(kept) > 1:
            kept.pop()
        else:
            widths[kept[0]] = max(1, width)
            return kept


def _cell(cell: Cell | str) -> Cell:
    text, style = cell if isinstance(cell, Cell) else (cell, "")
    return Cell(clean(text), style)


def _is_safe(character: str) -> bool:
    return character.isprintable() and unicodedata.category(character) not in ("Cf", "Zl", "Zp")


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
