"""A dashboard in a real browser (Chromium) uses a server whose `cors` allows its origin; any other page cannot."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from twisted.internet.threads import deferToThread

from mcproxy.config import model
from tests.proxy.harness import OK, Harness, Upstream, UpstreamEnd, always, cluster, config, listener
from tests.security.test_cross_site_browser import browser

_SECONDS = 200  # for which a browser may run; a page is done after two or three

#: What the page could read of a list, of a refusal, and of the answer to a write; each needs a preflight.
PAGE = """<!doctype html><title>dashboard</title><script>
const ask = (method, token) => fetch("PROXY/api/v1/pods", {method, headers: {Authorization: "Bearer " + token}})
  .then(async (answer) => answer.status + " " + (await answer.json()).kind, () => "blocked");
Promise.all([ask("GET", "alice"), ask("GET", "wrong"), ask("DELETE", "alice")])
  .then((found) => fetch("/done?" + encodeURIComponent(found.join(", ")), {method: "POST"}));
</script>"""


class Dashboard(Upstream):
    """The server of the page, which reports what it could read to /done."""

    def __init__(self, reactor: Any) -> None:
        super().__init__(reactor)
        self.page = b""
        self.found = ""
        self.reply = self._reply

    def _reply(self, end: UpstreamEnd) -> None:
        *heads, rest = end.received.split(b"\r\n\r\n")
        end.received = rest
        for head in heads:
            path = head.split(b" ")[1].decode()
            if path.startswith("/done?"):
                self.found = unquote(path.removeprefix("/done?"))
            body = self.page if path == "/" else b""
            end.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


@pytest.mark.parametrize(
    ("allowed", "found"),
    [("localhost", "200 PodList, 401 Status, 200 PodList"), ("other.test", "blocked, blocked, blocked")],
)
async def test_only_a_page_of_an_allowed_origin_can_read_answers(
    reactor: Any, tmp_path: Path, allowed: str, found: str
) -> None:
    harness, dashboard = Harness(reactor), Dashboard(reactor)
    upstream = harness.upstream()
    upstream.reply = always(OK.replace(b"2\r\n\r\n{}", b'18\r\n\r\n{"kind":"PodList"}'))
    token = model.StaticToken(model.Secret("alice"), "alice")
    made = config(
        [
            cluster(
                upstream.endpoint(),
                identity=model.UpstreamIdentity.IMPERSONATE,
                credentials=model.Credentials(token=model.Secret("own")),
            )
        ],
        listeners=[listener(tls=False)],
        authentication=(model.Authentication(name="users", token_file=model.TokenFileConfig("t", (token,))),),
    )
    cors = model.CORS((f"http://{allowed}:{dashboard.port}",))
    await harness.serve(replace(made, servers=(replace(made.servers[0], authentication="users", cors=cors),)))
    dashboard.page = PAGE.replace("PROXY", f"http://127.0.0.1:{harness.port()}").encode()
    chromium = browser(f"http://localhost:{dashboard.port}/", tmp_path)
    try:
        for _ in range(_SECONDS):
            if dashboard.found or chromium.poll() is not None:
                break
            await harness.turns(200)
        assert dashboard.found == found
    finally:
        os.killpg(chromium.pid, signal.SIGKILL)
        await deferToThread(chromium.wait)
        await harness.close()
        await dashboard.stop()
