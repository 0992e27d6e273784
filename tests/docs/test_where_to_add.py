"""What docs/architecture.md says under "Where to add things" is enough: a dummy of each kind works.

The dummies are added to a copy of the tree, each only in the files that its row names; then the daemon runs from there.
"""

from __future__ import annotations

import http.client
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import reserved_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = {
    row.split(" | ")[0].strip("| "): row
    for row in PAGE.split("## Where to add things\n")[1].split("\n## ")[0].splitlines()
    if row.startswith("| ")
}


@dataclass(frozen=True)
class Edit:
    """In `file`, `new` is put before the only place of `before`, or it is a new file."""

    file: str
    new: str
    before: str = ""

    def apply(self, tree: Path) -> None:
        path = tree / self.file
        if not self.before:
            assert not path.exists()
            path.write_text(self.new)
            return
        text = path.read_text()
        assert text.count(self.before) == 1, (self.file, self.before)
        path.write_text(text.replace(self.before, self.new + self.before))


STEPS: dict[str, tuple[Edit, ...]] = {
    "a key of the file": (
        Edit(
            "mcproxy/config/model/servers.py",
            '    dummy: str = "nothing"\n    """A dummy."""\n',
            "    cors: CORS | None = None\n",
        ),
    ),
    "an authenticator": (
        Edit(
            "mcproxy/config/model/authentication.py",
            "@dataclass(frozen=True, slots=True, kw_only=True)\n"
            'class Dummy:\n    token: Annotated[str, Key(secret=True)]\n    """Its token."""\n\n\n',
            "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Anonymous:\n",
        ),
        Edit(
            "mcproxy/config/model/authentication.py",
            '    dummy: Dummy | None = None\n    """A dummy."""\n',
            "    allow_system",
        ),
        Edit(
            "mcproxy/config/sections/authentication_section.py",
            'TOKEN_AUTHENTICATORS = (*TOKEN_AUTHENTICATORS, "dummy")\n',
            '_AUTHENTICATORS = ("clientCertificates"',
        ),
        Edit(
            "mcproxy/identity/authentication/dummy_authenticator.py",
            """
from mcproxy.identity.authentication.token_authenticator import Accepted, CacheTimes, Refused
from mcproxy.kube.user import UserInfo
from mcproxy.observe.metrics.families import DUMMY_TOKENS


class DummyAuthenticator:
    name = "dummy"
    cache_times = CacheTimes(0.0, 0.0)
    cluster = ""

    def __init__(self, config, counts):
        self._token, self._counts = config.token.encode(), counts

    def authenticate(self, token):
        self._counts.increase(DUMMY_TOKENS, (str(token == self._token),))
        return Accepted(UserInfo("somebody", ())) if token == self._token else Refused("it is another one")

    def start(self):
        pass

    def stop(self, successors):
        pass
""",
        ),
        Edit(
            "mcproxy/identity/authentication/token_union.py",
            """    if config.dummy is not None:
        from mcproxy.identity.authentication.dummy_authenticator import DummyAuthenticator

        made.append(DummyAuthenticator(config.dummy, shared.metrics.counts))
""",
            "    return tuple(made)\n",
        ),
        Edit(
            "mcproxy/identity/authentication/token_union.py",
            "        config.dummy,\n",
            "        (config.allow_system_names, config.share_service_accounts),\n",
        ),
    ),
    "a balancing strategy": (
        Edit("mcproxy/config/model/dispatch.py", '    LAST = "Last"\n', '    ROUND_ROBIN = "RoundRobin"\n'),
        Edit(
            "mcproxy/upstream/balancing/last_endpoint.py",
            """
class LastEndpoint:
    def __init__(self, endpoints):
        self.endpoints = tuple(endpoints)

    def pick(self, exclude=(), user="", info=None, target=b""):
        return self.endpoints[-1]
""",
        ),
        Edit(
            "mcproxy/upstream/balancing/balancer.py",
            """    if strategy is Strategy.LAST:
        from mcproxy.upstream.balancing.last_endpoint import LastEndpoint

        return LastEndpoint(endpoints)
""",
            "    if strategy is Strategy.LEAST_REQUESTS:\n",
        ),
    ),
    "a handler of requests that the proxy answers itself": (
        Edit(
            "mcproxy/proxy/dummy_handler.py",
            """
from twisted.logger import Logger

log = Logger()


class DummyHandler:
    def __init__(self, config):
        self._text = config.dummy

    def takes(self, path):
        return path == "/dummy"

    def answer(self, request):
        log.info("a dummy has answered", event="dummy_answered", user=request.user.name)
        request.exchange.answer(200, request.own_fields(), f"{self._text} for {request.user.name}".encode())
""",
        ),
        Edit(
            "mcproxy/proxy/routes.py",
            "from mcproxy.proxy.dummy_handler import DummyHandler\n",
            "from mcproxy.proxy.root",
        ),
        Edit("mcproxy/proxy/routes.py", '        "dummy",\n', '        "documents",\n'),
        Edit(
            "mcproxy/proxy/routes.py",
            "        self.dummy = DummyHandler(config)\n",
            "        self.name = config.name\n",
        ),
        Edit(
            "mcproxy/proxy/pipeline.py",
            "            if server.dummy.takes(info.path):\n"
            "                server.dummy.answer(request)\n"
            "                return\n",
            "            step = _FORWARDING\n            review_api = server.review_api\n",
        ),
    ),
    "a log line (event)": (
        Edit(
            "mcproxy/observe/events.py",
            '    "dummy_answered": LogEvent("info", "A dummy has answered."),\n',
            '    "token_refused": LogEvent(',
        ),
    ),
    "a metric": (
        Edit(
            "mcproxy/observe/metrics/families.py",
            'DUMMY_TOKENS = Family("mcproxy_dummy_tokens_total", "counter", "Tokens that a dummy saw.", ("good",))\n',
            "POLICY_HITS = Family(\n",
        ),
        Edit("mcproxy/observe/metrics/families.py", "    DUMMY_TOKENS,\n", "    OWN_DURATION,\n"),
        Edit(
            "docs/metrics.md",
            "| `mcproxy_dummy_tokens_total` | counter | good | Tokens that a dummy saw. |\n",
            "| `mcproxy_requests_total` |",
        ),
    ),
}
COMMANDS = {"a key of the file": "man/keys.py", "a log line (event)": "man/log_events.py"}
"""What a row says to run."""

CONFIG = """
version: 1
daemon: {{controlSocket: {folder}/c.sock, drainTimeout: 0}}
listeners:
  - {{name: api, bind: "127.0.0.1:{api}"}}
  - {{name: admin, serves: Admin, bind: "127.0.0.1:{admin}"}}
clusters:
  - name: east
    endpoints: [{{url: "http://127.0.0.1:{first}"}}, {{url: "http://127.0.0.1:{last}"}}]
    identity: Passthrough
authentication: [{{name: dummies, dummy: {{token: secret}}}}]
servers:
  - name: main
    default: true
    backend: {{cluster: east}}
    authentication: dummies
    dummy: hello
    dispatch:
      - {{rules: [{{verbs: ["*"], apiGroups: ["*"], resources: ["*"], nonResourceURLs: ["*"]}}], strategy: Last}}
"""


def folder_of(file: str) -> str:
    return file.rpartition("/")[0] + "/"


@pytest.mark.parametrize("what", STEPS)
def test_the_row_names_each_file_that_is_edited(what: str) -> None:
    """Or its folder, for a new file and for one of a section; what is "as above" is in the row of keys."""
    row = ROWS[what] + (ROWS["a key of the file"] if "as above" in ROWS[what] else "")
    for step in STEPS[what]:
        path = step.file.removeprefix("mcproxy/")
        names = (path, path.rpartition("/")[2], folder_of(path), folder_of(folder_of(path)[:-1]))
        assert any(f"`{name}`" in row for name in names), f"{what}: {path}"
    assert COMMANDS.get(what, "") in row


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with the dummies."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ("mcproxy", "schema", "man", "docs"):
        shutil.copytree(
            ROOT / name,
            copy / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.so", "compiled-*.txt"),
        )
    for steps in STEPS.values():
        for step in steps:
            step.apply(copy)
    for command in COMMANDS.values():
        run(copy, command)
    return copy


def run(tree: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=environ(tree),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def environ(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers with its port."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = str(self.connection.getsockname()[1]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def get(port: int, path: str, token: str = "") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


@dataclass
class Daemon:
    api: int
    admin: int
    last: int
    config: Path
    log: Path


@pytest.fixture(scope="module")
def daemon(tree: Path) -> Iterator[Daemon]:
    endpoints = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint) for _ in range(2)]
    for endpoint in endpoints:
        threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    first, last = (endpoint.server_address[1] for endpoint in endpoints)
    found = Daemon(reserved_port(), reserved_port(), last, tree / "mcproxy.yaml", tree / "log")
    text = CONFIG.format(folder=tree, api=found.api, admin=found.admin, first=first, last=last)
    found.config.write_text(text)
    with found.log.open("wb") as log:
        command = [sys.executable, "-m", "mcproxy", "run", "-c", str(found.config)]
        process = subprocess.Popen(command, cwd=tree, env=environ(tree), stdout=log, stderr=log)
    try:
        wait_ready(process, found)
        yield found
    finally:
        process.terminate()
        process.wait(60)
        for endpoint in endpoints:
            endpoint.shutdown()
            endpoint.server_close()


def wait_ready(process: subprocess.Popen[bytes], daemon: Daemon) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, daemon.log.read_text()
        try:
            if get(daemon.admin, "/readyz")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(daemon.log.read_text())


def test_a_handler_an_authenticator_and_a_key(daemon: Daemon) -> None:
    assert get(daemon.api, "/dummy", "secret") == (200, "hello for somebody")
    assert get(daemon.api, "/dummy", "another")[0] == 401


def test_a_balancing_strategy(daemon: Daemon) -> None:
    assert {get(daemon.api, "/version", "secret") for _ in range(4)} == {(200, str(daemon.last))}


def test_a_metric(tree: Path, daemon: Daemon) -> None:
    assert get(daemon.api, "/dummy", "secret")[0] == 200
    assert re.search(r'(?m)^mcproxy_dummy_tokens_total\{good="True"\} [1-9]', get(daemon.admin, "/metrics")[1])
    assert "mcproxy_dummy_tokens_total" in (tree / "docs" / "metrics.md").read_text()


def test_a_log_event(tree: Path, daemon: Daemon) -> None:
    assert get(daemon.api, "/dummy", "secret")[0] == 200
    deadline = time.monotonic() + 60
    while "dummy_answered" not in daemon.log.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "event=dummy_answered" in daemon.log.read_text()
    assert "dummy_answered" in (tree / "docs" / "log-events.md").read_text()


def test_a_key_is_dumped_and_in_the_manual(tree: Path, daemon: Daemon) -> None:
    document = json.loads(run(tree, "-m", "mcproxy", "dump", "--format", "json", "-c", str(daemon.config)))
    assert document["servers"][0]["dummy"] == "hello"
    assert document["authentication"][0]["dummy"] == {"token": "(masked)"}
    page = (tree / "man" / "mcproxy.yaml.5").read_text()
    assert ".It Va servers[].dummy\nA dummy.\nDefault: nothing.\n" in page
    assert ".It Va authentication[].dummy.token\n" in page
