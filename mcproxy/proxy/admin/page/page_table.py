"""Tables: searched, sorted and paged; rows become cards on a narrow screen; marks of a state are words, too. Pure.

Only the rows that are shown are made into markup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, breakable, join, tag, text
from mcproxy.proxy.admin.page.query import Query

GOOD, WARN, BAD, PLAIN = "good", "warn", "bad", "plain"

SIZE = 20
"""Rows of a page."""
_FEW = 2  # columns of text that a screen of medium width has room for; with more, rows become cards there
_SIGNS = {GOOD: "●", WARN: "▲", BAD: "✖", PLAIN: "○"}

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: what of an entry it is sorted and searched by, and how that is shown."""

    name: str
    value: Callable[[Entry], Any]
    form: Callable[[Any], Content] = breakable
    """Shows the value."""
    is_number: bool = False
    cell: Callable[[Entry], Content] | None = None
    """Shows the entry, in place of `form`."""

    @property
    def key(self) -> str:
        """Its name in the address."""
        return "".join(char if char.isalnum() else "-" for char in self.name.lower()).strip("-")

    def shown(self, entry: Entry) -> Markup:
        """Return the content of a cell."""
        if self.cell is not None:
            return text(self.cell(entry))
        value = self.value(entry)
        return text(markup.UNKNOWN if value is None else self.form(value))


def key_of(name: str) -> Callable[[Entry], Any]:
    """Return what reads a key of an entry; None if it is not there."""
    return lambda entry: entry.get(name)


def numbers(name: str, key: str, form: Callable[[Any], Content] = markup.count) -> Column:
    """Return a column of numbers, from a key of the entries."""
    return Column(name, key_of(key), form, is_number=True)


@dataclass(frozen=True, slots=True)
class Table:
    """Entries, and how they are shown."""

    key: str
    """Its name in the address, and its section's."""
    label: str
    columns: Sequence[Column]
    entries: Sequence[Entry]
    severity: Callable[[Entry], int] = lambda entry: 0
    """2: it fails now; 1: it needs attention; 0: it is well. What is worst comes first, if nothing else is chosen."""
    order: Callable[[Entry], Any] | None = None
    """What entries are sorted by in place of that, if nothing else is chosen."""

    def render(self, query: Query, size: int = SIZE) -> Markup:
        """Return one page of it."""
        entries = self._sorted(self._found(query), query.sorts.get(self.key, ""))
        last = max(1, -(-len(entries) // size))
        page = min(query.pages.get(self.key, 1), last)
        shown = entries[(page - 1) * size : page * size]
        if not shown:
            words = "Nothing is found." if self.entries else "There is none."
            return tag("p", words, class_="none")
        return join(self._table(shown, query), self._pager(query, page, last, len(entries), size))

    def _found(self, query: Query) -> list[Entry]:
        wanted = query.search.lower()
        found = list(self.entries)
        if query.only_problems:
            found = [entry for entry in found if self.severity(entry)]
        if wanted:
            values = [column.value for column in self.columns if not column.is_number]
            found = [entry for entry in found if any(wanted in str(value(entry)).lower() for value in values)]
        return found

    def _sorted(self, entries: list[Entry], chosen: str) -> list[Entry]:
        column = next((each for each in self.columns if each.key == chosen.removeprefix("-")), None)
        if column is None:
            return sorted(entries, key=self.order or (lambda entry: -self.severity(entry)))
        value = column.value
        known = [entry for entry in entries if value(entry) is not None]
        known.sort(key=lambda entry: _comparable(value(entry)), reverse=chosen.startswith("-"))
        return known + [entry for entry in entries if value(entry) is None]

    def _table(self, entries: Sequence[Entry], query: Query) -> Markup:
        head = tag("tr", *(self._title(column, query) for column in self.columns), role="row")
        # The opening tags of all rows are alike: made once.
        first, *others = self.columns
        texts = sum(not column.is_number for column in self.columns)
        openings = [_opening(column) for column in others]
        body = "".join([_row(first, others, openings, entry) for entry in entries])
        return tag(
            "div",
            tag(
                "table",
                tag("thead", head, role="rowgroup"),
                tag("tbody", Markup(body), role="rowgroup"),
                role="table",
                aria_label=self.label,
            ),
            class_=f"scroll {'wide' if texts > _FEW else 'few'}",
        )

    def _title(self, column: Column, query: Query) -> Markup:
        """Return the cell of a column's name, a link that sorts by it."""
        chosen, key = query.sorts.get(self.key, ""), column.key
        order = {key: "ascending", f"-{key}": "descending"}.get(chosen)
        first = f"-{key}" if column.is_number else key
        other = key if column.is_number else f"-{key}"
        sign = {"ascending": " ▲", "descending": " ▼"}.get(order or "", "")
        link = tag(
            "a",
            column.name,
            tag("span", sign, aria_hidden="true") if sign else EMPTY,
            href=query.sorted_by(self.key, other if chosen == first else first),
        )
        return tag(
            "th",
            link,
            scope="col",
            role="columnheader",
            aria_sort=order,
            class_="number" if column.is_number else None,
        )

    def _pager(self, query: Query, page: int, last: int, total: int, size: int) -> Markup:
        if last == 1:
            return EMPTY
        first = (page - 1) * size + 1
        steps = (("First", 1, page > 1), ("Previous", page - 1, page > 1), ("Next", page + 1, page < last))
        links = [
            tag("li", tag("a", words, href=query.at_page(self.key, to), id=f"{self.key}-{words.lower()}"))
            if possible
            else tag("li", tag("span", words, class_="none"))
            for words, to, possible in (*steps, ("Last", last, page < last))
        ]
        where = tag("li", f"{first} to {min(page * size, total)} of {markup.count(total)}")
        return tag("nav", tag("ul", where, *links), class_="pager", aria_label=f"Pages of {self.label.lower()}")


def _comparable(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _row(first: Column, others: Sequence[Column], openings: Sequence[str], entry: Entry) -> str:
    cells = [f"{opening}{column.shown(entry)}</td>" for opening, column in zip(openings, others, strict=True)]
    return f'<tr role="row"><th scope="row" role="rowheader">{first.shown(entry)}</th>{"".join(cells)}</tr>'


def _opening(column: Column) -> str:
    number = ' class="number"' if column.is_number else ""
    return f'<td data-label="{text(column.name)}" role="cell"{number}>'


def mark(kind: str, words: Content) -> Markup:
    """Return a state: a sign and a colour, and words, which are enough by themselves."""
    sign = tag("span", _SIGNS[kind], aria_hidden="true")
    return tag("span", sign, Markup("&nbsp;"), words, class_=f"mark {kind}")
