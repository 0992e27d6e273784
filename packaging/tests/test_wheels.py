"""The two wheels of one tree, of the sources and compiled; a daemon of each is replaced by one of the other."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import DIST

from tests.e2e.processes import TIMEOUT, Daemon, wait_until
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

PODS = "/api/v1/namespaces/demo/pods"
CLIENTS = 4


def install(tag: str, folder: Path) -> Path:
    """Install the wheel with this tag into `folder`, without what it needs; return the folder."""
    (wheel,) = DIST.glob(f"mcproxy-*-{tag}.whl")
    options = ("--no-deps", "--no-index", "--disable-pip-version-check", "--quiet", "--target", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The folders of the installed wheels, by build."""
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    above = tmp_path_factory.mktemp("wheels")
    return {
        "pure": install("py3-none-any", above / "pure"),
        "compiled": install(f"{python}-{python}-{platform}", above / "compiled"),
    }


@pytest.mark.parametrize(
    ("wheel", "variable", "build"),
    [("pure", "", "pure"), ("pure", "1", "pure"), ("compiled", "", "compiled"), ("compiled", "1", "pure")],
)
def test_a_wheel_says_its_build(
    folders: Mapping[str, Path], wheel: str, variable: str, build: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mcproxy", "version", "-o", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folders[wheel]), "MCPROXY_PURE": variable},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert json.loads(done.stdout)["build"] == build


CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, workers: {workers}, drainTimeout: 10s}}
listeners:
  - {{name: public, bind: "127.0.0.1:{port}"}}
clusters:
  - name: east
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: {token}}}
    identity: Proxy
servers:
  - {{name: east, default: true, authentication: none, backend: {{cluster: east}}}}
"""


class Load:
    """Clients that ask without an end, each request on a connection of its own, so none meets one that is closed."""

    def __init__(self, port: int) -> None:
        self.answers = 0
        self.failures: list[str] = []
        self._port = port
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT)

    def _run(self) -> None:
        while not self._stopping.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT)
            try:
                connection.request("GET", PODS, headers={"Connection": "close"})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    self.failures.append(str(answer.status))
            except OSError as error:
                self.failures.append(repr(error))
            finally:
                connection.close()
            self.answers += 1

    def goes_on(self) -> None:
        """Wait for some more answers."""
        before = self.answers
        wait_until("answers", lambda: self.answers > before + 20)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_build_replaces_the_other_under_load_without_a_failed_request(
    folders: Mapping[str, Path], tmp_path: Path, workers: int
) -> None:
    current = tmp_path / "current"
    current.symlink_to(folders["pure"])
    environ = {"PYTHONPATH": str(current), "PYTHONSAFEPATH": "1", "MCPROXY_PURE": ""}

    def mcproxy(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mcproxy", *arguments, "-c", str(daemon.file)],
            cwd=tmp_path,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, done.stderr + daemon.log
        return done.stdout

    with SimulatedClusterProcess("east", directory=tmp_path / "cluster") as cluster:
        port = reserved_port()
        token = cluster.tokens["admin"]
        text = CONFIG.format(workers=workers, port=port, url=cluster.urls[0], ca=cluster.ca, token=token)
        daemon = Daemon(tmp_path, text, environ=environ)
        with daemon:
            try:
                builds = [json.loads(mcproxy("status", "-o", "json"))["build"]]
                with Load(port) as load:
                    for build in ("compiled", "pure"):
                        load.goes_on()
                        link = tmp_path / "next"
                        link.symlink_to(folders[build])
                        link.replace(current)
                        mcproxy("upgrade")
                        load.goes_on()
                        builds.append(json.loads(mcproxy("status", "-o", "json"))["build"])
            finally:
                pid = json.loads(mcproxy("status", "-o", "json"))["pid"]
                if pid != daemon.process.pid:
                    os.kill(pid, signal.SIGTERM)
                    wait_until("the last daemon has ended", lambda: not Path(f"/proc/{pid}").exists())
        assert builds == ["pure", "compiled", "pure"]
        assert load.failures == []
