"""One list of a rule, read: which values it admits.

`*` admits all. Otherwise plain items admit what equals one of them, and inverted items beside them say nothing;
inverted items alone admit what equals none of them. In fields that have globs an item that ends in a star stands for
all that begins like it. Source: the table of reference "dispatch", and RBAC where it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Choice:
    """What a list admits: the values that it hits, or with `inverted` those that it does not."""

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()
    inverted: bool = False

    def hits(self, value: str) -> bool:
        """Whether a value is listed, whatever that means here."""
        return value in self.exact or value.startswith(self.prefixes)

    def admits(self, *values: str) -> bool:
        """Judge what has several names (the groups of a user, or none): one that is listed decides."""
        return any(map(self.hits, values)) is not self.inverted


ALL = Choice(inverted=True)
NONE = Choice()


def choice(items: Sequence[str], *, empty: Choice, inverts: bool = True, globs: bool = False) -> Choice:
    """Read a list; `empty` is what an empty one means. Items that can never match are the loader's to refuse."""
    if not items:
        return empty
    if "*" in items:
        return ALL
    plain = [item for item in items if not (inverts and item.startswith("-"))]
    if plain:
        return _listed(plain, inverted=False, globs=globs)
    return _listed((item[1:] for item in items), inverted=True, globs=globs)


def _listed(items: Iterable[str], *, inverted: bool, globs: bool) -> Choice:
    exact, prefixes = set(), set()
    for item in items:
        if globs and item.endswith("*"):
            prefixes.add(item[:-1])
        else:
            exact.add(item)
    return Choice(frozenset(exact), tuple(sorted(prefixes)), inverted)
