"""A table of a status document, for `mcproxy status`, `mcproxy top` and the status page. Pure.

Each table defines its rows, its columns in their order with their units and states, and which rows need attention. The
renderer decides how a unit looks. A key that is missing or null gives None: a process of another version, or one that
has just started, may not know it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, Literal

Document = Mapping[str, Any]
Entry = Mapping[str, Any]

State = Literal["good", "warn", "bad", "plain", ""]
"""The state of a cell: well, needs attention, fails now, or none of these; "": the cell has no state."""


class Form(Enum):
    """The kind of a value, which decides how it is rendered."""

    TEXT = auto()
    ID = auto()
    """A number that identifies something, as a PID does."""
    COUNT = auto()
    RATE = auto()
    SIZE = auto()
    """Bytes."""
    TIME = auto()
    """A short time in seconds."""
    SPAN = auto()
    """A long time in seconds."""
    DAYS = auto()
    """Days left, negative after the end."""
    SHARE = auto()
    """A fraction of one."""
    USE = auto()
    """The used fraction of one, which may be drawn as a bar."""
    INSTANT = auto()
    """An RFC 3339 time."""
    SINCE = auto()
    """An RFC 3339 time, of which the age is shown."""


class At(Flag):
    """Where a column is shown."""

    STATUS = auto()
    WIDE = auto()
    """Only in `mcproxy status -o wide`."""
    TOP = auto()
    PAGE = auto()
    OVERVIEW = auto()
    """In the table of the page's overview."""
    BRIEF = PAGE | OVERVIEW
    BOTH = STATUS | PAGE
    ALL = STATUS | TOP | PAGE


@dataclass(frozen=True, slots=True)
class Column:
    """A column. A `state` that is a word applies to every cell whose value is not 0, "" or None."""

    title: str
    read: str | Callable[[Entry], Any]
    """A key of the entry, or a function of it."""
    form: Form = Form.TEXT
    at: At = At.BOTH
    short: str = ""
    """The title for a terminal, if it differs."""
    state: State | Callable[[Entry], State] = ""
    """A row with a cell that is warn or bad needs attention."""
    alarm: State = ""
    """As `state`, but only for colours of a terminal: a count since the start needs no attention now."""
    detail: str = ""
    """A key with a text that the page shows after the value."""
    yields: bool = False
    """A terminal that is too narrow omits the column instead of cutting it; a column that `ends` is cut first."""
    ends: bool = False
    """The end of its texts is more useful than their beginning."""

    @property
    def is_number(self) -> bool:
        return self.form not in (Form.TEXT, Form.USE, Form.INSTANT, Form.SINCE)

    def value(self, entry: Entry) -> Any:
        """Return the value of a cell, None if it is not known."""
        return entry.get(self.read) if isinstance(self.read, str) else self.read(entry)

    def state_of(self, entry: Entry) -> State:
        """Return the state of a cell."""
        if isinstance(self.state, str):
            return self.state if self.state and self.value(entry) else ""
        return self.state(entry)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the document, and their columns."""

    key: str
    """Its name in URLs of the page."""
    label: str
    columns: Sequence[Column]
    entries: Callable[[Document], Iterable[Entry]]
    name: int = 0
    """The index of the column that names a row."""
    ordered: bool = False
    """Whether the entries keep their order; otherwise those that need attention come first."""
    in_brief: Callable[[Entry], Any] | None = None
    """Selects the entries that `mcproxy status` shows without -o wide, only the first of them. None: all are shown."""

    def attention(self, entry: Entry) -> int:
        """Return 2 if something fails now, 1 if a row needs attention, 0 if it is well."""
        return max((_ATTENTION.get(column.state_of(entry), 0) for column in self.columns if column.state), default=0)


_ATTENTION = {"bad": 2, "warn": 1}


def entries_of(key: str) -> Callable[[Document], Iterable[Entry]]:
    return lambda document: document.get(key) or ()


def total_of(numbers: Mapping[str, int | None] | None) -> int:
    """Return the sum of numbers by key."""
    return sum(number or 0 for number in (numbers or {}).values())


def sum_of(key: str) -> Callable[[Entry], int]:
    return lambda entry: total_of(entry.get(key))


def list_of(key: str) -> Callable[[Entry], str]:
    return lambda entry: ", ".join(map(str, entry.get(key) or ()))


def states_of(key: str, states: Mapping[str, State]) -> Callable[[Entry], State]:
    """Return a function for the state of a cell, by the word at `key`."""
    return lambda entry: states.get(str(entry.get(key)), "plain")


def warns_from(key: str, limit: float) -> Callable[[Entry], State]:
    """Return a function for the state of a cell whose value should be less than `limit`."""
    return lambda entry: "warn" if (entry.get(key) or 0) >= limit else ""


RATES = (
    Column("Requests/s", "requestsPerSecond", Form.RATE, At.ALL | At.BRIEF, "REQ/S"),
    Column("Errors/s", "errorsPerSecond", Form.RATE, At.TOP | At.BRIEF, "ERR/S", alarm="bad"),
    Column("Refused/s", "refusedPerSecond", Form.RATE, At.TOP | At.BRIEF, alarm="warn"),
    Column("p50", "p50Seconds", Form.TIME, At.BRIEF),
    Column("p99", "p99Seconds", Form.TIME, At.ALL | At.BRIEF),
)
"""Requests of the last minute or, in `mcproxy top`, of its interval."""
REQUESTS = Column("Requests", "requestsTotal", Form.COUNT, At.ALL, yields=True)
ERRORS = Column("Errors (5xx)", "errorsTotal", Form.COUNT, short="ERRORS", alarm="warn")
REFUSED_TOTAL = Column("Refused", "refusedTotal", Form.COUNT, alarm="warn")
IN_FLIGHT = Column("In flight", "inFlight", Form.COUNT, At.ALL)
TOTALS = (REQUESTS, ERRORS, REFUSED_TOTAL)
"""Since the start."""
CLUSTER = Column("Cluster", "cluster", at=At.ALL)
CAUSE = Column("Cause", "cause")
