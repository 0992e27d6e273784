"""The page in a real browser, narrow and wide, of few clusters and of many: what can be read of it.

Screenshots are written into the folder that MCPROXY_SCREENSHOTS names, if it does: to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcproxy.config.model import ADMIN_PATHS
from mcproxy.proxy.admin.page import page
from mcproxy.proxy.admin.page.query import Query
from mcproxy.proxy.admin.page.views import VIEWS
from tests.proxy.admin.page.documents import in_flight, with_clusters
from tests.proxy.admin.page.readable import BROKEN_WORDS, LOW_CONTRAST
from tests.support.chromium import Chromium

NOW = "2026-11-22T12:00:00Z"
WIDTHS = (360, 800, 1440, 1920)
NAMES = (*(view.name or "overview" for view in VIEWS), "requests")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all views, of 3 and of 120 clusters."""
    folder = tmp_path_factory.mktemp("pages")
    for count in (3, 120):
        status = with_clusters(count)
        for view in VIEWS:
            html = "".join(page.render(status, ADMIN_PATHS, NOW, Query(view=view.name)))
            (folder / f"{view.name or 'overview'}-{count}.html").write_text(html)
        html = "".join(page.render_requests(in_flight(3 * count), ADMIN_PATHS, NOW, Query()))
        (folder / f"requests-{count}.html").write_text(html)
    return folder


def look(browser: Chromium, name: str) -> None:
    folder = os.environ.get("MCPROXY_SCREENSHOTS")
    if folder:
        browser.screenshot(Path(folder) / f"{name}.png")


def test_a_word_that_is_broken_is_found(browser: Chromium, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p style='width:3em;word-break:break-all'>certificates of east</p>")
    browser.open(f"file://{tmp_path}/a.html")
    assert browser.run(BROKEN_WORDS)[0] == "certificates in certificates of east"


@pytest.mark.parametrize("count", [3, 120])
@pytest.mark.parametrize("name", NAMES)
def test_no_word_is_broken_and_nothing_is_wider_than_the_screen(
    browser: Chromium, pages: Path, name: str, count: int
) -> None:
    for width in WIDTHS:
        browser.resize(width)
        browser.open(f"file://{pages}/{name}-{count}.html")
        look(browser, f"{name}-{count}-{width}-light")
        assert browser.run(BROKEN_WORDS) == [], width
        assert browser.run("document.scrollingElement.scrollWidth") <= width
        cut = "[...document.querySelectorAll('.scroll')].filter((each) => each.scrollWidth > each.clientWidth).length"
        assert browser.run(cut) == 0, width  # of no table a column is out of sight


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(browser: Chromium, pages: Path, scheme: str) -> None:
    browser.prefer(scheme)
    for name in NAMES:
        for width in (360, 1440):
            browser.resize(width)
            browser.open(f"file://{pages}/{name}-120.html")
            if scheme == "dark":
                look(browser, f"{name}-120-{width}-dark")
            assert browser.run(LOW_CONTRAST) == [], name
    browser.prefer("light")


@pytest.mark.parametrize(("width", "height"), [(360, 7000), (800, 4000), (1440, 4000), (1920, 4000)])
def test_the_page_of_many_clusters_is_no_endless_one(browser: Chromium, pages: Path, width: int, height: int) -> None:
    browser.resize(width)
    for name in NAMES:
        browser.open(f"file://{pages}/{name}-120.html")
        assert browser.run("document.documentElement.scrollHeight") < height, name
