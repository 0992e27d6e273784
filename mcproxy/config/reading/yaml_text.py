"""Reads YAML strictly into marked nodes.

libyaml's parser produces events, and this module resolves values. PyYAML's own loaders follow YAML 1.1: ``on`` would be
true, ``22:22`` 1342, ``0123`` 83, a date an object, and the last of duplicate keys would silently win. Here plain
scalars follow the core schema of YAML 1.2 (true/false, null, decimal, 0x, 0o, floats). Duplicate keys are errors, tags
and further documents are refused, and keys are strings.

Anchors, aliases and the merge key ``<<`` (a mapping or a list of mappings; own keys win, then earlier mappings) are
supported. The expanded size of aliases is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from mcproxy.config.model import Mark
from mcproxy.config.problem import Problems, allowed_by
from mcproxy.config.reading.alignment import misaligned
from mcproxy.config.reading.nodes import Entry, Mapping, Node, Path, Scalar, Sequence, Value, key_path, quote
from mcproxy.kube.yaml_nodes import tag_directive

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 40
MAX_NODES = 500_000  # after expansion of aliases
_MAX_DIGITS = 1000

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Characters that YAML allows, except Unicode line ends, at which some parsers break lines and which no editor shows.
_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

_CONSTANTS: dict[str, Value] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_START = frozenset("+-.0123456789")
_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_BASED = re.compile(r"0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)\Z|\.(nan|NaN|NAN)\Z")

# Messages of libyaml, translated for operators: (mistake, remedy).
_SYNTAX: tuple[tuple[str, str, str], ...] = (
    (
        "mapping values are not allowed",
        "a colon where no key can be",
        "give each key a line of its own, as deep as its neighbours, and quote a string that holds a colon and a space",
    ),
    ("could not find expected ':'", "a key without a colon", "write key: value"),
    (
        "did not find expected key",
        "text that fits nothing before it",
        "indent it like its neighbours, and quote a string that goes on after its closing quote",
    ),
    (
        "did not find expected '-' indicator",
        "text that fits nothing before it",
        "begin each entry of a list with a dash, all equally deep",
    ),
    (
        "did not find expected ',' or ']'",
        "a list in [ ] that is not closed",
        "separate its entries with , and close it with ]",
    ),
    (
        "did not find expected ',' or '}'",
        "a mapping in { } that is not closed",
        "separate its entries with , close it with }, and quote a string with ${…}",
    ),
    ("did not find expected node content", "a value is missing", "write a value, or two quotes for an empty text"),
    (
        "unknown escape character",
        "an escape that YAML does not know",
        "write \\\\ for a backslash, or use single quotes",
    ),
    (
        "did not find expected alphabetic or numeric character",
        "a value that begins with & or *",
        "put it in quotes: & and * without a name behind them are no anchors and aliases",
    ),
    (
        "block sequence entries are not allowed",
        "an entry of a list where none can be",
        "begin the list on a line of its own, below its key",
    ),
    ("did not find expected comment or line break", "text behind | or >", "begin the text on the next line"),
    ("found unexpected ':'", "a colon inside of an unquoted value", "put the value in quotes"),
    ("did not find expected <document start>", "text after the end of the document", "keep everything in one document"),
)


# Lines without a space after their last dash, and lines without a space after the colon of their key.
_DASH = re.compile(r" *(?:- +)*-(?=[{\[\"'A-Za-z])")
_KEY = re.compile(r" *(?:- +)*([A-Za-z]\w*):(?=[^\s:])([^#]*[^#\s])")

_TAB = ("a tab where YAML wants spaces", "indent with spaces")


class _Stop(Exception):
    """Reading cannot continue; the problem has been reported."""


def read_yaml(file: str, data: bytes, problems: Problems) -> Node | None:
    """Read the bytes of a file; problems are reported at lines and columns of `file`.

    Returns None for invalid YAML, and a `Scalar` of None for an empty file. If only single keys are wrong (duplicates),
    the result has the other keys.
    """
    try:
        text = _decode(file, data, problems)
        _read_comments(file, text, problems)
        return _Composer(file, text, problems).document()
    except _Stop:
        return None


def read_yaml_documents(file: str, data: bytes, problems: Problems) -> list[Node] | None:
    """Read all documents of a file, as `kubectl` does, without empty ones.

    The limits apply to the whole file. Returns None for invalid YAML.
    """
    try:
        return _Composer(file, _decode(file, data, problems), problems).documents()
    except _Stop:
        return None


def _read_comments(file: str, text: str, problems: Problems) -> None:
    """Find comments that disable warnings."""
    if "mcproxy:" not in text:
        return
    for number, line in enumerate(text.split("\n"), 1):
        names = allowed_by(line)
        if names:
            problems.allow(Mark(file, number, line.index("#") + 1), names)


def _decode(file: str, data: bytes, problems: Problems) -> str:
    if len(data) > MAX_BYTES:
        problems.error(Mark(file, 1, 1), "", f"is larger than {MAX_BYTES // 2**20} MiB", "split it with include")
        raise _Stop
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line_start = before.rfind(b"\n") + 1
        column = len(before[line_start:].decode("utf-8", "replace")) + 1
        mark = Mark(file, before.count(b"\n") + 1, column)
        problems.error(mark, "", f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8")
        raise _Stop from None
    bad = _UNREADABLE.search(text)
    if bad:
        before_text = text[: bad.start()]
        mark = Mark(file, before_text.count("\n") + 1, bad.start() - before_text.rfind("\n"))
        what = f"the invisible character U+{ord(bad.group()):04X}"
        problems.error(mark, "", what, "remove it, or write it as an escape in double quotes")
        raise _Stop
    place = tag_directive(text)
    if place is not None:  # refused, because the parser compares each %TAG directive with all others
        mark = Mark(file, text.count("\n", 0, place) + 1, 1)
        problems.error(mark, "", "a %TAG directive", "leave it out: tags are not used here")
        raise _Stop
    return text


def _is_long_quote(event: Any) -> bool:
    """Whether an event is a quoted string over several lines, which a missing end quote also causes."""
    quoted = isinstance(event, yaml.ScalarEvent) and event.style in ("'", '"')
    return quoted and event.end_mark.line > event.start_mark.line


def resolve(text: str) -> Value:
    """Return the value of a plain (unquoted) scalar by the YAML 1.2 core schema: ``0123`` is 123 and ``on`` a string.

    Raises ValueError for a number with too many digits for any setting.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INTEGER.match(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError("too long a number")
        return int(text)
    if _BASED.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    if _SPECIAL.match(text):
        return float(text.replace(".", ""))
    return text


class _Composer:
    """Turns the events of one document into nodes, during one call of `read_yaml`."""

    def __init__(self, file: str, text: str, problems: Problems) -> None:
        self._file = file
        self._text = text
        self._problems = problems
        self._events: Iterator[Any] = yaml.parse(text, Loader=_PARSER)
        self._long_quote: Any = None  # the last event of a quoted string over several lines
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._open_anchors: set[str] = set()
        self._nodes = 0

    def documents(self) -> list[Node]:
        found: list[Node] = []
        while not isinstance(event := self._next(), yaml.StreamEndEvent):
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                node = self._node(self._next(), ())
                if not (isinstance(node, Scalar) and node.value is None):
                    found.append(node)
        return found

    def document(self) -> Node:
        root: Node | None = None
        while True:
            event = self._next()
            if isinstance(event, yaml.StreamEndEvent):
                return root if root is not None else Scalar(None, Mark(self._file, 1, 1), "")
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self._stop(event, (), "a second document", "keep everything in one document, without a second ---")
                root = self._node(self._next(), ())

    def _next(self) -> Any:
        try:
            event = next(self._events)
            if _is_long_quote(event):
                self._long_quote = event
            return event
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
        except yaml.YAMLError as error:
            self._problems.error(Mark(self._file, 1, 1), "", f"is not YAML: {error}", "write valid YAML")
        raise _Stop

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        found = str(error.problem or error)
        at = error.problem_mark or error.context_mark
        if "unexpected end of stream" in found and error.context_mark is not None:
            what, right, at = "a quote that is not closed", "close it with the same quote", error.context_mark
        elif at is not None and self._long_quote is not None and self._long_quote.end_mark.line == at.line:
            what = f"a quote that is not closed before line {at.line + 1}"
            right, at = "close it with the same quote", self._long_quote.start_mark
        elif "expected node content" in found and at is not None and at.line >= self._text.rstrip().count("\n") + 1:
            what, right = "the file ends in a list or mapping that is not closed", "close it with ] or }"
            at = self._end(at)
        elif "tab character" in found:
            what, right = _TAB
        elif "cannot start any token" in found:
            what, right = self._bad_token(at)
        elif (spaceless := self._without_space(found, error)) is not None:
            what, right, at = spaceless
        elif at is not None and (neighbour := misaligned(self._text.split("\n"), at.line, found)) is not None:
            line, column, own = neighbour
            what = f"is not aligned with its neighbours: it begins at column {own + 1}, line {line + 1} at {column + 1}"
            problem = (Mark(self._file, at.line + 1, own + 1), "", what, f"begin it at column {column + 1}")
            self._problems.error(*problem)
            return
        else:
            unknown = (found, f"is not YAML: {found}", "write valid YAML")
            _, what, right = next((row for row in _SYNTAX if row[0] in found), unknown)
            if " is not closed" in what and error.context_mark is not None:
                what += f" (opened at {error.context_mark.line + 1}:{error.context_mark.column + 1})"
        line, column = (at.line, at.column) if at is not None else (0, 0)
        self._problems.error(Mark(self._file, line + 1, column + 1), "", what, right)

    def _end(self, at: yaml.Mark) -> yaml.Mark:
        """Return the position of the last visible character of the file."""
        before, _, last = self._text.rstrip().rpartition("\n")
        line = before.count("\n") + 1 if before else 0
        return yaml.Mark(at.name, 0, line, max(0, len(last) - 1), None, 0)

    def _without_space(self, found: str, error: yaml.MarkedYAMLError) -> tuple[str, str, yaml.Mark] | None:
        """Return the problem and its position if a line lacks the space after its dash or the colon of its key.

        YAML reads such a line as one plain scalar, so that the parser stops at the next colon or line.
        """
        at, lines = error.problem_mark, self._text.split("\n")
        if at is None:
            return None
        if "mapping values are not allowed" in found:
            # YAML also ends lines at a carriage return, so its line numbers can differ from these.
            if at.line < len(lines) and (dash := _DASH.match(lines[at.line])) is not None:
                mark = yaml.Mark(at.name, 0, at.line, dash.end() - 1, None, 0)
                return "a dash without a space behind it", "put a space after the dash", mark
            number = at.line - 1
        elif "could not find expected ':'" in found and error.context_mark is not None:
            number = error.context_mark.line
        else:
            return None
        key = _KEY.match(lines[number]) if 0 <= number < len(lines) else None
        if key is None:
            return None
        mark = yaml.Mark(at.name, 0, number, key.start(1), None, 0)
        right = f"put a space after the colon: {key[1]}: {key[2]}"
        return "a key without a space after its colon", right, mark

    def _bad_token(self, at: Any) -> tuple[str, str]:
        lines = self._text.split("\n")
        line = lines[at.line] if at is not None and at.line < len(lines) else ""
        char = line[at.column : at.column + 1] if at is not None else ""
        if char == "\t":
            return _TAB
        return f"an unquoted value cannot begin with {char}", "put the string in quotes"

    def _mark(self, event: Any) -> Mark:
        return Mark(self._file, event.start_mark.line + 1, event.start_mark.column + 1)

    def _stop(self, event: Any, path: Path, what: str, right: str) -> None:
        self._problems.error(self._mark(event), key_path(path), what, right)
        raise _Stop

    def _count(self, event: Any, path: Path, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            self._stop(event, path, f"more than {MAX_NODES} values", "use fewer aliases, or split the file")

    def _node(self, event: Any, path: Path) -> Node:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event, path)
        if event.tag is not None:
            self._stop(event, path, f"the tag {event.tag}", "leave it out, and quote a number that is meant as text")
        anchor: str | None = event.anchor
        if anchor is not None:
            self._open_anchors.add(anchor)
        before = self._nodes
        self._count(event, path, 1)
        node = self._collection(event, path)
        if anchor is not None:
            self._anchors[anchor] = (node, self._nodes - before)
            self._open_anchors.discard(anchor)
        return node

    def _alias(self, event: Any, path: Path) -> Node:
        name = event.anchor
        if name in self._open_anchors:
            self._stop(event, path, f"*{name} is inside the node that it refers to", "write the value out")
        if name not in self._anchors:
            self._stop(event, path, f"*{name} names nothing above it", f"mark the value it stands for with &{name}")
        node, size = self._anchors[name]
        self._count(event, path, size)
        return node

    def _collection(self, event: Any, path: Path) -> Node:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        if len(path) >= MAX_DEPTH:
            self._stop(event, (), f"nested more than {MAX_DEPTH} deep", "flatten it")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, path)
        return self._mapping(event, path)

    def _scalar(self, event: Any, path: Path) -> Scalar:
        text: str = event.value
        if not event.implicit[0]:
            return Scalar(text, self._mark(event), text)
        try:
            return Scalar(resolve(text), self._mark(event), text)
        except ValueError:
            self._stop(event, path, "a number with too many digits", "write a smaller one, or quote it")
            raise

    def _sequence(self, event: Any, path: Path) -> Sequence:
        items: list[Node] = []
        while not isinstance(item := self._next(), yaml.SequenceEndEvent):
            items.append(self._node(item, (*path, len(items))))
        return Sequence(tuple(items), self._mark(event))

    def _mapping(self, event: Any, path: Path) -> Mapping:
        entries: dict[str, Entry] = {}
        merged: list[Mapping] = []
        while not isinstance(key_event := self._next(), yaml.MappingEndEvent):
            if isinstance(key_event, yaml.CollectionStartEvent):
                self._stop(key_event, path, "a list or mapping as a key", "use a plain word as the key")
            key_node = self._node(key_event, path)
            if not isinstance(key_node, Scalar):
                self._stop(key_event, path, "a list or mapping as a key", "use a plain word as the key")
                raise _Stop
            mark = self._mark(key_event)
            name = self._key(key_node, mark, path)
            value_path = (*path, name)
            value = self._node(self._next(), value_path)
            if name == "<<" and isinstance(key_event, yaml.ScalarEvent) and key_event.implicit[0]:
                merged += self._merged(value, mark, path)
            elif name in entries:
                self._problems.error(
                    mark,
                    key_path(value_path),
                    f"the key {quote(name)} is a duplicate, first at {entries[name].mark}",
                    "keep one of the two",
                )
            else:
                entries[name] = Entry(mark, value)
        for mapping in merged:
            for name, entry in mapping.entries.items():
                entries.setdefault(name, entry)
        return Mapping(entries, self._mark(event))

    def _key(self, node: Scalar, mark: Mark, path: Path) -> str:
        if not isinstance(node.value, str):
            what = f"the key {node.text or 'before the colon'} is not a string" if node.text else "an empty key"
            self._problems.error(
                mark, key_path(path), what, f'write "{node.text}" in quotes' if node.text else "name it"
            )
            return node.text
        return node.value

    def _merged(self, value: Node, mark: Mark, path: Path) -> list[Mapping]:
        candidates = value.items if isinstance(value, Sequence) else (value,)
        mappings = [node for node in candidates if isinstance(node, Mapping)]
        if len(mappings) != len(candidates):
            what = "<< merges something that is not a mapping"
            self._problems.error(mark, key_path((*path, "<<")), what, "give it *NAME of a mapping, or a list of such")
        return mappings
