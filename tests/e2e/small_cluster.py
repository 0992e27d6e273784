"""The least of a cluster that a proxy can be put in front of, in a thread of the test: it starts at once.

It answers everything with an empty object, watches never end, and its readiness is what the test says.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class SmallCluster:
    """A plain HTTP server on 127.0.0.1; use it in a `with` statement."""

    def __init__(self) -> None:
        self.ready = True
        self.ending = threading.Event()
        handler = type("Handler", (_Handler,), {"cluster": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> SmallCluster:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection was reset: the daemon was killed."""


class _Handler(BaseHTTPRequestHandler):
    cluster: SmallCluster
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if "watch=" in self.path:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"3\r\n{}\n\r\n")
            self.cluster.ending.wait()
            return
        status = 500 if self.path == "/readyz" and not self.cluster.ready else 200
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""
