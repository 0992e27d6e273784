"""Limits the nesting of JSON, in linear time and without recursion, before a decoder sees it. Pure."""

from __future__ import annotations

import re
from collections.abc import Generator
from itertools import accumulate
from operator import add

MAX_DEPTH = 100
"""Maximum nesting depth of objects and arrays in a client's body."""

_NO_OPENING = bytes(byte for byte in range(256) if byte not in b"{[")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"{}[]")
_BITS = bytes.maketrans(b"{}[]", b"1010")


# Matches all bytes up to the next brackets, strings included; an unclosed string extends to the end.
_RUN = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+"?+)*+([{\[]++|[}\]]++)', re.DOTALL)
_RUNS_A_STEP = 5_000


def _rises(byte: int) -> list[int]:
    """Return the change of depth after each of eight brackets, given as bits."""
    return list(accumulate(1 if byte >> bit & 1 else -1 for bit in range(7, -1, -1)))


_NETS = bytes(_rises(byte)[-1] % 256 for byte in range(256))
_PEAKS = bytes(max(0, *_rises(byte)) for byte in range(256))


class TooDeep(ValueError):
    """JSON that is nested too deeply."""


def refuse_deep(data: bytes, most: int = MAX_DEPTH) -> None:
    """Raise TooDeep for JSON that is nested more than `most` levels deep; invalid JSON can pass."""
    if len(data.translate(None, _NO_OPENING)) > most and depth(data) > most:
        raise TooDeep(f"nested more than {most} levels deep")


def depth(data: bytes) -> int:
    """Return the nesting depth of JSON, or any number for invalid JSON. Takes at most 30 ms per MB."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    bits = b"".join(data.split(b'"')[::2]).translate(_BITS, _NO_BRACKET)  # brackets in strings are ignored
    bits += b"0" * (-len(bits) % 8)
    packed = int(bits or b"0", 2).to_bytes(len(bits) // 8, "big")
    nets = memoryview(packed.translate(_NETS)).cast("b")
    return max(map(add, accumulate(nets, initial=0), packed.translate(_PEAKS)), default=0)


def shallow(data: bytes, most: int, marker: bytes) -> Generator[None, None, bytes]:
    """Return JSON in which `marker` replaces each value that is nested more than `most` levels deep.

    Invalid JSON stays unchanged. Takes up to 150 ms per MB, and therefore yields every few milliseconds.
    """
    parts: list[bytes] = []
    level = begin = 0
    for number, match in enumerate(_RUN.finditer(data), 1):
        place, end = match.span(1)
        length = end - place
        if data[place] in b"{[":
            if level <= most < level + length:
                parts += (data[begin : place + most - level], marker)
            level += length
        else:
            if level > most >= level - length:
                begin = place + level - most
            level -= length
        if not number % _RUNS_A_STEP:
            yield
    return data if level else b"".join((*parts, data[begin:]))


def run_to_end(steps: Generator[None, None, bytes]) -> bytes:
    """Run a generator without pauses, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: bytes = end.value
            return found
