"""`mcproxy top`: rates, what a screen shows, keys, and the terminal afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcproxy.cli.main import main
from mcproxy.cli.terminal import Terminal, width_of
from mcproxy.cli.terminal_screen import split_keys
from mcproxy.cli.top import _press
from mcproxy.cli.top_rates import rates_of
from mcproxy.cli.top_screen import SORTS, TopView, screen
from tests.cli.status_document import BOUNDS, ENDPOINT, PROCESS, TUNNELS, StandIn, document
from tests.daemon.process import PATIENCE

LEAVE = b"\x1b[?25h\x1b[?1049l"


def later(seconds: float = 10.0) -> dict[str, Any]:
    """The document of the same daemon after it has had some requests."""
    found = document()
    found["totals"] = {
        "requests": 1100,
        "errors": 5,
        "refused": 7,
        "bytes": 1_500_000,
        "durations": [150, 850, 90, 10, 0],
        "durationBounds": BOUNDS,
    }
    found["servers"][0] |= {"requestsTotal": 990, "errorsTotal": 5}
    found["servers"][1] |= {"requestsTotal": 110}
    found["clusters"][0]["endpoints"][1] |= {"requestsTotal": 100, "requestSeconds": 10.0}
    found["processes"] = [{**PROCESS, "cpuSeconds": 12.5 + seconds / 4}]
    found["flowControls"][0] |= {"refusedTotal": 20}
    (rule,) = found["ingresses"][0]["rules"]
    found["ingresses"] = [{**found["ingresses"][0], "rules": [{**rule, "requestsTotal": 170, "errorsTotal": 2}]}]
    return found


class TestRates:
    def test_are_what_came_between_two_documents(self) -> None:
        rates = rates_of(later(), document(), 10.0)
        assert (rates["requestsPerSecond"], rates["errorsPerSecond"], rates["bytesPerSecond"]) == (10.0, 0.2, 50_000.0)
        assert (rates["p50Seconds"], rates["p99Seconds"]) == (0.001, 0.00982)
        assert [(each["name"], each["requestsPerSecond"], each["errorsPerSecond"]) for each in rates["servers"]] == [
            ("east", 9.0, 0.2),
            ("fleet", 1.0, 0.0),
        ]
        assert [(each["name"], each["requestsPerSecond"], each["meanSeconds"]) for each in rates["endpoints"]] == [
            ("a", 0.0, None),
            ("b", 10.0, 0.1),
        ]
        assert [each["refusedPerSecond"] for each in rates["flowControls"]] == [2.0]
        assert [each["cpu"] for each in rates["processes"]] == [0.25]

    def test_are_unknown_at_first_and_of_another_daemon(self) -> None:
        for before in (None, document(pid=1), document(startedAt="2026-11-22T11:00:00Z")):
            rates = rates_of(later(), before, 10.0)
            assert rates["requestsPerSecond"] is None
            assert rates["p99Seconds"] is None
            assert rates["servers"][0]["requestsPerSecond"] is None
            assert rates["servers"][0]["requestsTotal"] == 990
            assert rates["processes"][0]["cpu"] is None
        assert rates_of(later(), document(), 0.0)["requestsPerSecond"] is None

    def test_of_what_is_new_since_a_reload_are_unknown(self) -> None:
        before = document()
        del before["servers"][0]
        before["clusters"] = []
        rates = rates_of(later(), before, 10.0)
        assert [each["requestsPerSecond"] for each in rates["servers"]] == [None, 1.0]
        assert [each["requestsPerSecond"] for each in rates["endpoints"]] == [None, None]

    def test_are_never_negative(self) -> None:
        rates = rates_of(document(), later(), 10.0)
        assert rates["requestsPerSecond"] == 0.0
        assert rates["p99Seconds"] is None

    def test_of_a_process_that_did_not_answer_are_unknown(self) -> None:
        silent = {**PROCESS, "cpuSeconds": None, "residentBytes": None, "descriptors": None, "answered": False}
        (process,) = rates_of(document(processes=[silent]), document(), 10.0)["processes"]
        assert (process["cpu"], process["answered"]) == (None, False)


LATER = later()


def shown(status: dict[str, Any], *, width: int = 80, height: int = 24, view: TopView | None = None) -> list[str]:
    return screen(
        status, rates_of(status, document(), 10.0), view or TopView(), Terminal(unicode=True, width=width), height
    )


class TestScreen:
    def test_has_everything_on_80_by_24(self) -> None:
        lines = shown(later())
        assert len(lines) == 24
        assert all(width_of(line) <= 80 for line in lines)
        assert lines[0].startswith("mcproxy 0.1.0 serving, pid 4711, up 1h02m ")
        assert lines[1] == "requests 10/s  errors 0.2/s (2.0%)  sent 49 KiB/s  open 3  p50 1 ms  p99 9.8 ms"
        rows = [" ".join(line.split()) for line in lines]
        assert "east 9 0.2 0 31 ms 2 990" in rows
        assert "east b ready 10 0.1 s 31 ms 2 4 4.2 ms" in rows
        assert "403 the server's authorizer 0.1 7" in rows
        assert "interactive █░░░░░░░░░ 10% 20 300 0 2" in rows
        assert "fleet 1 synced 17 29 KiB 4 0 B" in rows
        assert "mcproxy 4711 25% 3 58 MiB 40 4 ms" in rows
        assert lines[-1].startswith("? help  t senders  s sort: requests  / filter  interval: 2 s  space pause")

    def test_rules_of_ingresses(self) -> None:
        def rows(status: dict[str, Any]) -> list[str]:
            return [" ".join(line.split()) for line in shown(status, height=40, width=100)]

        assert "INGRESS RULE SERVICE READY REQ/S ERR/S REQUESTS" in rows(later())
        assert "shop shop.example.com/cart demo/cart:80 east 3 10 0.1 170" in rows(later())
        gone = later() | {"ingressServices": [], "ingresses": []}
        assert not any(row.startswith("INGRESS") for row in rows(gone))

    def test_tunnels(self) -> None:
        status = {**later(), "tunnels": TUNNELS}
        rates = rates_of(status, document(), 10.0)
        assert [(each["name"], each["peer"], each["connected"]) for each in rates["tunnels"]] == [
            ("site-a", "192.0.2.7", True),
            ("site-b", "https://hub-1.example:6443", True),
        ]
        rows = [" ".join(line.split()) for line in shown(status, height=60, width=120)]
        assert "TUNNEL DIALLED BY PEER STATE RTT CONNS" in rows
        assert "site-a an edge 192.0.2.7 connected 21 ms 3" in rows
        assert "site-b listener hub https://hub-1.example:6443 connected 20 ms 3" in rows

    def test_sorts(self) -> None:
        def first(sort: str) -> str:
            lines = shown(later(), view=TopView(sort=sort))
            at = next(number for number, line in enumerate(lines) if line.startswith("CLUSTER"))
            return lines[at + 1].split()[1]

        found = {sort: first(sort) for sort in SORTS}
        assert found.pop("requests") == "b"
        assert set(found.values()) == {"a"}

    def test_refused_requests_are_in_the_head(self) -> None:
        status = later()
        status["totals"]["refused"] += 20
        line = "requests 10/s  errors 0.2/s  sent 49 KiB/s  open 3  refused 2/s  p99 9.8 ms"
        assert shown(status)[1] == line

    def test_who_sends_most(self) -> None:
        view = TopView(senders=True, measure="cpu")
        lines = shown(later(), width=100, view=view)
        rows = [" ".join(line.split()) for line in lines]
        assert "the last 4m50s, by cpu: 100 requests, 4.8 MiB, 0.3 s of processor time, 35 refused" in rows
        users = rows.index("USER REQUESTS SHARE BYTES CPU (EST.) REFUSED")
        assert rows[users + 1 : users + 3] == [
            "system:serviceaccount:ci:runner 40 94% 1.0 KiB 0.3 s 35",
            "jane 60 6% 4.8 MiB 20 ms 0",
        ]
        assert "kubectl/v1.34 (?[2J) 60 6% 4.8 MiB 20 ms 0" in rows
        assert lines[-1].startswith("? help  t rates  s sort: cpu")
        view.wanted = "CI:"
        rows = shown(later(), view=view)
        assert any("ci:runner" in row for row in rows)
        assert not any("jane" in row for row in rows)

    def test_a_filter_keeps_rows_with_a_text_of_it(self) -> None:
        rows = shown(later(), view=TopView(wanted="FLEET"))
        assert [row.split()[0] for row in rows if row.startswith(("east", "fleet"))] == ["fleet", "fleet"]
        assert rows[-1].startswith('only "FLEET" (Esc: all)')

    def test_help_names_every_key(self) -> None:
        rows = shown(later(), view=TopView(helps=True))
        for key in ("q ", "t ", "s, S ", "/ ", "Esc ", "space, p ", "+, - ", "? "):
            assert any(row.startswith(key) for row in rows), key

    def test_what_is_wrong_is_above_all(self) -> None:
        out = {**ENDPOINT, "state": "out", "ready": False, "cause": "\x1b[31mconnection refused"}
        (east,) = document()["clusters"]
        lines = shown(document(clusters=[{**east, "endpoints": [out]}]))
        assert lines[3] == "cluster east has no endpoint that is ready: ?[31mconnection refused"

    def test_scrolls_no_further_than_there_are_lines(self) -> None:
        view = TopView(scroll=10_000)
        lines = shown(later(), height=12, view=view)
        assert view.scroll > 0
        assert lines[-2].startswith("shop ")
        assert shown(later(), height=60, view=view)[-1] != ""
        assert view.scroll == 0

    def test_a_daemon_that_is_gone_leaves_its_last_figures(self) -> None:
        lines = shown(later(), view=TopView(failure="the daemon does not answer"))
        assert lines[-1] == "the daemon does not answer"
        assert lines[0].startswith("mcproxy 0.1.0")

    @settings(max_examples=60)
    @given(st.integers(1, 200), st.integers(1, 60), st.integers(0, 100), st.booleans(), st.booleans(), st.booleans())
    def test_fits_any_terminal(
        self, width: int, height: int, scroll: int, senders: bool, helps: bool, typing: bool
    ) -> None:
        view = TopView(scroll=scroll, senders=senders, helps=helps, typing=typing, wanted="e" if typing else "")
        lines = shown(LATER, width=width, height=height, view=view)
        assert len(lines) <= height
        assert all(width_of(line) <= width for line in lines)


def press(view: TopView, keys: str) -> TopView:
    for key in split_keys(keys):
        _press(key, view, 24)
    return view


def test_keys_sort_filter_and_show_who_sends_most() -> None:
    assert press(TopView(), "ss").sort == SORTS[2]
    assert press(TopView(), "S").sort == SORTS[-1]
    view = press(TopView(), "ts")
    assert (view.senders, view.measure) == (True, "bytes")
    assert press(view, "t").senders is False
    assert press(TopView(), "?").helps is True
    assert press(TopView(), "??").helps is False
    view = press(TopView(), "/Easq?\x7ft")
    assert (view.typing, view.wanted, view.sort, view.helps) == (True, "Easqt", SORTS[0], False)
    assert (press(view, "\r").typing, view.wanted) == (False, "Easqt")
    assert press(view, "\x1b").wanted == ""
    assert press(TopView(), "/" + "x" * 500).wanted == "x" * 60


def test_keys_are_told_from_sequences_of_others() -> None:
    assert list(split_keys("q\x1b[A\x1bOB\x1b[6~s\x1b[1;5Cx\x1b[200~\x1bz")) == [
        *("q", "up", "down", "page down", "s", "x"),
    ]
    assert list(split_keys("a\x1b")) == ["a", "escape"]


@given(st.text())
def test_no_input_of_a_keyboard_breaks_it(typed: str) -> None:
    assert len(list(split_keys(typed))) <= len(typed)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StandIn]:
    with StandIn(tmp_path, lambda number: document() if number == 1 else later()) as running:
        yield running


class TestBatch:
    def test_as_text(self, daemon: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["top", "-b", "1", "-d", "0.2", "-c", str(daemon.file)]) == 0
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert text.startswith("mcproxy 0.1.0 serving, pid 4711")
        assert "PROCESS" in text

    def test_as_json_one_object_on_each_line(self, daemon: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["top", "-b", "2", "-d", "0.2", "-o", "json", "-c", str(daemon.file)]) == 0
        first, second = map(json.loads, capsys.readouterr().out.splitlines())
        assert first["requestsPerSecond"] == pytest.approx(100 / first["seconds"], rel=0.01)
        assert second["requestsPerSecond"] == 0.0
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", second["time"])

    def test_a_daemon_that_ends_is_status_1(self, daemon: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
        answer = daemon._answer

        def last(number: int) -> Any:
            daemon._listening.shutdown(2)
            daemon._path.unlink()
            return answer(number)

        daemon._answer = last
        assert main(["top", "-b", "2", "-d", "0.2", "-c", str(daemon.file)]) == 1
        assert "does not answer any more" in capsys.readouterr().err

    def test_no_daemon(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "mcproxy.yaml"
        file.write_text("daemon: {controlSocket: control.sock}\n", encoding="utf-8")
        assert main(["top", "-b", "1", "-c", str(file)]) == 1
        assert capsys.readouterr().err.startswith("mcproxy top: no daemon runs: ")

    @pytest.mark.parametrize("arguments", [["-b", "0"], ["-d", "0"], ["-b", "x"], ["-d", "nan"], ["-s", "size"]])
    def test_wrong_usage(self, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as end:
            main(["top", *arguments])
        assert end.value.code == 2
        capsys.readouterr()

    def test_without_a_terminal_it_says_what_to_do(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["top"]) == 2
        assert "-b NUMBER prints samples as text" in capsys.readouterr().err


class OnTerminal:
    """`mcproxy top` on a terminal of its own, of 80 columns and 24 lines."""

    def __init__(self, file: Path) -> None:
        self.master, slave = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(slave)
        self.output = b""
        environ = {**os.environ, "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environ.pop(name, None)
        self.process = subprocess.Popen(
            # setsid(1) makes it the terminal of the process, so that Ctrl-C and Ctrl-Z are signals.
            ["setsid", "--ctty", sys.executable, "-m", "mcproxy", "top", "-d", "0.2", "-c", str(file)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environ,
        )
        self._slave = slave

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def until(self, text: str) -> None:
        """Read what is written, from now on, until it has a text."""
        self.output = b""
        until = time.monotonic() + PATIENCE
        while text.encode() not in self.output:
            assert select.select([self.master], [], [], max(0.0, until - time.monotonic()))[0], self.output[-2000:]
            self.output += os.read(self.master, 65536)

    def end(self) -> int:
        """Wait for the end; return the exit status. The terminal must be as it was."""
        until = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < until
            if select.select([self.master], [], [], 0.01)[0]:
                self.output += os.read(self.master, 65536)
        with contextlib.suppress(OSError):
            while select.select([self.master], [], [], 0)[0]:
                self.output += os.read(self.master, 65536)
        return self.process.returncode

    @property
    def restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before and self.output.rpartition(LEAVE)[1] == LEAVE

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self._slave)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (lambda top: top.press("q"), 0),
        (lambda top: top.press("\x03"), 0),  # Ctrl-C
        (lambda top: top.process.send_signal(signal.SIGTERM), 128 + signal.SIGTERM),
        (lambda top: top.process.send_signal(signal.SIGHUP), 128 + signal.SIGHUP),
    ],
    ids=["q", "Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_the_terminal_is_as_it_was(daemon: StandIn, end: Callable[[Any], None], status: int) -> None:
    with OnTerminal(daemon.file) as top:
        top.until("PROCESS")
        assert termios.tcgetattr(top._slave) != top.before
        end(top)
        assert top.end() == status
        assert top.restored


def test_a_session_with_keys_resizes_a_stop_and_a_daemon_that_goes(daemon: StandIn) -> None:
    with OnTerminal(daemon.file) as top:
        top.until("sort: requests")
        top.press("s")
        top.until("sort: errors")
        top.press("+")
        top.until("interval: 0.5 s")
        top.press(" ")
        top.until("space go on")
        top.press(" ")
        top.until("space pause")
        top.resize(40, 6)
        top.until("…")
        top.press("\x1b[6~\x1b[B")
        top.resize(100, 40)
        top.until("SINCE START")
        top.press("\x1a")  # Ctrl-Z
        top.until(LEAVE.decode())
        os.waitid(os.P_PID, top.process.pid, os.WSTOPPED)
        assert termios.tcgetattr(top._slave) == top.before
        top.process.send_signal(signal.SIGCONT)
        top.until("SINCE START")
        daemon.close()
        top.until("the daemon does not answer")
        top.press("q")
        assert top.end() == 0
        assert top.restored
