"""`mcproxy demo`: start, the printed commands, directories that it keeps, and the end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import pytest
import yaml

from mcproxy.cli import demo, demo_files
from mcproxy.cli.demo_directory import MARKER, open_directory
from mcproxy.cli.main import main
from tests.ports import reserved_port

PATIENCE = 30.0
PORTS = {"proxy": 1, "admin": 2}


class Demo:
    """The demo in a process group of its own, as a shell starts it."""

    def __init__(self, *arguments: str, temporary: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mcproxy", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            env={**os.environ, "TMPDIR": str(temporary), "HOME": str(temporary)},
        )
        self.printed: list[str] = []

    def wait_ready(self) -> None:
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        try:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.printed.append(line.rstrip("\n"))
                if line == "ready\n":
                    return
            raise AssertionError(f"it ended without `ready`: {self.printed}, {self.process.communicate()}")
        finally:
            watchdog.cancel()

    @property
    def commands(self) -> list[str]:
        """The command lines on the screen."""
        return [line.strip() for line in self.printed if line.startswith(("  kubectl ", "  curl ", "  redis-cli "))]

    def kubeconfig(self) -> Path:
        (line,) = [line for line in self.printed if line.startswith("  kubeconfig ")]
        return Path(line.split()[1])

    @property
    def children(self) -> list[int]:
        return children(self.process.pid)

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit status and stderr."""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors

    def __enter__(self) -> Demo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=PATIENCE)


def children(pid: int) -> list[int]:
    """Return the children of a process, but for that which has read its configuration, which stays for a while."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"config_process" not in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """A demo shared by tests that do not change it."""
    with Demo(temporary=tmp_path_factory.mktemp("demo")) as demo:
        demo.wait_ready()
        yield demo


def run_command(line: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line in a shell."""
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )


def shown(running: Demo) -> dict[str, demo_files.Command]:
    """Return the printed commands by what they show; they are those of demo_files, in order."""
    directory = running.kubeconfig().parent
    admin = next(line for line in running.printed if "status page" in line).rstrip("/").rpartition(":")[2]
    ports = {"proxy": int(running.printed[0].rpartition(":")[2]), "admin": int(admin)}
    expected = [command for _, group in demo_files.commands(directory, ports, redis=True) for command in group]
    assert running.commands == [command.line for command in expected]
    return {command.about: command for command in expected}


def test_every_printed_command_works(running: Demo, tmp_path: Path) -> None:
    commands = shown(running)
    assert len(commands) == 18
    for command in commands.values():
        done = run_command(command.line, tmp_path)
        assert done.returncode == command.status, f"{command}: {done}"
        assert len(done.stdout or done.stderr) > 10
        refused = "403 from" in command.about
        assert refused == (command.status == 1)
        assert ("Error from server (Forbidden)" in done.stderr) == refused


def test_the_fleet_is_both_clusters_as_one(running: Demo, tmp_path: Path) -> None:
    def run(about: str) -> list[list[str]]:
        done = run_command(commands[about].line, tmp_path)
        assert done.returncode == 0, done
        return [line.split() for line in done.stdout.splitlines()]

    commands = shown(running)
    header, *pods = run("pods of both, each with its cluster")
    assert header[-1] == "CLUSTER"
    assert {row[-1] for row in pods} == {"east", "west"}
    assert any(row[0].startswith("warehouse-west-") and row[-1] == "west" for row in pods)
    nodes = [row[0] for row in run("nodes of one of them")[1:]]
    assert len(nodes) >= 3
    assert all(node.startswith("west-") for node in nodes)
    header, *changes = run("changes in both, as they happen")
    assert header == ["CLUSTER", "COUNT"]
    for cluster in ("east", "west"):
        counts = [int(count) for name, count in changes if name == cluster]
        assert len(counts) >= 2
        assert counts == sorted(set(counts))
    assert len(run("a log, followed, from the cluster that has the pod")) == 4
    scaled = run("two Deployments, one in each cluster, are scaled")
    assert [row[0] for row in scaled] == [f"deployment.apps/warehouse-{cluster}" for cluster in ("east", "west")]
    for cluster in ("east", "west"):
        kubectl = f"kubectl --kubeconfig {running.kubeconfig()} --context {cluster} -n shop"
        done = run_command(f"{kubectl} get deploy warehouse-{cluster} -o jsonpath={{.spec.replicas}}", tmp_path)
        assert done.stdout == "3"
        other = "west" if cluster == "east" else "east"
        assert run_command(f"{kubectl} get deploy warehouse-{other}", tmp_path).returncode == 1


def test_the_editor_is_limited_by_the_cluster_and_all_users_by_the_policies(running: Demo, tmp_path: Path) -> None:
    kubectl = f"kubectl --kubeconfig {running.kubeconfig()}"
    who = run_command(f"{kubectl} --context editor auth whoami -o json", tmp_path)
    info = json.loads(who.stdout)["status"]["userInfo"]
    assert (info["username"], info["groups"]) == ("editor", ["shop-editors", "system:authenticated"])
    denied = run_command(f"{kubectl} --context editor -n monitoring get pods", tmp_path)
    assert 'User "editor" cannot list resource "pods"' in denied.stderr
    rejected = run_command(f"{kubectl} --context administrator delete namespace monitoring", tmp_path)
    assert "no namespace is deleted through this server" in rejected.stderr
    assert run_command(f"{kubectl} --context administrator get namespace monitoring", tmp_path).returncode == 0
    nobody = run_command(f"{kubectl} --context editor --client-certificate= --client-key= get pods", tmp_path)
    assert nobody.returncode == 1


def test_the_limit_is_each_users_own(running: Demo, tmp_path: Path) -> None:
    (line,) = [command.line for about, command in shown(running).items() if about.startswith("one limits")]
    codes = run_command(line.replace("/editor.", "/administrator."), tmp_path).stdout.split()
    assert codes[:3] == ["200"] * 3
    assert "429" in codes[3:]  # on a busy machine the other one may come so late that it is let through


def test_each_server_of_the_kubeconfig_works_in_curl_as_it_stands(running: Demo, tmp_path: Path) -> None:
    kubeconfig = yaml.safe_load(running.kubeconfig().read_text())
    servers = {entry["name"]: entry["cluster"]["server"] for entry in kubeconfig["clusters"]}
    assert set(servers) == {"east", "west", "fleet", "east-by-name", "users"}
    ca = running.kubeconfig().parent / "ca.crt"
    for name in ("east", "west"):
        assert servers[name].endswith(f"/clusters/{name}")
        done = run_command(f"curl -fsS --cacert {ca} {servers[name]}/api/v1/nodes", tmp_path)
        nodes = [item["metadata"]["name"] for item in json.loads(done.stdout)["items"]]
        assert nodes
        assert all(node.startswith(name) for node in nodes)


def test_clusters_hold_a_few_hundred_objects_that_change(running: Demo, tmp_path: Path) -> None:
    kubectl = f"kubectl --kubeconfig {running.kubeconfig()}"
    for context in ("east", "west", "east-by-name"):
        kinds = "pods,deployments,replicasets,services,configmaps,secrets,events,endpointslices,serviceaccounts"
        done = run_command(f"{kubectl} --context {context} get {kinds} -A -o name", tmp_path)
        assert len(done.stdout.splitlines()) > 150, done
    watch = "/clusters/west/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=20"
    server = next(line for line in running.printed if "https://" in line).split()[-1]
    curl = f"curl -sSN --cacert {running.kubeconfig().parent / 'ca.crt'} '{server}{watch}' | head -n 3"
    done = run_command(curl, tmp_path)
    changed = [json.loads(line)["object"]["data"]["count"] for line in done.stdout.splitlines()]
    assert len(set(changed)) == 3


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with Demo(temporary=tmp_path) as demo:
        demo.wait_ready()
        started = demo.children
        directory = demo.kubeconfig().parent
        assert len(started) == 4  # proxy, Redis, two clusters
        assert directory.is_relative_to(tmp_path)
        os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
        assert demo.end() == (0, "")
    assert not directory.exists()
    assert not any(alive(pid) for pid in started)
    assert list(tmp_path.iterdir()) == []


def test_workers_of_the_demo_end_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Below tmp_path the control socket's path may be too long, and the demo goes without.
    with tempfile.TemporaryDirectory() as short, Demo("--workers", "2", temporary=Path(short)) as demo:
        demo.wait_ready()
        proxy = demo.children[0]
        started = [*demo.children, *children(proxy)]
        assert len(children(proxy)) == 3  # two workers and the keeper
        assert run_command(demo.commands[5], tmp_path / "home").returncode == 0  # pods of both clusters
        assert main(["upgrade", "-c", str(demo.kubeconfig().parent / "mcproxy.yaml")]) == 1
        assert "the proxy of a demo ends with the demo; start the demo anew" in capsys.readouterr().err
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end() == (0, "")
        assert not any(alive(pid) for pid in started)
        assert list(Path(short).iterdir()) == []


def test_signal_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    with Demo(temporary=tmp_path) as demo:
        deadline = time.monotonic() + PATIENCE
        while len(started := demo.children) < 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == (0, "")
    assert not any(alive(pid) for pid in started)
    assert list(tmp_path.iterdir()) == []


def test_sigterm_during_a_watch_leaves_nothing_behind_in_time(tmp_path: Path) -> None:
    temporary, home = tmp_path / "temporary", tmp_path / "home"
    temporary.mkdir()
    with Demo(temporary=temporary) as demo:
        demo.wait_ready()
        started = demo.children
        line = demo.commands[0] + " -w"
        watching = subprocess.Popen(
            ["sh", "-c", f"exec {line}"],
            stdout=subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(home)},
        )
        assert watching.stdout is not None
        watching.stdout.readline()
        begun = time.monotonic()
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end() == (0, "")
        assert time.monotonic() - begun < PATIENCE
        watching.kill()
        watching.communicate()
    assert not any(alive(pid) for pid in started)
    assert list(temporary.iterdir()) == []


def test_dir_and_port_are_kept_and_used_again(tmp_path: Path) -> None:
    directory = tmp_path / "a b" / "demo"
    port = reserved_port()
    pages: set[str] = set()
    for _ in range(2):
        with Demo("--dir", str(directory), "--port", str(port), temporary=tmp_path) as demo:
            demo.wait_ready()
            pages.update(line for line in demo.printed if "status page" in line)
            for line in demo.commands[:5:4]:
                assert run_command(line, tmp_path).returncode == 0
            assert f"https://127.0.0.1:{port}/clusters/east" in (directory / "kubeconfig").read_text()
            assert main(["reload", "-c", str(directory / "mcproxy.yaml")]) == 0
            demo.process.send_signal(signal.SIGTERM)
            assert demo.end() == (0, "")
        assert {"mcproxy.yaml", "kubeconfig", "ca.crt"} <= {path.name for path in directory.iterdir()}
        assert main(["check", "-q", "--offline", "-c", str(directory / "mcproxy.yaml")]) == 0
    assert len(pages) == 1


def test_files_that_were_edited_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "demo"
    config, kubeconfig = directory / "mcproxy.yaml", directory / "kubeconfig"
    with open_directory(directory, demo_files.NAMES) as earlier:
        earlier.record({part: reserved_port() for part in ("proxy", "admin", *demo_files.CLUSTERS)})
    with Demo("--dir", str(directory), temporary=tmp_path) as demo:
        demo.wait_ready()
        address = demo.printed[0].split()[-1]
    edited = config.read_text().replace("drainTimeout: 1s", "drainTimeout: 2s") + "# mine\n"
    config.write_text(edited)
    with Demo("--dir", str(directory), temporary=tmp_path) as demo:
        demo.wait_ready()
        assert demo.printed[0].split()[-1] == address
        assert f"{config} was edited and is kept as it is; remove it to have it generated again." in demo.printed
        assert not any(line.startswith(f"{kubeconfig} was edited") for line in demo.printed)
        assert run_command(demo.commands[0], tmp_path).returncode == 0
        assert main(["demo", "--dir", str(directory), "--port", "1"]) == 1  # without a word about the port: in use
        assert "is in use by another demo (process " in capsys.readouterr().err
    assert config.read_text() == edited
    assert main(["demo", "--dir", str(directory), "--port", "1"]) == 1
    assert f"{config} was edited and is kept, and names port {address.rpartition(':')[2]}" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(address.rpartition(":")[2])))
        taken.listen()
        assert main(["demo", "--dir", str(directory)]) == 1
        assert f"is taken, which {config} names, an edited file that is kept" in capsys.readouterr().err
    config.write_text("version: 1\nlistener: []\n")
    with Demo("--dir", str(directory), temporary=tmp_path) as demo:
        status, errors = demo.end()
    assert status == 1
    assert f"{config}:2:" in errors
    assert f"{config} was edited and is kept; remove it to have it generated again" in errors
    assert config.read_text() == "version: 1\nlistener: []\n"
    config.unlink()
    with Demo("--dir", str(directory), temporary=tmp_path) as demo:
        demo.wait_ready()
        assert not any("was edited" in line for line in demo.printed)


def test_a_port_of_the_last_run_is_not_used_twice(tmp_path: Path) -> None:
    with open_directory(tmp_path, ()) as directory:
        port = reserved_port()
        directory.record({"proxy": 1, "east": port, "west": 0})
        with contextlib.ExitStack() as held:
            ports = demo._ports(directory, port, held)
        assert ports.pop("admin") not in (0, port)
        assert ports == {"proxy": port, "east": 0, "west": 0}


def test_directory_of_a_running_demo_is_refused(running: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    directory = running.kubeconfig().parent
    names = (MARKER, "mcproxy.yaml", "kubeconfig", "ca.crt", "users-ca.crt", "editor.key")
    before = {name: (directory / name).read_bytes() for name in names}
    assert main(["demo", "--dir", str(directory)]) == 1
    assert capsys.readouterr().err == (
        f"mcproxy demo: {directory} is in use by another demo (process {running.process.pid}): end that one, or choose "
        "another directory with --dir\n"
    )
    assert {name: (directory / name).read_bytes() for name in before} == before


def test_the_configuration_passes_its_own_check(running: Demo, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", "--strict", "-c", str(running.kubeconfig().parent / "mcproxy.yaml")])
    assert status == 0, capsys.readouterr()


@pytest.mark.parametrize("part", [0, 3])
def test_part_that_dies_is_named_and_the_demo_ends_with_1(tmp_path: Path, part: int) -> None:
    with Demo(temporary=tmp_path) as demo:
        demo.wait_ready()
        started = demo.children
        os.kill(started[part], signal.SIGKILL)
        status, errors = demo.end()
    names = ("the proxy", "Redis", "the simulated cluster east", "the simulated cluster west")
    assert f"mcproxy demo: {names[part]} has ended by itself" in errors
    assert status == 1
    assert not any(alive(pid) for pid in started)
    assert list(tmp_path.iterdir()) == []


def test_killed_demo_takes_its_parts_along(tmp_path: Path) -> None:
    """After SIGKILL the directory remains, but no process does."""
    with Demo(temporary=tmp_path) as demo:
        demo.wait_ready()
        started = demo.children
        demo.process.kill()
        assert demo.end()[0] == -signal.SIGKILL
    deadline = time.monotonic() + PATIENCE
    while any(alive(pid) for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_port_that_is_taken_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["demo", "--port", str(port), "--dir", str(tmp_path / "demo")]) == 1
    told = f"127.0.0.1:{port} is taken: stop what listens there, or choose another with --port"
    assert capsys.readouterr().err == f"mcproxy demo: {told}\n"
    assert not (tmp_path / "demo").exists()


def test_directory_that_cannot_be_written_to_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["demo", "--dir", str(tmp_path / "file" / "below")]) == 1
    assert f"cannot write to {tmp_path / 'file' / 'below'}: Not a directory" in capsys.readouterr().err
    assert main(["demo", "--dir", "/proc/self"]) == 1
    assert "cannot write to /proc/self: " in capsys.readouterr().err


def test_missing_extra_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["demo"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'mcproxy[demo]'" in line


@pytest.mark.parametrize("workers", ["two", "0", "64", "auto"])
def test_wrong_number_of_workers_is_wrong_usage(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"--workers={workers}"])
    assert ended.value.code == 2
    assert f"invalid number of workers value: '{workers}'" in capsys.readouterr().err


def test_workers_of_an_edited_file_are_written_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_directory(tmp_path, ()) as directory:
        directory.write(demo_files.CONFIG_FILE, "as generated")
    (tmp_path / demo_files.CONFIG_FILE).write_text("mine")
    assert main(["demo", "--dir", str(tmp_path), "--workers", "2"]) == 1
    assert "leave out --workers and write daemon.workers there" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["eighty", "-1", "65536"])
def test_wrong_port_is_wrong_usage(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["demo", f"--port={port}"])
    assert ended.value.code == 2
    assert f"invalid port value: '{port}'" in capsys.readouterr().err


def test_signal_handlers_are_put_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in demo.STOP_SIGNALS]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        main(["demo", "--port", str(taken.getsockname()[1])])
    assert [signal.getsignal(number) for number in demo.STOP_SIGNALS] == before


def test_control_socket_is_left_out_where_its_path_would_be_too_long(tmp_path: Path) -> None:
    long, short = tmp_path / ("x" * 120), tmp_path / "s"
    assert "controlSocket" not in demo_files.config(long, PORTS, "https://127.0.0.1:2")
    assert "controlSocket: control.sock" in demo_files.config(short, PORTS, "https://127.0.0.1:2")


def test_commands_survive_a_directory_with_blanks() -> None:
    lines = [line.line for _, group in demo_files.commands(Path("/tmp/a b"), PORTS, redis=True) for line in group]
    assert all("'/tmp/a b/" in line for line in lines if "/tmp/a b" in line)
    assert sum("/tmp/a b" in line for line in lines) == len(lines) - 2  # those of the Admin listener name no file


def test_kubectl_curl_and_redis_are_there() -> None:
    """The tests above need them."""
    missing = [program for program in ("kubectl", "curl", "redis-server", "redis-cli") if shutil.which(program) is None]
    assert not missing, f"install {' and '.join(missing)} and put it on PATH"
