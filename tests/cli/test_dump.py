import argparse
import json
from pathlib import Path

import pytest

from mcproxy.cli import dump

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
