import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.cli import control_client, dump
from mcproxy.cli.main import main
from tests.daemon.process import Process

TEXT = """
version: 1
clusters: [{name: east, endpoints: [{url: "http://127.0.0.1:8001"}], identity: Proxy, credentials: {token: hush}}]
"""


def run(file: Path, *options: str) -> int:
    parser = argparse.ArgumentParser()
    dump.add_parser(parser.add_subparsers())
    return dump.run(parser.parse_args(["dump", "-c", str(file), *options]))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mcproxy.yaml"
    path.write_text(TEXT)
    return path


def test_yaml_is_the_default_form(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("version: 1\ndaemon:\n")
    assert '      token: "(masked)"\n' in captured.out
    assert "hush" not in captured.out
    assert captured.err == ""


def test_json_is_equivalent(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--format", "json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["clusters"][0]["credentials"] == {"token": "(masked)"}
    assert document["clusters"][0]["healthCheck"]["interval"] == "5s"


def test_a_wrong_file_gives_its_errors_and_78(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("version: 2\n")
    assert run(file) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"{file}:1:10: version: 2 is not known; write 1\n"


def test_running_of_a_real_daemon_says_when_the_file_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    control = str(tmp_path / "control.sock")
    same: dict[str, Any] = {"control_socket": control, "daemon": {"controlSocket": control}}
    with Process(tmp_path, **same) as daemon:
        daemon.wait_for("mcproxy is ready")
        command = ["dump", "--running", "-c", str(daemon.file)]
        assert main(command) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        assert captured.out.startswith(
            f"# the configuration in force of the mcproxy that runs {daemon.file}\nversion: 1\n"
        )
        assert yaml.safe_load(captured.out)["daemon"]["controlSocket"] == control
        daemon.configure(**same, level="debug")
        assert main(command) == 0
        captured = capsys.readouterr()
        assert f"mcproxy dump: the file {daemon.file} differs: `mcproxy reload` would apply\n" in captured.err
        assert "logging.level: info -> debug" in captured.err
        assert "#   changed logging.level: info -> debug\n" in captured.out
        assert yaml.safe_load(captured.out)["logging"]["level"] == "info"
        daemon.configure(**same, problems=["wrong"])
        assert main([*command, "--format", "json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["logging"]["level"] == "info"
        assert "it has errors now" in captured.err
        assert "wrong; another value" in captured.err


def test_running_without_a_daemon_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("daemon: {controlSocket: control.sock}\n")
    assert main(["dump", "--running", "-c", str(tmp_path / "c.yaml")]) == 1
    assert "is the daemon running?" in capsys.readouterr().err


def test_no_line_of_a_daemon_ends_the_comment_that_it_is_in(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {"ok": True, "file": "/f", "configuration": "version: 1\n"}
    monkeypatch.setattr(control_client, "send_to_daemon", lambda *_: (answer, "/s"))
    difference = {"ok": True, "changes": ["changed a: x\nversion: 2", *("more" for _ in range(60))]}
    monkeypatch.setattr(control_client, "send_command", lambda *_: difference)
    assert run(file, "--running") == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"version": 1}
    assert "#   and 11 more\n" in out
