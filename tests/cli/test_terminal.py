"""Text for a terminal: what fits, what is coloured, what may not pass."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.cli.terminal import Cell, Terminal, TextColumn, clean, duration, number, size, width_of

COLUMNS = (
    TextColumn(title="NAME", gives_way=True),
    TextColumn(title="STATE"),
    TextColumn(title="OPEN", right=True),
    TextColumn(title="FILE", gives_way=True, wide=True, end=True),
)


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal = terminal
        self._encoding = encoding

    def isatty(self) -> bool:
        return self._terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


def test_colours_are_for_terminals_and_never_with_no_color() -> None:
    def colours(*, terminal: bool = True, **environ: str) -> bool:
        return Terminal.of(Stream(terminal=terminal), {"TERM": "xterm", **environ}).colours

    assert colours()
    assert not colours(terminal=False)
    assert not colours(NO_COLOR="1")
    assert colours(NO_COLOR="")  # no-color.org: "when present and not an empty string"
    assert not colours(TERM="dumb")
    assert not Terminal.of(Stream(terminal=True), {}).colours
    assert Terminal(colours=True).styled("x", "bad") == "\x1b[31mx\x1b[0m"
    assert Terminal().styled("x", "bad") == "x"


def test_only_a_terminal_has_a_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert Terminal.of(Stream(terminal=True), {}).width == 100
    assert Terminal.of(Stream(terminal=False), {}).width is None
    assert not Terminal.of(Stream(terminal=True, encoding="ascii"), {}).unicode


def test_a_table_has_its_columns_below_each_other() -> None:
    rows: list[list[Cell | str]] = [["east", Cell("ready", "good"), "7", "/a"], ["a-longer-name", "out", "12345", "/b"]]
    assert Terminal().table(COLUMNS, rows) == [
        "NAME           STATE   OPEN  FILE",
        "east           ready      7  /a",
        "a-longer-name  out    12345  /b",
    ]
    coloured = Terminal(colours=True).table(COLUMNS, rows)
    assert coloured[1] == "east           \x1b[32mready\x1b[0m      7  /a"


def test_where_it_is_too_wide_cells_give_way_first_and_then_columns() -> None:
    rows = [["a" * 30, "ready", "7", "/a/long/file/name"]]
    assert Terminal(width=40, unicode=True).table(COLUMNS, rows) == [
        "NAME          STATE  OPEN  FILE",
        "aaaaaaaaaaa…  ready     7  …ng/file/name",
    ]
    for width in (10, 20, 25, 30, 40, 60):
        lines = Terminal(width=width, unicode=True).table(COLUMNS, rows)
        assert all(width_of(line) <= width for line in lines), lines
    assert "FILE" not in Terminal(width=25).table(COLUMNS, rows)[0]
    assert Terminal(width=25).table(COLUMNS, rows)[0] == "NAME          STATE  OPEN"


texts = st.text(max_size=40)


@given(st.lists(st.tuples(texts, texts, texts, texts), max_size=4), st.integers(1, 120), st.booleans())
def test_no_line_is_wider_than_the_terminal(rows: list[Any], width: int, unicode: bool) -> None:
    terminal = Terminal(width=width, unicode=unicode)
    lines = terminal.table(COLUMNS, rows)
    assert len(lines) == len(rows) + 1
    assert all(width_of(line) <= max(width, 1) for line in lines)
    assert all(line.isprintable() for line in lines)


@given(st.text())
def test_nothing_that_a_terminal_takes_for_a_command_passes(text: str) -> None:
    shown = clean(text)
    assert shown.isprintable()
    assert len(shown) == len(text)


def test_escape_sequences_of_an_endpoint_do_nothing() -> None:
    assert clean("\x1b]0;owned\x07 \x9b31m \u202eevil \r\n") == "?]0;owned? ?31m ?evil ??"


@given(texts, st.integers(0, 30))
def test_a_cut_text_fits_and_begins_as_the_whole_one(text: str, width: int) -> None:
    shown = Terminal(unicode=True).cut(clean(text), width)
    assert width_of(shown) <= width
    assert clean(text).startswith(shown.rstrip("…")) or "…" in clean(text)


def test_wide_characters_take_two_columns() -> None:
    assert width_of("集群") == 4
    assert Terminal(unicode=True).cut("集群east", 5) == "集群…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.0042, "4.2 ms"),
        (0.042, "42 ms"),
        (0.0996, "0.1 s"),
        (3.42, "3.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1m00s"),
        (3599, "59m59s"),
        (3720, "1h02m"),
        (90000, "1d1h"),
        (86400 * 30, "30d"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (3, "3"),
        (0.44, "0.4"),
        (99.97, "100"),
        (999, "999"),
        (1234, "1.2k"),
        (123456, "123k"),
        (4.5e6, "4.5M"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (77 * 2**20, "77 MiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_sizes(value: float | None, text: str) -> None:
    assert size(value) == text


@given(st.floats(0, 1e15))
def test_figures_are_short(value: float) -> None:
    assert len(number(value)) <= 5
    assert len(size(value)) <= 8


def test_bars_and_charts() -> None:
    terminal = Terminal(unicode=True)
    assert [terminal.bar(part, 4) for part in (None, 0.0, 0.5, 1.0, 7.0)] == ["", "░░░░", "██░░", "████", "████"]
    assert terminal.sparkline([0.0, None, 4.0, 8.0], 10) == "▁ ▄█"
    assert terminal.sparkline([1.0, 2.0, 3.0], 2) == "▅█"
    assert terminal.sparkline([], 5) == terminal.sparkline([1.0], 0) == ""
    assert Terminal().sparkline([0.0, 8.0], 5) == ".@"
