"""docs/architecture.md names files that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
_PATH = re.compile(r"`(\w[\w./-]*(?:\.(?:py|md|json|yaml|cfg|toml|[1-8])|/))`")
_ELSEWHERE = {"share/"}
"""Folders of installed packages."""


def known() -> set[str]:
    """Return every ending of the path of a file, or of a folder with a slash behind it."""
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".")]
    files = {path for top in tops for path in (top, *top.rglob("*")) if "__pycache__" not in path.parts}
    paths = {f"{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}" for path in files}
    return {"/".join(path.split("/")[start:]) for path in paths for start in range(path.rstrip("/").count("/") + 1)}


def test_each_file_and_folder_that_the_page_names_exists() -> None:
    named = set(_PATH.findall(PAGE)) - _ELSEWHERE
    assert len(named) > 300
    assert sorted(named - known()) == []
