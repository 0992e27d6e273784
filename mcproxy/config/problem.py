"""What is wrong with a configuration, where, and what would be right.

A file's faults are collected, not raised one by one: an operator who mends a file wants to see all of them in one go.
Only `load` turns the collection into an exception.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mcproxy.config.model import Mark


@dataclass(frozen=True, slots=True)
class Problem:
    """One error or warning; its text is ``file:line:column: key.path: what is wrong; what would be right``."""

    mark: Mark | None
    key: str  # "clusters[2].endpoints[0].url"; "" where the file as a whole is meant
    what: str
    right: str | None = None

    def __str__(self) -> str:
        where = [str(self.mark)] if self.mark else []
        where += [self.key] if self.key else []
        text = f"{self.what}; {self.right}" if self.right else self.what
        return ": ".join([*where, text])


class ConfigErrors(Exception):
    """The configuration cannot be used. `problems` holds every error, sorted by place; `warnings` likewise."""

    def __init__(self, problems: Iterable[Problem], warnings: Iterable[Problem] = ()) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        self.warnings: tuple[Problem, ...] = tuple(warnings)
        super().__init__("\n".join(str(problem) for problem in self.problems))


@dataclass(slots=True)
class Problems:
    """The collection of one load; `files` (in reading order) is what "sorted by place" goes by."""

    files: list[str] = field(default_factory=list)
    _errors: dict[Problem, None] = field(default_factory=dict)
    _warnings: dict[Problem, None] = field(default_factory=dict)

    def error(self, mark: Mark | None, key: str, what: str, right: str | None = None) -> None:
        self._errors[Problem(mark, key, what, right)] = None

    def warn(self, mark: Mark | None, key: str, what: str, right: str | None = None) -> None:
        self._warnings[Problem(mark, key, what, right)] = None

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
