"""`mcproxy demo`: start, the printed commands, directories that it keeps, and the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import pytest
import yaml

from mcproxy.cli import demo, demo_files, demo_tunnel
from mcproxy.cli.demo_daemon import Proxy
from mcproxy.cli.demo_directory import MARKER, open_directory
from mcproxy.cli.main import main
from tests.support.ports import reserved_port

PATIENCE = 180.0
PORTS = {"proxy": 1, "admin": 2, "web": 3}

CALLED = f"{sys.executable} -m mcproxy"
"""How these tests call the program."""


class Demo:
    """The demo in a process group of its own, as a shell starts it."""

    def __init__(self, *arguments: str, temporary: Path) -> None:
        self.temporary = temporary
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
        return [
            line.strip()
            for line in self.printed
            if line.startswith(("  kubectl ", "  curl ", "  redis-cli ", "  kill ", "  timeout ", f"  {CALLED} "))
        ]

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
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with contextlib.suppress(OSError):  # that process may end just now; until it is reaped its line is empty
            line = Path(f"/proc/{child}/cmdline").read_bytes()
            if line and b"config_process" not in line:
                found.append(child)
    return found


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_ended(pids: Iterable[int]) -> None:
    """Wait until none of the processes is alive: what was killed needs the processor for its end."""
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


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


def shown(running: Demo, *, tunnel: bool = False) -> dict[str, demo_files.DemoCommand]:
    """Return the printed commands by what they show; they are those of demo_files, in order."""
    directory = running.kubeconfig().parent

    def port(about: str) -> int:
        line = next(line for line in running.printed if line.startswith(f"  {about}"))
        return int(line.rstrip("/").rpartition(":")[2])

    ports = {
        "proxy": int(running.printed[0].rpartition(":")[2]),
        "admin": port("status page"),
        "web": port("ingress"),
    }
    groups = demo_files.commands(directory, ports, redis=True, tunnel=tunnel, called=CALLED)
    expected = [command for _, group in groups for command in group]
    assert running.commands == [command.line for command in expected]
    return {command.about: command for command in expected}


@pytest.mark.slow
def test_every_printed_command_works(running: Demo, tmp_path: Path) -> None:
    commands = shown(running)
    assert len(commands) == 31  # with Redis
    for command in commands.values():
        done = run_command(command.line, tmp_path)
        assert done.returncode == command.status, f"{command}: {done}"
        assert len(done.stdout or done.stderr) > 10
        refused = "403 from" in command.about
        assert refused == (command.status == 1)
        assert ("Error from server (Forbidden)" in done.stderr) == refused


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_api_server_has_metrics_of_both_clusters_and_plants_that_grow(running: Demo, tmp_path: Path) -> None:
    commands = shown(running)
    header, *nodes = run_command(
        commands["usage of the nodes of both clusters, which moves"].line, tmp_path
    ).stdout.splitlines()
    assert header.split()[:3] == ["NAME", "CPU(cores)", "CPU(%)"]
    assert {node.split("-")[0] for node in nodes} == {"east", "west"}
    assert all(re.search(r"\d+m +\d+% +\d+Mi +\d+%$", node.rstrip()) for node in nodes), nodes
    pods = run_command(commands["and of pods"].line, tmp_path).stdout.splitlines()
    assert len(pods) > 2
    watered = next(command.line for about, command in commands.items() if "waters the cactus" in about)
    assert run_command(watered, tmp_path).returncode == 0
    kubectl = f"kubectl --kubeconfig {running.kubeconfig()} --context fleet -n shop get plants"
    deadline = time.monotonic() + PATIENCE
    while run_command(f"{kubectl} cactus -o jsonpath={{.status.centimetres}}", tmp_path).stdout in ("", "0"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_service_of_west_is_in_east_and_the_ingress_is_answered_by_both(running: Demo, tmp_path: Path) -> None:
    def run(about: str) -> list[str]:
        done = run_command(next(each.line for told, each in commands.items() if told.startswith(about)), tmp_path)
        assert done.returncode == 0, done
        return done.stdout.splitlines()

    commands = shown(running)
    header, *imported = run("the addresses of west's pods, written to east")
    assert header.split()[-1] == "SOURCE-CLUSTER"
    assert [line.split()[-1] for line in imported] == ["west"]
    assert "10.245." in imported[0]
    [answered] = run("which pod answers a program in east that uses it")
    assert re.fullmatch(r"search-\S+ in west", answered)
    answers = run("six requests to the ingress, and who answered")
    assert sorted(line.split()[-1] for line in answers) == ["east"] * 2 + ["west"] * 4
    assert all(line.startswith("frontend-") for line in answers)
    assert 'ingress        "shop"' in run("which rule a request gets")


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        wait_ended(started)
        assert list(Path(short).iterdir()) == []


def test_signal_while_it_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    with Demo(temporary=tmp_path) as demo:
        deadline = time.monotonic() + PATIENCE
        while len(started := demo.children) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(demo.process.pid, signal.SIGINT)
        assert demo.end() == (0, "")
    wait_ended(started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
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
    wait_ended(started)
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(900)  # it starts three demos, one after the other
def test_directory_port_and_edited_files_are_kept_and_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "a b" / "demo"
    config, kubeconfig = directory / "mcproxy.yaml", directory / "kubeconfig"
    port = reserved_port()
    pages: set[str] = set()

    def use(demo: Demo) -> None:
        pages.update(line for line in demo.printed if "status page" in line)
        for line in demo.commands[:5:4]:
            assert run_command(line, tmp_path).returncode == 0
        assert f"https://127.0.0.1:{port}/clusters/east" in kubeconfig.read_text()
        assert main(["reload", "-c", str(config)]) == 0
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end() == (0, "")
        assert {"mcproxy.yaml", "kubeconfig", "ca.crt"} <= {path.name for path in directory.iterdir()}
        assert main(["check", "-q", "--offline", "-c", str(config)]) == 0

    with open_directory(directory, demo_files.NAMES) as earlier:
        parts = (*demo_files.LISTENERS, *demo_files.CLUSTERS, demo_files.API_SERVER)
        earlier.record({part: reserved_port() for part in parts})
    with Demo("--dir", str(directory), "--port", str(port), temporary=tmp_path) as demo:
        demo.wait_ready()
        address = demo.printed[0].split()[-1]
        assert address.endswith(f":{port}")
        assert not any("was edited" in line for line in demo.printed)
        use(demo)
    edited = config.read_text().replace("drainTimeout: 1s", "drainTimeout: 2s") + "# mine\n"
    config.write_text(edited)
    with Demo("--dir", str(directory), "--port", str(port), temporary=tmp_path) as demo:
        demo.wait_ready()
        assert demo.printed[0].split()[-1] == address
        assert f"{config} was edited and is kept as it is; remove it to have it generated again." in demo.printed
        assert not any(line.startswith(f"{kubeconfig} was edited") for line in demo.printed)
        capsys.readouterr()
        assert main(["demo", "--dir", str(directory), "--port", "1"]) == 1  # without a word about the port: in use
        assert "is in use by another demo (process " in capsys.readouterr().err
        use(demo)
    assert len(pages) == 1
    assert config.read_text() == edited
    capsys.readouterr()
    assert main(["demo", "--dir", str(directory), "--port", "1"]) == 1
    assert f"{config} was edited and is kept, and names port {port}" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
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
    with Demo("--dir", str(directory), temporary=tmp_path) as demo:  # with the port of the last run
        demo.wait_ready()
        assert demo.printed[0].split()[-1] == address
        assert not any("was edited" in line for line in demo.printed)


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_demo_with_a_tunnel(tmp_path: Path, workers: str) -> None:
    """Every command works that the tunnel concerns, in order: the last ones stop the edge and run it again."""
    # Below tmp_path the path of the edge's control socket may be too long.
    with tempfile.TemporaryDirectory() as short, Demo("--tunnel", "--workers", workers, temporary=Path(short)) as demo:
        demo.wait_ready()
        assert demo_tunnel.NOTICE in demo.printed
        directory, started = demo.kubeconfig().parent, demo.children
        assert len(started) == 6
        for file in (directory / "mcproxy.yaml", directory / demo_tunnel.CONFIG_FILE):
            assert main(["check", "--strict", "-c", str(file)]) == 0
        commands = shown(demo, tunnel=True)
        first = next(number for number, about in enumerate(commands) if "the edge impersonates it" in about)
        assert len(commands) == 39
        for about, command in [*list(commands.items())[1:5], *list(commands.items())[first:]]:
            done = run_command(command.line, tmp_path / "home")
            assert done.returncode == command.status, f"{command}: {done}"
            if "503" in about:
                assert "no tunnel west is connected since " in done.stderr
            elif "403" in about:
                assert 'User "editor" cannot list resource "pods"' in done.stderr
            elif about == "stop the edge":
                assert "event=tunnel_down" in done.stdout
            elif "in memory" in about:
                assert "warehouse-west-" in done.stdout
            elif "run it again" in about:
                assert "event=tunnel_up" in done.stdout + done.stderr
        demo.process.send_signal(signal.SIGTERM)
        assert demo.end() == (0, "")
        wait_ended(started)
        assert [path.name for path in Path(short).iterdir() if path.name.startswith("mcproxy")] == []


@pytest.mark.slow
def test_an_edge_that_does_not_start_ends_the_demo_with_its_log(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with open_directory(directory, demo_files.NAMES) as earlier:
        earlier.record({})
        (directory / "edge").mkdir()
        (directory / demo_tunnel.CONFIG_FILE).write_text("version: 1\nlistener: []\n")
    with Demo("--tunnel", "--dir", str(directory), temporary=tmp_path) as demo:
        status, errors = demo.end()
    assert status == 1
    assert "mcproxy demo: the edge did not start:" in errors
    assert f"{directory / demo_tunnel.CONFIG_FILE}:2:" in errors


def test_an_edited_file_decides_whether_there_is_a_tunnel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edge = tmp_path / demo_tunnel.CONFIG_FILE
    with open_directory(tmp_path, ()) as directory:
        directory.record({})
        edge.parent.mkdir()
        directory.write(demo_tunnel.CONFIG_FILE, "one")
        directory.write("mcproxy.yaml", "one")
        assert demo._has_tunnel(directory, wanted=True)
        assert edge.exists()
        (tmp_path / "mcproxy.yaml").write_text("mine")
        assert demo._has_tunnel(directory, wanted=False)
        (tmp_path / "mcproxy.yaml").write_text("one")
        assert not demo._has_tunnel(directory, wanted=False)
        assert not edge.exists()
        (tmp_path / "mcproxy.yaml").write_text("mine")
    assert main(["demo", "--tunnel", "--dir", str(tmp_path)]) == 1
    assert "is of a demo without a tunnel: leave out --tunnel" in capsys.readouterr().err


def test_a_port_of_the_last_run_is_not_used_twice(tmp_path: Path) -> None:
    with open_directory(tmp_path, ()) as directory:
        port = reserved_port()
        directory.record({"proxy": 1, "east": port, "west": 0})
        with contextlib.ExitStack() as held:
            ports = demo._ports(directory, port, held)
        assert not {ports.pop("admin"), ports.pop("web")} & {0, port}
        assert ports == {"proxy": port, "east": 0, "west": 0, "apis": 0}


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


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, 3, 4])
def test_part_that_dies_is_named_and_the_demo_ends_with_1(tmp_path: Path, part: int) -> None:
    with Demo(temporary=tmp_path) as demo:
        demo.wait_ready()
        started = demo.children
        os.kill(started[part], signal.SIGKILL)
        status, errors = demo.end()
    names = ("the proxy", "Redis", "the simulated cluster east", "the simulated cluster west", "the API server")
    assert f"mcproxy demo: {names[part]} has exited by itself" in errors
    assert status == 1
    wait_ended(started)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_killed_demo_takes_its_parts_along(tmp_path: Path) -> None:
    """After SIGKILL the directory remains, but no process does."""
    with Demo(temporary=tmp_path) as demo:
        demo.wait_ready()
        started = demo.children
        demo.process.kill()
        assert demo.end()[0] == -signal.SIGKILL
    wait_ended(started)


def test_workers_that_are_left_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is removed then, and none of them may write to it."""
    proxy = Proxy(tmp_path)
    killed: list[int] = []

    def kill(group: int, number: int) -> None:
        killed.append(group)
        if len(killed) == 3:
            raise ProcessLookupError

    monkeypatch.setattr(os, "killpg", kill)
    proxy.stop()
    assert killed == [proxy.process.pid] * 3


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
    assert "requirements/all.lock" in line


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


def test_the_page_counts_the_commands_and_status_and_top_are_among_them() -> None:
    lines = [line.line for _, group in demo_files.commands(Path("/tmp/d"), PORTS) for line in group]
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    words = {28: "twenty-eight", 29: "twenty-nine", 30: "thirty", 31: "thirty-one"}
    assert re.findall(r"([a-z-]+) commands to paste", readme) == [words[len(lines)]]
    for command in ("status", "top"):
        assert any(f" {command} " in line and "/tmp/d/mcproxy.yaml" in line for line in lines)


def test_the_program_is_called_as_this_one_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "mcproxy"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.argv", [str(program), "demo"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert demo_files.program() == str(program)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin")
    assert demo_files.program() == "mcproxy"
    monkeypatch.setattr("sys.argv", ["/site-packages/mcproxy/__main__.py", "demo"])
    assert demo_files.program() == f"{sys.executable} -m mcproxy"
    text = demo_files.config(tmp_path, PORTS, "https://127.0.0.1:2", "https://127.0.0.1:3", redis=True)
    assert f"{sys.executable} -m mcproxy reload -c {tmp_path}/mcproxy.yaml" in text


def test_commands_survive_a_directory_with_blanks() -> None:
    lines = [line.line for _, group in demo_files.commands(Path("/tmp/a b"), PORTS, redis=True) for line in group]
    assert all("'/tmp/a b/" in line for line in lines if "/tmp/a b" in line)
    assert (
        sum("/tmp/a b" in line for line in lines) == len(lines) - 3
    )  # those of the Admin listener and of the ingress name no file


def test_kubectl_curl_and_redis_are_there() -> None:
    """The tests above need them."""
    missing = [program for program in ("kubectl", "curl", "redis-server", "redis-cli") if shutil.which(program) is None]
    assert not missing, f"install {' and '.join(missing)} and put it on PATH"


def test_ctrl_c_leaves_nothing_behind(running: Demo) -> None:
    """The last test of this file: it ends the demo that the others share."""
    started = running.children
    directory = running.kubeconfig().parent
    assert len(started) == 5  # proxy, Redis, two clusters, API server
    assert directory.parent == running.temporary
    os.killpg(running.process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
    assert running.end() == (0, "")
    assert not directory.exists()
    wait_ended(started)
    assert [path.name for path in running.temporary.iterdir() if path.name.startswith("mcproxy")] == []
