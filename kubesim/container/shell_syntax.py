"""Parses a part of the POSIX shell language, for `kubectl exec`.

Lists, pipes, redirections, for, while, if, variables and command substitution.
The result is a tree, which `shell.py` runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = [
    "For",
    "Group",
    "If",
    "Node",
    "Pipeline",
    "Redirect",
    "Sequence",
    "ShellSyntaxError",
    "Simple",
    "While",
    "Word",
    "parse",
]


class ShellSyntaxError(Exception):
    """The text is not a complete command."""


@dataclass(frozen=True)
class Part:
    """A piece of a word: literal text, or an expansion (of a variable or command); quoted pieces are not split."""

    text: str
    quoted: bool
    expand: str = ""  # "", "variable" or "command"


Word = tuple[Part, ...]


@dataclass
class Redirect:
    fd: int
    how: str  # ">", ">>", "<" or ">&"
    target: Word


@dataclass
class Simple:
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)


@dataclass
class For:
    name: str
    words: list[Word]
    body: Node


@dataclass
class While:
    condition: Node
    body: Node
    until: bool


@dataclass
class If:
    condition: Node
    then: Node
    otherwise: Node | None


@dataclass
class Group:
    body: Node
    redirects: list[Redirect]


@dataclass
class Pipeline:
    commands: list[Node]
    negated: bool


@dataclass
class Sequence:
    """Nodes with the operator before each: ";" runs always, "&&" after success, "||" after failure."""

    items: list[tuple[str, Node]]


Node = Simple | For | While | If | Group | Pipeline | Sequence
Token = str | Word  # an operator, or a word

_OPERATORS = ("&&", "||", ">>", ">&", ";", "|", "&", "(", ")", ">", "<", "\n")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*|\?|#|[0-9])\}|([A-Za-z_][A-Za-z0-9_]*|\?|#|\$|@|[0-9]))")


def parse(text: str) -> Sequence:
    """Return the tree of a script. Raises ShellSyntaxError."""
    parser = _Parser(_tokens(text))
    tree = parser.sequence(frozenset())
    if parser.peek() is not None:
        raise ShellSyntaxError(f"unexpected {parser.peek()!r}")
    return tree


def _tokens(text: str) -> list[Token]:
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        char = text[position]
        if char in " \t":
            position += 1
        elif char == "#":
            position = text.find("\n", position) if "\n" in text[position:] else len(text)
        elif operator := next((op for op in _OPERATORS if text.startswith(op, position)), ""):
            tokens.append(operator)
            position += len(operator)
        else:
            word, position = _word(text, position)
            redirected = position < len(text) and text[position] in "<>" and len(word) == 1
            if redirected and word[0].text in ("1", "2") and not word[0].quoted:
                tokens.append(f"fd{word[0].text}")
            else:
                tokens.append(word)
    return tokens


def _word(text: str, position: int) -> tuple[Word, int]:
    parts: list[Part] = []
    literal = ""
    while position < len(text) and text[position] not in " \t\n;|&<>()":
        char = text[position]
        if char == "\\":
            parts += [Part(literal, False)] if literal else []
            parts.append(Part(text[position + 1 : position + 2], True))
            literal, position = "", position + 2
        elif char in "'\"$":
            parts += [Part(literal, False)] if literal else []
            literal = ""
            if char == "'":
                end = _find(text, "'", position + 1)
                parts.append(Part(text[position + 1 : end], True))
                position = end + 1
            elif char == '"':
                inner, position = _double_quoted(text, position + 1)
                parts += inner
            else:
                part, position = _expansion(text, position, quoted=False)
                parts.append(part)
        else:
            literal += char
            position += 1
    if literal:
        parts.append(Part(literal, False))
    return tuple(parts), position


def _find(text: str, char: str, start: int) -> int:
    end = text.find(char, start)
    if end < 0:
        raise ShellSyntaxError(f"unterminated quoted string: no closing {char}")
    return end


def _double_quoted(text: str, position: int) -> tuple[list[Part], int]:
    parts: list[Part] = []
    literal = ""
    while position < len(text) and text[position] != '"':
        if text[position] == "\\" and text[position + 1 : position + 2] in ('"', "\\", "$", "`"):
            literal += text[position + 1]
            position += 2
        elif text[position] == "$":
            part, position = _expansion(text, position, quoted=True)
            parts += [Part(literal, True), part]
            literal = ""
        else:
            literal += text[position]
            position += 1
    if position >= len(text):
        raise ShellSyntaxError('unterminated quoted string: no closing "')
    return [*parts, Part(literal, True)], position + 1


def _expansion(text: str, position: int, *, quoted: bool) -> tuple[Part, int]:
    if text.startswith("$(", position):
        depth, end = 1, position + 2
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise ShellSyntaxError("unterminated $(")
        return Part(text[position + 2 : end - 1], quoted, "command"), end
    match = _VARIABLE.match(text, position)
    if match is None:
        return Part("$", True), position + 1
    return Part(match[1] or match[2], quoted, "variable"), match.end()


def _keyword(token: Token | None) -> str:
    plain = isinstance(token, tuple) and len(token) == 1 and not token[0].quoted and not token[0].expand
    return token[0].text if plain and isinstance(token, tuple) else ""


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def take(self) -> Token:
        token = self.peek()
        if token is None:
            raise ShellSyntaxError("unexpected end of file")
        self._at += 1
        return token

    def expect(self, keyword: str) -> None:
        token = self.take()
        if _keyword(token) != keyword and token != keyword:
            raise ShellSyntaxError(f'expecting "{keyword}"')

    def sequence(self, ends: frozenset[str]) -> Sequence:
        items: list[tuple[str, Node]] = []
        operator = ";"
        while True:
            while self.peek() in ("\n", ";"):
                self.take()
            token = self.peek()
            if token is None or _keyword(token) in ends or token == ")":
                return Sequence(items)
            items.append((operator, self.pipeline()))
            token = self.peek()
            if isinstance(token, str) and token in (";", "\n", "&", "&&", "||"):
                self.take()
                operator = token if token in ("&&", "||") else ";"
            elif token is not None and token != ")" and _keyword(token) not in ends:
                raise ShellSyntaxError(f"unexpected {token!r}")

    def pipeline(self) -> Pipeline:
        negated = _keyword(self.peek()) == "!"
        if negated:
            self.take()
        commands = [self.command()]
        while self.peek() == "|":
            self.take()
            while self.peek() == "\n":
                self.take()
            commands.append(self.command())
        return Pipeline(commands, negated)

    def command(self) -> Node:
        keyword = _keyword(self.peek())
        if keyword == "for":
            return self.for_loop()
        if keyword in ("while", "until"):
            self.take()
            condition = self.sequence(frozenset({"do"}))
            return While(condition, self.do_group(), keyword == "until")
        if keyword == "if":
            self.take()
            return self.conditional()
        if keyword == "{" or self.peek() == "(":
            self.take()
            body = self.sequence(frozenset({"}"}))
            self.expect("}" if keyword else ")")
            return Group(body, self.redirects())
        return self.simple()

    def for_loop(self) -> For:
        self.take()
        name = _keyword(self.take())
        self.expect("in")
        words: list[Word] = []
        while isinstance(token := self.peek(), tuple):
            words.append(token)
            self.take()
        return For(name, words, self.do_group())

    def do_group(self) -> Sequence:
        while self.peek() in (";", "\n"):
            self.take()
        self.expect("do")
        body = self.sequence(frozenset({"done"}))
        self.expect("done")
        return body

    def conditional(self) -> If:
        condition = self.sequence(frozenset({"then"}))
        self.expect("then")
        then = self.sequence(frozenset({"else", "elif", "fi"}))
        keyword = _keyword(self.take())
        if keyword == "elif":
            return If(condition, then, self.conditional())
        otherwise = self.sequence(frozenset({"fi"})) if keyword == "else" else None
        if keyword == "else":
            self.expect("fi")
        return If(condition, then, otherwise)

    def redirects(self) -> list[Redirect]:
        found = []
        while (redirect := self.redirect()) is not None:
            found.append(redirect)
        return found

    def redirect(self) -> Redirect | None:
        token = self.peek()
        if not isinstance(token, str) or token not in ("fd1", "fd2", ">", ">>", "<", ">&"):
            return None
        self.take()
        how = self.take() if token.startswith("fd") else token
        fd = int(token[2:]) if token.startswith("fd") else (0 if how == "<" else 1)
        target = self.take()
        if isinstance(target, str) or not isinstance(how, str):
            raise ShellSyntaxError("redirection without a target")
        return Redirect(fd, how, target)

    def simple(self) -> Simple:
        command = Simple()
        while True:
            if (redirect := self.redirect()) is not None:
                command.redirects.append(redirect)
                continue
            token = self.peek()
            if not isinstance(token, tuple):
                break
            self.take()
            match = re.match(r"([A-Za-z_]\w*)=", token[0].text) if token and not token[0].quoted else None
            if match and not command.words and not token[0].expand:
                rest = Part(token[0].text[match.end() :], False)
                command.assignments.append((match[1], (rest, *token[1:])))
            else:
                command.words.append(token)
        if not (command.words or command.assignments or command.redirects):
            raise ShellSyntaxError(f"unexpected {self.peek()!r}")
        return command
