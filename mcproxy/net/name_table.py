"""A table of DNS names and one-label wildcards: certificates by SNI, virtual servers by SNI or Host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class NameTable(Generic[T]):
    """Values by DNS name; an exact name takes precedence over a wildcard for one label (RFC 6125 6.4.3)."""

    __slots__ = ("_exact", "_wildcard")

    def __init__(self, entries: Iterable[tuple[str, T]]) -> None:
        """`entries` are (name in lower case, value); the first of several entries for a name is used."""
        self._exact: dict[str, T] = {}
        self._wildcard: dict[str, T] = {}
        for name, value in entries:
            if name.startswith("*."):
                self._wildcard.setdefault(name[1:], value)
            else:
                self._exact.setdefault(name, value)

    def find(self, name: str) -> T | None:
        found = self._exact.get(name)
        if found is None and self._wildcard:
            found = self._wildcard.get(name[name.find(".") :])
        return found
