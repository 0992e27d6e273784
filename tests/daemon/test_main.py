"""The daemon as a process: signals, exit statuses, reload over the control socket. The proxy in it is a fake."""

import json
import os
import signal
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.control_client import send_command
from tests.daemon.process import PATIENCE, Process


@pytest.fixture
def control(tmp_path: Path) -> str:
    return str(tmp_path / "run" / "control.sock")


def reload(control: str, **more: Any) -> dict[str, Any]:
    return send_command(control, {"command": "reload", **more}, PATIENCE)


def test_term_drains_then_ends_with_status_0(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("begin_shutdown")
        daemon.wait_for("drained")
        assert daemon.end() == 0
    assert not any("level=error" in line for line in daemon.lines)


def test_term_ends_a_daemon_whose_file_cannot_be_read_to_its_end(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.file.unlink()
        os.mkfifo(daemon.file)  # opening it waits for a writer, as a dead network file system would for its server
        daemon.signal(signal.SIGHUP)
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("drained")
        assert daemon.end() == 0


def test_int_stops_like_term(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.signal(signal.SIGINT)
        daemon.wait_for("drained")
        assert daemon.end() == 0


def test_second_term_ends_at_once(tmp_path: Path) -> None:
    with Process(tmp_path, open=1, drain_timeout=600) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("begin_shutdown")
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("aborted")
        assert daemon.end() == 0
    assert "drained" not in daemon.lines


def test_hup_reloads(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("applied")
        daemon.wait_for("configuration reloaded")


def test_hup_with_a_wrong_file_logs_every_problem_and_applies_nothing(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(problems=["this is wrong", "that too"])
        daemon.signal(signal.SIGHUP)
        assert "a.key: this is wrong; another value" in daemon.wait_for("this is wrong")
        daemon.wait_for("that too")
        daemon.wait_for("the old configuration stays")
        daemon.configure()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("applied")
    assert daemon.lines.count("applied") == 1


def test_wrong_file_at_start_has_the_errors_of_check_as_events_and_status_78(tmp_path: Path) -> None:
    with Process(tmp_path, problems=["one", "two"]) as daemon:
        assert daemon.end() == 78
    for line, problem in zip(daemon.lines, ("one", "two"), strict=True):
        assert (
            f'level=error event=config_error msg="configuration error" cause="a.key: {problem}; another value"' in line
        )


def test_error_at_start_is_one_line_with_status_1(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, start_error="0.0.0.0:443: address already in use", control_socket=control) as daemon:
        assert daemon.end() == 1
    (line,) = daemon.lines
    assert 'cause="0.0.0.0:443: address already in use" todo="mend it"' in line
    assert not os.path.exists(control)


def test_usr1_opens_logs_anew(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.signal(signal.SIGUSR1)
        daemon.wait_for("log files are reopened")


def test_control_socket_is_for_the_owner_alone_and_goes_with_the_daemon(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        assert stat.S_IMODE(os.stat(control).st_mode) == 0o600
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0
    assert not os.path.exists(control)


def test_reload_over_the_control_socket_answers_when_it_is_done(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=control, warnings=["expires soon"])
        answer = reload(control)
        assert answer["ok"] is True
        assert answer["warnings"] == ["a.key: expires soon"]
        assert answer["file"] == str(daemon.file)
        daemon.wait_for("applied")


def test_reload_over_the_control_socket_returns_the_errors(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(problems=["this is wrong"])
        answer = reload(control)
        assert (answer["ok"], answer["invalid"]) == (False, True)
        assert answer["errors"] == ["a.key: this is wrong; another value"]
        daemon.configure(apply_error="no such address", control_socket=control)
        answer = reload(control)
        assert (answer["ok"], answer["invalid"]) == (False, False)
        assert answer["errors"] == ["no such address; mend it"]


def test_reload_for_another_file_is_refused(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        assert reload(control, file=str(daemon.file))["ok"] is True
        answer = reload(control, file="/etc/other.yaml")
        assert answer["ok"] is False
        assert f"this daemon runs {daemon.file}, not /etc/other.yaml" in answer["errors"][0]


def test_reload_moves_the_control_socket(tmp_path: Path, control: str) -> None:
    moved = str(tmp_path / "moved.sock")
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=moved)
        assert reload(control)["ok"] is True
        assert reload(moved)["ok"] is True
        assert not os.path.exists(control)


def test_reload_that_fails_leaves_no_new_control_socket(tmp_path: Path, control: str) -> None:
    moved = str(tmp_path / "moved.sock")
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=moved, apply_error="no")
        assert reload(control)["ok"] is False
        daemon.configure(control_socket=control)
        assert reload(control)["ok"] is True
        assert not os.path.exists(moved)


def test_control_socket_that_cannot_be_opened_changes_nothing(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket="/proc/nowhere/at/all.sock")
        answer = reload(control)
        assert answer["ok"] is False
        assert "create it, or let systemd do so" in answer["errors"][0]
        daemon.configure(control_socket=control)
        assert reload(control)["ok"] is True
    assert daemon.lines.count("applied") <= 1


def test_second_daemon_on_the_same_control_socket_does_not_start(tmp_path: Path, control: str) -> None:
    (tmp_path / "second").mkdir()
    with Process(tmp_path, control_socket=control) as first:
        first.wait_for("mcproxy is ready")
        with Process(tmp_path / "second", control_socket=control) as second:
            assert second.end() == 1
        assert f"the mcproxy with pid {first.process.pid} listens on it" in second.lines[0]
        assert reload(control)["ok"] is True


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"", b"no JSON\n", b"[]\n", b'{"ok": true, "state": "serving"}\n'])
def test_daemon_does_not_wait_for_what_does_not_say_that_it_stops(tmp_path: Path, control: str, answer: bytes) -> None:
    os.mkdir(os.path.dirname(control))
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(control)
        other.listen()

        def serve() -> None:
            for _ in range(2):  # the probe, and the query
                with suppress(OSError):
                    connection, _ = other.accept()
                    with connection:
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with Process(tmp_path, control_socket=control) as daemon:
            assert daemon.end() == 1
        assert "another process listens on it" in daemon.lines[0]
        thread.join(10)


def test_daemon_that_starts_while_another_stops_waits_for_it(tmp_path: Path, control: str) -> None:
    (tmp_path / "second").mkdir()
    with Process(tmp_path, control_socket=control, open=1, drain_timeout=600) as first:
        first.wait_for("mcproxy is ready")
        first.signal(signal.SIGTERM)
        first.wait_for("begin_shutdown")
        with Process(tmp_path / "second", control_socket=control) as second:
            second.wait_for("waiting for the previous daemon to shut down")
            first.signal(signal.SIGTERM)
            assert first.end() == 0
            second.wait_for("mcproxy is ready")
            assert reload(control)["ok"] is True
            second.signal(signal.SIGTERM)
            assert second.end() == 0


def test_daemon_that_waits_for_another_can_be_stopped(tmp_path: Path, control: str) -> None:
    (tmp_path / "second").mkdir()
    with Process(tmp_path, control_socket=control, open=1, drain_timeout=600) as first:
        first.wait_for("mcproxy is ready")
        first.signal(signal.SIGTERM)
        first.wait_for("begin_shutdown")
        with Process(tmp_path / "second", control_socket=control) as second:
            second.wait_for("waiting for the previous daemon to shut down")
            second.signal(signal.SIGTERM)
            assert second.end() == 0
        assert os.path.exists(control)


def test_socket_left_by_a_killed_daemon_is_replaced(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as first:
        first.wait_for("mcproxy is ready")
        first.signal(signal.SIGKILL)
        first.end()
    assert os.path.exists(control)
    with Process(tmp_path, control_socket=control) as second:
        second.wait_for("mcproxy is ready")
        assert reload(control)["ok"] is True


def test_status_has_the_state_of_the_daemon(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control, open=3) as daemon:
        daemon.wait_for("mcproxy is ready")
        status = send_command(control, {"command": "status"}, PATIENCE)
        assert (status["state"], status["open"], status["pid"]) == ("serving", 3, daemon.process.pid)
        assert status["lastReload"] is None
        assert status["listeners"] == status["clusters"] == []
        brief = send_command(control, {"command": "status", "brief": True}, PATIENCE)
        recent = {"refusals", "senders"}
        lists = {"listeners", "servers", "clusters", "aggregates", "apiServices", "flowControls", "certificates"}
        others = {"processes", "configHash", "startedAt", "totals", "history", "logs", "ingresses", "ingressServices"}
        others |= {"exports", "exportTargets", "exportProblems", "tunnels"}
        assert set(status) - set(brief) == {*lists, *recent, *others}


def test_log_level_changes_with_a_reload(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(level="error")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("applied")
        daemon.signal(signal.SIGTERM)
        daemon.wait_for("drained")
        daemon.end()
    assert not any("mcproxy is stopping" in line for line in daemon.lines)


def test_systemd_hears_ready_reloading_ready_and_stopping_in_order(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(PATIENCE)

        def heard() -> dict[str, str]:
            return dict(line.split("=", 1) for line in systemd.recv(4096).decode().splitlines())

        with Process(tmp_path, environ={"NOTIFY_SOCKET": address}) as daemon:
            assert heard()["READY"] == "1"
            daemon.configure(problems=["this is wrong"])
            daemon.signal(signal.SIGHUP)
            reloading = heard()
            assert reloading["RELOADING"] == "1"
            assert int(reloading["MONOTONIC_USEC"]) > 0
            after = heard()
            assert after["READY"] == "1"
            assert after["STATUS"] == "reload failed: a.key: this is wrong; another value"
            daemon.signal(signal.SIGTERM)
            assert heard()["STOPPING"] == "1"
            assert daemon.end() == 0


def test_hup_before_the_daemon_serves_does_not_end_it(tmp_path: Path) -> None:
    with Process(tmp_path) as daemon:
        while "SigIgn" in (text := Path(f"/proc/{daemon.process.pid}/status").read_text()):
            masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("SigIgn", "SigCgt"))]
            if sum(masks) & 1 << (signal.SIGHUP - 1) or daemon.process.poll() is not None:
                break
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("mcproxy is ready")
        daemon.signal(signal.SIGTERM)
        assert daemon.end() == 0


def test_request_is_one_json_object_a_line(tmp_path: Path, control: str) -> None:
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(control)
            connection.sendall(b'nonsense\n{"command": "dance"}\n{"command": "status"}\n')
            with connection.makefile("rb") as answers:
                first, second, third = (json.loads(answers.readline()) for _ in range(3))
        assert "one JSON object" in first["errors"][0]
        assert second["errors"] == ["unknown command; known are: diff, dump, layouts, reload, status, upgrade"]
        assert third["ok"] is True
