"""Renders tables as HTML with search, sorting and paging; rows become cards on a narrow screen. Pure.

Only the shown rows are rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mcproxy.observe.tables.table import At, Column, Document, Entry, Form, Table
from mcproxy.proxy.admin.page import markup
from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, breakable, join, tag, text
from mcproxy.proxy.admin.page.query import Query

GOOD, WARN, BAD, PLAIN = "good", "warn", "bad", "plain"

SIZE = 20
"""Maximum rows of a table page."""
_FEW = 2  # text columns that fit on a screen of medium width; with more, rows become cards there
_SIGNS = {GOOD: "●", WARN: "▲", BAD: "✖", PLAIN: "○"}


class PageTable:
    """A table of the status document on the page, with the columns for `at`; the first column names the row."""

    def __init__(
        self, table: Table, document: Document, at: At = At.PAGE, link: Callable[[Entry], str] | None = None
    ) -> None:
        """`link` returns the address to which a row's name is linked."""
        name = table.columns[table.name]
        self.columns = [name, *(column for column in table.columns if column is not name and column.at & at)]
        self.entries = list(table.entries(document))
        self.table = table
        self._link = link

    def render(self, query: Query, size: int = SIZE) -> Markup:
        """Return one page of the table."""
        key = self.table.key
        entries = self._sorted(self._found(query), query.sorts.get(key, ""))
        last = max(1, -(-len(entries) // size))
        page = min(query.pages.get(key, 1), last)
        shown = entries[(page - 1) * size : page * size]
        if not shown:
            words = "Nothing is found." if self.entries else "There is none."
            return tag("p", words, class_="none")
        return join(self._table(shown, query), self._pager(query, page, last, len(entries), size))

    def _found(self, query: Query) -> list[Entry]:
        wanted, found = query.search.lower(), self.entries
        if query.only_problems:
            found = [entry for entry in found if self.table.attention(entry)]
        if wanted:
            columns = [column for column in self.columns if not column.is_number]
            found = [entry for entry in found if any(wanted in _searched(column, entry) for column in columns)]
        return found

    def _sorted(self, entries: list[Entry], chosen: str) -> list[Entry]:
        column = next((each for each in self.columns if _key(each) == chosen.removeprefix("-")), None)
        if column is None:
            return entries if self.table.ordered else sorted(entries, key=lambda each: -self.table.attention(each))
        value = column.value
        known = [entry for entry in entries if value(entry) is not None]
        known.sort(key=lambda entry: _comparable(value(entry)), reverse=chosen.startswith("-"))
        return known + [entry for entry in entries if value(entry) is None]

    def _table(self, entries: Sequence[Entry], query: Query) -> Markup:
        head = tag("tr", *(self._title(column, query) for column in self.columns), role="row")
        # The opening tags are the same in all rows, so they are made once.
        first, *others = self.columns
        texts = sum(not column.is_number for column in self.columns)
        openings = [_opening(column) for column in others]
        body = "".join([self._row(first, others, openings, entry) for entry in entries])
        return tag(
            "div",
            tag(
                "table",
                tag("thead", head, role="rowgroup"),
                tag("tbody", Markup(body), role="rowgroup"),
                role="table",
                aria_label=self.table.label,
            ),
            class_=f"scroll {'wide' if texts > _FEW else 'few'}",
        )

    def _row(self, first: Column, others: Sequence[Column], openings: Sequence[str], entry: Entry) -> str:
        cells = [f"{opening}{_shown(column, entry)}</td>" for opening, column in zip(openings, others, strict=True)]
        name = _shown(first, entry)
        if self._link is not None:
            name = tag("a", name, href=self._link(entry))
        return f'<tr role="row"><th scope="row" role="rowheader">{name}</th>{"".join(cells)}</tr>'

    def _title(self, column: Column, query: Query) -> Markup:
        """Return the cell of a column's name, a link that sorts by it."""
        chosen, key = query.sorts.get(self.table.key, ""), _key(column)
        order = {key: "ascending", f"-{key}": "descending"}.get(chosen)
        first = f"-{key}" if column.is_number else key
        other = key if column.is_number else f"-{key}"
        sign = {"ascending": " ▲", "descending": " ▼"}.get(order or "", "")
        link = tag(
            "a",
            column.title,
            tag("span", sign, aria_hidden="true") if sign else EMPTY,
            href=query.sorted_by(self.table.key, other if chosen == first else first),
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
            tag("li", tag("a", words, href=query.at_page(self.table.key, to), id=f"{self.table.key}-{words.lower()}"))
            if possible
            else tag("li", tag("span", words, class_="none"))
            for words, to, possible in (*steps, ("Last", last, page < last))
        ]
        where = tag("li", f"{first} to {min(page * size, total)} of {markup.count(total)}")
        return tag("nav", tag("ul", where, *links), class_="pager", aria_label=f"Pages of {self.table.label.lower()}")


def _key(column: Column) -> str:
    """Return the name of a column in the address."""
    return "".join(char if char.isalnum() else "-" for char in column.title.lower()).strip("-")


def _searched(column: Column, entry: Entry) -> str:
    return (
        f"{column.value(entry)} {entry.get(column.detail)}".lower()
        if column.detail
        else str(column.value(entry)).lower()
    )


def _comparable(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _opening(column: Column) -> str:
    number = ' class="number"' if column.is_number else ""
    return f'<td data-label="{text(column.title)}" role="cell"{number}>'


def mark(kind: str, words: Content) -> Markup:
    """Return a state as a sign, a colour and words; the words alone are sufficient."""
    sign = tag("span", _SIGNS[kind], aria_hidden="true")
    return tag("span", sign, Markup("&nbsp;"), words, class_=f"mark {kind}")


def when(instant: Any) -> Content:
    """Return a time."""
    return tag("time", markup.instant(instant), datetime=instant) if instant else markup.UNKNOWN


def _shown(column: Column, entry: Entry) -> Markup:
    """Return the content of a cell."""
    value = column.value(entry)
    if value is None:
        return text(markup.UNKNOWN)
    if column.form is Form.USE:
        label = f"use of {entry.get('name')}"
        return join(
            tag(
                "meter", markup.share(value), min=0, max=1, low=0.7, high=0.9, optimum=0, value=value, aria_label=label
            ),
            " ",
            markup.share(value),
        )
    shown = _FORMS.get(column.form, breakable)(value)
    if state := "" if column.is_number and column.form is not Form.DAYS else column.state_of(entry):
        shown = mark(state, shown)
    detail = entry.get(column.detail)
    if not detail or detail.removeprefix("https://") == value:
        return text(shown)
    return join(shown, " ", tag("small", breakable(detail)))


def _days(days: float) -> str:
    return "expired" if days <= 0 else markup.count(int(days))


_FORMS: Mapping[Form, Callable[[Any], Content]] = {
    Form.ID: str,
    Form.COUNT: markup.count,
    Form.RATE: markup.number,
    Form.SIZE: markup.size,
    Form.TIME: markup.seconds,
    Form.SPAN: markup.duration,
    Form.DAYS: _days,
    Form.SHARE: markup.share,
    Form.INSTANT: when,
    Form.SINCE: when,
}
