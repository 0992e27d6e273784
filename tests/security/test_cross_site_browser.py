"""Pages of another origin in a real browser (Chromium): nothing that they have it send reaches a cluster.

A listener on loopback with `identity: Proxy` asks for no credential: to be able to connect is enough, and a browser on
the same machine is.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.threads import deferToThread

from mcproxy.config import model
from tests.proxy.harness import OK, Harness, Upstream, UpstreamEnd, always, cluster, config, get, listener

_SECONDS = 200  # for which a browser may run; a page is done after two or three

BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"

#: What a page tries, by the path that it asks of the proxy. The page's own server hears of /done when all is over.
PAGE = """<!doctype html><title>kittens</title><iframe name=hidden></iframe>
<form id=form method=post action="PROXYBINDINGS?by=form" target=hidden enctype=text/plain>
<input name='{"kind":"ClusterRoleBinding","a":"' value='"}'></form>
<script>
const settled = (start) => new Promise((done) => start(done));
const binding = new Blob(['{"kind": "ClusterRoleBinding"}']);
Promise.all([
  fetch("PROXYBINDINGS?by=fetch", {method: "POST", mode: "no-cors", body: binding}).catch(() => 0),
  fetch("PROXYBINDINGS?by=get", {mode: "no-cors"}).catch(() => 0),
  settled((done) => {
    const image = new Image();
    image.onload = image.onerror = done;
    image.src = "PROXY/api/v1/namespaces/a/pods/b/proxy/restart?by=image";
  }),
  settled((done) => {
    const socket = new WebSocket("PROXY/api/v1/namespaces/a/pods/b/exec?command=sh&by=websocket".replace("http", "ws"));
    socket.onopen = socket.onerror = done;
  }),
  settled((done) => {
    document.querySelector("iframe").onload = done;
    document.getElementById("form").submit();
  }),
]).then(() => fetch("/done", {method: "POST"}));
</script>"""

TRIES = {"form", "fetch", "get", "image", "websocket"}


class Pages(Upstream):
    """The server of the page: gives it for GET / and notes when it is done."""

    def __init__(self, reactor: Any, proxy_port: int) -> None:
        super().__init__(reactor)
        self.page = PAGE.replace("BINDINGS", BINDINGS).replace("PROXY", f"http://127.0.0.1:{proxy_port}").encode()
        self.done = False
        self.reply = self._reply

    def _reply(self, end: UpstreamEnd) -> None:
        *heads, rest = end.received.split(b"\r\n\r\n")
        end.received = rest
        for head in heads:
            self.done |= head.startswith(b"POST /done ")
            body = self.page if head.startswith(b"GET / ") else b""
            end.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def browser(url: str, profile: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start Chromium on a page, with more options if they are given."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("this test needs Chromium: .ci/tools chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    # Nothing of it may leave the machine, whatever the browser fetches for itself.
    options += [
        "--disable-background-networking",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1",
    ]
    return subprocess.Popen(
        [program, *options, *more, f"--user-data-dir={profile}", "--remote-debugging-port=0", url],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # to end its helpers with it
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["another site", "another port"])
async def test_a_page_of_another_origin_reaches_no_cluster(reactor: Any, tmp_path: Path, host: str) -> None:
    harness = Harness(reactor)
    upstream = harness.upstream()
    upstream.reply = always(OK)
    await harness.serve(
        config(
            [cluster(upstream.endpoint(), credentials=model.Credentials(token=model.Secret("admin")))],
            listeners=[listener(tls=False)],
            logging=model.Logging(access=model.AccessLogConfig()),
        )
    )
    pages = Pages(reactor, harness.port())
    chromium = browser(f"http://{host}:{pages.port}/", tmp_path)
    try:
        for _ in range(_SECONDS):
            if pages.done or chromium.poll() is not None:
                break
            await harness.turns(200)
        assert pages.done, "the browser did not get to the end of the page"
        tried = {record.uri.rpartition("by=")[2]: record.status for record in harness.records}
        assert tried == dict.fromkeys(TRIES, 403)
        assert upstream.received == b""
        # The same from something that is no page passes: kubectl and curl go on as before.
        client = await harness.asks(get(BINDINGS.encode()).replace(b"k8s.test", b"127.0.0.1"), tls=False)
        await harness.until(lambda: client.received.endswith(b"{}"))
        assert upstream.received.count(b"Authorization: Bearer admin") == 1
    finally:
        os.killpg(chromium.pid, signal.SIGKILL)
        await deferToThread(chromium.wait)
        await harness.close()
        await pages.stop()
