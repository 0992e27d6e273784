"""curl at an ingress with a plain and a TLS listener: redirects, both versions of HTTP, uploads."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from twisted.internet.threads import deferToThread

from mcproxy.config import model
from mcproxy.config.model import HTTPProtocol, IngressTLS
from tests.proxy.harness import CA, listener
from tests.services.ingress.config import ingress, path, rule
from tests.services.ingress.real_servers import AiohttpPod
from tests.services.ingress.whole import HOST, LISTENER, Whole, ingress_config, tls_listener

CURL = shutil.which("curl")
WEB = replace(
    ingress("web", rule(HOST, path("/", "web"))),
    tls=(IngressTLS(hosts=(), certificate=HOST),),
    listeners=(LISTENER, "tls"),
)


async def test_curl(whole: Whole, tmp_path: Path) -> None:
    assert CURL is not None, "install curl and put it on PATH"
    pod = AiohttpPod()
    try:
        plain = listener(LISTENER, tls=False, serves=model.Serves.INGRESS)
        secure = tls_listener("tls", protocols=(HTTPProtocol.HTTP2, HTTPProtocol.HTTP1))
        await whole.serve(ingress_config(WEB, listeners=(plain, secure)))
        whole.endpoints("web", pod.port)
        authority = tmp_path / "ca.pem"
        authority.write_bytes(CA.cert_pem.bytes())
        upload = tmp_path / "upload"
        upload.write_bytes(b"x" * 900_000)

        async def curl(*options: str) -> str:
            names = ["--connect-to", f"{HOST}:80:127.0.0.1:{whole.port()}"]
            names += ["--connect-to", f"{HOST}:443:127.0.0.1:{whole.port(1)}"]
            command = [CURL or "", "-sS", "--cacert", str(authority), *names, "-w", " %{http_version}", *options]
            done = await deferToThread(subprocess.run, command, capture_output=True, timeout=60, check=True, text=True)
            return done.stdout

        moved = await curl("-o", "/dev/null", "-w", "%{http_code} %{redirect_url}", f"http://{HOST}/a?b")
        assert moved == f"308 https://{HOST}/a?b"
        assert await curl("-L", f"http://{HOST}/a?b") == "GET /a?b 0 2"
        assert await curl("--http1.1", f"https://{HOST}/a") == "GET /a 0 1.1"
        for version in ("--http1.1", "--http2"):
            sent = await curl(version, "-T", str(upload), f"https://{HOST}/up")
            assert sent.startswith("PUT /up 900000 ")
    finally:
        pod.stop()
