"""exec, attach, cp and port-forward of the simulated cluster, with kubectl over both protocols and with the Python
client."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.stream import stream

from tests.simulated_cluster.one_pod import POD, Simulated, running


@pytest.fixture(scope="module")
def cluster() -> Iterator[Simulated]:
    with running() as found:
        yield found


both = pytest.mark.parametrize("websockets", [True, False], ids=["websocket", "spdy"])


@both
def test_exec_passes_output_and_exit_code(cluster: Simulated, websockets: bool) -> None:
    mark = cluster.control.mark()
    script = "echo out; echo err >&2; exit 3"
    done = cluster.kubectl("exec", "web", "--", "sh", "-c", script, websockets=websockets)
    assert (done.returncode, done.stdout) == (3, b"out\n")
    assert done.stderr.startswith(b"err\n")
    upgraded = [record["upgraded"] for record in cluster.control.audit(mark, path=f"{POD}/exec")]
    assert upgraded == ["websocket" if websockets else "SPDY/3.1"]


@both
def test_half_closed_stdin_ends_the_command(cluster: Simulated, websockets: bool) -> None:
    data = os.urandom(300_000)
    done = cluster.kubectl("exec", "-i", "web", "--", "cat", stdin=data, websockets=websockets)
    assert (done.returncode, done.stdout) == (0, data)


@both
def test_an_unknown_command_fails_as_in_a_container_runtime(cluster: Simulated, websockets: bool) -> None:
    done = cluster.kubectl("exec", "web", "--", "no-such", websockets=websockets)
    assert done.returncode == 1
    assert b'exec: "no-such": executable file not found in $PATH' in done.stderr


@both
def test_copy_to_a_container_and_back(cluster: Simulated, websockets: bool, tmp_path: Path) -> None:
    data = os.urandom(1_000_000)
    (tmp_path / "up").write_bytes(data)
    there = cluster.kubectl("cp", str(tmp_path / "up"), "web:/tmp/up", websockets=websockets)
    back = cluster.kubectl("cp", "web:/tmp/up", str(tmp_path / "down"), websockets=websockets)
    assert (there.returncode, back.returncode) == (0, 0), (there.stderr, back.stderr)
    assert (tmp_path / "down").read_bytes() == data == cluster.control.read_file("default", "web", "/tmp/up")


@both
def test_attach_to_the_containers_process(cluster: Simulated, websockets: bool) -> None:
    done = cluster.kubectl("attach", "-i", "web", stdin=b"hello\n", websockets=websockets)
    assert (done.returncode, done.stdout) == (0, b"attached line 0\nattached line 1\nattached line 2\nhello\n")


@pytest.fixture
def forwarded(cluster: Simulated, request: pytest.FixtureRequest) -> Iterator[dict[int, int]]:
    """Local ports by pod port, while kubectl port-forward runs."""
    environment = {
        **os.environ,
        "KUBECONFIG": cluster.process.kubeconfig,
        "HOME": str(cluster.process.directory),
        "KUBECTL_PORT_FORWARD_WEBSOCKETS": str(request.param).lower(),
    }
    command = ["kubectl", "port-forward", "--address", "127.0.0.1", "pod/web", ":80", ":7", ":9"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ports: dict[int, int] = {}
        while len(ports) < 3:
            match = re.search(rb"127\.0\.0\.1:(\d+) -> (\d+)", process.stdout.readline())
            assert match is not None
            ports[int(match[2])] = int(match[1])
        yield ports
        process.terminate()


def converse(port: int, data: bytes) -> bytes:
    """Send data and half-close; return what is received until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        return b"".join(parts)


@pytest.mark.parametrize("forwarded", [True, False], indirect=True, ids=["websocket", "spdy"])
def test_port_forward(forwarded: dict[int, int]) -> None:
    page = converse(forwarded[80], b"GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert page.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"pod": "web"' in page
    assert converse(forwarded[7], b"x" * 200_000) == b"x" * 200_000
    assert converse(forwarded[9], b"") == b""


@pytest.fixture
def api(cluster: Simulated) -> Iterator[client.CoreV1Api]:
    with config.new_client_from_config(cluster.process.kubeconfig) as connection:  # type: ignore[no-untyped-call]
        yield client.CoreV1Api(connection)


def open_exec(api: client.CoreV1Api, command: list[str], **options: bool) -> Any:
    streams = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    call = api.connect_get_namespaced_pod_exec
    return stream(call, "web", "default", command=command, _preload_content=False, **streams)


def test_the_python_client_gets_output_and_exit_code(api: client.CoreV1Api) -> None:
    session = open_exec(api, ["sh", "-c", "echo out; echo err >&2; exit 5"])
    session.run_forever(timeout=60)
    assert (session.read_stdout(), session.read_stderr(), session.returncode) == ("out\n", "err\n", 5)


def test_a_terminal_session_has_a_prompt_and_a_size(api: client.CoreV1Api) -> None:
    session = open_exec(api, ["sh"], stdin=True, tty=True)
    session.write_channel(4, '{"Width":100,"Height":40}')
    session.write_stdin("stty wait\nexit 4\n")
    session.run_forever(timeout=60)
    text = session.read_stdout()
    assert text.startswith("/ # ")
    assert "40 100\r\n" in text
    assert session.returncode == 4


def test_a_disconnected_client_ends_the_command(cluster: Simulated, api: client.CoreV1Api) -> None:
    session = open_exec(api, ["sh", "-c", "echo on; sleep 60"])
    session.update(timeout=60)
    assert cluster.control.stats()["inFlight"] == 1
    session.sock.sock.close()
    for _ in range(200):
        if cluster.control.stats()["inFlight"] == 0:
            return
    pytest.fail("the session is still there")
