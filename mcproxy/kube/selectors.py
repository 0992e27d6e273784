"""Label and field selectors of query parameters: parsing with Kubernetes' errors, and matching.

Sources: apimachinery `pkg/labels/selector.go` (Parse) and `pkg/fields/selector.go` (ParseSelector).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mcproxy.kube.status import StatusError

LabelMatcher = Callable[[Mapping[str, str]], bool]

_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_TOKEN = re.compile(r"[ \t\r\n]*(!=|==|=|!|,|\(|\)|>|<|[^ \t\r\n!=,()<>]+)")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}\Z", re.ASCII)
_OPERATORS = ("in", "notin", "=", "==", "!=", ">", "<")
_SYMBOLS = frozenset(("", "!=", "==", "=", "!", ",", "(", ")", ">", "<"))
_VALUE_HELP = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_NAME_HELP = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_PREFIX_HELP = (
    "prefix part a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and "
    "must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_QUALIFIED_HELP = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. "
    "'example.com/MyName')"
)


class Requirement(NamedTuple):
    """One requirement of a label selector; `operator` is in, notin, exists, !, > or <; `=` is `in` with one value."""

    key: str
    operator: str
    values: tuple[str, ...]


def parse_label_selector(text: str) -> tuple[Requirement, ...]:
    """Parse a labelSelector; no requirement selects everything. Raises StatusError 400 with Kubernetes' message."""
    return tuple(_Labels(text).parse())


def label_matcher(requirements: tuple[Requirement, ...]) -> LabelMatcher | None:
    """Return requirements as one predicate over labels, None if they select everything."""
    if not requirements:
        return None
    matchers = [_matcher(requirement) for requirement in requirements]
    if len(matchers) == 1:
        return matchers[0]

    def matches(labels: Mapping[str, str]) -> bool:
        for matcher in matchers:  # noqa: SIM110 - a generator would cost twice as much
            if not matcher(labels):
                return False
        return True

    return matches


def _matcher(requirement: Requirement) -> LabelMatcher:
    """Return one requirement as a predicate over labels."""
    key = requirement.key
    if requirement.operator == "exists":
        return lambda labels: key in labels
    if requirement.operator == "!":
        return lambda labels: key not in labels
    if requirement.operator == "in":
        if len(requirement.values) == 1:
            value = requirement.values[0]
            return lambda labels: labels.get(key) == value
        inside = frozenset(requirement.values)
        return lambda labels: labels.get(key) in inside
    if requirement.operator == "notin":
        outside = frozenset(requirement.values)
        return lambda labels: labels.get(key) not in outside
    bound, greater = int(requirement.values[0]), requirement.operator == ">"

    def compares(labels: Mapping[str, str]) -> bool:
        text = labels.get(key, "")
        if not _INTEGER.match(text):
            return False
        return int(text) > bound if greater else int(text) < bound

    return compares


class _Labels:
    """The recursive-descent parser of apimachinery, with its messages."""

    def __init__(self, text: str) -> None:
        self.tokens = [match.group(1) for match in _TOKEN.finditer(text)]
        self.position = 0

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def parse(self) -> list[Requirement]:
        requirements: list[Requirement] = []
        while token := self.peek():
            if token != "!" and token in _SYMBOLS:
                raise StatusError(400, f"found '{token}', expected: !, identifier, or 'end of string'")
            requirements.append(self.requirement())
            token = self.next()
            if not token:
                break
            if token != ",":
                raise StatusError(400, f"found '{token}', expected: ',' or 'end of string'")
            following = self.peek()
            if following != "!" and following in _SYMBOLS:
                raise StatusError(400, f"found '{following}', expected: identifier after ','")
        return requirements

    def requirement(self) -> Requirement:
        negated = self.peek() == "!"
        if negated:
            self.next()
        key = self.next()
        if key in _SYMBOLS:
            raise _parse_error(f"found '{key}', expected: identifier")
        problems = _key_problems(key)
        if problems:
            raise _parse_error(f"<nil>: Invalid value: {_quoted(key)}: {'; '.join(problems)}")
        if negated:
            return Requirement(key, "!", ())
        operator = self.peek()
        if operator in ("", ","):
            return Requirement(key, "exists", ())
        self.next()
        if operator not in _OPERATORS:
            raise _parse_error(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")
        if operator in ("in", "notin"):
            return Requirement(key, operator, _checked(key, self.values()))
        value = self.value()
        if operator in (">", "<"):
            if not _INTEGER.match(value):
                text = "for 'Gt', 'Lt' operators, the value must be an integer"
                raise _parse_error(f"values[0]: Invalid value: {_quoted(value)}: {text}")
            return Requirement(key, operator, _checked(key, (value,)))
        return Requirement(key, "notin" if operator == "!=" else "in", _checked(key, (value,)))

    def value(self) -> str:
        if self.peek() in ("", ","):
            return ""
        token = self.next()
        if token in _SYMBOLS:
            raise _parse_error(f"found '{token}', expected: identifier")
        return token

    def values(self) -> tuple[str, ...]:
        token = self.next()
        if token != "(":
            raise _parse_error(f"found '{token}' expected: '('")
        if self.peek() not in (")", ",") and self.peek() in _SYMBOLS:
            raise _parse_error(f"found '{self.peek()}', expected: ',', ')' or identifier")
        found = {} if self.peek() != ")" else {"": None}
        while self.peek() != ")":
            token = self.next()
            if token == ",":
                if not found:
                    found[""] = None
                if self.peek() in (")", ","):
                    found[""] = None
            elif token in _SYMBOLS:
                raise _parse_error(f"found '{token}', expected: ',', or identifier")
            else:
                found[token] = None
                if self.peek() not in (",", ")"):
                    raise _parse_error(f"found '{self.peek()}', expected: ',' or ')'")
        self.next()
        return tuple(sorted(found))


def _key_problems(key: str) -> list[str]:
    """Return the problems that IsQualifiedName finds in a key."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        return [_QUALIFIED_HELP]
    problems = []
    if slash and not prefix:
        problems.append("prefix part must be non-empty")
    elif slash and len(prefix) > 253:
        problems.append("prefix part must be no more than 253 bytes")
    elif slash and not _SUBDOMAIN.match(prefix):
        problems.append(_PREFIX_HELP)
    if not name:
        problems.append("name part must be non-empty")
    elif len(name) > 63:
        problems.append("name part must be no more than 63 bytes")
    if not _NAME.match(name):
        problems.append(_NAME_HELP)
    return problems


def _checked(key: str, values: tuple[str, ...]) -> tuple[str, ...]:
    for index, value in enumerate(values):
        problems = ["must be no more than 63 bytes"] if len(value) > 63 else []
        if not _VALUE.match(value):
            problems.append(_VALUE_HELP)
        if problems:
            raise _parse_error(f"values[{index}][{key}]: Invalid value: {_quoted(value)}: {'; '.join(problems)}")
    return values


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _parse_error(text: str) -> StatusError:
    return StatusError(400, f"unable to parse requirement: {text}")


class FieldTerm(NamedTuple):
    """One term of a field selector: the field's label or path, and whether its value must differ from `value`."""

    field: str
    negated: bool
    value: str


def parse_field_selector(text: str) -> tuple[FieldTerm, ...]:
    """Parse a fieldSelector; no term selects everything. Raises StatusError 400 with Kubernetes' message.

    This function does not check which fields a resource has.
    """
    return tuple(_field_term(term, text) for term in sorted(_split_terms(text)) if term)


def _split_terms(text: str) -> list[str]:
    """Split at the commas that are not escaped by a backslash; the escapes stay."""
    if "\\" not in text:
        return text.split(",")
    return re.findall(r"(?:^|(?<=,))(?:[^\\,]|\\.|\\\Z)*", text, re.DOTALL)


def _field_term(term: str, whole: str) -> FieldTerm:
    found = re.search(r"!=|==|=", term)
    if found is None:
        raise StatusError(400, f"invalid selector: '{whole}'; can't understand '{term}'")
    return FieldTerm(term[: found.start()], found.group() == "!=", _unescape(term[found.end() :]))


def _unescape(value: str) -> str:
    out, escaped = [], False
    for char in value:
        if escaped:
            if char not in "\\,=":
                raise StatusError(400, f"invalid field selector: invalid escape sequence: \\{char}")
            out.append(char)
            escaped = False
        elif char == "\\":
            escaped = True
        elif char in ",=":
            raise StatusError(400, f"invalid field selector: unescaped character in value: {ord(char)}")
        else:
            out.append(char)
    if escaped:
        raise StatusError(400, "invalid field selector: invalid escape sequence: \\")
    return "".join(out)
