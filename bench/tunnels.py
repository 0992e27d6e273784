"""`bench tunnels`: clusters that dial out: idle tunnels at the hub, a restart of the hub, a GET, and a distant site.

The GET is compared with the same two hops without a tunnel: a hub whose cluster is the other daemon's own address. The
stream of a distant site, as of `kubectl cp`, is compared with the same stream without any proxy, both through a relay
that delays each direction by half the round trip, and passes on 1 Gbit/s: without that limit both are bound by the
processor, which all programs of this machine share.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import time
from pathlib import Path
from typing import Any

from bench import configs, pki
from bench.client import client_context, connect, parse_answer, send_get
from bench.lab import Lab
from bench.meter import Meter
from bench.processes import Failed, Process, free_port, wait_for_port
from bench.report import Section, limit
from bench.subjects import mcproxy_argv, script_argv
from bench.tunnel_stream import UPGRADED

_TIMEOUT = 60.0
_SETTLE = 3.0  # seconds before memory is looked at
_TUNNELS = "tunnels.test"
_ROUND_TRIP = 0.1
_RATE = 125_000_000  # bytes a second of the line to the distant site: 1 Gbit/s


def measure(lab: Lab, edges: int, seconds: float, requests: int, size: int, rounds: int) -> list[Section]:
    """Measure with so many edges, seconds of idleness, GETs and bytes."""
    return [_idle(lab, edges, seconds), _get(lab, requests, rounds), _distant(lab, size, rounds)]


# -- idle tunnels ------------------------------------------------------------------------------------------------------


def _idle(lab: Lab, edges: int, seconds: float) -> Section:
    place = lab.place("tunnels", 0)
    tokens = place.directory / "tokens"
    tokens.mkdir()
    names = [f"edge-{number}" for number in range(edges)]
    for name in names:
        (tokens / name).write_text(f"token-of-{name}")
    (place.directory / "users.csv").write_text("".join(f"token-of-{name},{name},{name}\n" for name in names))
    document: dict[str, Any] = {
        "version": 1,
        **_listening(lab, place.listen),
        "tunnels": [{"name": name, "users": [name]} for name in names],
        "authentication": [{"name": "edges", "tokenFile": "users.csv"}],
        "servers": [_tunnel_server(default=True)],
    }
    argv = mcproxy_argv(_write(place.directory / "hub.yaml", document), place.python)
    hub = lab.processes.start("hub", argv, lab.cores.proxy)
    wait_for_port(hub, place.listen)
    time.sleep(_SETTLE)
    before = hub.rss()
    count_port = free_port()
    authority = str(lab.identity.authority)
    url = f"https://127.0.0.1:{place.listen}"
    arguments = [url, authority, str(tokens), str(edges), str(count_port)]
    dialling = lab.processes.start("edges", [*script_argv("tunnel_edges.py", place.python), *arguments], lab.cores.load)
    _until_up(dialling, count_port, edges)
    time.sleep(_SETTLE)
    memory = (hub.rss() - before) / edges
    meter = Meter(hub, lab.cores.proxy)
    time.sleep(seconds)
    share = meter.read().busy
    os.kill(hub.pid, signal.SIGKILL)
    time.sleep(0.5)
    lab.processes.stop(hub)
    began = time.monotonic()
    hub = lab.processes.start("hub", argv, lab.cores.proxy)
    _until_up(dialling, count_port, edges)
    back = time.monotonic() - began
    section = Section(f"{edges} idle tunnels at a hub", ["figure", "measured"])
    section.rows += [
        ["memory of a tunnel", f"{memory / 1000:,.1f} kB"],
        [f"processor time over {seconds:g} s", f"{share:.2%} of a core"],
        ["all back after the hub was killed and started", f"{back:.1f} s"],
    ]
    section.targets += [
        limit("memory of an idle tunnel at the hub", [memory / 1000], unit="kB", at_most=150),
        limit(f"processor time of {edges} idle tunnels", [100 * share], unit="% of a core", at_most=2),
        limit(f"{edges} edges are back after a restart of the hub", [back], unit="s", at_most=15),
    ]
    for process in (dialling, hub):
        lab.processes.stop(process)
    return section


def _until_up(process: Process, port: int, wanted: int) -> None:
    deadline = time.monotonic() + _TIMEOUT
    wait_for_port(process, port)
    while (found := _count(port)) < wanted:
        process.check()
        if time.monotonic() > deadline:
            raise Failed(f"{found} of {wanted} tunnels are up after {_TIMEOUT:.0f} s:\n{process.last_words()}")
        time.sleep(0.05)


def _count(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), _TIMEOUT) as connection:
        return int(connection.recv(100) or b"0")


# -- a hub and an edge -------------------------------------------------------------------------------------------------


class _Pair:
    """A hub with two clusters, `tunnel` and `plain`, which are the same edge; its upstream is at `upstream`."""

    def __init__(self, lab: Lab, name: str, upstream: int, *, through: int = 0, hub_port: int = 0) -> None:
        """`through`: the port that the edge dials, of a relay to the hub; 0: the hub's own."""
        hub, edge = lab.place(f"{name}-hub", 0), lab.place(f"{name}-edge", upstream)
        self.port = hub_port or hub.listen
        (hub.directory / "users.csv").write_text("edge-token,edge,edge\n")
        (edge.directory / "token").write_text("edge-token")
        identity = lab.identity
        tls = {"caFile": str(identity.authority), "serverName": "localhost"}
        check = {"path": "/readyz", "interval": "1s"}
        clusters = [
            {"name": "tunnel", "endpoints": [{"tunnel": "site"}], "identity": "RequestHeader", "healthCheck": check},
            {
                "name": "plain",
                "endpoints": [{"url": f"https://127.0.0.1:{edge.listen}"}],
                "tls": tls,
                "identity": "Passthrough",
                "healthCheck": check,
            },
        ]
        servers = [
            {"name": "all", "default": True, "backend": {"clusters": "*"}, "authentication": "none"},
            _tunnel_server(),
        ]
        hub_file = {
            "version": 1,
            **_listening(lab, self.port),
            "tunnels": [{"name": "site", "users": ["edge"]}],
            "clusters": clusters,
            "authentication": [{"name": "edges", "tokenFile": "users.csv"}],
            "servers": servers,
        }
        dial = {
            "tunnel": "site",
            "urls": [f"https://127.0.0.1:{through or self.port}"],
            "serverName": _TUNNELS,
            "tls": {"caFile": str(_identity(lab).authority)},
            "credentials": {"tokenFile": "token"},
        }
        listening = _listening(lab, edge.listen)
        listening["listeners"].append({"name": "hub", "dial": dial})
        local = {
            "name": "local",
            "endpoints": [{"url": f"https://127.0.0.1:{upstream}"}],
            "tls": tls,
            "credentials": {"token": configs.TOKEN},
            "identity": "Proxy",
            "healthCheck": {"path": "/readyz"},
        }
        edge_file = {
            "version": 1,
            **listening,
            "clusters": [local],
            "authentication": [
                {"name": "from-hub", "requestHeader": {"listeners": ["hub"], "hubUser": "hub"}, "anonymous": _ANYBODY}
            ],
            "authorization": [{"name": "all", "rules": _ALL}],
            "servers": [
                {
                    "name": "site",
                    "listeners": ["tls", "hub"],
                    "default": True,
                    "backend": {"cluster": "local"},
                    "authentication": "from-hub",
                    "authorization": "all",
                }
            ],
        }
        self._lab = lab
        self._processes = []
        for each, place, document, core in (
            ("hub", hub, hub_file, lab.cores.proxy),
            ("edge", edge, edge_file, lab.cores.upstream),
        ):
            file = _write(place.directory / f"{each}.yaml", document)
            process = lab.processes.start(f"{name}-{each}", mcproxy_argv(file, place.python), core)
            wait_for_port(process, self.port if each == "hub" else edge.listen)
            self._processes.append(process)

    def wait(self, path: str) -> None:
        """Wait until both ways answer."""
        for cluster in ("tunnel", "plain"):
            deadline = time.monotonic() + _TIMEOUT
            while (status := self.status(cluster, path)) != 200:
                if time.monotonic() > deadline:
                    words = "\n".join(each.last_words() for each in self._processes)
                    raise Failed(f"cluster {cluster} answers {status}:\n{words}")
                time.sleep(0.1)

    def status(self, cluster: str, path: str) -> int:
        with connect(self.port, client_context(self._lab)) as connection:
            return _ask(connection, f"/clusters/{cluster}{path}")

    def stop(self) -> None:
        for process in self._processes:
            self._lab.processes.stop(process)


def _ask(connection: Any, path: str) -> int:
    send_get(connection, path)
    received = b""
    while (answer := parse_answer(received)) is None:
        more = connection.recv(1 << 18)
        if not more:
            return 0
        received += more
    return answer.status


def _get(lab: Lab, requests: int, rounds: int) -> Section:
    """Compare the time of a GET through a tunnel with that over the same two hops."""
    pair = _Pair(lab, "get", lab.start_nginx_upstream())
    pair.wait(configs.OBJECT_PATH)
    found: dict[str, list[float]] = {"tunnel": [], "plain": []}
    for _ in range(max(rounds, 3)):
        for cluster, medians in found.items():
            with connect(pair.port, client_context(lab)) as connection:
                times = []
                for _ in range(requests):
                    began = time.perf_counter()
                    if _ask(connection, f"/clusters/{cluster}{configs.OBJECT_PATH}") != 200:
                        raise Failed(f"a GET through {cluster} was not answered with 200")
                    times.append(time.perf_counter() - began)
            medians.append(1000 * statistics.median(times))
    pair.stop()
    more = [tunnel - plain for tunnel, plain in zip(found["tunnel"], found["plain"], strict=True)]
    section = Section("A GET of 1.1 KB through a tunnel, one connection", ["way", "median ms"])
    for cluster, name in (("plain", "hub and edge without a tunnel"), ("tunnel", "through the tunnel")):
        section.rows.append([name, f"{statistics.median(found[cluster]):.3f}"])
    section.targets.append(limit("a GET through a tunnel, more than over two hops", more, unit="ms", at_most=0.3))
    return section


# -- a distant site ----------------------------------------------------------------------------------------------------


def _distant(lab: Lab, size: int, rounds: int) -> Section:
    """Compare the rate of a stream, as of kubectl cp, with that without proxies, at the same distance."""
    server, near, far = free_port(), free_port(), free_port()
    identity = lab.identity
    script, line = script_argv("tunnel_stream.py"), [str(_ROUND_TRIP / 2), str(_RATE)]
    hub_port = free_port()
    started = [
        lab.processes.start(
            "site", [*script, "serve", str(server), str(identity.certificate), str(identity.key), str(size)],
            lab.cores.upstream,
        ),
        lab.processes.start("direct-relay", [*script, "relay", str(near), str(server), *line], lab.cores.load),
        lab.processes.start("tunnel-relay", [*script, "relay", str(far), str(hub_port), *line], lab.cores.load),
    ]  # fmt: skip
    for process, port in zip(started, (server, near, far), strict=True):
        wait_for_port(process, port)
    pair = _Pair(lab, "distant", server, through=far, hub_port=hub_port)
    pair.wait("/readyz")
    rates: dict[str, list[float]] = {"direct": [], "tunnel": []}
    for _ in range(max(1, min(rounds, 3))):
        rates["direct"].append(_stream(lab, near, "/exec", size))
        rates["tunnel"].append(_stream(lab, pair.port, "/clusters/tunnel/exec", size))
    pair.stop()
    for process in started:
        lab.processes.stop(process)
    shares = [100 * tunnel / direct for tunnel, direct in zip(rates["tunnel"], rates["direct"], strict=True)]
    section = Section(
        f"A stream of {size / 2**20:,.0f} MiB from a site at {1000 * _ROUND_TRIP:g} ms and 1 Gbit/s", ["way", "MB/s"]
    )
    for way, values in rates.items():
        section.rows.append([way, f"{statistics.median(values):,.1f}"])
    section.targets.append(limit("a stream at 100 ms through a tunnel", shares, unit="% of direct", at_least=90))
    return section


def _stream(lab: Lab, port: int, path: str, size: int) -> float:
    """Return the rate in MB/s of one stream after an upgrade, with the time until it begins."""
    with connect(port, client_context(lab)) as connection:
        began = time.perf_counter()
        send_get(connection, path, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n")
        received = 0
        head = b""
        while b"\r\n\r\n" not in head:
            head += _more(connection)
        if not head.startswith(UPGRADED[:12]):
            raise Failed(f"no upgrade: {head[:300]!r}")
        received = len(head.partition(b"\r\n\r\n")[2])
        while received < size:
            received += len(_more(connection))
        return size / 1e6 / (time.perf_counter() - began)


def _more(connection: Any) -> bytes:
    data: bytes = connection.recv(1 << 20)
    if not data:
        raise Failed("a stream ended too early")
    return data


# -- files -------------------------------------------------------------------------------------------------------------

_ANYBODY = {"enabled": True}
_ALL = [
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
]


def _listening(lab: Lab, port: int) -> dict[str, Any]:
    identities = {"own": lab.identity, "tunnels": _identity(lab)}
    return {
        "daemon": {"controlSocket": "control.sock"},
        "listeners": [{"name": "tls", "bind": f"127.0.0.1:{port}", "tls": {"certificates": [*identities]}}],
        "certificates": [
            {"name": name, "certFile": str(identity.certificate), "keyFile": str(identity.key)}
            for name, identity in identities.items()
        ],
    }


def _identity(lab: Lab) -> pki.Identity:
    """Return the certificate of hubs for edges."""
    directory = lab.directory / "tls-of-tunnels"
    if not directory.exists():
        return pki.make_identity(directory, "tunnels", _TUNNELS)
    return pki.Identity(*(directory / f"tunnels{end}" for end in (".crt", ".key", "-ca.crt")))


def _tunnel_server(*, default: bool = False) -> dict[str, Any]:
    server = {"name": "tunnels", "backend": {"tunnels": "*"}, "authentication": "edges"}
    return {**server, "default": True} if default else {**server, "serverNames": [_TUNNELS]}


def _write(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document))
    return path
