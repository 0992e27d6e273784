"""A small subset of CEL, for rules like `self.color != 'green' || self.size < 50`.

Comparisons, `&&`, `||`, `!`, brackets, `has(self.x)`, `size(self.x)`, fields and literals. A rule outside of the subset
is treated as fulfilled, so that the simulated cluster refuses no object that a real one accepts.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

TOKEN = re.compile(
    r"""\s*(?:(\d+(?:\.\d+)?)|('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(&&|\|\||==|!=|<=|>=|[<>!().,])|([A-Za-z_]\w*))"""
)
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
LITERALS = {"true": True, "false": False, "null": None}


class Unsupported(Exception):
    """The rule is outside of the supported subset of CEL."""


def evaluate(rule: str, value: Any) -> bool:
    """Return whether a value (`self`) fulfils a rule."""
    try:
        return bool(_Parser(_tokens(rule), value).parse())
    except (Unsupported, TypeError):
        return True


def _tokens(rule: str) -> list[str]:
    out, position = [], 0
    rule = rule.strip()
    while position < len(rule):
        match = TOKEN.match(rule, position)
        if match is None:
            raise Unsupported(rule[position:])
        out.append(match[0].strip())
        position = match.end()
    return out


class _Parser:
    """A recursive-descent parser that evaluates; both sides of && and || are always evaluated."""

    def __init__(self, tokens: list[str], value: Any) -> None:
        self.tokens = [*tokens, ""]
        self.at = 0
        self.value = value

    def take(self, wanted: str = "") -> str:
        token = self.tokens[self.at]
        if wanted and token != wanted:
            raise Unsupported(token)
        self.at += 1
        return token

    @property
    def next(self) -> str:
        return self.tokens[self.at]

    def parse(self) -> Any:
        found = self.disjunction()
        if self.next:
            raise Unsupported(self.next)
        return found

    def disjunction(self) -> Any:
        found = self.conjunction()
        while self.next == "||":
            self.take()
            other = self.conjunction()
            found = bool(found) or bool(other)
        return found

    def conjunction(self) -> Any:
        found = self.comparison()
        while self.next == "&&":
            self.take()
            other = self.comparison()
            found = bool(found) and bool(other)
        return found

    def comparison(self) -> Any:
        left = self.unary()
        if self.next not in COMPARE:
            return left
        compare = COMPARE[self.take()]
        return compare(left, self.unary())

    def unary(self) -> Any:
        if self.next == "!":
            self.take()
            return not self.unary()
        return self.primary()

    def primary(self) -> Any:
        token = self.take()
        if token == "(":
            found = self.disjunction()
            self.take(")")
            return found
        if token[:1].isdigit():
            return float(token) if "." in token else int(token)
        if token[:1] in ("'", '"'):
            return json.loads(f'"{token[1:-1]}"')
        if token in LITERALS:
            return LITERALS[token]
        if token == "self":
            return self.fields()[0]
        if token in ("has", "size"):
            self.take("(")
            self.take("self")
            found, present = self.fields()
            self.take(")")
            return present if token == "has" else len(found)
        raise Unsupported(token)

    def fields(self) -> tuple[Any, bool]:
        """Return the value of `self.a.b` (None when absent), and whether it is present."""
        found, present = self.value, True
        while self.next == ".":
            self.take()
            name = self.take()
            if self.next == "(":
                raise Unsupported(name)
            present = isinstance(found, Mapping) and name in found
            found = found[name] if present else None
        return found, present
