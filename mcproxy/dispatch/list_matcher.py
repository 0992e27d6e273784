"""One compiled list of a rule, which matches values.

`*` matches all values. Otherwise plain items match the values that equal one of them, and inverted items in the same
list are ignored; inverted items alone match the values that equal none of them. In fields with globs an item that ends
in a star matches every value with that prefix. Source: the table of reference "dispatch", and RBAC where it is silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListMatcher:
    """Matches the listed values, or with `inverted` all others."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    inverted: bool = False

    def lists(self, value: str) -> bool:
        """Return whether a value is listed, inverted or not."""
        return value in self.exact or value.startswith(self.prefixes)

    def matches(self, *values: str) -> bool:
        """Return whether the list matches a set of names (such as a user's groups; it may be empty)."""
        return any(map(self.lists, values)) is not self.inverted


ALL = ListMatcher(inverted=True)
NONE = ListMatcher()


def list_matcher(items: Sequence[str], *, empty: ListMatcher, inverts: bool = True, globs: bool = False) -> ListMatcher:
    """Compile a list; `empty` is what an empty one means. The loader refuses items that can never match."""
    if not items:
        return empty
    if "*" in items:
        return ALL
    plain = [item for item in items if not (inverts and item.startswith("-"))]
    if plain:
        return _listed(plain, inverted=False, globs=globs)
    return _listed((item[1:] for item in items), inverted=True, globs=globs)


def _listed(items: Iterable[str], *, inverted: bool, globs: bool) -> ListMatcher:
    exact, prefixes = set(), set()
    for item in items:
        if globs and item.endswith("*"):
            prefixes.add(item[:-1])
        else:
            exact.add(item)
    return ListMatcher(frozenset(exact), tuple(sorted(prefixes)), inverted)
