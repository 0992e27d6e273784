"""The manual as HTML: every page is there, every link and anchor leads somewhere, and nothing comes from elsewhere."""

from __future__ import annotations

import posixpath
import runpy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.files import installed_files

ROOT = Path(__file__).parents[2]
MANUAL: dict[str, Any] = runpy.run_path(str(ROOT / "packaging/manual.py"))
PAGES: dict[str, str] = MANUAL["made"]()
FOLDER = "doc/mcproxy/html"
VOID = frozenset({"br", "hr", "img", "link", "meta"})


class Read(HTMLParser):
    """A page's links, assets and anchors; an assertion fails where its elements are not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.anchors: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "base"), tag
        for name, value in attrs:
            if name == "href":
                self.links.append(str(value))
            elif name == "src":
                self.assets.append(str(value))
            elif name == "id":
                self.anchors.append(str(value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


READ = {name: Read(text) for name, text in PAGES.items()}


def test_every_page_is_there() -> None:
    docs = {f"{page.stem}.html" for page in (ROOT / "docs").glob("*.md")} - {"README.html"}
    assert set(PAGES) == docs | {"index.html", "overview.html", "changelog.html", "mcproxy.html", "mcproxy.yaml.html"}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_of_a_page_lead_somewhere_and_its_assets_are_installed(name: str) -> None:
    installed = {file for file, _ in installed_files()} | {f"{FOLDER}/{page}" for page in PAGES}
    for link in READ[name].links + READ[name].assets:
        if "://" in link:
            assert link in READ[name].links, link
            continue
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(f"{FOLDER}/{path or name}")
        assert target in installed, link
        assert not anchor or anchor in READ[Path(target).name].anchors, link
    assert len(set(READ[name].anchors)) == len(READ[name].anchors)
    assert "url(" not in PAGES[name]
    assert "@import" not in PAGES[name]


def test_pages_have_their_tables_code_and_keys() -> None:
    assert "<td><code>/etc/mcproxy</code></td>" in PAGES["install.html"]
    assert '<h2 id="first-configuration">First configuration</h2>' in PAGES["install.html"]
    assert "<title>Install - mcproxy</title>" in PAGES["install.html"]
    assert "<dt><code>daemon.drainTimeout</code></dt>" in PAGES["mcproxy.yaml.html"]
    assert "<code>--copy-to</code>" not in PAGES["install.html"]
    assert "[<code>-c</code> <var>file</var>]" in PAGES["mcproxy.html"]


def test_a_link_to_what_is_not_installed_ends_the_build(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n[there](../LICENSE)\n")
    with pytest.raises(ValueError, match="which is not installed"):
        MANUAL["of_markdown"](str(page), {})


def test_markup_in_a_page_is_text(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A <b>\n\n<script>alert(1)</script>\n")
    made = MANUAL["of_markdown"](str(page), {})
    assert "<script>" not in made
    assert "<title>A &lt;b&gt; - mcproxy</title>" in made
