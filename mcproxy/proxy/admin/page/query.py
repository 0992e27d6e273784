"""Parses the query of a request for the page: the view, a search, the sort order and page of each table. Pure.

Unknown parameters and values are ignored, so that a link from another program version works, too. The query contains
the whole state of the page, so the page works without script, and a link shows the same to other users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

_LONGEST = 8192  # maximum bytes of a query
_FIELDS = 100
_SEARCH = 100  # maximum characters of a search
_PAGES = 10**6


@dataclass(frozen=True, slots=True)
class Query:
    """A request for the page."""

    view: str = ""
    """Name of the view; "" is the first one."""
    search: str = ""
    """Show only rows with this text."""
    only_problems: bool = False
    """Show only rows that need attention."""
    sorts: Mapping[str, str] = field(default_factory=dict)
    """By table: the key of the sort column; a minus sign before the key sorts in descending order."""
    pages: Mapping[str, int] = field(default_factory=dict)
    """By table: the number of the page, from 1."""
    measure: str = ""
    """The value by which senders are ranked."""
    known: Mapping[str, str] | None = None
    """The hashes of the sections that the client has: it requests only sections that differ. None: the whole page."""

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
        """Return the link that sorts a table and shows its first page."""
        return self.link(sorts={**self.sorts, table: key}, pages={**self.pages, table: 1})

    def at_page(self, table: str, page: int) -> str:
        """Return the link to a page of a table."""
        return self.link(pages={**self.pages, table: page})


def parse(raw: bytes) -> Query:
    """Parse the query of a target."""
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
