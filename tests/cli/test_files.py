"""`mcproxy files`: manual pages, unit and examples are found, printed and copied. Installed: tests/packaging."""

from pathlib import Path

import pytest

from mcproxy.cli.main import main

ROOT = Path(__file__).parents[2]


def test_lists_what_there_is_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert Path(listed["man/man8/mcproxy.8"]).read_bytes() == (ROOT / "man/mcproxy.8").read_bytes()
    assert {"mcproxy/logrotate", "mcproxy/etc/mcproxy.yaml", "mcproxy/systemd/mcproxy.service"} < set(listed)


def test_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "mcproxy/systemd/mcproxy.service"]) == 0
    assert capsys.readouterr().out == (ROOT / "systemd/mcproxy.service").read_text()


def test_an_unknown_name_is_an_error_that_says_where_the_names_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "mcproxy.service"]) == 1
    assert "`mcproxy files` lists them" in capsys.readouterr().err


def test_copies_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["files", "--copy-to", str(tmp_path / "share")]) == 0
    copied = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert set(copied) == {path for path in tmp_path.rglob("*") if path.is_file()}
    assert (tmp_path / "share/man/man5/mcproxy.yaml.5").read_bytes() == (ROOT / "man/mcproxy.yaml.5").read_bytes()
