"""What a request for the page asks for: the view, a search, the order and page of each table. Pure.

Unknown parameters and values are as if they were not there: a link of another version shows something, too. Everything
is in the query of the address, so the page works without script, and a link shows to another what it shows here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

_LONGEST = 8192  # bytes of a query
_FIELDS = 100
_SEARCH = 100  # characters
_PAGES = 10**6


@dataclass(frozen=True, slots=True)
class Query:
    """A request for the page."""

    view: str = ""
    """Name of the view; "" is the first one."""
    search: str = ""
    """Only rows with this text."""
    only_problems: bool = False
    """Only rows that need attention."""
    sorts: Mapping[str, str] = field(default_factory=dict)
    """By table: the key of a column, behind a minus sign with the greatest first."""
    pages: Mapping[str, int] = field(default_factory=dict)
    """By table: the number of the page, from 1."""
    measure: str = ""
    """What senders are ranked by."""
    known: Mapping[str, str] | None = None
    """The sections that the asker has, with their hashes: it wants those that differ. None: it wants the whole page."""

    def link(self, **changes: Any) -> str:
        """Return the query of this request with some changes, for a link within the page."""
        to = replace(self, **changes)
        fields = [("view", to.view), ("q", to.search), ("only", "problems" if to.only_problems else "")]
        fields += [("by", to.measure)]
        fields += [(f"{table}.sort", key) for table, key in to.sorts.items()]
        fields += [(f"{table}.page", str(page)) for table, page in to.pages.items() if page > 1]
        return "?" + urlencode([(key, value) for key, value in fields if value])

    def address(self, path: str) -> str:
        """Return the address of this request at a path."""
        query = self.link()
        return path if query == "?" else path + query

    def sorted_by(self, table: str, key: str) -> str:
        """Return the link that sorts a table, from its first page on."""
        return self.link(sorts={**self.sorts, table: key}, pages={**self.pages, table: 1})

    def at_page(self, table: str, page: int) -> str:
        """Return the link to a page of a table."""
        return self.link(pages={**self.pages, table: page})


def parse(raw: bytes) -> Query:
    """Return what the query of a target asks for."""
    try:
        given = parse_qsl(
            raw[:_LONGEST].decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS, errors="replace"
        )
    except ValueError:
        return Query()
    fields = dict(given)
    sorts = {key.removesuffix(".sort"): value for key, value in fields.items() if key.endswith(".sort")}
    pages = {
        key.removesuffix(".page"): int(value)
        for key, value in fields.items()
        if key.endswith(".page") and value.isascii() and value.isdigit() and len(value) < 8 and 0 < int(value) < _PAGES
    }
    have = fields.get("have")
    return Query(
        view=fields.get("view", ""),
        search=fields.get("q", "").strip()[:_SEARCH],
        only_problems=fields.get("only") == "problems",
        sorts=sorts,
        pages=pages,
        measure=fields.get("by", ""),
        known=None if have is None else dict(each.partition(":")[::2] for each in have.split(",")),
    )
