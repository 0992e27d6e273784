"""The session towards an OTLP collector verifies it as a cluster is verified."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from mcproxy.observe.spans import session_to_collector
from tests.identity.certificates import Held
from tests.net.authorities import CANNOT_MATCH, PAST, intermediate, key_pem, pem, root, server

ROOT, OTHER = root(), root()
INTER = intermediate(ROOT)
LEAF = server(INTER)
DAMAGED = b"-----BEGIN CERTIFICATE-----\nbm9!ZQ==\n-----END CERTIFICATE-----\n"

Ask = Callable[[tuple[Held, ...], bytes], int]


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Send a request to a collector that shows a chain, with a bundle as the SDK's variable names it."""
    running: list[tuple[ThreadingHTTPServer, threading.Thread]] = []

    def send(chain: tuple[Held, ...], bundle: bytes) -> int:
        (tmp_path / "pair").write_bytes(pem(*chain) + key_pem(chain[0]))
        (tmp_path / "ca").write_bytes(bundle)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "pair")
        collector = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        collector.daemon_threads = True
        collector.socket = context.wrap_socket(collector.socket, server_side=True)
        thread = threading.Thread(target=collector.serve_forever, args=(0.01,))
        thread.start()
        running.append((collector, thread))
        session = session_to_collector({"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "ca")})
        assert session is not None
        with session:
            return session.post(f"https://localhost:{collector.server_port}/v1/traces", b"", timeout=60).status_code

    yield send
    for collector, thread in running:
        collector.shutdown()
        collector.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("chain", "bundle"),
    [
        ((LEAF, INTER), ROOT.pem),
        ((LEAF, INTER), INTER.pem),
        ((LEAF,), LEAF.pem),
        ((LEAF, INTER), DAMAGED + ROOT.pem),
        ((server(ROOT),), pem(ROOT, OTHER)),
        ((server(ROOT),), pem(OTHER, ROOT)),
        ((server(ROOT, "localhost", *CANNOT_MATCH),), ROOT.pem),
    ],
)
def test_what_a_cluster_may_show_a_collector_may(ask: Ask, chain: tuple[Held, ...], bundle: bytes) -> None:
    assert ask(chain, bundle) == 200


@pytest.mark.parametrize(
    ("chain", "bundle"),
    [
        ((LEAF, INTER), OTHER.pem),
        ((server(root()),), pem(ROOT, OTHER)),
        ((server(ROOT, valid=PAST),), pem(ROOT, OTHER)),
        ((server(ROOT, "other.example.com"),), pem(ROOT, OTHER)),
        ((server(ROOT, *CANNOT_MATCH),), ROOT.pem),
    ],
)
def test_what_a_cluster_may_not_show_it_may_not(ask: Ask, chain: tuple[Held, ...], bundle: bytes) -> None:
    with pytest.raises(requests.exceptions.SSLError):
        ask(chain, bundle)


def test_a_bundle_without_any_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "ca"
    for content, reason in ((b"", "no certificate in PEM form"), (DAMAGED, "line 1 cannot be read")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"{file}: .*{reason}"):
            session_to_collector({"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": str(file)})
    with pytest.raises(ValueError, match="nosuch cannot be read: No such file"):
        session_to_collector({"OTEL_EXPORTER_OTLP_CERTIFICATE": str(tmp_path / "nosuch")})
    assert session_to_collector({}) is None
