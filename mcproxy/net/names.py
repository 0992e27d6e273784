"""Things found by DNS name: certificates by what a client asked for in TLS, virtual servers by that or by Host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class NameTable(Generic[T]):
    """Things found by DNS name: an exact name before a wildcard that stands for one label (RFC 6125 6.4.3)."""

    __slots__ = ("_exact", "_wildcard")

    def __init__(self, entries: Iterable[tuple[str, T]]) -> None:
        """`entries` are (name in lower case, thing); of two with one name the first counts."""
        self._exact: dict[str, T] = {}
        self._wildcard: dict[str, T] = {}
        for name, thing in entries:
            if name.startswith("*."):
                self._wildcard.setdefault(name[1:], thing)
            else:
                self._exact.setdefault(name, thing)

    def find(self, name: str) -> T | None:
        found = self._exact.get(name)
        if found is None and self._wildcard:
            found = self._wildcard.get(name[name.find(".") :])
        return found
