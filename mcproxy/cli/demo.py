"""`mcproxy demo`: runs two simulated clusters, an API server and a proxy in front of them, until Ctrl-C.

Each of the four is a separate process, as is a Redis if redis-server is installed, and with --tunnel the edge of west.
The command starts them, waits for a signal or the end of one of them, and stops them.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib.util
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mcproxy.cli import FAILED, OK, demo_files, demo_redis, demo_tunnel
from mcproxy.cli.demo_daemon import HOST, PATIENCE, STOP_PATIENCE, Proxy, last_lines
from mcproxy.cli.demo_directory import DemoDirectory, DemoError, open_directory
from mcproxy.cli.progress import Progress, progress
from mcproxy.config.model import AUTO, MAX_WORKERS
from mcproxy.extras import INSTALL_EXTRAS

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

    from kubesim.server.serve import ForkedCluster

SERVER_OPTIONS = ("--http2", "--drain-seconds", "0.5", "--starting-seconds", "0")
CLUSTER_OPTIONS = ("--live", *SERVER_OPTIONS)
METRICS = "/apis/metrics.k8s.io/v1beta1/nodes"
EXPORTED = "/clusters/east/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/imported-west-search-slice"
"""A path that is answered when the export from west has been written to east."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(BaseException):
    """A signal ends the demo. Not an Exception, so that no error handler catches it."""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's options."""
    parser = subparsers.add_parser(
        "demo",
        help="start two simulated clusters and a proxy in front of them",
        description="Start two simulated clusters, a separate API server and a proxy in front of them, print a "
        "kubeconfig and commands to try, and run until Ctrl-C, which leaves nothing behind.",
        epilog="examples:\n  mcproxy demo\n  mcproxy demo --dir demo --workers 2\n  mcproxy demo --tunnel",
    )
    parser.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        help="write mcproxy.yaml, kubeconfig, certificates and logs to DIR and keep them; mcproxy.yaml and kubeconfig "
        "stay as they are once edited (default: a temporary directory, removed at the end)",
    )
    parser.add_argument(
        "--port", metavar="P", type=_port, default=0, help="the proxy's port on 127.0.0.1 (default: any free one)"
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        type=_workers,
        help="how many processes the proxy has, or Auto for one on each core (default: 1)",
    )
    parser.add_argument(
        "--tunnel",
        action="store_true",
        help="put the cluster west behind a tunnel: an edge daemon beside it dials the proxy",
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError
    return port


def _workers(text: str) -> str:
    if text != AUTO and not 1 <= int(text) <= MAX_WORKERS:
        raise ValueError
    return text


_workers.__name__ = "number of workers"
_port.__name__ = "port"  # argparse: "invalid port value: '99999'"


def run(args: argparse.Namespace) -> int:
    """Run until a signal; return 0 after a signal, 1 if a process does not start or ends by itself."""
    try:
        if missing := [name for name in ("aiohttp", "h2") if importlib.util.find_spec(name) is None]:
            raise DemoError(
                f"not installed, but needed by the simulated clusters: {', '.join(missing)}; {INSTALL_EXTRAS}"
            )
        with _signals_raise(), contextlib.ExitStack() as held:
            if args.port:
                _hold_port(args.port, held)
            with _directory(args.dir) as directory:
                _refuse_workers_of_edited_file(directory, args.workers)
                tunnel = _has_tunnel(directory, wanted=args.tunnel)
                ports = _ports(directory, args.port, held)
                _run(directory, ports, args.workers or "1", kept=args.dir is not None, tunnel=tunnel)
    except DemoError as error:
        print(f"mcproxy demo: {error}", file=sys.stderr)
        return FAILED
    except Stopped:
        return OK
    return OK


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Raise Stopped at the first of STOP_SIGNALS, and ignore later ones."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hold_port(wanted: int, held: contextlib.ExitStack) -> int:
    """Return a free port: `wanted`, or any if that is 0. Raises DemoError.

    Until `held` is closed, a socket that does not listen holds the port, so that the kernel does not assign it to a
    connection or another server. Only sockets with SO_REUSEADDR can bind it, as the listeners do.
    """
    holder = held.enter_context(socket.socket())
    with socket.socket() as probe:
        try:
            if wanted:
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, wanted))
            # For any port, SO_REUSEADDR is set after bind: else the kernel could choose a port that another holder has.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(holder.getsockname())
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                what = "is taken: stop what listens there, or choose another with --port"
            else:
                what = f"cannot be listened on: {error.strerror}; choose another with --port"
            raise DemoError(f"{HOST}:{wanted} {what}") from None
    return int(holder.getsockname()[1])


@contextlib.contextmanager
def _directory(wanted: Path | None) -> Iterator[DemoDirectory]:
    """Lock the wanted directory, or a temporary one that is removed at the end. Raises DemoError."""
    if wanted is not None:
        with open_directory(wanted, demo_files.NAMES) as directory:
            yield directory
        return
    path = Path(tempfile.mkdtemp(prefix="mcproxy-demo-"))
    try:
        with open_directory(path, demo_files.NAMES) as directory:
            yield directory
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _edited(directory: DemoDirectory) -> list[Path]:
    """Return the files that the user has edited, which are kept."""
    names = (demo_files.CONFIG_FILE, demo_files.KUBECONFIG_FILE, demo_tunnel.CONFIG_FILE)
    return [directory.path / name for name in names if directory.edited(name)]


def _ports(directory: DemoDirectory, wanted: int, held: contextlib.ExitStack) -> dict[str, int]:
    """Choose the ports of the proxy (`wanted` unless it is 0), of its other listeners and of the clusters.

    If possible, they are the ports of the last run.

    An edited file contains the ports of the last run, which are then required. With 0, a cluster chooses its port.
    Raises DemoError.
    """
    edited = _edited(directory)
    ports: dict[str, int] = {}
    for part in (*demo_files.LISTENERS, *demo_files.CLUSTERS, demo_files.API_SERVER):
        is_known = part in demo_files.LISTENERS  # whether the port must be known before the process starts
        last = directory.ports.get(part, 0)
        if edited and last and part == "proxy" and wanted not in (0, last):
            raise DemoError(
                f"{edited[0]} was edited and is kept, and names port {last}: leave out --port, or remove the file to "
                "have it generated again"
            )
        try:
            port = wanted if wanted and part == "proxy" else last
            port = 0 if port in ports.values() else port
            ports[part] = _hold_port(port, held) if port or is_known else 0
        except DemoError:
            if edited:
                raise DemoError(
                    f"{HOST}:{last} is taken, which {edited[0]} names, an edited file that is kept: stop what listens "
                    "there, or remove the file to have it generated again with another port"
                ) from None
            if part == "proxy" and wanted:
                raise
            ports[part] = _hold_port(0, held) if is_known else 0
    return ports


def _refuse_workers_of_edited_file(directory: DemoDirectory, workers: str | None) -> None:
    if workers is not None and directory.edited(demo_files.CONFIG_FILE):
        raise DemoError(
            f"{directory.path / demo_files.CONFIG_FILE} was edited and is kept: leave out --workers and write "
            "daemon.workers there, or remove the file to have it generated again"
        )


def _has_tunnel(directory: DemoDirectory, *, wanted: bool) -> bool:
    """Return whether west is behind a tunnel: as wanted, or as in an edited file. Raises DemoError if they differ.

    The edge's file of an earlier run with a tunnel is removed if it is not needed, unless it was edited.
    """
    edge = directory.path / demo_tunnel.CONFIG_FILE
    if not directory.edited(demo_files.CONFIG_FILE):
        if not wanted and not directory.edited(demo_tunnel.CONFIG_FILE):
            edge.unlink(missing_ok=True)
        return wanted
    if wanted and not edge.exists():
        raise DemoError(
            f"{directory.path / demo_files.CONFIG_FILE} was edited and is kept, and is of a demo without a tunnel: "
            "leave out --tunnel, or remove the file to have it generated again"
        )
    return edge.exists()


def _run(directory: DemoDirectory, ports: dict[str, int], workers: str, *, kept: bool, tunnel: bool) -> None:
    """Start the processes, print the greeting, wait for a signal (Stopped). Raises DemoError if a process ends."""
    path = directory.path
    edited = _edited(directory)
    redis = demo_redis.is_possible(path)
    with contextlib.ExitStack() as parts:
        proxy = Proxy(path)  # it imports the daemon while this process imports the simulated cluster
        parts.callback(proxy.stop)
        edge = Proxy(path, demo_tunnel.LOG_FILE) if tunnel else None
        if redis:
            parts.callback(demo_redis.Redis(path).stop, STOP_PATIENCE)
        from kubesim.server import serve

        parent_pipe = serve.ParentPipe()
        parts.callback(parent_pipe.close)
        clusters = [
            serve.ForkedCluster(name, path / name, _cluster_options(path, name, ports[name]), parent_pipe)
            for name in demo_files.CLUSTERS
        ]
        name = demo_files.API_SERVER
        followed = [option for each in demo_files.CLUSTERS for option in ("--metrics-of", str(path / each))]
        options = (*SERVER_OPTIONS, *followed, "--port", str(ports[name]))
        clusters.append(serve.ForkedCluster(name, path / name, options, parent_pipe))
        parts.callback(_stop_clusters, clusters)
        parts.callback(proxy.stop)  # the proxy stops before the clusters, because it would log their end
        if edge is not None:
            parts.callback(edge.stop)  # and before the proxy the edge
        for cluster in clusters:
            cluster.start()  # this forks, so it must come before progress starts its thread
        with progress("starting the simulated clusters") as shown:
            _make_ready(directory, ports, workers, proxy, edge, clusters, redis=redis, shown=shown)
        print(_greeting(path, ports, edited, kept=kept, redis=redis, tunnel=tunnel), flush=True)
        print("ready", flush=True)
        _watch(proxy, clusters)


def _cluster_options(path: Path, name: str, port: int) -> tuple[str, ...]:
    """Return the options of a simulated cluster. Its pods have a separate address range and reach the other's pods."""
    others = [option for each in demo_files.CLUSTERS if each != name for option in ("--routes-to", str(path / each))]
    return (*CLUSTER_OPTIONS, "--pod-network", demo_files.POD_NETWORKS[name], *others, "--port", str(port))


def _make_ready(
    directory: DemoDirectory,
    ports: dict[str, int],
    workers: str,
    proxy: Proxy,
    edge: Proxy | None,
    clusters: list[ForkedCluster],
    *,
    redis: bool,
    shown: Progress,
) -> None:
    """Write the files and give the daemons theirs; return when proxy and clusters answer. Raises DemoError."""
    from kubesim.server import serve

    path, port = directory.path, ports["proxy"]
    edited = _edited(directory)
    tunnel = edge is not None
    demo_files.write_certificates(path, tunnel=tunnel)
    directory.write(demo_files.KUBECONFIG_FILE, demo_files.kubeconfig(port, tunnel=tunnel))
    try:
        for cluster in clusters:
            cluster.wait_ready(PATIENCE)
    except serve.StartError as error:
        raise DemoError(str(error)) from None
    directory.record({**ports, **{cluster.name: cluster.port for cluster in clusters}})
    directory.write(
        demo_files.CONFIG_FILE,
        demo_files.config(path, ports, clusters[0].url, clusters[-1].url, workers, redis=redis, tunnel=tunnel),
    )
    if edge is not None:
        program = demo_files.program()
        directory.write(demo_tunnel.CONFIG_FILE, demo_tunnel.edge_config(path, port, clusters[1].url, program))
        (path / demo_tunnel.PID_FILE).write_text(f"{edge.process.pid}\n")
        edge.serve(path / demo_tunnel.CONFIG_FILE)
    shown.say("starting the proxy")
    proxy.serve(path / demo_files.CONFIG_FILE)
    own = path / demo_files.CONFIG_FILE not in edited
    asked = [("", f"/clusters/{name}/version") for name in demo_files.CLUSTERS]
    asked += [(demo_files.FLEET_NAME, METRICS), ("", EXPORTED)]
    try:
        proxy.wait_ready(port, path / "ca.crt", asked if own else [("", "/")], only_200=own, edge=edge)
    except DemoError as error:
        if own:
            raise
        config = path / demo_files.CONFIG_FILE
        raise DemoError(f"{error}\n{config} was edited and is kept; remove it to have it generated again") from None


def _stop_clusters(clusters: list[ForkedCluster]) -> None:
    for cluster in clusters:
        cluster.terminate()
    for cluster in clusters:
        cluster.stop(STOP_PATIENCE)


def _watch(proxy: Proxy, clusters: list[ForkedCluster]) -> None:
    """Wait until a process ends. Raises DemoError then, or Stopped at a signal."""
    parts = [("the proxy", proxy.process.pid, proxy.log)]
    parts += [(_described(each.name), each.pid, each.log) for each in clusters]
    with contextlib.ExitStack() as descriptors:
        watched = {}
        for name, pid, log in parts:
            descriptor = os.pidfd_open(pid)
            descriptors.callback(os.close, descriptor)
            watched[descriptor] = (name, log)
        ended, _, _ = select.select(list(watched), [], [])
        name, log = watched[ended[0]]
        raise DemoError(f"{name} has exited by itself, so the demo ends too. Its last output:\n{last_lines(log)}")


def _described(name: str) -> str:
    return "the API server" if name == demo_files.API_SERVER else f"the simulated cluster {name}"


def _greeting(
    directory: Path, ports: dict[str, int], edited: list[Path], *, kept: bool, redis: bool, tunnel: bool
) -> str:
    contexts = ["fleet", "east", "west", "east-by-name", "editor", "administrator"]
    contexts += [demo_tunnel.CONTEXT] if tunnel else []
    lines = [
        f"Two simulated clusters, east and west, and an API server behind mcproxy on https://{HOST}:{ports['proxy']}",
        "",
        f"  status page    http://{HOST}:{ports['admin']}/",
        f"  ingress        http://{HOST}:{ports['web']}/",
        f"  kubeconfig     {directory / demo_files.KUBECONFIG_FILE}",
        f"                 (contexts {', '.join(contexts)})",
        f"  configuration  {directory / demo_files.CONFIG_FILE}",
        f"  CA             {directory / 'ca.crt'}",
        f"  logs           {directory / 'mcproxy.log'} and access.log beside it",
    ]
    if tunnel:
        lines += [f"  edge           {directory / demo_tunnel.CONFIG_FILE}, log {directory / demo_tunnel.LOG_FILE}"]
        lines += ["", demo_tunnel.NOTICE]
    for path in edited:
        lines += ["", f"{path} was edited and is kept as it is; remove it to have it generated again."]
    if edited:
        lines += ["The commands fit the files that the demo writes."]
    lines += ["", "Try, in another terminal:"]
    for heading, group in demo_files.commands(directory, ports, redis=redis, tunnel=tunnel):
        lines += ["", heading]
        for command in group:
            lines += ["", f"  # {command.about}", f"  {command.line}"]
    left = f"keeps what is in {directory}" if kept else "leaves nothing behind"
    lines += ["", f"With -w a get follows the changes. Ctrl-C ends the demo and {left}.", ""]
    return "\n".join(lines)
