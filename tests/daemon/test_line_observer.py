"""A log line is one line, whatever is in it, and has a remedy for operators."""

import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import LogEvent, Logger, LogLevel
from twisted.python.failure import Failure

from mcproxy.config.model import Secret
from mcproxy.daemon.daemon_log import LineObserver
from mcproxy.daemon.log_lines import escape, field
from mcproxy.daemon.log_lines import format_text as format_line


def event(text: str = "endpoint ejected", *, level: LogLevel = LogLevel.info, **fields: Any) -> LogEvent:
    return {"log_format": text, "log_level": level, "log_time": 1795261320.1234, "log_namespace": "mcproxy.x", **fields}


def emit(level: str, *events: LogEvent) -> list[str]:
    lines: list[str] = []
    observer = LineObserver(lines.append, level)
    for each in events:
        observer(each)
    return lines


def test_line_has_time_level_event_and_fields_in_their_order() -> None:
    line = format_line(
        event(
            "{endpoint} ejected", level=LogLevel.warn, event="out", todo="look", cause="refused it", n=3, endpoint="a",
            cluster="e",
        )
    )  # fmt: skip
    assert line == (
        '2026-11-21T11:42:00.123Z level=warn event=out msg="a ejected" cluster=e endpoint=a n=3 cause="refused it" '
        "todo=look\n"
    )


def test_field_without_value_is_left_out() -> None:
    assert "cause" not in format_line(event(cause="", server=None))


def test_peer_cannot_forge_a_line_or_a_field() -> None:
    line = format_line(event("bad head", cause='x\n2026-11-21T00:00:00.000Z level=error event="gone" \x1b[2J\u2028"'))
    assert line.count("\n") == 1
    assert line.isascii()
    assert r"cause=\"" not in line
    assert r'cause="x\n2026' in line
    assert r"\x1b[2J\u2028\"" in line


@given(st.text())
def test_escaped_text_is_printable_and_has_no_bare_quote(text: str) -> None:
    escaped = escape(text)
    assert escaped.isprintable()
    assert re.fullmatch(r'(?:[^"\\]|\\.)*', escaped)


@given(st.text(), st.integers(min_value=1, max_value=50))
def test_field_is_bounded(text: str, longest: int) -> None:
    assert len(field("n", text, longest)) <= len('n=""...') + longest * len("\\U00000000")


def test_long_value_is_cut() -> None:
    assert field("n", "x" * 5000, 10) == 'n="xxxxxxxxxx..."'


def test_many_fields_are_bounded() -> None:
    assert format_line({**event(), **{f"f{number}": number for number in range(100)}}).count("=") < 30


def test_secret_shows_nothing() -> None:
    assert "hunter2" not in format_line(event("token {token}", token=Secret("hunter2")))


def test_broken_value_does_not_cost_the_line() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    assert "ValueError in str()" in format_line(event(thing=Broken()))


def test_failure_takes_one_line_with_its_traceback() -> None:
    try:
        raise KeyError("gone")
    except KeyError:
        line = format_line(event("bug", level=LogLevel.critical, log_failure=Failure()))  # type: ignore[no-untyped-call]
    assert line.count("\n") == 1
    assert "level=error" in line
    assert "cause=\"KeyError: 'gone'\"" in line
    assert 'traceback="Traceback' in line
    assert "test_line_observer.py" in line


@pytest.mark.parametrize(("level", "shown"), [("debug", 4), ("info", 3), ("warn", 2), ("error", 1)])
def test_level_filters(level: str, shown: int) -> None:
    events = [event(level=each) for each in (LogLevel.debug, LogLevel.info, LogLevel.warn, LogLevel.error)]
    assert len(emit(level, *events)) == shown


def test_level_can_be_changed() -> None:
    lines: list[str] = []
    observer = LineObserver(lines.append, "error")
    observer(event())
    assert lines == []
    observer.set_level("info")
    observer(event())
    assert len(lines) == 1


def test_twisted_chatter_is_debug_but_its_errors_are_not() -> None:
    chatter = event("Starting factory", log_namespace="twisted.internet.protocol")
    legacy = event("UNIXPort starting", log_namespace="log_legacy")
    trouble = event("Unhandled error", level=LogLevel.critical, log_namespace="twisted.internet.defer")
    assert emit("info", chatter, legacy) == []
    assert len(emit("debug", chatter, legacy)) == 2
    assert len(emit("error", trouble)) == 1


def test_logger_of_twisted_fits() -> None:
    lines: list[str] = []
    Logger(namespace="mcproxy.upstream", observer=LineObserver(lines.append)).info(
        "up {n}", event="up", n=1, cluster="east"
    )
    assert re.search(r'level=info event=up msg="up 1" cluster=east n=1\n$', lines[0])


def test_a_warning_of_a_library_is_no_line_of_the_log() -> None:
    """One that a client's certificate brings about would be a way to write to the log in any form."""
    code = (
        "import warnings; from mcproxy.config.model import Logging;"
        "from mcproxy.daemon.daemon_log import start_logging;"
        "start_logging(Logging(level='debug'));"
        "warnings.warn('forged'); print('done')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert (ran.stdout, ran.stderr) == ("done\n", "")


def test_a_child_has_its_name_in_each_line_before_anything_else() -> None:
    lines: list[str] = []
    observer = LineObserver(lines.append, process="worker-1")
    log = Logger(namespace="mcproxy.upstream", observer=observer)
    log.info("up", cluster="east")
    log.info("replaced", process="keeper")
    assert lines[0].endswith(' level=info event=library_message msg="up" process=worker-1 cluster=east\n')
    assert lines[1].endswith(' msg="replaced" process=keeper\n')


def test_a_line_can_be_taken_away_and_one_of_another_process_be_written() -> None:
    lines: list[str] = []
    diverted: list[str] = []

    def divert(event: LogEvent, line: str) -> bool:
        diverted.append(line)
        return "common" in event

    observer = LineObserver(lines.append)
    observer.divert = divert
    log = Logger(namespace="mcproxy.upstream", observer=observer)
    log.info("mine", common=True)
    log.info("yours")
    observer.write_line("theirs\n")
    assert [line.split("msg=")[-1] for line in lines] == ['"yours"\n', "theirs\n"]
    assert len(diverted) == 2


LOGS = """
import os, sys
from mcproxy.config.model import Logging
from mcproxy.daemon.daemon_log import log, start_logging
if "pipe" in sys.argv:
    found = os.fstat(2)
    os.environ["JOURNAL_STREAM"] = f"{found.st_dev}:{found.st_ino}"
observer = start_logging(Logging())
log.warn("it is hot", event="hot", degrees=40)
observer.configure(Logging(level="error", format="json"))
log.warn("it is cold", event="cold")
log.error("it burns", event="burns", todo="put it out")
"""


def test_the_form_is_that_of_standard_error_and_of_the_configuration_in_force() -> None:
    ran = subprocess.run([sys.executable, "-c", LOGS, "pipe"], capture_output=True, text=True, timeout=120, check=True)
    first, second = ran.stderr.splitlines()
    assert first == '<4>level=warn event=hot msg="it is hot" degrees=40'
    assert re.fullmatch(
        r'<3>\{"time":"[^"]*","level":"error","event":"burns","msg":"it burns","todo":"put it out"\}', second
    )


def test_a_terminal_gets_the_form_for_people() -> None:
    parent, child = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", LOGS], stderr=child, timeout=120, check=True, env={**os.environ, "NO_COLOR": "1"}
        )
        shown = os.read(parent, 4096).decode()
    finally:
        os.close(parent)
        os.close(child)
    assert re.match(r"\d\d:\d\d:\d\d warn  it is hot +degrees=40  \[hot\]\r\n\{", shown)
