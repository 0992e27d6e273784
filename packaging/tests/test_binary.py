"""The single file runs where nothing else is: first and further starts, folders, hostile folders, all commands."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import runpy
import shutil
import signal
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import TRAILER, another_version
from empty_root import CONFIG, NOBODY, PATIENCE, PROGRAM, EmptyRoot

from kubesim.auth.certificates import Authority
from mcproxy import __version__
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

PODS = "/api/v1/namespaces/demo/pods"
MAXIMUM = 40 * 2**20
COMPILED: list[str] = runpy.run_path(str(Path(__file__).parents[1] / "native_modules.py"))["compiled_files"]()


def test_it_starts_where_nothing_else_is(root: EmptyRoot, binary: Path, figures: dict[str, float]) -> None:
    begun = time.monotonic()
    first = root.run("--version")
    first_seconds = time.monotonic() - begun
    assert (first.stdout, first.stderr, first.returncode) == (f"mcproxy {__version__}\n", "", 0)
    (tree,) = root.unpacked()
    assert tree.parent.stat().st_mode & 0o777 == 0o700

    further = []
    for _ in range(5):
        begun = time.monotonic()
        assert root.run("--version").returncode == 0
        further.append(time.monotonic() - begun)
    assert root.unpacked() == [tree]
    assert min(further) < first_seconds
    assert binary.stat().st_size < MAXIMUM
    figures["binary, MiB"] = round(binary.stat().st_size / 2**20, 1)
    figures["binary unpacked, MiB"] = round(sum(f.lstat().st_size for f in tree.rglob("*") if f.is_file()) / 2**20, 1)
    figures["first start, seconds"] = round(first_seconds, 3)
    figures["further starts, seconds"] = round(min(further), 3)


def test_processes_that_start_at_once_unpack_one_tree(root: EmptyRoot) -> None:
    started = [subprocess.Popen(root.command("--version"), env={}, stdout=subprocess.DEVNULL) for _ in range(5)]
    assert [process.wait(PATIENCE) for process in started] == [0] * 5
    assert len(list((root.path / "tmp/mcproxy-65534").iterdir())) == 1


BUILDS = [({}, "compiled"), ({"MCPROXY_PURE": "1"}, "pure")]


@pytest.mark.parametrize(("environ", "build"), BUILDS)
def test_it_is_compiled_unless_the_sources_are_asked_for(root: EmptyRoot, environ: dict[str, str], build: str) -> None:
    done = root.run("version", "-o", "json", environ=environ)
    assert json.loads(done.stdout)["build"] == build, done.stderr


@pytest.mark.parametrize(("environ", "build"), BUILDS)
def test_every_module_can_be_imported_but_those_of_tests(
    root: EmptyRoot, environ: dict[str, str], build: str, figures: dict[str, float]
) -> None:
    assert root.run("--version").returncode == 0
    (tree,) = root.unpacked()
    program = """
import importlib, pkgutil, sys
import mcproxy
names = [found.name for found in pkgutil.walk_packages(mcproxy.__path__, "mcproxy.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names + ["kubernetes.client", "kubernetes.config", "redis.cluster", "aiohttp", "h2.connection"]:
    importlib.import_module(name)
files = [sys.modules[name].__file__ for name in names]
print(len(names), sum(file.endswith(".so") for file in files), mcproxy.BUILD)
"""
    interpreter = f"/tmp/mcproxy-65534/{tree.name}/bin/mcproxy"
    done = root.run("-I", "-c", program, program=interpreter, environ=environ)
    assert done.returncode == 0, done.stderr
    number, compiled, said = done.stdout.split()
    assert int(number) > 300
    assert said == build
    assert int(compiled) == (len(COMPILED) if build == "compiled" else 0)
    (library,) = tree.glob("lib/python3.*/site-packages/mcproxy__mypyc.*.so")
    shims = list(library.parent.glob("mcproxy/**/*.so"))
    figures["compiled modules, MiB"] = round(sum(path.stat().st_size for path in (library, *shims)) / 2**20, 1)


def test_root_unpacks_for_all_and_others_use_that(root: EmptyRoot) -> None:
    assert root.run("--version", user=0).returncode == 0
    (tree,) = root.unpacked("var/cache/mcproxy")
    assert root.run("--version").returncode == 0
    assert root.unpacked() == []
    assert tree.stat().st_uid == 0


def test_a_folder_that_another_user_has_made_is_not_used(root: EmptyRoot) -> None:
    assert root.run("--version").returncode == 0
    (tree,) = root.unpacked()
    hostile = tree / "bin" / "mcproxy"
    hostile.write_bytes(b"")
    for path in (tree.parent, *tree.parent.rglob("*")):
        os.chown(path, 1000, 1000, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o777)
    (root.path / "dev/shm").mkdir(mode=0o1777)
    (root.path / "dev/shm").chmod(0o1777)
    assert root.run("--version").stdout == f"mcproxy {__version__}\n"
    assert len(root.unpacked("dev/shm/mcproxy-65534")) == 1

    (root.path / "dev/shm").chmod(0o755)
    shutil.rmtree(root.path / "dev/shm/mcproxy-65534")
    done = root.run("--version")
    assert done.returncode == 1
    assert "/tmp/mcproxy-65534 belongs to user 1000" in done.stderr
    assert "set MCPROXY_UNPACK_DIR" in done.stderr


def test_a_link_that_another_user_can_change_is_followed_once(root: EmptyRoot) -> None:
    """Between the look at what it names and its use, it could name something else."""
    for folder, owner in (("others", 1000), ("own", NOBODY)):
        (root.path / "opt" / folder).mkdir(parents=True)
        os.chown(root.path / "opt" / folder, owner, owner)
    (root.path / "opt/others/link").symlink_to("/opt/own")
    for _ in ("it unpacks", "it finds it unpacked"):
        done = root.run("version", "-o", "json", environ={"MCPROXY_UNPACK_DIR": "/opt/others/link"})
        (tree,) = root.unpacked("opt/own")
        assert json.loads(done.stdout)["executable"] == f"/opt/own/{tree.name}/bin/mcproxy"


def test_a_folder_in_which_programs_may_not_run_is_passed_over(root: EmptyRoot) -> None:
    root.mount("-t", "tmpfs", "-o", "noexec,mode=1777", "none", "tmp")
    refused = root.run("--version")
    assert refused.returncode == 1
    assert "/tmp/mcproxy-65534: is mounted noexec" in refused.stderr
    (root.path / "opt/there").mkdir(parents=True)
    os.chown(root.path / "opt/there", NOBODY, NOBODY)
    assert root.run("--version", environ={"MCPROXY_UNPACK_DIR": "/opt/there"}).returncode == 0
    assert len(root.unpacked("opt/there")) == 1


def test_a_host_without_glibc_or_with_another_c_library_is_told_before_anything_is_unpacked(root: EmptyRoot) -> None:
    link = next((root.path / "lib64").glob("ld-linux*"))
    loader = root.path / str(link.readlink()).lstrip("/")
    libc = next(root.path.rglob("libc.so.6"))
    assert root.run("--version").returncode == 0  # what was unpacked for another C library changes nothing of it
    shutil.rmtree(root.path / "tmp/mcproxy-65534")

    def refused() -> str:
        done = root.run("--version")
        assert (done.returncode, done.stdout) == (1, "")
        assert list((root.path / "tmp").iterdir()) == []
        return done.stderr

    newest = libc.read_bytes()
    needed = re.search(r"needs glibc (2\.\d+)", text_of_launcher(root))
    assert needed is not None
    libc.write_bytes(newest.replace(b"\0GLIBC_" + needed[1].encode() + b"\0", b"\0GLIBC_9.99\0"))
    assert f"/libc.so.6: is older than glibc {needed[1]}, which this program needs" in refused()

    libc.unlink()
    loader.write_bytes(loader.read_bytes().replace(b"GLIBC_PRIVATE", b"OTHER_PRIVATE"))
    assert f"{loader.name}: is not the GNU C library's (glibc)" in refused()

    loader.unlink()
    (root.path / "lib").mkdir(exist_ok=True)
    root.write("lib/ld-musl-x86_64.so.1", b"\x7fELF", 0o755)
    said = refused()
    assert "this system has no GNU C library (glibc)" in said
    assert f"needs glibc {needed[1]} or newer; on Alpine" in said


def text_of_launcher(root: EmptyRoot) -> str:
    data = (root.path / PROGRAM).read_bytes()
    start, *_ = TRAILER.unpack(data[-TRAILER.size :])
    return data[:start].decode("latin-1")


def test_a_host_without_proc_is_told_before_anything_is_unpacked(root: EmptyRoot) -> None:
    root.unmount("proc")
    done = root.run("--version")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no /proc here" in done.stderr
    assert "mount -t proc proc /proc" in done.stderr
    assert list((root.path / "tmp").iterdir()) == []


def test_a_full_disk_is_said_and_nothing_is_left(root: EmptyRoot) -> None:
    root.mount("-t", "tmpfs", "-o", "mode=1777,size=20m", "none", "tmp")
    done = root.run("--version")
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert list((root.path / "tmp/mcproxy-65534").iterdir()) == []


def test_a_file_that_was_not_copied_whole_says_so(root: EmptyRoot, binary: Path) -> None:
    data = binary.read_bytes()
    root.write("usr/local/bin/mcproxy", data[: len(data) // 2], 0o755)
    assert "it is cut off" in root.run("--version").stderr
    *_, magic = TRAILER.unpack(data[-TRAILER.size :])
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 0xFF
    root.write("usr/local/bin/mcproxy", bytes(damaged), 0o755)
    done = root.run("--version")
    assert magic == b"mcproxy1"
    assert done.returncode == 1
    assert "unpacking this program" in done.stderr
    assert list((root.path / "tmp/mcproxy-65534").iterdir()) == []


def test_what_no_process_uses_is_removed_by_the_next_version(root: EmptyRoot, binary: Path, tmp_path: Path) -> None:
    assert root.run("--version").returncode == 0
    (old,) = root.unpacked()
    os.utime(old, (0, 0))
    root.install(another_version(binary, tmp_path / "another"))
    with (Path("/dev/null")).open():
        held = os.open(old, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_SH)
        assert root.run("--version").returncode == 0
        assert old.is_dir()
        os.close(held)
    (new,) = set(root.unpacked()) - {old}
    shutil.rmtree(new)
    assert root.run("--version").returncode == 0
    assert root.unpacked() == [new]


def test_variables_of_the_host_change_nothing(root: EmptyRoot) -> None:
    root.write("evil/mcproxy/__init__.py", "raise SystemExit('evil')")
    root.write("evil/libpython3.11.so.1.0", "evil")
    environ = {"PYTHONPATH": "/evil", "PYTHONHOME": "/evil", "LD_LIBRARY_PATH": "/evil", "PYTHONSTARTUP": "/evil"}
    done = root.run("--version", environ=environ)
    assert (done.stdout, done.stderr) == (f"mcproxy {__version__}\n", "")


def test_commands_that_need_no_daemon(root: EmptyRoot) -> None:
    version = json.loads(root.run("version", "-o", "json").stdout)
    assert version["mcproxy"] == __version__
    assert "kubernetes" in version["libraries"]
    assert json.loads(root.run("schema").stdout)["$schema"]
    assert "complete" in root.run("completion", "bash").stdout
    assert "doc/mcproxy/html/index.html" in root.run("files").stdout
    assert root.run("docs", "install").stdout.startswith("# Install\n")
    assert "mcproxy.yaml(5)" in root.run("docs", "mcproxy").stdout
    (root.path / "out").mkdir()
    os.chown(root.path / "out", NOBODY, NOBODY)
    assert root.run("files", "--copy-to", "/out").returncode == 0
    assert {"mcproxy/systemd/mcproxy.service", "man/man8/mcproxy.8", "mcproxy/logrotate"} <= {
        str(path.relative_to(root.path / "out")) for path in (root.path / "out").rglob("*")
    }
    root.write("etc/mcproxy/wrong.yaml", "version: 1\nservers: []\nclusters: [{}]\n")
    wrong = root.run("check", "/etc/mcproxy/wrong.yaml")
    assert wrong.returncode == os.EX_CONFIG
    assert "/etc/mcproxy/wrong.yaml:3:" in wrong.stdout + wrong.stderr


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: east
contexts: [{name: east, context: {cluster: east, user: admin}}]
clusters: [{name: east, cluster: {server: "https://10.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: admin, user: {token: abc}}]
"""


def test_import_makes_clusters_from_a_kubeconfig(root: EmptyRoot) -> None:
    root.write("etc/mcproxy/kubeconfig", KUBECONFIG)
    done = root.run("import", "kubeconfig", "/etc/mcproxy/kubeconfig")
    assert done.returncode == 0, done.stderr
    assert "name: east" in done.stdout


# -- the daemon -------------------------------------------------------------------------------------------------------

CONFIGURATION = """\
version: 1
daemon: {{controlSocket: /run/mcproxy/control.sock, workers: 2, drainTimeout: 2s}}
listeners:
  - {{name: public, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}
certificates:
  - {{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}
clusters:
  - name: east
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: ca.crt}}
    credentials: {{exec: {{command: /usr/local/bin/plugin, env: {{PLUGIN: "yes"}}}}}}
    identity: Proxy
servers:
  - {{name: east, default: true, authentication: none, backend: {{cluster: east}}}}
logging: {{level: {level}}}
"""


class Site:
    """A simulated cluster, and a configuration of a proxy before it, in an empty root."""

    def __init__(self, root: EmptyRoot, cluster: SimulatedClusterProcess, plugin: Path) -> None:
        self.root = root
        self.port = reserved_port()
        self._url = cluster.urls[0]
        authority = Authority("site CA")
        authority.server(["127.0.0.1", "localhost"]).write(root.path / "etc/mcproxy", "proxy")
        for path in (root.path / "etc/mcproxy").iterdir():
            os.chown(path, NOBODY, NOBODY)
        self.context = ssl.create_default_context(cadata=authority.pem.decode())
        root.write("etc/mcproxy/ca.crt", Path(cluster.ca).read_bytes())
        root.write("etc/mcproxy/token", cluster.tokens["admin"] + "\n")
        root.write("usr/local/bin/plugin", plugin.read_bytes(), 0o755)
        self.configure()

    def configure(self, level: str = "info") -> None:
        """Write the configuration."""
        self.root.write(CONFIG, CONFIGURATION.format(port=self.port, url=self._url, level=level))

    def get(self, path: str = PODS) -> int:
        """Return the status of an answer, by a connection of its own."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=self.context)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def serves(self) -> bool:
        try:
            return self.get() == 200
        except OSError:
            return False

    def status(self) -> dict[str, object]:
        """Return what `mcproxy status` has."""
        done = self.root.run("status", "-o", "json", "-c", CONFIG)
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The credential plugin; it links nothing."""
    program = tmp_path_factory.mktemp("plugin") / "plugin"
    source = Path(__file__).with_name("credential_plugin.c")
    subprocess.run(["cc", "-static", "-O1", str(source), "-o", str(program)], check=True)
    return program


@pytest.fixture
def site(root: EmptyRoot, plugin: Path, tmp_path: Path) -> Iterator[Site]:
    with SimulatedClusterProcess("east", directory=tmp_path / "cluster") as cluster:
        yield Site(root, cluster, plugin)


@contextmanager
def daemon(site: Site) -> Iterator[Path]:
    """Run it; yield its log. All of it has ended at the end, whichever process it is by then."""
    log = site.root.path.parent / "daemon.log"
    with log.open("wb") as file:
        process = subprocess.Popen(site.root.command("run", "-c", CONFIG), env={}, stdout=file, stderr=file)
    try:
        wait_until("it serves", site.serves, log, process)
        yield log
    finally:
        for pid in processes_of(site.root):
            os.kill(pid, signal.SIGTERM)
        wait_until("all have ended", lambda: process.poll() is not None and not processes_of(site.root), log)


def processes_of(root: EmptyRoot) -> list[int]:
    """Return the processes whose root is this one, but for that which reads files, which stays for a while."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if os.readlink(f"/proc/{pid}/root") == str(root.path) and b"config_process" not in command:
                found.append(int(pid))
        except OSError:
            continue
    return found


def wait_until(
    what: str, condition: Callable[[], bool], log: Path, process: subprocess.Popen[bytes] | None = None
) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        waits = time.monotonic() < deadline and (process is None or process.poll() is None)
        assert waits, f"not so: {what}; the log: {log.read_text()}"
        time.sleep(0.05)


def test_two_workers_serve_reload_and_are_replaced_by_another_version(
    site: Site, binary: Path, tmp_path: Path, figures: dict[str, float]
) -> None:
    root = site.root
    checked = root.run("check", "-c", CONFIG)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    begun = time.monotonic()
    with daemon(site) as log:
        figures["from the start of two workers to an answer, seconds"] = round(time.monotonic() - begun, 3)
        before = site.status()
        assert len(processes_of(root)) == 3  # supervisor and two workers: nothing between
        main = before["pid"]
        (old,) = root.unpacked()
        assert str(old.name) in os.readlink(f"/proc/{main}/exe")
        assert Path(f"/proc/{main}/comm").read_text() == "mcproxy\n"

        environ = (root.path / "tmp/plugin.environ").read_text().splitlines()
        names = {line.partition("=")[0] for line in environ}
        assert "PLUGIN" in names
        assert not {name for name in names if name.startswith(("LD_", "PYTHON", "MCPROXY", "_PYI", "PEX"))}, names

        site.configure("debug")
        reloaded = root.run("reload", "-c", CONFIG)
        assert reloaded.returncode == 0, reloaded.stderr
        assert "level" in reloaded.stdout
        site.configure("loud")
        assert root.run("reload", "-c", CONFIG).returncode == os.EX_CONFIG
        site.configure("debug")

        root.install(another_version(binary, tmp_path / "another"))
        refused, stop = [], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                if not site.serves():
                    refused.append(time.monotonic())

        client = threading.Thread(target=ask)
        client.start()
        try:
            upgraded = root.run("upgrade", "-c", CONFIG)
        finally:
            stop.set()
            client.join()
        assert upgraded.returncode == 0, upgraded.stderr + log.read_text()
        assert refused == []
        after = site.status()
        assert after["pid"] != main
        (new,) = set(root.unpacked()) - {old}
        assert str(new.name) in os.readlink(f"/proc/{after['pid']}/exe")
        wait_until("the old version has ended", lambda: len(processes_of(root)) == 3, log)
        assert site.get() == 200
        assert '"pid"' not in log.read_text()


def test_a_demo_runs_from_it(root: EmptyRoot) -> None:
    log = root.path.parent / "demo.log"
    with log.open("wb") as file:
        process = subprocess.Popen(root.command("demo", "--workers", "2"), env={}, stdout=file, stderr=file)
    try:
        wait_until("the demo says how to use it", lambda: "kubectl" in log.read_text(), log, process)
    finally:
        for pid in processes_of(root):
            if pid == process.pid:
                os.kill(pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 0, log.read_text()
    assert processes_of(root) == []
