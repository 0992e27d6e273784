"""One field of many rules at once: which of them match a value, as the bits of an integer.

With one look-up for each field and a few conjunctions the first matching rule is the highest bit that is left. A
thousand rules are integers of 125 bytes, so the time hardly grows with their number, in whichever field they differ.
The first rule has the highest bit, because integers get shorter where only later rules are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mcproxy.dispatch.list_matcher import ListMatcher

_NOTHING = (0, 0)


class FieldIndex:
    """The lists of one field, rule by rule. A listed value adds rules, or removes inverted ones."""

    __slots__ = ("_base", "_exact", "_lengths", "_prefixes", "_single")

    def __init__(self, matchers: Sequence[ListMatcher], also: Sequence[Collection[str]] = ()) -> None:
        """`also` has, for each rule, further values that it matches regardless of its list."""
        self._base = 0  # the rules that match a value which no list has
        self._exact: dict[str, tuple[int, int]] = {}
        self._prefixes: dict[str, tuple[int, int]] = {}
        last = len(matchers) - 1
        for number, matcher in enumerate(matchers):
            bit = 1 << last - number
            self._base |= bit if matcher.inverted else 0
            _mark(self._exact, matcher.exact, bit, matcher.inverted)
            _mark(self._prefixes, matcher.prefixes, bit, matcher.inverted)
        for number, values in enumerate(also):
            _mark(self._exact, values, 1 << last - number, inverted=False)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        # Without globs: the answer itself.
        answers = {} if self._lengths else self._exact
        self._single = {value: self._base & ~removed | added for value, (added, removed) in answers.items()}

    @property
    def discriminates(self) -> bool:
        """Whether any list names a value."""
        return bool(self._exact or self._prefixes)

    def match(self, value: str) -> int:
        """Return the rules that match a value."""
        if self._lengths:
            return self.match_any((value,))
        return self._single.get(value, self._base)

    def match_any(self, values: Iterable[str]) -> int:
        """Return the rules that match a set of names, which may be empty."""
        added = removed = 0
        exact, prefixes, lengths = self._exact, self._prefixes, self._lengths
        for value in values:
            found = exact.get(value)
            if found is not None:
                added |= found[0]
                removed |= found[1]
            size = len(value)
            for length in lengths:
                if length > size:
                    break
                found = prefixes.get(value[:length])
                if found is not None:
                    added |= found[0]
                    removed |= found[1]
        if not removed:
            return self._base | added if added else self._base
        # Plain items are added last: a service account counts in addition to inverted users.
        return self._base & ~removed | added


def _mark(table: dict[str, tuple[int, int]], values: Iterable[str], bit: int, inverted: bool) -> None:
    for value in values:
        added, removed = table.get(value, _NOTHING)
        table[value] = (added, removed | bit) if inverted else (added | bit, removed)
