"""Errors and warnings about a configuration: what is wrong, where, and what would be right.

They are collected, not raised one by one, so that the operator sees all of them at once. Only `load` raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mcproxy.config.lints import LINTS
from mcproxy.config.model import Mark
from mcproxy.config.names import suggest


@dataclass(frozen=True, slots=True)
class Problem:
    """One error or warning; its text is ``file:line:column: key.path: what is wrong; what would be right``."""

    mark: Mark | None
    key: str  # "clusters[2].endpoints[0].url"; "" where the file as a whole is meant
    what: str
    right: str | None = None
    lint: str | None = None  # the name of a warning (config.lints); None: an error
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

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(slots=True)
class Problems:
    """The collection of one load; `files` (in reading order) is what "sorted by place" goes by."""

    files: list[str] = field(default_factory=list)
    _errors: dict[Problem, None] = field(default_factory=dict)
    _warnings: dict[Problem, None] = field(default_factory=dict)
    _allowed: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # (file, line) -> warnings

    def error(self, mark: Mark | None, key: str, what: str, right: str | None = None) -> None:
        self._errors[Problem(mark, key, what, right)] = None

    def warn(
        self, mark: Mark, lint: str, key: str, what: str, right: str | None = None, *, allowed_at: Mark | None = None
    ) -> None:
        """Report a warning by its name in `LINTS`, unless the line at `mark`, or `allowed_at`, allows it."""
        assert lint in LINTS, lint
        place = allowed_at if allowed_at is not None else mark
        if lint not in self._allowed.get((place.file, place.line), ()):
            self._warnings[Problem(mark, key, what, right, lint, allowed_at)] = None

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

    def _place(self, problem: Problem) -> tuple[int, str, int, int, str]:
        mark = problem.mark
        if mark is None:
            return (-1, "", 0, 0, problem.key)
        order = self.files.index(mark.file) if mark.file in self.files else len(self.files)
        return (order, mark.file, mark.line, mark.column, problem.key)
