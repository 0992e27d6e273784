"""Changes inputs by chance, as fuzzers do: bits, bytes, pieces of other inputs, words of the format, lengths.

Not by hypothesis, whose examples cost ten times as much: it looks for counterexamples to laws, in tests beside the
parsers; here millions of inputs look for an exception that nobody expects, or for time that nobody should take.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

MOST = 64 << 10
"""Bytes of an input, after all changes."""
_NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"4294967296", b"9223372036854775808", b"1e999", b"NaN", b"0x10")
_BYTES = (0, 9, 10, 13, 32, 34, 47, 58, 92, 123, 127, 128, 255)


class Mutator:
    """Makes inputs of a corpus; the same ones for the same seed."""

    def __init__(self, corpus: Sequence[bytes], words: Sequence[bytes], seed: object) -> None:
        """`words` are those of the format. Raises ValueError for an empty corpus."""
        if not corpus:
            raise ValueError("a corpus needs an input")
        self._corpus = list(corpus)
        self._words = [*words, *_NUMBERS]
        self._random = random.Random(f"{seed}")

    def next(self) -> bytes:
        """Return another input."""
        chance = self._random
        data = bytearray(chance.choice(self._corpus))
        for _ in range(1 + int(chance.expovariate(0.6))):
            chance.choice(_CHANGES)(self, data)
        return bytes(data[:MOST])

    def keep(self, data: bytes) -> None:
        """Add an input that led somewhere new."""
        self._corpus.append(data)

    def _place(self, data: bytearray) -> int:
        return self._random.randrange(len(data) + 1)

    def _piece(self, data: bytes | bytearray, longest: int = 64) -> slice:
        begin = self._random.randrange(len(data) + 1)
        return slice(begin, begin + self._random.randrange(1, longest))

    def flip_bit(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def set_byte(self, data: bytearray) -> None:
        if data:
            chance = self._random
            data[chance.randrange(len(data))] = (
                chance.choice(_BYTES) if chance.random() < 0.7 else chance.randrange(256)
            )

    def insert_word(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._random.choice(self._words)

    def replace_word(self, data: bytearray) -> None:
        data[self._piece(data, 8)] = self._random.choice(self._words)

    def insert_bytes(self, data: bytearray) -> None:
        place = self._place(data)
        data[place:place] = self._random.randbytes(self._random.randrange(1, 9))

    def remove(self, data: bytearray) -> None:
        del data[self._piece(data)]

    def repeat(self, data: bytearray) -> None:
        chance = self._random
        place, piece = self._place(data), bytes(data[self._piece(data)])
        data[place:place] = piece * (chance.randrange(1, 4) if chance.random() < 0.9 else chance.randrange(4, 400))

    def truncate(self, data: bytearray) -> None:
        del data[self._place(data) :]

    def splice(self, data: bytearray) -> None:
        other = self._random.choice(self._corpus)
        data[self._piece(data)] = other[self._piece(other, 256)]

    def cross(self, data: bytearray) -> None:
        other = self._random.choice(self._corpus)
        data[self._place(data) :] = other[self._random.randrange(len(other) + 1) :]


_CHANGES = (
    Mutator.flip_bit,
    Mutator.set_byte,
    Mutator.insert_word,
    Mutator.replace_word,
    Mutator.insert_bytes,
    Mutator.remove,
    Mutator.repeat,
    Mutator.truncate,
    Mutator.splice,
    Mutator.cross,
)
