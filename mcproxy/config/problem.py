"""Errors and warnings about a configuration, each with its place, the mistake and the remedy.

They are collected, not raised one by one, so that the operator sees all of them at once. Only `load` raises.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mcproxy.config.lints import LINTS
from mcproxy.config.model import Mark
from mcproxy.config.suggestions import suggest

SHOWN = 3
"""The number of equal problems that are shown in full."""
_PLACES = 8  # of the others that are named


@dataclass(frozen=True, slots=True)
class Problem:
    """One error or warning; its text is ``file:line:column: key.path: what is wrong; what would be right``."""

    mark: Mark | None
    key: str  # "clusters[2].endpoints[0].url"; "" where the file as a whole is meant
    what: str
    right: str | None = None
    lint: str | None = None  # its name (config.lints), by which a comment allows it; None: nothing does
    allowed_at: Mark | None = None  # where a comment switches the warning off, if not at `mark`

    def __str__(self) -> str:
        where = [str(self.mark)] if self.mark else []
        where += [self.key] if self.key else []
        text = f"{self.what}; {self.right}" if self.right else self.what
        if self.lint is not None:
            at = f" at {self.allowed_at}" if self.allowed_at is not None else ""
            text += f" (or keep it: # mcproxy: allow {self.lint}{at})"
        return ": ".join([*where, text])


class ConfigErrors(Exception):
    """The configuration cannot be used. `problems` holds every error, sorted by place; `warnings` likewise."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.warnings: tuple[Problem, ...] = tuple(warnings)
        super().__init__(self.problems, self.warnings)

    @property
    def lines(self) -> tuple[str, ...]:
        """The errors as text, each in a line; of many equal ones the first few."""
        return lines_of(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def lines_of(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return the text of each problem. Of more than SHOWN that say the same, the last line names the other places."""
    equal: dict[tuple[str, str | None, str | None], list[Problem]] = {}
    for problem in problems:
        equal.setdefault((problem.what, problem.right, problem.lint), []).append(problem)
    lines = []
    seen: Counter[tuple[str, str | None, str | None]] = Counter()
    for problem in problems:
        key = problem.what, problem.right, problem.lint
        more = equal[key][SHOWN:]
        if seen[key] < SHOWN or len(more) == 1:
            lines.append(str(problem))
        elif seen[key] == SHOWN:
            lines.append(_elsewhere(more))
        seen[key] += 1
    return tuple(lines)


def _elsewhere(same: Sequence[Problem]) -> str:
    marks = [str(each.mark) for each in same if each.mark is not None]
    named = ", ".join(marks[:_PLACES]) + (", …" if len(marks) > _PLACES else "")
    return f"{len(same)} more of these: {same[0].what}" + (f" ({named})" if named else "")


@dataclass(slots=True)
class Problems:
    """The problems of one load; they are sorted by file, in the order of `files` (reading order), and line."""

    files: list[str] = field(default_factory=list)
    _errors: dict[Problem, None] = field(default_factory=dict)
    _warnings: dict[Problem, None] = field(default_factory=dict)
    _notes: dict[Problem, None] = field(default_factory=dict)
    _allowed: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # (file, line) -> warnings

    def error(self, mark: Mark | None, key: str, what: str, right: str | None = None) -> None:
        self._errors[Problem(mark, key, what, right)] = None

    def error_unless_allowed(self, mark: Mark, lint: str, key: str, what: str, right: str | None = None) -> None:
        """Report an error that is only a warning elsewhere, unless the line at `mark` allows it."""
        assert lint in LINTS, lint
        if lint not in self._allowed.get((mark.file, mark.line), ()):
            self._errors[Problem(mark, key, what, right, lint)] = None

    def warn(
        self, mark: Mark, lint: str, key: str, what: str, right: str | None = None, *, allowed_at: Mark | None = None
    ) -> None:
        """Report a warning by its name in `LINTS`, unless the line at `mark`, or `allowed_at`, allows it."""
        assert lint in LINTS, lint
        place = allowed_at if allowed_at is not None else mark
        if lint not in self._allowed.get((place.file, place.line), ()):
            self._warnings[Problem(mark, key, what, right, lint, allowed_at)] = None

    def note(self, mark: Mark, key: str, what: str) -> None:
        """Keep what `check` says without a warning."""
        self._notes[Problem(mark, key, what)] = None

    def allow(self, mark: Mark, names: Iterable[str]) -> None:
        """Switch warnings off for the line of `mark`; a name that no warning has is an error."""
        names = tuple(names)
        self._allowed[mark.file, mark.line] = names
        for name in names:
            if name not in LINTS:
                self.error(mark, "", f"there is no warning {name} to allow", suggest(name, LINTS))

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._errors, key=self._place))

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._warnings, key=self._place))

    @property
    def notes(self) -> tuple[Problem, ...]:
        return tuple(sorted(self._notes, key=self._place))

    def _place(self, problem: Problem) -> tuple[int, str, int, int, str]:
        mark = problem.mark
        if mark is None:
            return (-1, "", 0, 0, problem.key)
        order = self.files.index(mark.file) if mark.file in self.files else len(self.files)
        return (order, mark.file, mark.line, mark.column, problem.key)
