"""Starts an aggregated API server in a process of its own. Blocking code, for any test."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from kubesim.auth.certificates import Authority
from tests.support.ports import reserved_port


class APIServerProcess:
    """One API server; it may be stopped and started again on the same port. Also a context manager.

    `directory` gets its certificate (`ca` is the file of who issued it), the CA of front proxies, and the certificate
    and key of the front proxy that it trusts (`front_proxy`); with `front_proxies` these are of that authority.
    """

    def __init__(
        self,
        group: str,
        directory: Path,
        *,
        resources: Sequence[str] = ("widgets:Widget",),
        version: str = "v1alpha1",
        kubeconfig: Path | None = None,
        looks_up: bool = False,
    ) -> None:
        """`kubeconfig` is where it asks of tokens and rights: in JSON, with a token; it may be written later.

        `looks_up`: there it reads which front proxies it trusts, too, as k8s.io/apiserver does without options.
        """
        self._looks_up = looks_up
        self.group, self.version, self.directory = group, version, directory
        self.port = reserved_port()
        self._resources = resources
        self._kubeconfig = kubeconfig
        self._process: subprocess.Popen[bytes] | None = None
        self._control = 0
        directory.mkdir(parents=True, exist_ok=True)
        authority, front = Authority(f"{group} CA"), Authority("front proxies")
        authority.server(["127.0.0.1", "localhost"]).write(directory, "server")
        self.front_proxy = front.client("front-proxy-client").write(directory, "front-proxy")
        self.other_proxy = front.client("another").write(directory, "another")
        self.ca, self.front_ca = directory / "ca.crt", directory / "front-proxy-ca.crt"
        self.ca.write_bytes(authority.pem)
        self.front_ca.write_bytes(front.pem)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def group_version(self) -> str:
        return f"{self.group}/{self.version}"

    def spawn(self) -> None:
        """Start it without waiting."""
        directory = self.directory
        command = [sys.executable, "-m", "tests.apiserver.server", "--port", str(self.port)]
        command += ["--cert", str(directory / "server.crt"), "--key", str(directory / "server.key")]
        command += ["--group", self.group, "--version", self.version]
        command += ["--requestheader-ca", str(self.front_ca)]
        command += ["--lookup"] if self._looks_up else ["--allowed-name", "front-proxy-client"]
        for each in self._resources:
            command += ["--resource", each]
        if self._kubeconfig is not None:
            command += ["--kubeconfig", str(self._kubeconfig)]
        environment = {**os.environ, "SSL_CERT_FILE": os.devnull, "PYTHONPATH": str(Path(__file__).parents[2])}
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment
            )

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Wait until it serves."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + timeout
        readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        line = process.stdout.readline() if readable else b""
        if not line:
            self.stop()
            raise RuntimeError(f"the API server did not start: {(self.directory / 'log').read_text()[-2000:]}")
        self._control = json.loads(line)["control"]

    def start(self) -> APIServerProcess:
        self.spawn()
        self.wait_ready()
        return self

    def stop(self) -> None:
        """End it at once: its connections are reset."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def pause(self, *, paused: bool) -> None:
        """Let the process stand still, or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if paused else signal.SIGCONT)

    def __enter__(self) -> APIServerProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def control(self, path: str, body: Any = None, *, method: str = "") -> Any:
        """Call the control: POST with a body, GET without one."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._control}{path}", data=data, method=method or ("GET" if data is None else "POST")
        )
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def misbehave(self, mode: str, prefix: str = "/") -> None:
        """Misbehave as `faults.misbehave` says below a path; "" ends it."""
        self.control("/mode", {"mode": mode, "prefix": prefix})

    def restore(self) -> None:
        """Run and behave again, with the resources that it began with."""
        if self._process is None:
            self.start()
        else:
            self.pause(paused=False)
        self.misbehave("")
        self.have(*(dict(zip(("name", "kind"), each.split(":"), strict=False)) for each in self._resources))

    def have(self, *resources: dict[str, Any]) -> None:
        """Have other resources: arguments of `documents.Resource`."""
        self.control("/resources", list(resources))

    def seen(self, path: str = "/") -> list[dict[str, Any]]:
        """The requests that it got whose path begins so, since they were forgotten."""
        return [each for each in self.control("/audit") if each["path"].startswith(path)]

    def forget(self) -> None:
        """Forget the requests that it got."""
        self.control("/audit", method="DELETE")
