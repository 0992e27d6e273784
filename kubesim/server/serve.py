"""The process of one simulated cluster: `python -m kubesim.server.serve --name east --dir DIR`.

It serves the cluster on one or several ports, writes certificates and a kubeconfig to the directory, and then prints
one line of JSON ("ready") with all URLs and paths. SIGTERM stops accepting, drains open requests, and exits with 0.

`mcproxy demo` has its clusters as forked children of a process that loads their code once (`ForkedCluster`): importing
the code takes longer than building a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from aiohttp import web

from kubesim.apimachinery.resources import JSONDict
from kubesim.apimachinery.user import User
from kubesim.auth.certificates import Authority, server_context
from kubesim.cluster import ClusterOptions, SimulatedCluster
from kubesim.registry import crd
from kubesim.server import app, control_api
from kubesim.server.endpoint import Endpoint
from kubesim.storage import store
from kubesim.workloads import api_server, populate

if TYPE_CHECKING:
    from kubesim.server.http2_connection import HTTP2Settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOP_SECONDS = 0.2
NAMES = ("127.0.0.1", "::1", "localhost", "kubernetes", "kubernetes.default.svc")
USERS = {"admin": ("system:masters",), "alice": ("dev",), "mcproxy": ("mcproxy",)}
TOKENS = {
    "admin-test-token": User("admin", "admin-uid", ("system:masters",)),
    "alice-test-token": User("alice", "alice-uid", ("dev",)),
    "mcproxy-test-token": User("mcproxy", "mcproxy-uid", ("mcproxy",)),
}


def arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kubesim.server.serve", description=__doc__)
    parser.add_argument("--name", required=True, help="name of the cluster")
    parser.add_argument("--dir", required=True, type=Path, help="where certificates and kubeconfig go")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="port of the first endpoint; 0: any free one")
    parser.add_argument("--endpoints", type=int, default=1, help="how many ports serve the cluster")
    parser.add_argument("--no-anonymous", action="store_true", help="refuse requests without credentials with 401")
    parser.add_argument("--legacy-impersonation", action="store_true", help="answers of servers before Kubernetes 1.36")
    parser.add_argument("--loopback-endpoints", action="store_true", help="take EndpointSlices of pods on this machine")
    parser.add_argument("--no-controllers", action="store_true", help="nothing happens by itself after a write")
    parser.add_argument("--live", action="store_true", help="objects change by themselves")
    parser.add_argument("--empty", action="store_true", help="no objects but those of a fresh cluster")
    parser.add_argument("--bookmark-seconds", type=float, default=60.0)
    parser.add_argument(
        "--drain-seconds", type=float, default=0.5, help="how long open requests may go on after SIGTERM"
    )
    parser.add_argument(
        "--starting-seconds",
        type=float,
        default=1.0,
        help="how long an endpoint answers 403 after its port is open, as one that has not read the roles (default 1)",
    )
    parser.add_argument("--http2", action="store_true", help="offer HTTP/2 by ALPN, besides HTTP/1.1")
    parser.add_argument(
        "--max-concurrent-streams", type=int, default=250, help="that may be open on an HTTP/2 connection (default 250)"
    )
    parser.add_argument(
        "--data", type=Path, help="keeps all changes in this file, and begins with the state that it tells"
    )
    parser.add_argument(
        "--metrics-of",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="be an API server of its own, with metrics of the simulated cluster with this directory (repeatable)",
    )
    parser.add_argument(
        "--pod-network", default="10.244", metavar="N.N", help="how addresses of pods begin (default %(default)s)"
    )
    parser.add_argument(
        "--routes-to",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="pods of the simulated cluster with this directory can be reached from here (repeatable)",
    )
    parser.add_argument("--seed", type=int, default=None, help="makes uids and generated names repeatable")
    return parser.parse_args(argv)


def make_cluster(args: argparse.Namespace) -> SimulatedCluster:
    """Return the cluster that the arguments describe, with its objects."""
    options = ClusterOptions(
        anonymous_auth=not args.no_anonymous,
        constrained_impersonation=not args.legacy_impersonation,
        loopback_endpoints=args.loopback_endpoints,
        bookmark_seconds=args.bookmark_seconds,
    )
    cluster = SimulatedCluster(args.name, options=options, rng=random.Random(args.seed))
    cluster.tokens.update(TOKENS)
    cluster.pod_network = args.pod_network
    cluster.routes_to = tuple(args.routes_to)
    if args.metrics_of:
        api_server.fill(cluster)
        cluster.state["unready"] = (api_server.READY_HOOK,)
        return cluster
    populate.bootstrap(cluster)
    if not args.empty:
        populate.populate(cluster)
    populate.add_rights(cluster)
    if args.data is not None:
        _keep_data(cluster, args.data)
    return cluster


def _keep_data(cluster: SimulatedCluster, path: Path) -> None:
    """Keep all changes in a file; restore its state first, if it exists."""
    exists = path.exists()
    if exists:
        store.replay(path, cluster.store)
        crd.sync_all(cluster)
    journal = store.Journal(path, time.monotonic, started=cluster.store.revision)
    if not exists:
        journal.begin(cluster.store.snapshot())
    cluster.store.journal = journal


class Endpoints:
    """The listening ports of a cluster."""

    def __init__(self, cluster: SimulatedCluster, host: str, http2: HTTP2Settings | None) -> None:
        self.cluster = cluster
        self.host = host
        self.http2 = http2
        self.ports: list[int] = []
        self.each: list[Endpoint] = []
        self._runners: list[web.AppRunner] = []

    async def open(self, count: int, port: int, certificate: Path, key: Path, *, starting: float) -> None:
        """Listen on `count` ports, the first being `port`; each has no roles for `starting` seconds."""
        trusted = self.cluster.client_ca_pem + self.cluster.front_proxy_ca_pem
        context = server_context(certificate, key, trusted)
        for index in range(count):
            runner = web.AppRunner(
                app.build(self.cluster, endpoint=index),
                access_log=None,
                handle_signals=False,
                keepalive_timeout=180.0,
                shutdown_timeout=STOP_SECONDS,
            )
            await runner.setup()
            http2 = None
            if self.http2 is not None:
                if index:  # each has its own context, because ALPN is set there
                    context = server_context(certificate, key, trusted)
                http2 = load_http2().HTTP2Connections(index, self.cluster.faults, context, self.http2)
            endpoint = Endpoint(index, self.cluster, runner, context, http2)
            self.ports.append(await endpoint.open(self.host, port if index == 0 else 0, starting=starting))
            self.each.append(endpoint)
            self._runners.append(runner)

    async def close(self, drain: float) -> None:
        """Stop accepting at once; requests in flight have `drain` seconds to end."""
        for endpoint in self.each:
            await endpoint.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain
        while self.cluster.audit.in_flight and loop.time() < deadline:
            await asyncio.sleep(0.02)
        for runner in self._runners:
            await runner.cleanup()


def load_http2() -> ModuleType:
    """Import the HTTP/2 server: most tests' clusters do not need it, and the import takes 40 ms."""
    from kubesim.server import http2_connections

    return http2_connections


def _http2_settings(args: argparse.Namespace) -> HTTP2Settings | None:
    """Return the settings of HTTP/2; None without it."""
    if not args.http2:
        return None
    found: HTTP2Settings = load_http2().HTTP2Settings(args.max_concurrent_streams)
    return found


def kubeconfig(name: str, url: str, files: JSONDict) -> JSONDict:
    """Return a kubeconfig with a context for each user; the current one is the admin's."""
    users = [
        {"name": user, "user": {"client-certificate": pair["certificate"], "client-key": pair["key"]}}
        for user, pair in files["users"].items()
    ]
    contexts = [
        {"name": name if user == "admin" else f"{name}-{user}", "context": {"cluster": name, "user": user}}
        for user in files["users"]
    ]
    cluster = {"name": name, "cluster": {"server": url, "certificate-authority": files["ca"]}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": users,
        "contexts": contexts,
        "current-context": name,
    }


def write_credentials(
    cluster: SimulatedCluster, directory: Path, host: str, *, again: bool = False
) -> tuple[JSONDict, Path, Path]:
    """Issue and write certificates; return all paths, and those of the server's certificate and key.

    `again`: reuse those of an earlier process, if there was one, so that its clients still accept the cluster.
    """
    if again and (directory / "front-proxy-ca.crt").exists():
        return _read_credentials(cluster, directory)
    authority = Authority(f"{cluster.name}-ca")
    front_proxy = Authority(f"{cluster.name}-front-proxy-ca")
    cluster.client_ca_pem, cluster.front_proxy_ca_pem = authority.pem, front_proxy.pem
    ca = directory / "ca.crt"
    ca.write_bytes(authority.pem)
    names = NAMES if host in NAMES else (host, *NAMES)
    server_certificate, server_key = authority.server([*names, cluster.name, f"{cluster.name}.example.test"]).write(
        directory, "server"
    )
    files: JSONDict = {"ca": str(ca), "users": {}}
    for user, groups in USERS.items():
        certificate, key = authority.client(user, groups).write(directory, user)
        files["users"][user] = {"certificate": str(certificate), "key": str(key)}
    certificate, key = front_proxy.client("front-proxy").write(directory, "front-proxy")
    files["frontProxy"] = {"certificate": str(certificate), "key": str(key)}
    (directory / "front-proxy-ca.crt").write_bytes(front_proxy.pem)  # written last: if it exists, all do
    return files, server_certificate, server_key


def _read_credentials(cluster: SimulatedCluster, directory: Path) -> tuple[JSONDict, Path, Path]:
    def pair(name: str) -> JSONDict:
        return {"certificate": str(directory / f"{name}.crt"), "key": str(directory / f"{name}.key")}

    cluster.client_ca_pem = (directory / "ca.crt").read_bytes()
    cluster.front_proxy_ca_pem = (directory / "front-proxy-ca.crt").read_bytes()
    files: JSONDict = {"ca": str(directory / "ca.crt"), "users": {user: pair(user) for user in USERS}}
    files["frontProxy"] = pair("front-proxy")
    return files, directory / "server.crt", directory / "server.key"


async def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    args.dir.mkdir(parents=True, exist_ok=True)
    gc.disable()  # no garbage is made until the cluster serves
    cluster = make_cluster(args)
    files, certificate, key = write_credentials(cluster, args.dir, args.host, again=args.data is not None)
    endpoints = Endpoints(cluster, args.host, _http2_settings(args))
    await endpoints.open(args.endpoints, args.port, certificate, key, starting=args.starting_seconds)
    control_runner, control_url = await control_api.start(cluster, endpoints.each)
    host = f"[{args.host}]" if ":" in args.host else args.host
    urls = [f"https://{host}:{port}" for port in endpoints.ports]
    path = args.dir / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(cluster.name, urls[0], files), indent=2))
    ready = {"ready": True, "name": cluster.name, "url": urls[0], "urls": urls, "control": control_url}
    ready.update({**files, "kubeconfig": str(path), "tokens": {user.name: token for token, user in TOKENS.items()}})
    gc.freeze()
    gc.enable()
    print(json.dumps(ready), flush=True)
    controllers = _start_controllers(cluster, args)
    await stopping.wait()
    if controllers is not None:
        controllers.cancel()
    await endpoints.close(args.drain_seconds)
    await control_runner.cleanup()
    return 0


def _start_controllers(cluster: SimulatedCluster, args: argparse.Namespace) -> asyncio.Task[None] | None:
    """Start the controllers and kubelets, and with --live the activity; an API server has only metrics."""
    if args.metrics_of:
        return asyncio.create_task(api_server.follow(cluster, args.metrics_of))
    if args.live:
        return asyncio.create_task(populate.run_activity(cluster))
    return None if args.no_controllers else asyncio.create_task(populate.run_controllers(cluster))


class StartError(Exception):
    """The cluster did not start; the message has the end of its log."""


class ParentPipe:
    """A pipe by which children notice the exit of their parent, however it exits."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()

    def terminate_with_parent(self) -> None:
        """In a child: send SIGTERM to itself when the parent ends. Nothing is ever written to the pipe."""
        os.close(self._writer)

        def wait() -> None:
            os.read(self._reader, 1)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, name="parent-pipe", daemon=True).start()

    def close(self) -> None:
        """Close the pipe, in the parent, when no child is left."""
        os.close(self._reader)
        os.close(self._writer)


class ForkedCluster:
    """One simulated cluster in a forked child. Its own process group keeps Ctrl-C from it.

    The parent must have no threads.
    """

    def __init__(self, name: str, directory: Path, options: Sequence[str], parent_pipe: ParentPipe) -> None:
        self.name = name
        self.log = directory / "log"
        self.ready: JSONDict = {}
        self.pid = 0
        self._directory = directory
        self._options = options
        self._parent_pipe = parent_pipe
        self._handle = -1  # valid while the child exists
        self._ready_pipe = -1

    def start(self) -> None:
        """Fork, without waiting until the child serves. Signals are blocked until `stop` can clean up."""
        self._directory.mkdir(parents=True, exist_ok=True)
        parsed = arguments(["--name", self.name, "--dir", str(self._directory), *self._options])
        if parsed.http2:
            load_http2()
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._ready_pipe, writer = os.pipe()
        sys.stdout.flush()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the child must not run the parent's handlers
        try:
            self.pid = os.fork()
            if not self.pid:
                _run_child(parsed, writer, log, self._parent_pipe)
            self._handle = os.pidfd_open(self.pid)
        finally:
            os.close(writer)
            os.close(log)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def wait_ready(self, timeout: float) -> None:
        """Wait until it serves. Raises StartError when it exits or `timeout` seconds pass."""
        deadline = time.monotonic() + timeout
        data = b""
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([self._ready_pipe], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._ready_pipe, 65536) if readable else b""
            if not more:
                raise StartError(f"the simulated cluster {self.name} did not start: {self.log.read_text()[-2000:]}")
            data += more
        self.ready = json.loads(data)

    @property
    def url(self) -> str:
        """The URL of its first endpoint."""
        return str(self.ready["url"])

    @property
    def port(self) -> int:
        """The port of its first endpoint."""
        return int(self.url.rpartition(":")[2])

    def terminate(self) -> None:
        """Send SIGTERM without waiting."""
        if self._handle >= 0:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)

    def stop(self, timeout: float) -> None:
        """Send SIGTERM, and SIGKILL if it has not exited after `timeout` seconds."""
        if self._handle < 0:
            return
        self.terminate()
        if not select.select([self._handle], [], [], timeout)[0]:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._handle)
        os.close(self._ready_pipe)
        self._handle = -1


def _run_child(arguments: Any, ready: int, log: int, parent_pipe: ParentPipe) -> None:
    """Run the cluster in the child; never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(ready, 1)
        os.dup2(log, 2)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        parent_pipe.terminate_with_parent()
        status = asyncio.run(run(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> int:
    return asyncio.run(run(arguments(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
