"""Token files: bearer tokens with their users, in the CSV that kube-apiserver reads (its --token-auth-file).

A line is ``token,user,uid`` and, if the user has groups, a fourth column with all of them: ``"group1,group2"``. As in
kube-apiserver (k8s.io/apiserver, token/tokenfile), further columns and empty lines are ignored. A line with an empty
token is ignored, and of two lines with one token the last counts, both with a warning. In addition, an empty name, or
one that no header can carry, is an error. The csv module cannot be used: it reads ``…,uid, "a,b"`` as five columns with
quotes, where Go's reader and this module report an error. Messages never show a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from mcproxy.config.credential_checks import is_token
from mcproxy.config.model import Mark, Secret, StaticToken, TokenFileConfig
from mcproxy.config.reading.context import Context
from mcproxy.config.reading.nodes import Place, quote

_FIELD = re.compile(r'"([^"]*(?:""[^"]*)*)"|([^",\r\n]*(?:\r(?!\n)[^",\r\n]*)*)')
_END = re.compile(r",|\r?\n|\Z")
_COLUMNS = 3
_FORM = 'write token,user,uid or token,user,uid,"group1,group2"'


class _Fault(Exception):
    """A line is invalid CSV; the argument is its number."""


def read(context: Context, place: Place, *, allow_system_names: bool) -> TokenFileConfig | None:
    """Return the token file that `place` names; None if it is unreadable. All errors are reported."""
    found = context.read(place)
    if found is None:
        return None
    path, data = found
    if context.offline:
        return TokenFileConfig(path, ())
    context.check_private(place, path)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        _error(context, path, data.count(b"\n", 0, error.start) + 1, "is not UTF-8", "store the file as UTF-8")
        return None
    reader = _Reader(context, place, path, allow_system_names)
    try:
        for line, record in _records(text):
            reader.take(line, record)
    except _Fault as fault:
        what = "has a quote in the middle of a column, or one that is never closed"
        right = "put a whole column in quotes, without a space before them, and double the quotes in it"
        _error(context, path, int(str(fault)), what, right)
    if not reader.tokens:
        context.warn(place, "unusable-token", f"{path} has no usable token", _FORM)
    return TokenFileConfig(path, tuple(reader.tokens.values()))


def _error(context: Context, path: str, line: int, what: str, right: str) -> None:
    context.problems.error(Mark(path, line, 1), "", what, right)


def _records(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and columns of each record; raises _Fault."""
    at, line, record, start = 0, 1, list[str](), 1
    while at < len(text):
        field = _FIELD.match(text, at)
        end = _END.match(text, field.end()) if field is not None else None
        if field is None or end is None:
            raise _Fault(start)
        quoted, plain = field.groups()
        record.append(plain if quoted is None else quoted.replace('""', '"').replace("\r\n", "\n"))
        line += text.count("\n", at, end.end())
        at = end.end()
        if end.group() != ",":
            if record != [""] or quoted is not None:
                yield start, record
            record, start = [], line
    if record:  # the file ends with a comma
        yield start, [*record, ""]


class _Reader:
    """Checks records one by one, and keeps the valid ones."""

    def __init__(self, context: Context, place: Place, path: str, allow_system_names: bool) -> None:
        self._context = context
        self._place = place
        self._path = path
        self._allow_system_names = allow_system_names
        self._lines: dict[str, int] = {}
        self.tokens: dict[str, StaticToken] = {}

    def take(self, line: int, record: list[str]) -> None:
        if len(record) < _COLUMNS:
            columns = "1 column" if len(record) == 1 else f"{len(record)} columns"
            self._error(line, f"has {columns} of at least {_COLUMNS}", _FORM)
            return
        token, user, uid = record[:_COLUMNS]
        groups = tuple(group for group in record[_COLUMNS].split(",") if group) if len(record) > _COLUMNS else ()
        if not token:
            self._warn(
                line,
                "unusable-token",
                "has an empty token, so it cannot be used",
                "give it a token, or take it out",
            )
            return
        if not is_token(token):
            what = "has a token with characters that no header can carry, so it cannot be used"
            self._warn(line, "unusable-token", what, "give it one without spaces and other such characters")
            return
        if not self._names(line, user, uid, groups):
            return
        if token in self.tokens:
            what = f"has the token of line {self._lines[token]} again; this one counts"
            self._warn(line, "doubled-token", what, "take one of the two out")
        self._lines[token] = line
        self.tokens[token] = StaticToken(Secret(token), user, uid, groups)
        self._system_names(line, user, groups)

    def _names(self, line: int, user: str, uid: str, groups: tuple[str, ...]) -> bool:
        """Whether headers can carry these names."""
        if not user:
            self._error(line, "has no user name", _FORM)
            return False
        for kind, name in (("user", user), ("uid", uid), *(("group", group) for group in groups)):
            if name != name.strip() or not name.isprintable():
                what = f"the {kind} {quote(name)} has spaces at an end or control characters, which no header can carry"
                self._error(line, what, "take them out")
                return False
        return True

    def _system_names(self, line: int, user: str, groups: tuple[str, ...]) -> None:
        if self._allow_system_names:
            return
        if user.startswith("system:"):
            what = f"the user {quote(user)} is refused: names that begin with system: are not accepted from here"
            self._warn(line, "system-names", what, "rename the user, or set allowSystemNames: true")
        for group in groups:
            if group.startswith("system:"):
                what = f"the group {quote(group)} is dropped: names that begin with system: are not accepted from here"
                self._warn(line, "system-names", what, "take it out, or set allowSystemNames: true")

    def _error(self, line: int, what: str, right: str) -> None:
        _error(self._context, self._path, line, what, right)

    def _warn(self, line: int, lint: str, what: str, right: str) -> None:
        mark = Mark(self._path, line, 1)  # CSV has no comments, so they are on the line that names the file
        self._context.problems.warn(mark, lint, "", what, right, allowed_at=self._place.mark)
