"""Two simulated clusters behind the aggregate `fleet`, served by a daemon, with a context for each user."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

from kubesim.auth.certificates import Authority
from tests.e2e.http_client import Address
from tests.e2e.processes import Daemon, Kubectl
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER, kubeconfig_of
from tests.support.ports import reserved_port

CLUSTERS = ("east", "west")
USERS: dict[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "alice": (),
    "editor": ("shop-editors",),
    "nobody": (),
    "stranger": (),
    "of-east": (),
    "of-west": (),
}
"""The users that the proxy knows by a token that is their name, and their groups."""

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s{state}}}
"""
    + PUBLIC_LISTENER
    + """\
authentication:
  - name: users
    tokenFile: users.csv
    allowSystemNames: true
clusters:
{clusters}
aggregates:
  - name: fleet
    clusters: [{members}]
    {primary}
    {aggregate}
    cache:
      resources:
{resources}
    create:
      - {{apiGroups: ["*"], resources: ["*"], to: Label}}
    conflicts: [{conflicts}]
servers:
  - {{name: fleet, default: true, authentication: users, backend: {{aggregate: fleet}}}}
logging: {{access: {{file: access.log}}}}
"""
)
_CLUSTER = """\
  - name: {name}
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
    healthCheck: {{interval: 1s, timeout: 3s}}
"""
_CONFLICT = '{apiGroups: [""], resources: [resourcequotas], to: west, show: One}'
RESOURCES = """\
        - {group: "", version: v1, resource: "*"}
        - {group: "", version: v1, resource: secrets}
        - {group: apps, version: v1, resource: "*"}
        - {group: metrics.k8s.io, version: v1beta1, resource: "*"}
"""


class AggregateEnvironment:
    """The clusters and the proxy; start and stop it once for many tests."""

    def __init__(self, directory: Path, *, options: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self.clusters = {
            name: SimulatedClusterProcess(name, options=options, directory=directory / name) for name in CLUSTERS
        }
        self.port = reserved_port()
        self.authority = Authority("e2e CA")
        self.ca = directory / "ca.crt"
        self.home = directory / "home"
        self.daemons: list[Daemon] = []
        self.members: tuple[str, ...] = CLUSTERS
        self.resources = RESOURCES
        self.aggregate = ""
        self.primary = "primary: east"
        self.state = ""
        self.conflicts = _CONFLICT

    def start(self) -> AggregateEnvironment:
        for cluster in self.clusters.values():
            cluster.spawn()
        names = ["127.0.0.1", "localhost"]
        self.authority.server(names).write(self.directory, "proxy")
        self.ca.write_bytes(self.authority.pem)
        self.home.mkdir()
        lines = [f'{user},{user},,"{",".join(groups)}"' for user, groups in USERS.items()]
        (self.directory / "users.csv").write_text("\n".join(lines) + "\n")
        for cluster in self.clusters.values():
            cluster.wait_ready()
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        self.start_daemon()
        return self

    def start_daemon(self) -> Daemon:
        """Start the daemon (another one, if one runs) with the configuration as it is now."""
        self.daemons.append(Daemon(self.directory, self.config()).start())
        return self.daemon

    @property
    def daemon(self) -> Daemon:
        return self.daemons[-1]

    def reload(self) -> None:
        """Write the configuration as it is now, and reload it."""
        self.daemon.file.write_text(self.config())
        done = self.daemon.reload()
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        for daemon in self.daemons:
            daemon.stop()
        for cluster in self.clusters.values():
            cluster.cleanup()

    def config(self) -> str:
        """The configuration, filled in."""
        clusters = "".join(
            _CLUSTER.format(name=name, url=cluster.urls[0], ca=cluster.ca) for name, cluster in self.clusters.items()
        )
        return CONFIG.format(
            port=self.port,
            clusters=clusters,
            members=", ".join(self.members),
            primary=self.primary,
            aggregate=self.aggregate,
            # A rule for a cluster that is not a member is an error.
            conflicts=self.conflicts if "west" in self.members and "west" in self.clusters else "",
            resources=self.resources,
            state=self.state,
        )

    def control(self, name: str) -> ControlClient:
        return ControlClient(self.clusters[name].control_url)

    @property
    def address(self) -> Address:
        return Address(self.port, ssl.create_default_context(cadata=self.authority.pem.decode()))

    def _kubeconfig(self) -> dict[str, Any]:
        clusters = [
            {
                "name": "fleet",
                "cluster": {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.ca)},
            }
        ]
        clusters += [
            {"name": name, "cluster": {"server": cluster.urls[0], "certificate-authority": cluster.ca}}
            for name, cluster in self.clusters.items()
        ]
        users = [{"name": name, "user": {"token": name}} for name in USERS]
        users.append({"name": "direct", "user": {"token": "admin-test-token"}})
        contexts = [
            {"name": name, "context": {"cluster": "fleet", "user": name, "namespace": "demo"}} for name in USERS
        ]
        contexts += [
            {"name": name, "context": {"cluster": name, "user": "direct", "namespace": "demo"}} for name in CLUSTERS
        ]
        return kubeconfig_of(
            clusters,
            users,
            contexts,
            "admin",
        )

    def kubectl(self, program: str, context: str = "admin") -> Kubectl:
        """kubectl as a user of the aggregate, or directly at the cluster of that name."""
        return Kubectl(program, str(self.kubeconfig), context, self.home)
