"""A simulated cluster in its own process with one pod, for tests of streams, logs, faults and the control API."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess

POD = "/api/v1/namespaces/default/pods/web"


class Simulated:
    """The process, its control API, and requests as admin."""

    def __init__(self, process: SimulatedClusterProcess) -> None:
        self.process = process
        self.control = ControlClient(process.control_url)
        self.context = ssl.create_default_context(cafile=process.ca)
        self.context.load_cert_chain(process.user("admin").certificate, process.user("admin").key)

    def connect(self, endpoint: int = 0, timeout: float = 60.0) -> http.client.HTTPSConnection:
        port = self.process.ports[endpoint]
        return http.client.HTTPSConnection("127.0.0.1", port, context=self.context, timeout=timeout)

    def get(
        self, path: str, *, endpoint: int = 0, timeout: float = 60.0, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a GET on a new connection; return (status, headers, body)."""
        connection = self.connect(endpoint, timeout)
        try:
            connection.request("GET", path, headers=headers or {})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def set_status(self, path: str, status: dict[str, Any]) -> None:
        """Merge into an object's status."""
        connection = self.connect()
        try:
            body = json.dumps({"status": status})
            connection.request("PATCH", path, body, {"Content-Type": "application/merge-patch+json"})
            assert connection.getresponse().status == 200
        finally:
            connection.close()

    def kubectl(
        self, *arguments: str, stdin: bytes = b"", websockets: bool = True, timeout: float = 120.0
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {
            **os.environ,
            "KUBECONFIG": self.process.kubeconfig,
            "HOME": str(self.process.directory),
            "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": str(websockets).lower(),
            "KUBECTL_PORT_FORWARD_WEBSOCKETS": str(websockets).lower(),
        }
        return subprocess.run(
            ["kubectl", *arguments], input=stdin, capture_output=True, env=environment, timeout=timeout, check=False
        )


def pod(name: str = "web", **annotations: str) -> dict[str, Any]:
    """Return a running pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {f"mcproxy.example.com/log-{key}": value for key, value in annotations.items()},
        },
        "spec": {"nodeName": "worker-1", "containers": [{"name": "main", "image": "registry.example.com/x:1"}]},
    }


@contextmanager
def running(*options: str) -> Iterator[Simulated]:
    """A cluster with two endpoints and the pod `web`."""
    with SimulatedClusterProcess("east", options=("--empty", "--endpoints", "2", *options)) as process:
        simulated = Simulated(process)
        simulated.control.create([pod(interval="0.05")])
        simulated.set_status(f"{POD}/status", {"phase": "Running", "podIP": "10.244.1.10"})
        yield simulated
