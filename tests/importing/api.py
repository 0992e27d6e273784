"""A small API of a control plane."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


class API(ThreadingHTTPServer):
    """A small API: lists by path, in pages of two, objects by path, and whatever else as bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        self.raw: dict[str, bytes] = {}
        self.status: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []


class Handler(BaseHTTPRequestHandler):
    server: API

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.server.asked.append((parts.path, self.headers.get("Authorization", "")))
        status, answer = self.server.status.get(parts.path, 200), b"{}"
        if parts.path in self.server.raw:
            answer = self.server.raw[parts.path]
        elif parts.path in self.server.lists:
            start = int(query.get("continue", 0))
            found = self.server.lists[parts.path]
            following = {"continue": str(start + 2)} if start + 2 < len(found) else {}
            answer = json.dumps({"kind": "List", "metadata": following, "items": found[start : start + 2]}).encode()
        elif parts.path in self.server.objects:
            answer = json.dumps(self.server.objects[parts.path]).encode()
        else:
            status = 404
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[API]:
    with API() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def write_kubeconfig(path: Path, api: API, *contexts: str) -> str:
    """Write a kubeconfig for the API; its current context is not there, so that one must be named."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "none",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{api.server_port}"}}],
        "users": [{"name": "u", "user": {"token": "operator"}}],
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u"}} for name in contexts],
    }
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return str(path)
