"""`mcproxy check --diff` when the daemon cannot be asked, or sees another file than its caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli import reload
from mcproxy.cli.control_client import UnreachableError
from mcproxy.cli.main import main


def test_without_a_daemon_a_good_file_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text(
        "version: 1\n"
        "daemon: {controlSocket: control.sock}\n"
        "listeners: [{name: a, bind: 'unix:/tmp/a.sock'}]\n"
        "clusters: [{name: a, endpoints: [{url: 'http://127.0.0.1:1'}], identity: Proxy}]\n"
        "servers: [{name: a, default: true, backend: {cluster: a}}]\n"
    )
    assert main(["check", "-q", "--offline", "--diff", "-c", str(file)]) == 1
    assert "is the daemon running?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        ({"ok": True, "changes": ["added a"]}, 0, "  added a\n"),
        ({"ok": True, "changes": []}, 0, "  no changes\n"),
        ({"ok": False, "invalid": True, "errors": ["f:1:1: a: b"]}, 78, "as the daemon reads it: f:1:1: a: b\n"),
        ({"ok": False, "errors": ["unknown command"]}, 1, "as the daemon reads it: unknown command\n"),
    ],
)
def test_answers(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any],
    status: int,
    told: str,
) -> None:
    asked: list[Any] = []

    def send(config: str, request: dict[str, Any], *_: Any) -> tuple[dict[str, Any], str]:
        asked.append((config, request))
        return answer, "/run/control.sock"

    monkeypatch.setattr(reload, "send_to_daemon", send)
    assert reload.print_diff("/etc/a.yaml") == status
    output = capsys.readouterr()
    assert output.out + output.err == told
    assert asked == [("/etc/a.yaml", {"command": "diff", "file": "/etc/a.yaml"})]


def test_standard_input_has_no_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--diff", "-"]) == 2
    assert "not standard input" in capsys.readouterr().err


AGGREGATE = """\
version: 1
listeners: [{name: a, bind: "unix:/tmp/a.sock"}]
clusters:
  - {name: east, endpoints: [{url: "http://127.0.0.1:1"}], identity: Proxy}
  - {name: west, endpoints: [{url: "http://127.0.0.1:2"}], identity: Proxy}
aggregates:
  - name: fleet
    clusters: [west, east]
    cache: {resources: [{group: "", version: v1, resource: pods}]}
servers: [{name: a, default: true, backend: {aggregate: fleet}, authentication: none}]
"""


@pytest.mark.parametrize(
    ("layouts", "warned"),
    [
        ({"fleet": ["east", "west"]}, True),
        ({"fleet": ["west"]}, False),
        ({"other": ["east", "west"]}, False),
        ([], False),
        (None, False),
    ],
)
def test_check_warns_of_other_places_than_the_running_daemon_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], layouts: Any, warned: bool
) -> None:
    def send(config: str, request: dict[str, Any], *_: Any) -> tuple[dict[str, Any], str]:
        if layouts is None:
            raise UnreachableError("no")
        assert request == {"command": "layouts", "file": str(file)}
        return {"ok": True, "layouts": layouts}, "/run/control.sock"

    monkeypatch.setattr(reload, "send_to_daemon", send)
    file = tmp_path / "mcproxy.yaml"
    file.write_text(AGGREGATE)
    assert main(["check", str(file)]) == 0
    found = "a reload would change the places of members in resource versions (east, west)" in capsys.readouterr().err
    assert found is warned
    assert main(["check", "--offline", str(file)]) == 0
    assert "a reload would" not in capsys.readouterr().err
