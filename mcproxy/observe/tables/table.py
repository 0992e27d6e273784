"""A table of a status document, for `mcproxy status`, `mcproxy top` and the status page. Pure.

A table defines its rows, its columns with their order, units and states, and the rows that need attention. The renderer
formats the units. A missing or null key gives None, because a process of another version, or one that has just started,
can lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, Flag, auto
from typing import Any, Literal

Document = Mapping[str, Any]
Entry = Mapping[str, Any]

State = Literal["good", "warn", "bad", "plain", ""]
"""The state of a cell: good, needs attention, fails now, or neutral; "" for a cell without a state."""


class Form(Enum):
    """The kind of a value, which decides how it is rendered."""

    TEXT = auto()
    ID = auto()
    """A number used as an identifier, such as a PID."""
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
    """A fraction, 0 to 1."""
    USE = auto()
    """A used fraction, 0 to 1, which can be drawn as a bar."""
    INSTANT = auto()
    """An RFC 3339 time."""
    SINCE = auto()
    """An RFC 3339 time that is shown as an age."""


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
    """A column. A constant `state` applies to every cell whose value is not 0, "" or None."""

    title: str
    read: str | Callable[[Entry], Any]
    """A key of the entry, or a function of the entry."""
    form: Form = Form.TEXT
    at: At = At.BOTH
    short: str = ""
    """The title for a terminal, if it differs."""
    state: State | Callable[[Entry], State] = ""
    """The state of its cells, or a function of the entry. A row with a warn or bad cell needs attention."""
    alarm: State = ""
    """The state that only determines the colour on a terminal: a count since the start needs no attention now."""
    detail: str = ""
    """The key of a text that the page shows after the value."""
    yields: bool = False
    """Whether a narrow terminal omits the column instead of cutting it. Columns with `ends` are cut before that."""
    ends: bool = False
    """Whether the end of its texts is more useful than their beginning."""

    @property
    def is_number(self) -> bool:
        return self.form not in (Form.TEXT, Form.USE, Form.INSTANT, Form.SINCE)

    def value(self, entry: Entry) -> Any:
        """Return the value of a cell; None if unknown."""
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
    """The table's name in URLs of the page."""
    label: str
    columns: Sequence[Column]
    entries: Callable[[Document], Iterable[Entry]]
    name: int = 0
    """The index of the column with the row's name."""
    ordered: bool = False
    """Whether the entries keep their order; otherwise entries that need attention come first."""
    in_brief: Callable[[Entry], Any] | None = None
    """Selects the entries of which `mcproxy status` without -o wide shows the first ones. None: all are shown."""

    def attention(self, entry: Entry) -> int:
        """Return 2 if a cell of the row fails now, 1 if one needs attention, else 0."""
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
    """Return a function that returns the state of a cell by the value at `key`."""
    return lambda entry: states.get(str(entry.get(key)), "plain")


def warns_from(key: str, limit: float) -> Callable[[Entry], State]:
    """Return a function that returns the state of a cell whose value should be less than `limit`."""
    return lambda entry: "warn" if (entry.get(key) or 0) >= limit else ""


RATES = (
    Column("Requests/s", "requestsPerSecond", Form.RATE, At.ALL | At.BRIEF, "REQ/S"),
    Column("Errors/s", "errorsPerSecond", Form.RATE, At.TOP | At.BRIEF, "ERR/S", alarm="bad"),
    Column("Refused/s", "refusedPerSecond", Form.RATE, At.TOP | At.BRIEF, alarm="warn"),
    Column("p50", "p50Seconds", Form.TIME, At.BRIEF),
    Column("p99", "p99Seconds", Form.TIME, At.ALL | At.BRIEF),
)
"""Columns of requests in the last minute or, in `mcproxy top`, in its interval."""
REQUESTS = Column("Requests", "requestsTotal", Form.COUNT, At.ALL, yields=True)
ERRORS = Column("Errors (5xx)", "errorsTotal", Form.COUNT, short="ERRORS", alarm="warn")
REFUSED_TOTAL = Column("Refused", "refusedTotal", Form.COUNT, alarm="warn")
IN_FLIGHT = Column("In flight", "inFlight", Form.COUNT, At.ALL)
TOTALS = (REQUESTS, ERRORS, REFUSED_TOTAL)
"""Columns of counts since the start."""
CLUSTER = Column("Cluster", "cluster", at=At.ALL)
CAUSE = Column("Cause", "cause")
