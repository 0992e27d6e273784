import json
import sys
from pathlib import Path

import pytest

from mcproxy.cli.main import main

SCHEMA = Path(__file__).parents[2] / "schema" / "mcproxy.schema.json"


def test_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(SCHEMA.read_text("utf-8"))


def test_path_is_that_of_a_file_with_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "--path"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.is_absolute()
    assert path.read_bytes() == SCHEMA.read_bytes()


def test_modeline_is_what_editors_look_for_and_no_change_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", "--modeline"]) == 0
    line = capsys.readouterr().out
    key, _, path = line.partition("=")
    assert key == "# yaml-language-server: $schema"
    assert Path(path.strip()).read_bytes() == SCHEMA.read_bytes()
    (tmp_path / "mcproxy.yaml").write_text(line + "version: 1\n")
    assert main(["check", "--offline", "-q", str(tmp_path / "mcproxy.yaml")]) == 0


def test_a_single_file_program_has_no_lasting_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys._xoptions, "mcproxy_program", "/usr/local/bin/mcproxy")
    assert main(["schema", "--path"]) == 1
    assert "mcproxy schema > " in capsys.readouterr().err
