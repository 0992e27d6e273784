"""`mcproxy docs`: pages are listed and shown, by the pager on a terminal. Installed: packaging/tests."""

from __future__ import annotations

import ast
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli import docs
from mcproxy.cli.docs import pages, sections
from mcproxy.cli.files import installed_files
from mcproxy.cli.main import main

ROOT = Path(__file__).parents[2]


def test_lists_the_pages_with_what_they_are_about(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(listed) == {page.stem for page in (ROOT / "docs").glob("*.md")} - {"README"} | {
        "overview",
        "mcproxy",
        "mcproxy.yaml",
        "changelog",
    }
    assert listed["upgrade"] == "without refusing a connection"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("install", "docs/install.md"),
        ("docs/install.md", "docs/install.md"),
        ("overview", "README.md"),
        ("README.md", "README.md"),
        ("changelog", "CHANGELOG.md"),
    ],
)
def test_shows_a_page_however_it_is_named(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", name]) == 0
    assert capsys.readouterr().out == (ROOT / file).read_text("utf-8")


@pytest.mark.parametrize("name", ["mcproxy.yaml", "mcproxy.yaml(5)", "mcproxy.yaml.5"])
def test_shows_a_manual_page_as_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("NAME\n\n    mcproxy.yaml \u2014 configuration of mcproxy\n")
    assert "    daemon.drainTimeout\n        How long tunnels" in shown


def test_shows_one_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docs", "troubleshooting#endpoint_out"]) == 0
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].endswith(" endpoint_out")
    assert shown in (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    assert main(["docs", "mcproxy.yaml#daemon"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("  daemon\n\n    daemon\n        Settings of the process.\n")
    assert "listeners[].name" not in shown


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("instal", "no page instal; did you mean install? `mcproxy docs` lists them"),
        ("karmada", "no page karmada; did you mean migrate-karmada? `mcproxy docs` lists them"),
        ("xyz", "no page xyz; `mcproxy docs` lists them"),
        ("install#port", "no section #port in install; did you mean ports? see `mcproxy docs install`"),
        ("", "no page ; `mcproxy docs` lists them"),
    ],
)
def test_an_unknown_page_or_section_is_told_with_one_that_is_like_it(
    name: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["docs", name]) == 2
    assert capsys.readouterr().err == f"mcproxy docs: {said}\n"


def test_without_the_manual_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(docs, "installed_files", lambda: iter(()))
    assert main(["docs", "install"]) == 1
    assert "the manual is not installed with this program" in capsys.readouterr().err


def test_sections_end_at_a_heading_of_their_level_and_code_has_none() -> None:
    text = "# A\n\n## B\n```sh\n# no heading\n```\n### C\nc\n## D\nd\n"
    found = sections(text)
    assert found["b"] == "## B\n```sh\n# no heading\n```\n### C\nc\n"
    assert found["d"] == "## D\nd\n"
    assert set(found) == {"a", "b", "c", "d"}


def on_a_terminal(environ: dict[str, str]) -> bytes:
    """Return what `mcproxy docs upgrade` writes on a terminal."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "mcproxy", "docs", "upgrade"]
    process = subprocess.Popen(command, stdout=terminal, stdin=terminal, cwd=ROOT, env={**os.environ, **environ})
    os.close(terminal)
    written = b""
    while True:
        try:
            written += os.read(controller, 65536)
        except OSError:  # the last process that had the terminal has ended
            break
    os.close(controller)
    assert process.wait(60) == 0
    return written


def test_on_a_terminal_the_pager_shows_it(tmp_path: Path) -> None:
    pager = tmp_path / "my pager"
    pager.write_text('#!/bin/sh\necho "paged with $1: $(head -n 1)"\n')
    pager.chmod(0o755)
    assert on_a_terminal({"PAGER": f"'{pager}' -x"}) == b"paged with -x: # Upgrade\r\n"
    less = tmp_path / "less"
    less.write_text('#!/bin/sh\necho "less $LESS: $(head -n 1)"\n')
    less.chmod(0o755)
    for missing in ("/nowhere/pager", "'unclosed"):
        path = f"{tmp_path}:{os.environ['PATH']}"
        environ = {"PAGER": missing, "PATH": path, "LESS": "FRX"}
        assert on_a_terminal(environ) == b"less FRX: # Upgrade\r\n"


def test_on_a_terminal_without_a_pager_it_is_printed() -> None:
    page = (ROOT / "docs/upgrade.md").read_bytes()
    assert on_a_terminal({"PAGER": ""}).replace(b"\r\n", b"\n") == page
    assert on_a_terminal({"PAGER": "no-such-pager", "PATH": "/nowhere"}).replace(b"\r\n", b"\n") == page


def test_what_the_program_and_its_files_say_names_pages_as_an_installation_has_them() -> None:
    """A path in the checkout is nowhere on a host where the program is installed."""
    known = pages(dict(installed_files()))
    texts = [
        (f"{source.relative_to(ROOT)}:{node.lineno}", node.value)
        for source in (ROOT / "mcproxy").rglob("*.py")
        if "docs" in (text := source.read_text("utf-8"))  # to parse them all would take seconds
        for node in _strings(ast.parse(text))
    ]
    shipped = [*(ROOT / "etc").iterdir(), *(ROOT / "systemd").iterdir(), *(ROOT / "man").glob("mcproxy*")]
    texts += [(str(file.relative_to(ROOT)), file.read_text("utf-8")) for file in shipped]
    named = 0
    for place, text in texts:
        assert not re.search(r"\bdocs/[\w-]+\.md", text), place
        for page, anchor in re.findall(r"mcproxy docs ([a-z][\w.-]*[\w])(?:#([\w-]+))?", text):
            assert page in known, (place, page)
            assert not anchor or anchor in known[page].sections(), (place, anchor)
            named += 1
    assert named > 5


def _strings(tree: ast.Module) -> Iterator[Any]:
    """Yield the strings of a module that are no docstrings."""
    notes = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
            yield node
