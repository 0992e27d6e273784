"""Tables: header cells, rows that become cards on a narrow screen, marks of a state that are words, too. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mcproxy.proxy.admin.page.markup import EMPTY, Content, Markup, join, tag, text

GOOD, WARN, BAD, PLAIN = "good", "warn", "bad", "plain"

_SIGNS = {GOOD: "●", WARN: "▲", BAD: "✖", PLAIN: "○"}


class Column(NamedTuple):
    name: str
    is_number: bool = False


def mark(kind: str, words: Content) -> Markup:
    """Return a state: a sign and a colour, and words, which are enough by themselves."""
    return tag("span", tag("span", _SIGNS[kind], aria_hidden="true"), " ", words, class_=f"mark {kind}")


def table(label: str, columns: Sequence[Column], rows: Iterable[Sequence[Content]]) -> Markup:
    """Return a table, whose first column names the row; roles are given, since cards would hide them from readers."""
    head = tag(
        "tr",
        *(tag("th", each.name, scope="col", role="columnheader", class_=_number(each)) for each in columns),
        role="row",
    )
    # The opening tags of all rows are alike: made once, since a page may have thousands of cells.
    first = Markup('<th scope="row" role="rowheader">')
    others = [_opening(each) for each in columns[1:]]
    body = "".join([_row(first, others, row) for row in rows])
    return tag(
        "div",
        tag(
            "table",
            tag("thead", head, role="rowgroup"),
            tag("tbody", Markup(body), role="rowgroup"),
            role="table",
            aria_label=label,
        ),
        class_="scroll",
    )


def _row(first: str, others: Sequence[str], row: Sequence[Content]) -> str:
    name, *values = row
    cells = [f"{opening}{text(value)}</td>" for opening, value in zip(others, values, strict=True)]
    return f'<tr role="row">{first}{text(name)}</th>{"".join(cells)}</tr>'


def _opening(column: Column) -> str:
    number = ' class="number"' if column.is_number else ""
    return f'<td data-label="{text(column.name)}" role="cell"{number}>'


def _number(column: Column) -> str | None:
    return "number" if column.is_number else None


def shortened(rows: Sequence[Sequence[Content]], most: int, what: str, label: str, columns: Sequence[Column]) -> Markup:
    """Return a table of at most so many rows, and a note where there are more."""
    note = f"{len(rows) - most} more {what} are in the status as JSON." if len(rows) > most else ""
    return join(table(label, columns, rows[:most]), tag("p", note, class_="note") if note else EMPTY)
