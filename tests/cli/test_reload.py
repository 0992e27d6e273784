"""`mcproxy reload`: prints the outcome, or a remedy if the daemon cannot be reached."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.main import main
from mcproxy.config.control_socket import possible_places
from mcproxy.daemon.control.environment_digests import differing_variables
from tests.daemon.process import PATIENCE, Process

StartDaemon = Callable[[bytes], None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mcproxy.yaml"
    path.write_text("daemon: {controlSocket: control.sock}\nservers: wrong\n")
    return path


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[tuple[StartDaemon, list[dict[str, Any]]]]:
    """A stand-in for the daemon that gives one fixed answer."""
    asked: list[dict[str, Any]] = []
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listening:

        def start(answer: bytes) -> None:
            listening.bind(str(tmp_path / "control.sock"))
            listening.listen()
            listening.settimeout(PATIENCE)
            threads.append(threading.Thread(target=serve, args=(answer,)))
            threads[0].start()

        def serve(answer: bytes) -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                asked.append(json.loads(lines.readline()))
                connection.sendall(answer)

        yield start, asked
        for thread in threads:
            thread.join(PATIENCE)


def test_success_is_printed(file: Path, answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    start, asked = answering
    start(b'{"ok": true, "file": "/f", "seconds": 0.5, "warnings": ["soon"], "changes": ["added a", "removed b"]}\n')
    assert main(["reload", "-c", str(file)]) == 0
    assert capsys.readouterr() == ("reloaded /f in 0.5 s\n  added a\n  removed b\n", "warning: soon\n")
    assert asked == [{"command": "reload", "file": str(file)}]


def test_errors_of_the_file_are_those_of_check_with_status_78(
    file: Path, answering: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    answering[0](b'{"ok": false, "invalid": true, "errors": ["f:1:1: a: one", "f:2:1: b: two"], "warnings": []}\n')
    assert main(["reload", "-c", str(file)]) == 78
    assert capsys.readouterr() == ("", "f:1:1: a: one\nf:2:1: b: two\n")


def test_other_errors_are_status_1(file: Path, answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answering[0](b'{"ok": false, "invalid": false, "errors": ["port taken"], "warnings": []}\n')
    assert main(["reload", "-c", str(file)]) == 1
    assert capsys.readouterr().err == "mcproxy reload: port taken\n"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "closed the connection"),
        (b'{"ok": tr', "closed the connection"),
        (b"hello\n", "no mcproxy"),
        (b"[]\n", "no mcproxy"),
    ],
)
def test_daemon_that_gives_no_sensible_answer_is_status_1(
    file: Path, answering: Any, capsys: pytest.CaptureFixture[str], answer: bytes, message: str
) -> None:
    answering[0](answer)
    assert main(["reload", "-c", str(file)]) == 1
    assert message in capsys.readouterr().err


def test_daemon_that_does_not_run_is_status_1_with_a_remedy(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reload", "-c", str(file)]) == 1
    assert "is the daemon running?" in capsys.readouterr().err


def test_daemon_that_takes_too_long_is_status_1(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "control.sock"))
        listening.listen()
        assert main(["reload", "-c", str(file), "--timeout", "0.05"]) == 1
    assert "did not answer within 0.05 s" in capsys.readouterr().err


def test_file_without_control_socket_is_status_1_and_told_where_it_was_looked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text("daemon: {}\n")
    assert main(["reload", "-c", str(file)]) == 1
    said = capsys.readouterr().err
    assert f"no control socket of a daemon that runs {file}" in said
    assert f"{file}.sock" in said
    assert "is the daemon running?" in said


@pytest.mark.parametrize("command", ["reload", "status"])
@pytest.mark.parametrize(
    ("others", "todo"),
    [
        ([], "is the daemon running? name its file with -c FILE, or see `systemctl status mcproxy`"),
        (["/a.yaml", "/b.yaml"], "name the file of the daemon with -c FILE: those that run here have /a.yaml, /b.yaml"),
    ],
)
def test_file_that_is_not_there_is_told_with_where_a_daemon_of_it_was_looked_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    others: list[str],
    todo: str,
) -> None:
    monkeypatch.setattr("mcproxy.cli.control_client.running_files", lambda users: others)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    file = tmp_path / "gone.yaml"
    assert main([command, "-c", str(file)]) == 1
    said = capsys.readouterr().err
    places = ", ".join(possible_places(str(file), {}))
    assert f"there is no file {file}, and no daemon that runs it (looked for {places}); {todo}\n" in said


def test_a_daemon_whose_file_is_gone_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gone.yaml"
    *_, place = possible_places(str(file), {})
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(place)
        listening.listen()
        assert main(["reload", "-c", str(file), "--timeout", "0.05"]) == 1
    assert f"the daemon at {place} did not answer within 0.05 s" in capsys.readouterr().err


def test_reload_of_a_real_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    control = str(tmp_path / "control.sock")
    with Process(tmp_path, control_socket=control) as daemon:
        daemon.wait_for("mcproxy is ready")
        daemon.configure(control_socket=control, daemon={"controlSocket": control})  # JSON is YAML too
        assert main(["reload", "-c", str(daemon.file)]) == 0
        daemon.configure(problems=["wrong"], daemon={"controlSocket": control})
        assert main(["reload", "-c", str(daemon.file)]) == 78
    assert "a.key: wrong; another value" in capsys.readouterr().err


def test_variables_that_the_file_names_go_as_digests(
    file: Path, answering: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("daemon: {controlSocket: control.sock}\nclusters: ${SECRET_A} $${SECRET_B} ${SECRET_C}\n")
    monkeypatch.setenv("SECRET_A", "very secret")
    monkeypatch.setenv("SECRET_B", "too")
    start, asked = answering
    start(b'{"ok": true}\n')
    assert main(["reload", "-c", str(file)]) == 0
    assert list(asked[0]["environ"]) == ["SECRET_A"]
    assert "very secret" not in json.dumps(asked)
    assert differing_variables(asked[0], {"SECRET_A": "very secret"}) == ()
    assert differing_variables(asked[0], {"SECRET_A": "other"}) == ("SECRET_A",)


def test_many_changes_are_cut(file: Path, answering: Any, capsys: pytest.CaptureFixture[str]) -> None:
    answering[0](json.dumps({"ok": True, "changes": [f"added {n}" for n in range(300)]}).encode() + b"\n")
    assert main(["reload", "-c", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (202, "  and 100 more")
