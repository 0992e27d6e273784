"""Regular expressions over bytes that match any text in linear time, for paths that clients send. Pure.

The syntax is the part of RE2's syntax that paths need: literals, ``.``, classes with ranges, ``\\d \\w \\s`` and their
opposites, groups, ``(?:…)``, ``|``, ``* + ? {n,m}`` with their lazy forms, ``^`` at the beginning, ``$``, and a leading
``(?i)``. There are no back references and no lookaheads. A pattern matches the whole text.

A pattern is compiled to a program of a few kinds of instructions (Thompson), and the program to a deterministic
automaton that reads the text from its end. The automaton's state at a position is the set of instructions from which
the rest of the text matches. The automaton is built at once and has a size limit, so a too large pattern is refused
when it is configured, never when it is used. A walk from the beginning finds the captures of groups: at each branch it
takes the first way that leads to the end. It never backtracks, because the states are known.

The literal prefix of a pattern is compared directly; the automaton matches the rest. So thousands of patterns such as
``/NAME(/|$)(.*)`` share one automaton, and a table of patterns finds them by their prefix (`LinearRegex.literal`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

MAX_INSTRUCTIONS = 500
MAX_STATES = 500
MAX_REPEAT = 100
MAX_NESTING = 20
MAX_GROUPS = 20
MAX_BEGINNING = 64
"""Maximum of bytes of a prefix in a table, which looks up each prefix of a text up to this length."""

_ALL = (1 << 256) - 1
_COUNT = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}")
_NAMED = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11}


class PatternError(ValueError):
    """A pattern is invalid or too large; the message names the fault."""


class _Node(NamedTuple):
    """A part of a pattern; the meaning of the fields depends on the kind."""

    kind: str  # set, cat, alt, repeat, group, end
    parts: tuple[_Node, ...] = ()
    bits: int = 0  # for a set: one bit for each byte
    least: int = 0
    most: int = -1  # maximum of repetitions; -1: no maximum
    greedy: bool = True
    number: int = 0  # number of a group


def _bits(first: int, last: int | None = None) -> int:
    last = first if last is None else last
    return ((1 << (last - first + 1)) - 1) << first


_DIGITS = _bits(48, 57)
_WORDS = _DIGITS | _bits(65, 90) | _bits(97, 122) | _bits(95)
_SPACES = _bits(9, 10) | _bits(12, 13) | _bits(32)
_CLASSES = {
    "d": _DIGITS, "D": _ALL & ~_DIGITS, "w": _WORDS, "W": _ALL & ~_WORDS, "s": _SPACES, "S": _ALL & ~_SPACES,
}  # fmt: skip


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.groups = 0
        self._text = pattern
        self._at = 0
        self._fold = False
        self._depth = 0
        if pattern.startswith("(?i)"):
            self._fold, self._at = True, 4
        if self._peek() == "^":
            self._at += 1

    def whole(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("there is a ) too many")
        return node

    def _wrong(self, what: str) -> PatternError:
        return PatternError(f"{what} (character {self._at + 1})")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _alternatives(self) -> _Node:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._wrong("it is nested too deeply")
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        self._depth -= 1
        return found[0] if len(found) == 1 else _Node("alt", tuple(found))

    def _sequence(self) -> _Node:
        found: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            found.append(self._repeated(self._atom()))
        return found[0] if len(found) == 1 else _Node("cat", tuple(found))

    def _repeated(self, node: _Node) -> _Node:
        sign = self._peek()
        least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(sign, (-1, -1))
        if least >= 0:
            self._at += 1
        else:
            count = _COUNT.match(self._text, self._at)
            if count is None:
                return node
            least = int(count[1])
            most = least if count[2] is None else -1 if count[3] is None else int(count[3])
            if least > MAX_REPEAT or most > MAX_REPEAT or -1 < most < least:
                raise self._wrong(f"{count[0]} is no number of times, or more than {MAX_REPEAT}")
            self._at = count.end()
        if node.kind == "end" or (most < 0 and _may_be_empty(node)):
            raise self._wrong("what may be empty is repeated")
        greedy = self._peek() != "?"
        self._at += not greedy
        if self._peek() in ("*", "+", "?") or _COUNT.match(self._text, self._at):
            raise self._wrong("a repetition is repeated")
        return _Node("repeat", (node,), least=least, most=most, greedy=greedy)

    def _atom(self) -> _Node:
        char = self._peek()
        if char == "(":
            return self._group()
        self._at += 1
        if char == ".":
            return _Node("set", bits=_ALL)
        if char == "$":
            return _Node("end")
        if char == "[":
            return _Node("set", bits=self._class())
        if char == "\\":
            return _Node("set", bits=self._folded(self._escaped()))
        if char in "*+?^":
            self._at -= 1
            raise self._wrong("^ is for the beginning alone" if char == "^" else f"{char} has nothing to repeat")
        data = char.encode()
        if len(data) == 1:
            return _Node("set", bits=self._folded(_bits(data[0])))
        return _Node("cat", tuple(_Node("set", bits=_bits(byte)) for byte in data))

    def _group(self) -> _Node:
        self._at += 1
        number = -1
        if self._peek() == "?":
            if not self._text.startswith("?:", self._at):
                raise self._wrong("of groups with ? there is (?:…) alone")
            self._at += 2
        else:
            self.groups = number = self.groups + 1
            if number > MAX_GROUPS:
                raise self._wrong(f"there are more than {MAX_GROUPS} groups; write (?:…) for those that are not used")
        inner = self._alternatives()
        if self._peek() != ")":
            raise self._wrong("a ) is missing")
        self._at += 1
        return inner if number < 0 else _Node("group", (inner,), number=number)

    def _folded(self, bits: int) -> int:
        if self._fold:
            upper, lower = bits & _bits(65, 90), bits & _bits(97, 122)
            bits |= upper << 32 | lower >> 32
        return bits

    def _escaped(self) -> int:
        char = self._peek()
        self._at += 1
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _NAMED:
            return _bits(_NAMED[char])
        if not char or not char.isascii() or char.isalnum():
            self._at -= 1
            raise self._wrong(f"there is no \\{char}")
        return _bits(ord(char))

    def _class(self) -> int:
        negated = self._peek() == "^"
        self._at += negated
        found = 0
        begin = True
        while begin or self._peek() != "]":
            begin = False
            first = self._member()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._member()
                if first.bit_count() != 1 or last.bit_count() != 1 or last < first:
                    raise self._wrong("a range has no such ends")
                first = _bits(first.bit_length() - 1, last.bit_length() - 1)
            found |= first
        self._at += 1
        found = self._folded(found)
        return _ALL & ~found if negated else found

    def _member(self) -> int:
        char = self._peek()
        if not char:
            raise self._wrong("a ] is missing")
        if char == "[" and self._text.startswith("[:", self._at):
            raise self._wrong("there are no classes with names")
        self._at += 1
        if char == "\\":
            return self._escaped()
        if not char.isascii():
            raise self._wrong("a class has ASCII characters alone")
        return _bits(ord(char))


def _may_be_empty(node: _Node) -> bool:
    if node.kind in ("set", "end"):
        return node.kind == "end"
    if node.kind == "alt":
        return any(map(_may_be_empty, node.parts))
    return (node.kind == "repeat" and not node.least) or all(map(_may_be_empty, node.parts))


class _Instruction(NamedTuple):
    kind: str  # match, set, split, save, end
    ways: tuple[int, ...] = ()  # the next instructions, the preferred one first
    bits: int = 0  # for a set: its bytes
    slot: int = 0  # for a save: its slot


class _Program:
    """The instructions of a pattern, compiled from its end, so that the successor of each part is known already."""

    def __init__(self) -> None:
        self.code: list[_Instruction] = [_Instruction("match")]

    def _put(self, instruction: _Instruction) -> int:
        if len(self.code) >= MAX_INSTRUCTIONS:
            raise PatternError("it is too long, or repeats too much")
        self.code.append(instruction)
        return len(self.code) - 1

    def add(self, node: _Node, after: int) -> int:
        """Add a part with the instruction `after` as its successor; return its first instruction."""
        match node.kind:
            case "set":
                return self._put(_Instruction("set", (after,), bits=node.bits))
            case "end":
                return self._put(_Instruction("end", (after,)))
            case "cat":
                for part in reversed(node.parts):
                    after = self.add(part, after)
                return after
            case "alt":
                return self._put(_Instruction("split", tuple(self.add(part, after) for part in node.parts)))
            case "group":
                inner = self.add(node.parts[0], self._put(_Instruction("save", (after,), slot=2 * node.number + 1)))
                return self._put(_Instruction("save", (inner,), slot=2 * node.number))
        return self._add_repeated(node, after)

    def _add_repeated(self, node: _Node, after: int) -> int:
        part = node.parts[0]
        start = after
        if node.most < 0:
            start = self._put(_Instruction("split"))
            self.code[start] = self._choice(self.add(part, start), after, greedy=node.greedy)
        else:
            for _ in range(node.most - node.least):
                start = self._put(self._choice(self.add(part, start), after, greedy=node.greedy))
        for _ in range(node.least):
            start = self.add(part, start)
        return start

    @staticmethod
    def _choice(part: int, after: int, *, greedy: bool) -> _Instruction:
        return _Instruction("split", (part, after) if greedy else (after, part))

    def before(self, *, at_end: bool) -> list[int]:
        """Return for each instruction the set (bits) of instructions that lead to it without consuming a byte; the set
        includes the instruction itself.
        """
        into: list[list[int]] = [[] for _ in self.code]
        for number, each in enumerate(self.code):
            if each.kind in ("split", "save") or (at_end and each.kind == "end"):
                for way in each.ways:
                    into[way].append(number)
        found = []
        for number in range(len(self.code)):
            bits, todo = 1 << number, [number]
            while todo:
                for source in into[todo.pop()]:
                    if not bits >> source & 1:
                        bits |= 1 << source
                        todo.append(source)
            found.append(bits)
        return found


class LinearRegex:
    """A compiled pattern."""

    __slots__ = ("_rest", "groups", "literal", "pattern")

    def __init__(self, pattern: str) -> None:
        """Raises PatternError."""
        self.pattern = pattern
        parser = _Parser(pattern)
        literal, rest = _split_prefix(parser.whole())
        self.literal = literal
        """The literal prefix of each matching text."""
        self.groups = parser.groups
        self._rest: _Automaton = _automaton(rest)

    @property
    def beginning(self) -> bytes:
        """The key in a table of patterns: `literal`, cut to the length that tables use."""
        return self.literal[:MAX_BEGINNING]

    def matches(self, text: bytes) -> bool:
        """Whether the pattern matches the whole text."""
        return text.startswith(self.literal) and self._rest.matches(text[len(self.literal) :])

    def captured(self, text: bytes) -> tuple[bytes, ...] | None:
        """Return the whole text and the captures of the groups (b"" for an unused group); None: no match."""
        if not text.startswith(self.literal):
            return None
        found = self._rest.captured(text[len(self.literal) :], self.groups)
        return None if found is None else (text, *found)


def _split_prefix(tree: _Node) -> tuple[bytes, _Node]:
    """Return the literal prefix of a pattern (single bytes outside groups), and the rest of the pattern."""
    parts = tree.parts if tree.kind == "cat" else (tree,)
    literal = bytearray()
    for number, part in enumerate(parts):
        if part.kind != "set" or part.bits.bit_count() != 1:
            return bytes(literal), _Node("cat", parts[number:])
        literal.append(part.bits.bit_length() - 1)
    return bytes(literal), _Node("cat")


class _Automaton:
    """The automaton for a pattern without its literal prefix."""

    __slots__ = ("_classes", "_code", "_rows", "_sets", "_start")

    def __init__(self, tree: _Node) -> None:
        """Raises PatternError."""
        program = _Program()
        self._start = program.add(tree, 0)
        self._code = tuple(program.code)
        self._classes, members = _byte_classes(each.bits for each in self._code if each.kind == "set")
        before = program.before(at_end=False)
        steps = [
            [(each.ways[0], before[number]) for number, each in enumerate(self._code) if each.bits >> member & 1]
            for member in members
        ]
        self._sets = [program.before(at_end=True)[0]]
        """For each state, the instructions from which the rest of the text matches, as bits."""
        known = {self._sets[0]: 0}
        self._rows: list[list[int]] = []
        """For each state, the state before a byte of each class."""
        while len(self._rows) < len(self._sets):
            now = self._sets[len(self._rows)]
            row = []
            for ways in steps:
                found = 0
                for after, bits in ways:
                    if now >> after & 1:
                        found |= bits
                if found not in known:
                    if len(known) >= MAX_STATES:
                        raise PatternError("it needs too much memory to match in linear time; write a simpler one")
                    known[found] = len(self._sets)
                    self._sets.append(found)
                row.append(known[found])
            self._rows.append(row)

    def matches(self, text: bytes) -> bool:
        """Whether the pattern matches the whole text."""
        state, rows = 0, self._rows
        for byte in reversed(text.translate(self._classes)):
            state = rows[state][byte]
        return bool(self._sets[state] >> self._start & 1)

    def captured(self, text: bytes, groups: int) -> tuple[bytes, ...] | None:
        """Return the captures of the groups (b"" for an unused group); None: no match."""
        state, rows = 0, self._rows
        states = [state]
        for byte in reversed(text.translate(self._classes)):
            state = rows[state][byte]
            states.append(state)
        if not self._sets[state] >> self._start & 1:
            return None
        slots = [-1] * (2 * groups + 2)
        at, number, size = 0, self._start, len(text)
        while number:
            each = self._code[number]
            if each.kind == "split":
                alive = self._sets[states[size - at]]
                number = next(way for way in each.ways if alive >> way & 1)
                continue
            if each.kind == "save":
                slots[each.slot] = at
            elif each.kind == "set":
                at += 1
            number = each.ways[0]
        return tuple([text[start:end] for start, end in zip(slots[2::2], slots[3::2], strict=True)])


@lru_cache(1024)
def _automaton(tree: _Node) -> _Automaton:
    """Return the automaton for a part of a pattern; equal parts share one. Raises PatternError."""
    return _Automaton(tree)


def _byte_classes(sets: Iterator[int]) -> tuple[bytes, list[int]]:
    """Return the class of each byte, as a table for `translate`, and one byte of each class.

    Bytes belong to the same class if every set contains either all or none of them.
    """
    kinds = tuple(dict.fromkeys(sets))
    found: dict[tuple[int, ...], int] = {}
    members: list[int] = []
    table = bytearray(256)
    for byte in range(256):
        signature = tuple(bits >> byte & 1 for bits in kinds)
        if signature not in found:
            found[signature] = len(members)
            members.append(byte)
        table[byte] = found[signature]
    return bytes(table), members
