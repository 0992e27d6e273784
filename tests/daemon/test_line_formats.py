"""Each form of a line has the same names; none can be forged, and none is longer than what journald takes as one."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogEvent, LogLevel
from twisted.python.failure import Failure

from mcproxy.daemon.log_lines import (
    LONGEST_VALUE,
    escape,
    field,
    format_journal,
    format_journal_json,
    format_json,
    format_text,
    terminal_format,
    text_of,
)

LINE_MAX = 48 * 1024  # journald.conf(5)


def event(text: str = "an endpoint is out", *, level: LogLevel = LogLevel.warn, **fields: Any) -> LogEvent:
    return {
        "log_format": text, "log_level": level, "log_time": 1795261320.1234, "log_namespace": "mcproxy.x",
        "event": "endpoint_out", **fields,
    }  # fmt: skip


def bug(cause: str = "gone") -> LogEvent:
    try:
        raise KeyError(cause)
    except KeyError:
        return event("bug", level=LogLevel.critical, log_failure=Failure())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("level", "number"), [(LogLevel.debug, 7), (LogLevel.info, 6), (LogLevel.warn, 4), (LogLevel.error, 3)]
)
def test_the_journal_gets_a_priority_and_no_second_time(level: LogLevel, number: int) -> None:
    line = format_journal(event(level=level, cluster="east"))
    assert line == f'<{number}>level={level.name} event=endpoint_out msg="an endpoint is out" cluster=east\n'
    assert format_journal_json(event(level=level)).startswith(f'<{number}>{{"time":"2026-11-21T11:42:00.123Z",')


def test_json_has_the_names_of_text_and_numbers_as_numbers() -> None:
    one = event(
        cluster="east", endpoint="a", todo="look", cause='it "was"\n', n=3, share=0.25, on=True, none=None, empty="",
        inf=float("inf"),
    )  # fmt: skip
    found = json.loads(format_json(one))
    assert found == {
        "time": "2026-11-21T11:42:00.123Z", "level": "warn", "event": "endpoint_out", "msg": "an endpoint is out",
        "cluster": "east", "endpoint": "a", "n": 3, "share": 0.25, "on": True, "inf": "inf",
        "cause": 'it "was"\n', "todo": "look",
    }  # fmt: skip
    assert list(found) == ["time", *re.findall(r"(\w+)=", format_text(one))]


def test_json_of_a_bug_has_its_traceback() -> None:
    found = json.loads(format_json(bug()))
    assert "test_line_formats.py" in found["traceback"]
    assert found["cause"] == "KeyError: 'gone'"
    assert found["todo"] == "report this bug, with this line"


@given(st.text(), st.text())
def test_json_is_one_ascii_line_that_can_be_read(cause: str, text: str) -> None:
    line = format_json(event("{what}", what=text, cause=cause))
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line)["level"] == "warn"


@pytest.mark.parametrize("character", ["x", '"', "\n", "\x00", "\u2028", "\U000e0001", "\ud800"])
@pytest.mark.parametrize("form", [format_text, format_journal, format_json, format_journal_json])
def test_the_longest_line_is_one_for_journald(form: Any, character: str) -> None:
    """What is beyond its limit would be a line of its own, with a priority of the peer's choice."""
    long = character * 100_000
    fields: dict[str, Any] = {f"field{number}": long for number in range(100)}
    try:
        raise KeyError(long)
    except KeyError:
        line = form(event("{what}", what=long, log_failure=Failure(), cause=long, todo=long, **fields))  # type: ignore[no-untyped-call]
    assert len(line.encode()) < LINE_MAX
    assert line.count("\n") == 1


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_what_is_escaped_is_bounded_whole(text: str, longest: int) -> None:
    escaped = escape(text, longest)
    assert len(escaped) <= longest + len("...")
    assert re.fullmatch(r'(?:[^"\\]|\\.)*', escaped)


def test_cause_and_todo_stay_when_there_are_too_many_fields() -> None:
    many: dict[str, Any] = {f"f{number}": number for number in range(100)}
    line = format_text(event(**many, cause="c", todo="t"))
    assert line.endswith("cause=c todo=t\n")


@pytest.fixture(name="utc")
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_a_terminal_gets_text_in_columns_and_what_is_long_on_lines_of_its_own() -> None:
    form = terminal_format(colours=False)
    assert form(event(cluster="east", endpoint="a", cause="refused it", todo="look")) == (
        "11:42:00 warn  an endpoint is out                        cluster=east endpoint=a  [endpoint_out]\n"
        "               cause: refused it\n"
        "               todo:  look\n"
    )
    assert form(event("up", level=LogLevel.info)) == (
        "11:42:00 info  up                                        [endpoint_out]\n"
    )


def test_a_terminal_shows_nothing_that_moves_its_cursor() -> None:
    text = terminal_format(colours=False)(
        event("{x}", x="\x1b[2J\r\u202e", cause="\x1b]0;title\x07\n12:00:00 error forged")
    )
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == 2


def test_colours_end_where_they_begin() -> None:
    text = terminal_format(colours=True)(event(cause="c", level=LogLevel.error))
    assert "\x1b[1;31merror\x1b[0m" in text
    assert terminal_format(colours=False)(event(cause="c", level=LogLevel.error)) == re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_shows_the_traceback_of_a_bug_in_lines() -> None:
    lines = terminal_format(colours=False)(bug()).splitlines()
    assert any(line.strip().startswith("Traceback") for line in lines)
    assert len(lines) > 4
    assert len(terminal_format(colours=False)(bug("x" * 100_000))) < 10 * LONGEST_VALUE


@pytest.mark.parametrize(("value", "text"), [(1e-05, "0.00001"), (2.5e6, "2500000"), (0.25, "0.25")])
def test_numbers_are_plain_decimals(value: float, text: str) -> None:
    assert field("seconds", value) == f"seconds={text}"
    assert text_of(value) == text


def test_a_remedy_that_is_always_the_same_comes_from_the_registry() -> None:
    line = format_text({**event(cause="it is away"), "event": "worker_socket_missing"})
    assert line.endswith(' cause="it is away" todo="restart mcproxy"\n')
