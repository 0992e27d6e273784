"""A real browser (Chromium) at an ingress: HTTP/2 by ALPN, WebSocket, events, and an affinity cookie that it keeps."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from urllib.parse import unquote

import pytest
from twisted.internet.threads import deferToThread

from mcproxy.config.model import Affinity, HTTPProtocol
from tests.proxy.harness import Upstream, UpstreamEnd
from tests.security.test_cross_site_browser import browser
from tests.services.ingress.config import backend, ingress, path, rule
from tests.services.ingress.real_servers import AiohttpPod
from tests.services.ingress.whole import HOST, Whole, ingress_config, tls_listener

SECONDS = 120  # for which a browser may run; the page is done after one or two

PAGE = """<!doctype html><meta charset=utf-8><title>shop</title><script>
const socket = () => new Promise((done) => {
  const heard = [], it = new WebSocket("wss://" + location.host + "/ws", ["chat"]);
  it.onopen = () => it.send("hello");
  it.onmessage = (message) => { heard.push(message.data); it.close(4001, "enough"); };
  it.onerror = () => heard.push("error");
  it.onclose = (close) => done([it.protocol, ...heard, close.code]);
});
const events = () => new Promise((done) => {
  const heard = [], it = new EventSource("/sse");
  it.onmessage = (event) => {
    heard.push(event.data);
    const seen = fetch("/sse/seen", {method: "POST"});
    if (heard.length == 3) { it.close(); seen.then(() => done(heard)); }
  };
});
(async () => {
  const pods = [];
  for (let number = 0; number < 6; number++) pods.push(await (await fetch("/who")).text());
  const protocol = performance.getEntriesByName(new URL("/who", location))[0].nextHopProtocol;
  const found = {pods, protocol, socket: await socket(), events: await events()};
  await fetch("/done?" + encodeURIComponent(JSON.stringify(found)), {method: "POST"});
})();
</script>"""


class Shop:
    """The pods of the page; `found` is what the page tells in the end."""

    def __init__(self, whole: Whole) -> None:
        self.found = ""
        self.pods = [self._pod(whole, name) for name in (b"a", b"b", b"c")]

    def _pod(self, whole: Whole, name: bytes) -> Upstream:
        def reply(end: UpstreamEnd) -> None:
            *heads, end.received = end.received.split(b"\r\n\r\n")
            for head in heads:
                target = head.split(b" ")[1].decode()
                if target.startswith("/done?"):
                    self.found = unquote(target.removeprefix("/done?"))
                body = PAGE.encode() if target == "/" else name
                end.send(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
                )

        pod = whole.upstream()
        pod.reply = reply
        return pod


@pytest.mark.slow
async def test_a_page_with_a_websocket_and_events(whole: Whole, tmp_path: Path) -> None:
    shop, streams = Shop(whole), AiohttpPod()
    try:
        await whole.serve(
            ingress_config(
                ingress(
                    "shop",
                    rule(
                        HOST,
                        path("/", backend("web", affinity=Affinity.COOKIE)),
                        path("/ws", "streams"),
                        path("/sse", "streams"),
                    ),
                ),
                listeners=(tls_listener(protocols=(HTTPProtocol.HTTP2, HTTPProtocol.HTTP1)),),
            )
        )
        whole.endpoints("web", *shop.pods)
        whole.endpoints("streams", streams.port)
        names = f"--host-resolver-rules=MAP {HOST} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        chromium = browser(f"https://{HOST}:{whole.port()}/", tmp_path, "--ignore-certificate-errors", names)
        try:
            until = time.monotonic() + SECONDS
            while time.monotonic() < until and chromium.poll() is None and not shop.found:
                await whole.turns(20)
        finally:
            os.killpg(chromium.pid, signal.SIGKILL)
            await deferToThread(chromium.wait)
        found = json.loads(shop.found)
        assert found["protocol"] == "h2"
        assert len(set(found["pods"])) == 1, "its affinity cookie is not kept"
        assert found["socket"] == ["chat", "heard hello", 1000]  # the code of the pod's answer
        assert found["events"] == ["0", "1", "2"]
        assert streams.closed == [4001]
    finally:
        streams.stop()
