"""What is tested: simulated members behind relays, and two proxies with the same aggregates over them."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kubesim.auth.certificates import Authority
from tests.consistency.history import MemberHistory
from tests.consistency.relay import Relay, Relays
from tests.consistency.versions import Layout, decode
from tests.e2e.http_client import Address, ask
from tests.e2e.processes import Daemon, wait_until
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.ports import reserved_port

MEMBERS: Layout = ("east", "north", "west")
PROXIES = ("one", "two")
NAMESPACES = ("blue", "green")
NAMES = 8
"""Objects of each member in each namespace, at most."""
TOKEN, EDGE_TOKEN = "tester-token", "edge-token"
START = 90.0
"""Seconds that a process may take to start, on a machine that has much else to do."""
RELOAD, RELOADS = 60.0, 3
"""Seconds for which an answer to a reload is waited for, and how often it is asked for."""
NUMBER, KARMADA = "fleet.test", "karmada.test"
"""The server names of the two aggregates: both forms of versions over the same caches."""

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 1s, stateDir: state{workers}}}
listeners: [{{name: public, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}]
certificates: [{{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}]
authentication: [{{name: tokens, tokenFile: tokens.csv, allowSystemNames: true}}]
{tunnels}clusters:
{clusters}
aggregates:
  - name: fleet
    clusters: [{layout}]
{former}{common}
  - name: karmada
    clusters: [{layout}]
    resourceVersions: Karmada
{former}{common}
servers:
  - {{name: fleet, serverNames: [{number}], default: true, backend: {{aggregate: fleet}}, authentication: tokens}}
  - {{name: karmada, serverNames: [{karmada}], backend: {{aggregate: karmada}}, authentication: tokens}}
{server}"""
_COMMON = """\
    {reads}
    cache: {{resources: [{{group: "", version: v1, resource: configmaps}}], initialSyncTimeout: 3s}}
    create: [{{apiGroups: ["*"], resources: ["*"], to: Label}}]"""
_CLUSTER = """\
  - name: {name}
    endpoints: [{{url: "https://127.0.0.1:{port}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    connections: {{protocol: {protocol}, connectTimeout: 2s}}
    healthCheck: {{interval: 500ms, timeout: 2s, unhealthyAfter: 2}}
"""
TUNNELLED = "east"
"""The member behind a tunnel, if there is one: both proxies are hubs, and one edge daemon dials both."""
_TUNNELS = """\
tunnels: [{name: site, users: [edge]}]
"""
_TUNNEL_SERVER = """\
  - {name: tunnels, serverNames: [tunnels.test], backend: {tunnels: "*"}, authentication: tokens}
"""
_BEHIND_TUNNEL = """\
  - name: {name}
    endpoints: [{{name: site, tunnel: site}}]
    identity: RequestHeader
    connections: {{protocol: {protocol}, connectTimeout: 2s}}
    healthCheck: {{interval: 500ms, timeout: 2s, unhealthyAfter: 2}}
"""
EDGE = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 1s}}
listeners:
  - name: hub
    dial:
      tunnel: site
      urls: [{urls}]
      serverName: tunnels.test
      tls: {{caFile: ca.crt}}
      credentials: {{tokenFile: token}}
clusters:
  - name: local
    endpoints: [{{url: "https://127.0.0.1:{port}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Impersonate
    connections: {{protocol: {protocol}, connectTimeout: 2s}}
    healthCheck: {{interval: 500ms, timeout: 2s, unhealthyAfter: 2}}
authentication:
  - {{name: from-hub, requestHeader: {{listeners: [hub], hubUser: mcproxy-hub}}, allowSystemNames: true}}
servers:
  - {{name: site, listeners: [hub], backend: {{cluster: local}}, authentication: from-hub}}
"""
_HUB_MAY = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "mcproxy-hub"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mcproxy-hub"}],
}
TUNNEL_BACK = 90.0
"""Seconds within which an edge has dialled again: its delays grow to a minute while connections do not last."""
READS = {"one": "", "two": "reads: {authorize: Members, cacheAllowed: 2s, staleDecisions: 2s}"}
"""The second proxy forgets soon what the members have decided."""


class NotInForce(Exception):
    """A proxy does not have the layout that it was given, or cannot be asked: nothing can be judged any more."""


@dataclass
class Member:
    """One simulated cluster: what writers and the checker need of it, and a relay before it for each proxy."""

    name: str
    process: SimulatedClusterProcess
    history: MemberHistory
    relays: dict[str, Relay] = field(default_factory=dict)
    protocol: str = "Auto"
    behind_edge: Relay | None = None
    """The relay between the edge and it, if it is behind a tunnel; its `relays` are between the edge and the proxies.
    It makes no faults.
    """
    quiet: bool = False
    """Nobody writes to it past the proxies."""

    @property
    def control(self) -> ControlClient:
        return ControlClient(self.process.control_url)

    @property
    def revision(self) -> int:
        return int(self.control.stats()["revision"])

    @property
    def address(self) -> Address:
        """Where it is reached without a relay."""
        return Address(self.process.ports[1], ssl.create_default_context(cafile=self.process.ca))

    def spawn(self) -> None:
        self.process.spawn()

    def wait_ready(self) -> None:
        """Wait until it serves, and let the relays lead to where it does."""
        self.process.wait_ready(START)
        for relay in self.relays.values() if self.behind_edge is None else (self.behind_edge,):
            relay.target = self.process.ports[0]


@dataclass
class Proxy:
    """One daemon."""

    name: str
    daemon: Daemon
    port: int
    context: ssl.SSLContext
    workers: bool = False

    def address(self, server: str = NUMBER) -> Address:
        return Address(self.port, self.context, server)


class Fleet:
    """All processes. A context manager that leaves none behind."""

    def __init__(
        self, directory: Path, relays: Relays, chance: random.Random, *, workers: bool = False, tunnel: bool = False
    ) -> None:
        """`workers`: whether the second proxy has two; `tunnel`: whether a member is behind one; `chance` draws which
        members speak HTTP/2.
        """
        self.directory = directory
        self.layout: Layout = MEMBERS
        self.former: tuple[str, ...] = ()
        self.members: dict[str, Member] = {}
        self.proxies: dict[str, Proxy] = {}
        self._relays = relays
        self._authority = Authority("consistency CA")
        speaking = chance.sample(MEMBERS, chance.choice((1, 2)))
        for name in MEMBERS:
            data = directory / f"{name}.data"
            options = [
                "--empty",
                "--no-controllers",
                "--endpoints",
                "2",
                "--bookmark-seconds",
                "5",
                "--data",
                str(data),
            ]
            if name in speaking:
                options.append("--http2")
            process = SimulatedClusterProcess(name, options=options, directory=directory / name)
            protocol = "Auto" if name in speaking else "HTTP1"
            self.members[name] = Member(name, process, MemberHistory(name, data), protocol=protocol)
        self.edge: Daemon | None = None
        if tunnel:
            (directory / "edge").mkdir()
            self.edge = Daemon(directory / "edge", "")
        context = ssl.create_default_context(cadata=self._authority.pem.decode())
        for name in PROXIES:
            own = directory / f"proxy-{name}"
            own.mkdir()
            self._authority.server(["127.0.0.1", NUMBER, KARMADA, "tunnels.test"]).write(own, "proxy")
            tokens = own / "tokens.csv"
            tokens.write_text(f'{TOKEN},tester,1,"system:masters"\n{EDGE_TOKEN},edge,2\n')
            tokens.chmod(0o600)
            several = workers and name == PROXIES[1]
            self.proxies[name] = Proxy(name, Daemon(own, ""), reserved_port(), context, several)

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        for member in self.members.values():
            member.spawn()
        for member in self.members.values():
            member.process.wait_ready(START)
            if self.edge is not None and member.name == TUNNELLED:
                self._put_behind_edge(member)
            else:
                member.relays = {name: self._relays.relay(member.process.ports[0]) for name in PROXIES}
            namespaces = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in NAMESPACES]
            member.control.create(namespaces)
        for proxy in self.proxies.values():
            self.write_config(proxy)
            proxy.daemon.spawn()
        if self.edge is not None:
            self.edge.start()
        for proxy in self.proxies.values():
            self.wait_serves(proxy)

    def _put_behind_edge(self, member: Member) -> None:
        assert self.edge is not None
        member.control.create([_HUB_MAY])
        member.behind_edge = self._relays.relay(member.process.ports[0])
        member.relays = {name: self._relays.relay(proxy.port, turned=True) for name, proxy in self.proxies.items()}
        folder = self.edge.directory
        (folder / "ca.crt").write_bytes(self._authority.pem)
        (folder / "token").write_text(EDGE_TOKEN)
        (folder / "token").chmod(0o600)
        urls = ", ".join(f'"https://127.0.0.1:{relay.port}"' for relay in member.relays.values())
        port, ca = member.behind_edge.port, member.process.ca
        self.edge.file.write_text(EDGE.format(urls=urls, port=port, ca=ca, protocol=member.protocol))

    def wait_for_tunnels(self) -> None:
        """Wait until the edge is connected to both proxies, if there is one: for `TUNNEL_BACK` seconds at most."""
        until = time.monotonic() + TUNNEL_BACK
        while self.edge is not None and time.monotonic() < until:
            with contextlib.suppress(OSError, KeyError):
                tunnels = [proxy.daemon.command_answer({"command": "status"}, 5.0) for proxy in self.proxies.values()]
                if all(each["connected"] for status in tunnels for each in status["tunnels"]):
                    return
            time.sleep(0.2)

    def stop(self) -> None:
        if self.edge is not None:
            self.edge.stop()
        for proxy in self.proxies.values():
            proxy.daemon.stop()
        for member in self.members.values():
            with contextlib.suppress(AssertionError, ProcessLookupError):
                os.kill(member.process.pid, signal.SIGCONT)
            member.process.cleanup()

    def write_config(self, proxy: Proxy) -> None:
        """Write the file of a proxy anew, with the present layout."""
        clusters = [
            (_CLUSTER if member.behind_edge is None else _BEHIND_TUNNEL).format(
                name=name,
                port=member.relays[proxy.name].port,
                ca=member.process.ca,
                protocol=member.protocol,
            )
            for name, member in self.members.items()
        ]
        proxy.daemon.file.write_text(
            CONFIG.format(
                port=proxy.port,
                clusters="".join(clusters).rstrip(),
                layout=", ".join(self.layout),
                former=f"    formerMembers: [{', '.join(self.former)}]\n" if self.former else "",
                common=_COMMON.format(reads=READS[proxy.name]).replace("    \n", ""),
                workers=", workers: 2" if proxy.workers else "",
                tunnels=_TUNNELS if self.edge is not None else "",
                server=_TUNNEL_SERVER if self.edge is not None else "",
                number=NUMBER,
                karmada=KARMADA,
            )
        )

    def reload(self, layout: Sequence[str], former: Sequence[str] = ()) -> None:
        """Give both proxies another layout. Raises NotInForce if they are not known to have it."""
        self.layout, self.former = tuple(layout), tuple(former)
        for proxy in self.proxies.values():
            self.write_config(proxy)
            put_in_force(proxy)

    def wait_serves(self, proxy: Proxy) -> None:
        """Wait until a proxy that was started takes requests."""
        wait_until("mcproxy is ready", lambda: bool(proxy.daemon.lines('msg="mcproxy is ready"')), START)

    def restart(self, proxy: Proxy, *, kill: bool) -> None:
        """End a proxy, and start it again; its log goes on in another file."""
        if kill:
            proxy.daemon.stop()
        else:
            proxy.daemon.signal(signal.SIGTERM)
            proxy.daemon.end()
        log = proxy.daemon.log_file
        log.rename(log.with_name(f"mcproxy-{len(list(log.parent.glob('mcproxy*.log')))}.log"))
        proxy.daemon.spawn()
        self.wait_serves(proxy)

    def part(self, proxy: Proxy, member: Member) -> int:
        """Return the version that a proxy has of a member; 0 if it cannot be told now."""
        headers = [("Authorization", f"Bearer {TOKEN}")]
        try:
            answer = ask(proxy.address(), "/api/v1/configmaps?resourceVersion=0", headers=headers, host=NUMBER)
            return decode(answer.json["metadata"]["resourceVersion"], [self.layout]).part(member.name)
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            return 0

    def logs(self) -> Mapping[str, str]:
        """Return the text of all logs of the proxies."""
        found = {}
        daemons = {proxy.name: proxy.daemon for proxy in self.proxies.values()}
        for name, daemon in {**daemons, **({} if self.edge is None else {"edge": self.edge})}.items():
            for file in sorted(daemon.directory.glob("mcproxy*.log")):
                found[f"{name}/{file.name}"] = file.read_text(errors="replace")
        return found


def put_in_force(proxy: Proxy, timeout: float = RELOAD) -> None:
    """Have a proxy reload its file, until it says that it has done so.

    A reload that is not answered in time is made later, or not at all; the next one that is answered began after it,
    so what it has read is in force. Raises NotInForce if it is refused, or none is answered.
    """
    why = ""
    for _ in range(RELOADS):
        try:
            done = proxy.daemon.reload_quickly(timeout)
        except OSError as error:
            why = f"{type(error).__name__}: {error}"
            continue
        if done.get("ok") is not True:
            raise NotInForce(f"proxy {proxy.name} refuses to reload: {done.get('errors')}")
        return
    raise NotInForce(f"proxy {proxy.name} answers no reload, {RELOADS} were asked for in {timeout:g} s each: {why}")
