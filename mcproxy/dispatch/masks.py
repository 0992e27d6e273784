"""One field of many rules at once: which of them admit a value, as the bits of a number.

With one look-up for each field and a few conjunctions the first rule that matches is the highest bit that is left. A
thousand rules are numbers of 125 bytes, so the time hardly grows with them, whichever field tells them apart. The first
rule has the highest bit, for numbers get shorter where only later rules are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mcproxy.dispatch.fields import Choice

_NOTHING = (0, 0)


class Table:
    """The choices of one field, rule by rule. A value that hits an item adds rules, or takes away inverted ones."""

    __slots__ = ("_base", "_exact", "_lengths", "_prefixes", "_single")

    def __init__(self, choices: Sequence[Choice], also: Sequence[Collection[str]] = ()) -> None:
        """`also` has, for each rule, further values that it admits whatever its choice says."""
        self._base = 0  # the rules that admit what hits nothing
        self._exact: dict[str, tuple[int, int]] = {}
        self._prefixes: dict[str, tuple[int, int]] = {}
        last = len(choices) - 1
        for number, choice in enumerate(choices):
            bit = 1 << last - number
            self._base |= bit if choice.inverted else 0
            _mark(self._exact, choice.exact, bit, choice.inverted)
            _mark(self._prefixes, choice.prefixes, bit, choice.inverted)
        for number, values in enumerate(also):
            _mark(self._exact, values, 1 << last - number, inverted=False)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        #: for fields without globs the answer itself
        self._single = {value: self._base & ~removed | added for value, (added, removed) in self._exact.items()}

    @property
    def decides(self) -> bool:
        """Whether the value makes any difference."""
        return bool(self._exact or self._prefixes)

    def of(self, value: str) -> int:
        """Return the rules that admit a value."""
        if self._lengths:
            return self.of_any((value,))
        return self._single.get(value, self._base)

    def of_any(self, values: Iterable[str]) -> int:
        """Return the rules that admit what has these names, or none."""
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
        # Plain items are added last: a service account counts beside inverted users.
        return self._base & ~removed | added


def _mark(table: dict[str, tuple[int, int]], values: Iterable[str], bit: int, inverted: bool) -> None:
    for value in values:
        added, removed = table.get(value, _NOTHING)
        table[value] = (added, removed | bit) if inverted else (added | bit, removed)
