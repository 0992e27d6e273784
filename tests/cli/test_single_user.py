"""`mcproxy run --single-user`: one developer's API server beside a cluster, for that developer alone."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import http.client
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.main import main
from mcproxy.cli.single_user import LOCK, PREFIX, private_folder, remove_stale_folders, runtime_folder
from mcproxy.cli.single_user_files import APIServer, Settings, config, kubeconfig, user_of, write_secrets
from mcproxy.config import model
from mcproxy.config.load import load
from tests.apiserver.process import APIServerProcess
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import kubeconfig_of

GROUP_VERSION = "garden.example.com/v1"
ADMIN = "admin-test-token"
USER = {"name": "jane", "user": {"tokenFile": "token"}}
CONTEXT = {"name": "a", "context": {"cluster": "a", "user": "jane"}}
PATIENCE = 120.0


class SingleUser:
    """The command in a process of its own, whose private folder is made in `above`."""

    def __init__(self, above: Path, *arguments: str) -> None:
        self.printed: list[str] = []
        self.began = time.monotonic()
        with (above / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mcproxy", "run", "--single-user", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TMPDIR": str(above), "XDG_RUNTIME_DIR": ""},
            )
        self.above = above

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                self.printed.append(line.rstrip("\n"))
                if line == "ready\n":
                    return
            raise AssertionError((self.above / "log").read_text())
        finally:
            watchdog.cancel()

    @property
    def folder(self) -> Path:
        (line,) = [line for line in self.printed if line.startswith("  kubeconfig ")]
        return Path(line.split()[1]).parent

    @property
    def kubeconfig(self) -> Any:
        return json.loads((self.folder / "kubeconfig").read_text())

    def ask(self, path: str, *, token: str | None = None) -> tuple[int, dict[str, Any]]:
        """GET as the kubeconfig says, or with another token."""
        cluster, user = self.kubeconfig["clusters"][0]["cluster"], self.kubeconfig["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        port = int(cluster["server"].rpartition(":")[2])
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
        bearer = user["token"] if token is None else token
        with contextlib.closing(connection):
            connection.request("GET", path, None, {"Authorization": f"Bearer {bearer}"} if bearer else {})
            response = connection.getresponse()
            body = response.read()
        return response.status, json.loads(body) if body.startswith(b"{") else {}

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def __enter__(self) -> SingleUser:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def east() -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east") as process:
        yield process


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIServerProcess]:
    """The developer's API server, which is started later."""
    folder = tmp_path_factory.mktemp("garden")
    process = APIServerProcess(
        "garden.example.com",
        folder,
        version="v1",
        resources=("plants:Plant",),
        kubeconfig=folder / "kubeconfig",
    )
    yield process
    process.stop()


def arguments(east: SimulatedClusterProcess, garden: APIServerProcess) -> list[str]:
    server = f"{GROUP_VERSION}={garden.url}"
    return [
        "--kubeconfig",
        east.kubeconfig,
        "--api-service",
        server,
        "--api-service-ca",
        str(garden.ca),
        "--user",
        "jane",
    ]


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, east: SimulatedClusterProcess, garden: APIServerProcess
) -> Iterator[SingleUser]:
    """Shared by tests that do not end it; the API server is not there when it starts."""
    with SingleUser(tmp_path_factory.mktemp("single"), *arguments(east, garden)) as command:
        command.wait_ready()
        yield command


@pytest.mark.slow
def test_it_runs_though_the_api_server_is_not_there_yet_and_says_so(
    running: SingleUser, garden: APIServerProcess
) -> None:
    assert (
        f"Nothing answers at {garden.url} yet: requests for {GROUP_VERSION} are 503 until it does." in running.printed
    )
    status, document = running.ask(f"/apis/{GROUP_VERSION}/namespaces/shop/plants")
    assert (status, document["reason"]) == (503, "ServiceUnavailable")
    assert running.ask("/api/v1/nodes")[0] == 200


def test_all_that_it_writes_is_this_users_alone(running: SingleUser) -> None:
    assert os.stat(running.folder).st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in running.folder.iterdir()}
    assert {"kubeconfig", "users.csv", "mcproxy.key", "front-proxy.key"} <= set(modes)
    assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
    token = running.kubeconfig["users"][0]["user"]["token"]
    assert len(token) >= 32
    assert token not in Path(f"/proc/{running.process.pid}/cmdline").read_text()
    assert token not in "\n".join(running.printed)
    assert token not in (running.above / "log").read_text()


@pytest.mark.parametrize("path", ["/api/v1/nodes", f"/apis/{GROUP_VERSION}", "/version", "/"])
@pytest.mark.parametrize("token", ["", "guessed"])
def test_nobody_else_on_the_machine_gets_anything(running: SingleUser, path: str, token: str) -> None:
    assert running.ask(path, token=token)[0] == 401


def test_the_cluster_gets_the_kubeconfigs_own_credentials(running: SingleUser) -> None:
    status, document = running.ask("/api/v1/namespaces/kube-system/secrets")
    assert (status, document["kind"]) == (200, "SecretList")


def test_the_api_server_is_told_the_user_and_may_ask_what_it_may(running: SingleUser, garden: APIServerProcess) -> None:
    """As the printed options say: it trusts the front proxy's CA, and asks the private API about users."""
    folder = running.folder
    garden.front_ca = folder / "front-proxy-ca.crt"
    asked = running.kubeconfig
    authority = garden.directory / "private-ca.crt"
    authority.write_bytes(base64.b64decode(asked["clusters"][0]["cluster"].pop("certificate-authority-data")))
    asked["clusters"][0]["cluster"]["certificate-authority"] = str(authority)
    (garden.directory / "kubeconfig").write_text(json.dumps(asked))
    garden.start()
    deadline = time.monotonic() + PATIENCE
    path = f"/apis/{GROUP_VERSION}/namespaces/shop/plants"
    while (answer := running.ask(path))[0] != 200:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    assert answer[1]["kind"] == "PlantList"
    (seen, *_) = [each for each in garden.seen(path) if "user" in each]
    assert (seen["user"]["name"], seen["user"]["by"]) == ("jane", "front proxy")
    options = next(line for line in running.printed if "--requestheader-client-ca-file" in line)
    assert f"={garden.front_ca} --requestheader-allowed-names=front-proxy-client" in options


def test_without_a_front_proxy_that_it_trusts_the_user_goes_as_they_are(
    tmp_path: Path, east: SimulatedClusterProcess
) -> None:
    """The API server asks the cluster itself, not the private API, whose token it got."""
    asked = {"server": east.url, "certificate-authority": east.ca}
    delegate = {"clusters": [{"name": "a", "cluster": asked}], "users": [{"name": "a", "user": {"token": ADMIN}}]}
    (tmp_path / "delegate").write_text(json.dumps({"kind": "Config", **delegate}))
    theirs = {"server": east.url, "certificate-authority": east.ca}
    (tmp_path / "token").write_text(ADMIN)
    (tmp_path / "theirs").touch(mode=0o600)
    (tmp_path / "theirs").write_text(
        json.dumps(kubeconfig_of([{"name": "a", "cluster": theirs}], [USER], [CONTEXT], "a"))
    )
    with (
        APIServerProcess(
            "garden.example.com", tmp_path, version="v1", resources=("plants:Plant",), kubeconfig=tmp_path / "delegate"
        ) as server,
        SingleUser(
            tmp_path, "--kubeconfig", str(tmp_path / "theirs"), "--api-service", f"{GROUP_VERSION}={server.url}",
            "--api-service-ca", str(server.ca), "--own-credentials",
        ) as command,
    ):  # fmt: skip
        command.wait_ready()
        assert any(line.startswith("You go to API servers as you are") for line in command.printed)
        assert not any("requestheader" in line or "front proxy" in line for line in command.printed)
        path = f"/apis/{GROUP_VERSION}/namespaces/shop/plants"
        deadline = time.monotonic() + PATIENCE
        while (answer := command.ask(path))[0] != 200:
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
        (seen, *_) = [each for each in server.seen(path) if each.get("user")]
        assert (seen["user"]["name"], seen["user"]["by"]) == ("admin", "token")
        assert [name for name, _ in seen["headers"] if name.lower().startswith("x-remote-")] == []
        assert command.kubeconfig["users"][0]["user"]["token"] not in json.dumps(seen)
        assert command.ask(path, token="")[0] == 401
        modes = {each.stat().st_mode & 0o077 for each in command.folder.iterdir()}
        assert modes == {0}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_its_end_leaves_nothing_behind(
    tmp_path: Path, east: SimulatedClusterProcess, garden: APIServerProcess, number: int
) -> None:
    with SingleUser(tmp_path, *arguments(east, garden)) as command:
        command.wait_ready()
        assert command.folder.parent == tmp_path
        assert command.end(number) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.slow
def test_what_a_killed_one_leaves_nobody_else_may_read_and_the_next_one_removes(
    tmp_path: Path, east: SimulatedClusterProcess, garden: APIServerProcess
) -> None:
    with SingleUser(tmp_path, *arguments(east, garden)) as command:
        command.wait_ready()
        left = command.folder
        command.end(signal.SIGKILL)
    assert os.stat(left).st_mode & 0o777 == 0o700
    with SingleUser(tmp_path, *arguments(east, garden)) as command:
        command.wait_ready()
        assert not left.exists()
        assert command.end(signal.SIGINT) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_context_that_is_not_there_is_told_and_leaves_nothing(
    tmp_path: Path, east: SimulatedClusterProcess, garden: APIServerProcess
) -> None:
    with SingleUser(tmp_path, *arguments(east, garden), "--context", "eats") as command:
        assert command.process.wait(PATIENCE) == 78
    assert f"{east.kubeconfig} has no context eats; did you mean east" in (tmp_path / "log").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


# -- arguments --------------------------------------------------------------------------------------------------------

URL = "https://127.0.0.1:8443"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kubeconfig", "/nowhere"], "the kubeconfig /nowhere cannot be read: No such file or directory; name one"),
        ([], "which API server? name it by --api-service, such as"),
        (["--api-service", "garden"], "'garden' is no GROUP/VERSION=URL, such as"),
        (["--api-service", f"garden.example.com={URL}"], "is no GROUP/VERSION=URL, such as"),
        (["--api-service", f"Garden/v1={URL}"], "is no GROUP/VERSION=URL, such as"),
        (
            ["--api-service", f"{GROUP_VERSION}=127.0.0.1:8443"],
            "is not a URL of a server; write a URL such as https://",
        ),
        (["--api-service", f"{GROUP_VERSION}=http://127.0.0.1:8443"], "has no TLS"),
        (["--api-service", f"{GROUP_VERSION}={URL}"], "who has signed the certificate of https://127.0.0.1:8443?"),
        (
            ["--api-service", f"{GROUP_VERSION}=https://10.0.0.1:8443", "--api-service-insecure"],
            "--api-service-insecure is for API servers on this machine, and 10.0.0.1 is none",
        ),
        (
            [*("--api-service", f"{GROUP_VERSION}={URL}") * 2, "--api-service-insecure"],
            "garden.example.com/v1 is named twice, and has one API server",
        ),
        (["--api-service", "x", "--api-service-ca", "/a", "--api-service-insecure"], "exclude each other"),
        (["--api-service", "x", "--api-service-ca", "/nowhere/ca"], "--api-service-ca: /nowhere/ca cannot be read"),
        (
            ["--api-service", f"{GROUP_VERSION}={URL}", "--api-service-insecure", "--group", "system:masters"],
            "'system:masters' is no name for a user or group here; system: is Kubernetes' own",
        ),
        (["-c", "site.yaml"], "--single-user reads no file; leave out -c"),
        (
            ["--api-service", f"{GROUP_VERSION}={URL}", "--api-service-insecure", "--own-credentials", "--user", "j"],
            "--own-credentials excludes --user and --group",
        ),
        (
            ["--api-service", f"{GROUP_VERSION}={URL}", "--api-service-insecure", "--own-credentials"],
            "kubeconfig has no user for its current-context",
        ),
    ],
)
def test_wrong_usage_is_told(tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kubeconfig").write_text("{}")
    assert main(["run", "--single-user", "--kubeconfig", str(tmp_path / "kubeconfig"), *options]) == 2
    assert said in capsys.readouterr().err


def test_its_options_go_with_it_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--api-service", f"{GROUP_VERSION}={URL}"]) == 2
    assert "--api-service goes with --single-user" in capsys.readouterr().err


def test_the_configuration_is_one_that_check_finds_good(tmp_path: Path) -> None:
    settings = Settings(
        _kubeconfig(tmp_path),
        None,
        (
            APIServer("a.example.com/v1", URL, "127.0.0.1", 8443, None, insecure=True),
            APIServer("b.example.com/v1", URL, "127.0.0.1", 8443, None, insecure=True),
            APIServer(
                "c.example.com/v1beta1", "https://[::1]:9", "::1", 9, str(tmp_path / "mcproxy.crt"), insecure=False
            ),
        ),
        "jane",
        ("gardeners", "weeders"),
    )
    before = os.umask(0o077)
    try:
        write_secrets(tmp_path, settings, "t0ken")
    finally:
        os.umask(before)
    (tmp_path / "mcproxy.yaml").write_text(config(settings, tmp_path, 6443))
    loaded = load(str(tmp_path / "mcproxy.yaml"))
    assert [str(each) for each in loaded.warnings] == []
    (server,) = loaded.config.servers
    assert [(each.group_version, each.cluster) for each in server.api_services] == [
        ("a.example.com/v1", "api-server-1"),
        ("b.example.com/v1", "api-server-1"),
        ("c.example.com/v1beta1", "api-server-2"),
    ]
    (tokens,) = [each.token_file for each in loaded.config.authentication]
    assert tokens is not None
    assert [(each.user, each.groups) for each in tokens.tokens] == [("jane", ("gardeners", "weeders"))]
    identities = {each.name: each.identity for each in loaded.config.clusters}
    assert identities["cluster"] is model.UpstreamIdentity.PROXY
    assert identities["api-server-1"] is model.UpstreamIdentity.REQUEST_HEADER


def test_names_of_files_in_the_users_kubeconfig_hold_anywhere(tmp_path: Path) -> None:
    user = {"client-certificate": "a.crt", "client-key": "/k", "exec": {"command": "bin/plugin", "args": ["x"]}}
    other = {"name": "other", "user": {"exec": {"command": "plugin"}}}
    context = {"name": "o", "context": {"cluster": "a", "user": "other"}}
    path = tmp_path / "theirs"
    path.write_text(json.dumps(kubeconfig_of([], [{"name": "jane", "user": user}, other], [CONTEXT, context], "a")))
    plugin = {"command": f"{tmp_path}/bin/plugin", "args": ["x"]}
    assert user_of(path, None) == {"client-certificate": f"{tmp_path}/a.crt", "client-key": "/k", "exec": plugin}
    assert user_of(path, "o") == {"exec": {"command": "plugin"}}
    for content in ("[", "a: b", "[1]", "users: {}", '{"current-context": "x", "contexts": [], "users": []}'):
        path.write_text(content)
        with pytest.raises(ValueError, match=r"is no YAML|has no user"):
            user_of(path, None)


def _kubeconfig(folder: Path) -> str:
    path = folder / "theirs"
    path.touch(mode=0o600)
    path.write_text(kubeconfig(6443, b"", "t").replace('"certificate-authority-data": ""', '"x": ""'))
    return str(path)


# -- the private folder -----------------------------------------------------------------------------------------------


def test_only_what_nobody_uses_is_removed(tmp_path: Path) -> None:
    left, used, new, other, link = (
        tmp_path / name for name in (f"{PREFIX}a", f"{PREFIX}b", f"{PREFIX}c", "x", f"{PREFIX}d")
    )
    for folder in (left, used, new, other):
        folder.mkdir(mode=0o700)
    for folder in (left, used):
        (folder / LOCK).touch()
    link.symlink_to(other)
    with (used / LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_stale_folders(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {used.name, new.name, other.name, link.name}
    os.utime(new, (1, 1))  # it was made long ago, and has no lock
    remove_stale_folders(tmp_path)
    assert not new.exists()
    assert not used.exists()


def test_a_folder_is_this_users_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with private_folder(tmp_path) as folder:
            assert os.stat(folder).st_mode & 0o777 == 0o700
            assert os.stat(folder / LOCK).st_mode & 0o777 == 0o600
            remove_stale_folders(tmp_path)
            assert folder.exists()
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_it_is_made_where_only_this_user_has_access(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path
    tmp_path.chmod(0o755)
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) != tmp_path
    assert runtime_folder({"XDG_RUNTIME_DIR": "relative"}) == runtime_folder({})
