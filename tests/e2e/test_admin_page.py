"""The status page of a real daemon in a real browser (Chromium).

Screenshots are written into the folder that MCPROXY_SCREENSHOTS names, if it does: to be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Daemon
from tests.e2e.small_cluster import SmallCluster
from tests.proxy.admin.page.readable import LOW_CONTRAST
from tests.support.chromium import Chromium
from tests.support.ports import reserved_port

CONFIG = """\
version: 1
daemon: {{drainTimeout: 1s}}
listeners:
  - {{name: api, bind: "127.0.0.1:{api}"}}
  - {{name: admin, serves: Admin, bind: "127.0.0.1:{admin}"}}
clusters:
  - name: east
    endpoints: [{{name: a, url: "{east}"}}]
    identity: Passthrough
    healthCheck: {{interval: 200ms, unhealthyAfter: 1}}
  - name: many
    endpoints: [{endpoints}]
    identity: Passthrough
flowControls:
  - {{name: limit, type: MaxRequestsInflight, max: 10}}
servers:
  - {{name: east, default: true, backend: {{cluster: east}}, dispatch: [{{name: all, flowControl: limit,
      rules: [{{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}]}}]}}
  - {{name: many, serverNames: [many.test], backend: {{cluster: many}}}}
"""


class Site:
    def __init__(self, directory: Path, cluster: SmallCluster) -> None:
        self.cluster = cluster
        self.admin = reserved_port()
        endpoints = ", ".join(f'{{name: api-{n}, url: "{cluster.url}/{n}"}}' for n in range(40))
        config = CONFIG.format(api=reserved_port(), admin=self.admin, east=cluster.url, endpoints=endpoints)
        self.daemon = Daemon(directory, config)
        self.url = f"http://127.0.0.1:{self.admin}/"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with SmallCluster() as cluster:
        site = Site(tmp_path_factory.mktemp("page"), cluster)
        with site.daemon:
            site.daemon.wait_for("takes requests", count=2)
            yield site


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def look(browser: Chromium, name: str) -> None:
    folder = os.environ.get("MCPROXY_SCREENSHOTS")
    if folder:
        browser.screenshot(Path(folder) / f"{name}.png")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_readable(site: Site, browser: Chromium, scheme: str, width: int) -> None:
    browser.prefer(scheme)
    browser.resize(width)
    browser.open(site.url)
    look(browser, f"{scheme}-{width}")
    assert browser.run("document.querySelector('h1').textContent") == "mcproxy"
    assert browser.run("getComputedStyle(document.documentElement).colorScheme") == "light dark"
    assert browser.run(LOW_CONTRAST) == []
    assert browser.run("document.scrollingElement.scrollWidth") <= width
    roles = [node["role"]["value"] for node in browser.ask("Accessibility.getFullAXTree")["nodes"] if "role" in node]
    for role in ("banner", "navigation", "main", "contentinfo", "table", "columnheader", "rowheader", "cell"):
        assert role in roles, role  # on a narrow screen too, where rows are cards
    assert browser.complaints == []
    assert {address for address in browser.requested if not address.startswith(("about:", site.url))} == set()


def renewed(section: str, text: str) -> str:
    """Whether a section has a text; the page is asked for anew at once, as when its tab is shown again."""
    shown = "document.dispatchEvent(new Event('visibilitychange'))"
    return f"({shown}, document.getElementById('{section}').textContent.includes('{text}'))"


def test_it_renews_itself_and_keeps_where_the_reader_is(site: Site, browser: Chromium) -> None:
    browser.resize(1280)
    browser.open(site.url)
    link = "document.querySelector('#clusters a[href*=\"requests-s\"]')"
    browser.run(f"(window.kept = {link}, {link}.focus())")
    try:
        site.cluster.ready = False
        browser.until(renewed("attention", "has no endpoint that is ready"))
        look(browser, "down")
        assert browser.run("document.getElementById('outcome').textContent").endswith("Clients are affected")
        assert browser.run("document.title") == "mcproxy: clients are affected"
        assert browser.run(f"document.activeElement === {link} && window.kept === {link}") is True
    finally:
        site.cluster.ready = True
    browser.until(renewed("outcome", "All is well"))
    browser.run("document.querySelector('#live button').click()")
    assert browser.run("document.getElementById('live').textContent") == "Paused.Go on"
    assert browser.complaints == []


def test_it_searches_sorts_and_turns_pages_without_another_page(site: Site, browser: Chromium) -> None:
    browser.resize(1280)
    browser.open(f"{site.url}?view=endpoints")
    rows = "[...document.querySelectorAll('#endpoints tbody th')].map((each) => each.textContent)"
    assert browser.run(f"{rows}.length") == 20
    first = browser.run(rows)
    browser.run("(window.kept = 1, document.getElementById('endpoints-next').click())")
    browser.until(f"!{rows}.includes('{first[0]}')")
    assert "endpoints.page=2" in browser.run("location.search")
    browser.run("history.back()")
    browser.until(f"{rows}[0] === '{first[0]}'")
    browser.run(
        "(document.querySelector('#search input[name=q]').value = 'api-17', "
        "document.getElementById('search').dispatchEvent(new Event('input')))"
    )
    browser.until(f"{rows}.length === 1")
    assert browser.run("location.search") == "?view=endpoints&q=api-17"
    browser.run("document.querySelector('#endpoints thead a').click()")
    browser.until("document.querySelector('#endpoints thead th').getAttribute('aria-sort') === 'ascending'")
    assert browser.run(f"{rows}.length") == 1
    assert browser.run("window.kept") == 1  # it is the same page
    assert browser.complaints == []


def test_requests_in_flight_are_a_page_of_it(site: Site, browser: Chromium) -> None:
    browser.open(f"{site.url}debug/requests")
    assert browser.run("document.querySelector('#views [aria-current]').textContent") == "Requests in flight"
    assert browser.run("document.querySelector('h2').textContent") == "Requests in flight"
    assert browser.complaints == []


def test_it_works_without_script(site: Site, browser: Chromium) -> None:
    browser.without_script()
    try:
        browser.open(site.url)
        look(browser, "without-script")
        seen = len(browser.requested)
        nodes = browser.ask("DOM.getDocument", depth=-1)
        link = browser.ask("DOM.querySelector", nodeId=nodes["root"]["nodeId"], selector="#refresh[href='/']")["nodeId"]
        box = browser.ask("DOM.getBoxModel", nodeId=link)["model"]["content"]
        for kind in ("mousePressed", "mouseReleased"):
            place = {"x": (box[0] + box[2]) / 2, "y": (box[1] + box[5]) / 2}
            browser.ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)
        browser.wait_for_event("Page.loadEventFired")
        assert browser.requested[seen:] == [site.url]
    finally:
        browser.ask("Emulation.setScriptExecutionDisabled", value=False)


ATTACK = """(async () => {
  const found = {};
  for (const path of ["", "status", "config", "metrics", "readyz", "debug/requests"]) {
    for (const mode of ["cors", "no-cors"]) {
      try {
        const answer = await fetch("SITE" + path, {mode});
        found[mode + " /" + path] = answer.type + answer.status;
      } catch (error) { found[mode + " /" + path] = "refused"; }
    }
  }
  const frame = document.createElement("iframe");
  frame.src = "SITE";
  document.body.append(frame);
  await new Promise((done) => { frame.onload = frame.onerror = done; });
  try { found.frame = frame.contentDocument.title; } catch (error) { found.frame = "refused"; }
  if (frame.contentDocument === null) found.frame = "refused";
  return found;
})()"""


def test_a_page_of_another_origin_reads_nothing(site: Site, browser: Chromium) -> None:
    browser.open(f"{site.cluster.url}/page")
    seen = len(browser.events)
    found = browser.run(ATTACK.replace("SITE", site.url))
    assert {value for key, value in found.items() if not key.startswith("no-cors")} == {"refused"}
    answers = [
        event["params"]["response"]
        for event in browser.events[seen:]
        if event["method"] == "Network.responseReceived" and event["params"]["response"]["url"].startswith(site.url)
    ]
    assert answers
    assert {answer["status"] for answer in answers} == {403}


def test_it_says_when_there_is_no_answer(site: Site, browser: Chromium) -> None:
    """The last test of this site."""
    browser.open(site.url)
    site.daemon.stop()
    lost = "document.querySelector('#live.lost') && document.getElementById('live').textContent"
    shown = "document.dispatchEvent(new Event('visibilitychange'))"
    assert browser.until(f"({shown}, {lost})").startswith("No answer: this is the state of 20")
    look(browser, "no-answer")
