"""A dashboard in a real browser (Chromium) that watches ten collections: what else it asks does not wait for them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from twisted.internet.threads import deferToThread

from mcproxy.config import model
from tests.proxy.harness import Harness, UpstreamEnd, cluster, config, listener
from tests.security.test_cross_site_browser import browser

_SECONDS = 120  # for which a browser may run; a page is done after two or three
WATCHED = 1.0
"""Seconds that a watch lasts over HTTP/1.1, where it occupies a connection that the list waits for."""

PAGE = """<!doctype html><meta charset=utf-8><title>dashboard</title><h1>Ten watches, one list</h1><pre></pre><script>
const show = (text) => document.querySelector("pre").append(text + "\\n");
for (let number = 0; number < 10; number++)
  fetch("/api/v1/namespaces/n" + number + "/pods?watch=1").then(async (answer) => {
    const read = await answer.body.getReader().read();
    show("watch " + number + ": " + answer.status + ", first event of " + read.value.length + " bytes");
  });
const began = performance.now();
fetch("/api/v1/nodes").then((answer) => answer.json()).then(async (list) => {
  const took = performance.now() - began;
  const protocol = performance.getEntriesByName(new URL("/api/v1/nodes", location))[0].nextHopProtocol;
  show(list.kind + " after " + took.toFixed(1) + " ms over " + protocol);
  await fetch("/done?" + protocol, {method: "POST"});
});
</script>"""


class Dashboard:
    """Answers for the cluster: the page, its watches and its list; and keeps what the page found out."""

    def __init__(self, reactor: Any, *, endless: bool) -> None:
        """`endless`: no watch ends."""
        self.found = ""
        self.watches = 0
        self.ended = 0
        self.ended_before_the_list = 0
        self._reactor = reactor
        self._endless = endless

    def reply(self, end: UpstreamEnd) -> None:
        *heads, end.received = end.received.split(b"\r\n\r\n")
        for head in heads:
            path = head.split(b" ")[1].decode()
            if path.startswith("/done?"):
                self.found = unquote(path.removeprefix("/done?"))
            if "watch=1" in path:
                self.watches += 1
                end.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
                end.send(b"3\r\n{}\n\r\n")
                if not self._endless:
                    self._reactor.callLater(WATCHED, self._end, end)
                continue
            if path == "/api/v1/nodes":
                self.ended_before_the_list = self.ended
            body = PAGE.encode() if path == "/" else b'{"kind": "NodeList"}'
            kind = b"text/html" if path == "/" else b"application/json"
            end.send(b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (kind, len(body), body))

    def _end(self, end: UpstreamEnd) -> None:
        self.ended += 1
        if end.lost is None:
            end.send(b"0\r\n\r\n")


@pytest.mark.parametrize(
    ("protocols", "wanted"),
    [((model.HTTPProtocol.HTTP2, model.HTTPProtocol.HTTP1), "h2"), ((model.HTTPProtocol.HTTP1,), "http/1.1")],
)
async def test_a_list_beside_ten_watches_waits_over_http1_alone(
    reactor: Any,
    tmp_path: Path,
    protocols: tuple[model.HTTPProtocol, ...],
    wanted: str,
) -> None:
    harness, dashboard = Harness(reactor), Dashboard(reactor, endless=wanted == "h2")
    upstream = harness.upstream()
    upstream.reply = dashboard.reply
    await harness.serve(config([cluster(upstream.endpoint())], listeners=[listener(protocols=protocols)]))
    url = f"https://127.0.0.1:{harness.port()}/"
    chromium = browser(url, tmp_path, "--ignore-certificate-errors")
    try:
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until and chromium.poll() is None:
            if dashboard.found and dashboard.watches == 10:
                break
            await harness.turns(20)
        assert dashboard.found == wanted
        assert dashboard.watches == 10
        assert (dashboard.ended_before_the_list > 0) is (wanted == "http/1.1")  # over HTTP/2 no watch has ended yet
    finally:
        os.killpg(chromium.pid, signal.SIGKILL)
        await deferToThread(chromium.wait)
        await harness.close()
