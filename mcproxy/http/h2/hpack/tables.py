"""The static table (RFC 7541, Appendix A) and the Huffman decoder (RFC 7541 5.2 and Appendix B) of HPACK."""

from __future__ import annotations

import functools
import zlib
from itertools import combinations
from typing import Final

# The static table of RFC 7541, Appendix A.
#
#: Name and value of the entries 1 to 61; the index 0 is not used (RFC 7541 6.1).
STATIC_TABLE: tuple[tuple[bytes, bytes], ...] = (
    (b"", b""),
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
)

#: The first index of each name.
NAME_INDEX = {name: index for index, (name, _) in reversed(list(enumerate(STATIC_TABLE))) if index}


# Decoding of Huffman-coded strings (RFC 7541 5.2 and Appendix B).
#
# HPACK's code is canonical, as the codes of DEFLATE are (RFC 1951 3.2.2), so zlib can decode most strings. A block of
# DEFLATE begins with the lengths of its codes, which can include all codes of HPACK with up to 15 bits (the maximum of
# DEFLATE). These cover all printable ASCII except the backslash. One code of 15 bits remains: all ones. In HPACK all
# longer codes begin with it; in DEFLATE it ends the block. So zlib stops at a longer code, and at the padding after the
# string: at most 7 ones, to which 15 are added here. If it stops too early, `decode_by_steps` decodes the string again.
# DEFLATE packs bits from the lowest up, HPACK from the highest down, so the bits of each byte are reversed first. A
# token of 900 bytes takes 5 us; an automaton in Python takes 50 us.

_LENGTHS = (
    "13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 "
    "6 10 10 12 13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 "
    "13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 8 7 8 13 19 13 14 6 "
    "15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 "
    "20 22 20 20 22 22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 "
    "22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 "
    "26 26 20 19 22 23 22 25 26 26 26 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 "
    "20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 "
    "30 "
)
#: Length in bits of each symbol's code; the symbol 256 is EOS. The codes follow from the lengths (`_codes`).
CODE_LENGTHS = tuple(map(int, _LENGTHS.split()))
EOS: Final = 256
_MAX_DEFLATE_BITS: Final = 15
_MAX_PADDING: Final = 7  # bits


class HuffmanError(ValueError):
    """The string contains the code of EOS, or its padding is too long or contains a 0 (RFC 7541 5.2)."""


def _codes(lengths: dict[int, int]) -> dict[int, tuple[int, int]]:
    """Return the canonical code of each symbol: value and length in bits (RFC 1951 3.2.2)."""
    codes = {}
    code = bits = 0
    for length, symbol in sorted((length, symbol) for symbol, length in lengths.items()):
        code <<= length - bits
        bits = length
        codes[symbol] = code, length
        code += 1
    return codes


CODES = _codes(dict(enumerate(CODE_LENGTHS)))


# -- with zlib ------------------------------------------------------------------------------------------------------

# The order in which a block gives the lengths of the codes for code lengths (RFC 1951 3.2.7).
_LENGTH_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)


def _block_header() -> bytes:
    """Return the header of a DEFLATE block with HPACK's code; it ends at a byte boundary, before a string's bytes."""
    lengths = [length if length <= _MAX_DEFLATE_BITS else 0 for length in CODE_LENGTHS[:EOS]]
    lengths.append(_MAX_DEFLATE_BITS)  # the end of the block
    lengths.append(0)  # no code for distances, because there are no back-references
    used = sorted(set(lengths))  # 11 of them: 5 codes of 3 bits and 6 of 4 are a complete code
    for short in combinations(used, 5):  # choose the short codes so that the header ends at a byte boundary
        length_codes = _codes({length: 3 if length in short else 4 for length in used})
        header = _Bits()
        header.number(0b101, 3)  # the last block, with dynamic codes
        header.number(0, 10)  # 257 symbols, 1 distance
        header.number(len(_LENGTH_ORDER) - 4, 4)
        for length in _LENGTH_ORDER:
            header.number(length_codes[length][1] if length in length_codes else 0, 3)
        for length in lengths:
            header.code(*length_codes[length])
        if len(header.bits) % 8 == 0:
            break
    return header.packed()


class _Bits:
    """Bits in the order of DEFLATE."""

    def __init__(self) -> None:
        self.bits: list[int] = []

    def number(self, value: int, size: int) -> None:
        self.bits += [value >> bit & 1 for bit in range(size)]

    def code(self, value: int, size: int) -> None:
        self.bits += [value >> bit & 1 for bit in range(size - 1, -1, -1)]

    def packed(self) -> bytes:
        octets = [self.bits[start : start + 8] for start in range(0, len(self.bits), 8)]
        return bytes([sum(bit << place for place, bit in enumerate(octet)) for octet in octets])


_REVERSED = bytes([int(f"{octet:08b}"[::-1], 2) for octet in range(256)])
_END: Final = b"\xff\x7f"  # 15 ones and a zero, reversed

_template = zlib.decompressobj(-9)  # has read the header; a copy decodes each string
_template.decompress(_block_header())
_copy = _template.copy


def decode(data: bytes) -> bytes:
    """Return the string that `data` encodes. Raises HuffmanError for data that no encoder sends."""
    decoder = _copy()
    result = decoder.decompress(data.translate(_REVERSED) + _END)
    rest = decoder.unused_data
    if not rest and decoder.eof:
        return result  # padding of 0 to 6 bits plus 15 added ones: the end of the block, with 1 to 7 bits left over
    if not decoder.eof or len(rest) > 1:
        return decode_by_steps(data)  # a long code, or wrong padding
    if len(data) * 8 - sum([CODE_LENGTHS[octet] for octet in result]) > _MAX_PADDING:
        raise HuffmanError("padding of more than 7 bits")
    return result


# -- without zlib -----------------------------------------------------------------------------------------------------


def _tree() -> list[list[int]]:
    """Return the code's tree: for each inner node its children for 0 and 1, the number of a node or -1 - symbol."""
    nodes = [[0, 0]]
    for symbol, (code, length) in CODES.items():
        node = 0
        for bit in range(length - 1, 0, -1):
            way = code >> bit & 1
            if not nodes[node][way]:
                nodes.append([0, 0])
                nodes[node][way] = len(nodes) - 1
            node = nodes[node][way]
        nodes[node][code & 1] = -1 - symbol
    return nodes


def _steps(nodes: list[list[int]]) -> list[tuple[bytes, int]]:
    """Return the automaton over half octets: at 16 * node + half octet the decoded bytes, and 16 * the next node.

    The next node is -1 at EOS.
    """
    steps = []
    for begin in range(len(nodes)):
        for half in range(16):
            out, node = b"", begin
            for bit in (3, 2, 1, 0):
                if node >= 0:
                    node = nodes[node][half >> bit & 1]
                    if node == -1 - EOS:
                        break
                    if node < 0:
                        out += bytes([-1 - node])
                        node = 0
            steps.append((out, 16 * node if node >= 0 else -1))
    return steps


def _padding_ends(nodes: list[list[int]]) -> frozenset[int]:
    """Return 16 * each node that is reached by 0 to 7 ones, where a string may end."""
    path = [0]
    while len(path) <= _MAX_PADDING:
        path.append(nodes[path[-1]][1])
    return frozenset([16 * node for node in path])


@functools.cache
def _automaton() -> tuple[list[tuple[bytes, int]], frozenset[int]]:
    """Return the automaton and the nodes where a string may end, made for the first string that zlib cannot decode."""
    nodes = _tree()
    return _steps(nodes), _padding_ends(nodes)


def decode_by_steps(data: bytes) -> bytes:
    """Do the same as `decode` ten times slower: for strings that zlib cannot decode, and for comparison in tests."""
    state = 0
    pieces = []
    steps, ends = _automaton()
    for octet in data:
        piece, state = steps[state + (octet >> 4)]
        if piece:
            pieces.append(piece)
        if state >= 0:
            piece, state = steps[state + (octet & 15)]
            if piece:
                pieces.append(piece)
        if state < 0:
            raise HuffmanError("the code of EOS")
    if state not in ends:
        raise HuffmanError("padding of more than 7 bits, or not of ones")
    return b"".join(pieces)
