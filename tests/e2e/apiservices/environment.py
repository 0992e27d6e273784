"""A simulated cluster with two API servers of another make beside it, behind a daemon that they delegate to."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kubesim.auth.certificates import Authority
from tests.apiserver.process import APIServerProcess
from tests.e2e.http_client import Address, Answer, ask
from tests.e2e.processes import Daemon, Kubectl
from tests.simulated_cluster.control_client import ControlClient
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.environment import PUBLIC_LISTENER, kubeconfig_of
from tests.support.ports import reserved_port

THINGS, OTHERS = "things.example.com", "others.example.com"
WIDGETS = f"/apis/{THINGS}/v1alpha1/namespaces/demo/widgets"
GADGETS = f"/apis/{OTHERS}/v1alpha1/namespaces/demo/gadgets"
USERS: dict[str, tuple[str, ...]] = {
    "admin": ("system:masters",),
    "alice": ("dev",),
    "maker": ("makers",),
    "stranger": (),
    "api-server": (),
}
"""The users that the proxy knows by a token that is their name, and their groups."""
RULED = "localhost"
"""The name of the server whose authorizer has rules."""

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s{daemon}}}
"""
    + PUBLIC_LISTENER
    + """\
authentication:
  - {{name: users, tokenFile: users.csv, allowSystemNames: true}}
authorization:
  - name: makers
    rules:
      - {{userGroups: [system:masters, makers], verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
      - {{users: [api-server], verbs: [create], apiGroups: ["*"],
         resources: [tokenreviews, subjectaccessreviews]}}
      - {{users: [api-server], verbs: [get], apiGroups: [""], resources: [configmaps]}}
      - {{verbs: [get], nonResourceURLs: ["*"]}}
clusters:
{clusters}
{aggregates}
servers:
  - name: main
    default: true
    backend: {backend}
    authentication: users
    apiServices: &services
      - {{group: {things}, version: v1alpha1, cluster: things, groupPriorityMinimum: 2000}}
      - {{group: {others}, version: v1alpha1, cluster: others}}
  - {{name: ruled, serverNames: [{ruled}], backend: {backend}, authentication: users, authorization: makers,
     apiServices: *services}}
logging: {{access: {{file: access.log}}}}
"""
)
_CLUSTER = """\
  - name: {name}
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    credentials: {{token: admin-test-token}}
"""
_API_SERVER = """\
  - name: {name}
    endpoints: [{{name: a, url: "{url}"}}]
    tls: {{caFile: "{ca}"}}
    identity: RequestHeader
    frontProxy: {{certFile: "{directory}/front-proxy.crt", keyFile: "{directory}/front-proxy.key"}}
    healthCheck: {{interval: 1s, timeout: 3s}}
"""
_FLEET = """\
aggregates:
  - name: fleet
    clusters: [east, west]
    primary: east
    cache: {resources: [{group: "", version: v1, resource: configmaps}]}
    create: [{apiGroups: ["*"], resources: ["*"], to: Label}]
"""
_CLUSTERS_OWN_FRONT_PROXY = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
    "data": {"client-ca-file": "of the cluster", "requestheader-client-ca-file": "of the cluster"},
}
_RBAC = "rbac.authorization.k8s.io"


class APIServices:
    """The cluster `east`, the API servers `things` and `others`, and the daemon; start and stop it for many tests."""

    def __init__(self, directory: Path, *, daemon: str = "", aggregate: bool = False) -> None:
        """`daemon` are more settings of the daemon; `aggregate`: of `east` and `west`, instead of `east` alone."""
        self.directory = directory
        names = ("east", "west") if aggregate else ("east",)
        self.clusters = {name: SimulatedClusterProcess(name, directory=directory / name) for name in names}
        self.port = reserved_port()
        self.authority = Authority("e2e CA")
        self.ca = directory / "ca.crt"
        self.home = directory / "home"
        self.kubeconfig = directory / "kubeconfig"
        # Each asks another server of the proxy: by 127.0.0.1 the one without an authorizer, by name that with rules.
        hosts = {"things": "127.0.0.1", "others": RULED}
        groups = {"things": (THINGS, "widgets:Widget"), "others": (OTHERS, "gadgets:Gadget")}
        self.servers = {
            name: APIServerProcess(
                groups[name][0],
                directory / name,
                resources=[groups[name][1]],
                kubeconfig=self._delegate(name, host),
                looks_up=name == "others",
            )
            for name, host in hosts.items()
        }
        self.things, self.others = self.servers["things"], self.servers["others"]
        self._settings = daemon
        self._aggregate = aggregate
        self._daemon: Daemon | None = None

    def _delegate(self, name: str, host: str) -> Path:
        """Write the kubeconfig of an API server for its questions."""
        cluster = {"server": f"https://{host}:{self.port}", "certificate-authority": str(self.ca)}
        user = {"name": "own", "user": {"token": "api-server"}}
        config = {"kind": "Config", "clusters": [{"name": "proxy", "cluster": cluster}], "users": [user]}
        path = self.directory / f"{name}-delegate.json"
        path.write_text(json.dumps(config))
        return path

    def start(self) -> APIServices:
        processes: list[SimulatedClusterProcess | APIServerProcess] = [*self.clusters.values(), *self.servers.values()]
        for process in processes:
            process.spawn()
        self.authority.server(["127.0.0.1", "localhost"]).write(self.directory, "proxy")
        self.ca.write_bytes(self.authority.pem)
        self.home.mkdir()
        lines = [f'{user},{user},uid-{user},"{",".join(groups)}"' for user, groups in USERS.items()]
        (self.directory / "users.csv").write_text("\n".join(lines) + "\n")
        self.kubeconfig.write_text(json.dumps(self._kubeconfig()))
        for process in processes:
            process.wait_ready()
        for cluster in self.clusters.values():
            ControlClient(cluster.control_url).create([*_roles(), _CLUSTERS_OWN_FRONT_PROXY])
        self._daemon = Daemon(self.directory, self.config())  # before it starts, so that it is ended if it does not
        self._daemon.start()
        self._daemon.wait_for("takes requests", count=len(self.clusters) + len(self.servers))
        return self

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def stop(self) -> None:
        if self._daemon is not None:
            self._daemon.stop()
        for server in self.servers.values():
            server.stop()
        for cluster in self.clusters.values():
            cluster.cleanup()

    def config(self) -> str:
        """The configuration, filled in."""
        clusters = [
            _CLUSTER.format(name=name, url=cluster.url, ca=cluster.ca) for name, cluster in self.clusters.items()
        ]
        clusters += [
            _API_SERVER.format(name=name, url=server.url, ca=server.ca, directory=server.directory)
            for name, server in self.servers.items()
        ]
        return CONFIG.format(
            daemon=self._settings,
            port=self.port,
            clusters="".join(clusters),
            aggregates=_FLEET if self._aggregate else "",
            backend="{aggregate: fleet}" if self._aggregate else "{cluster: east}",
            things=THINGS,
            others=OTHERS,
            ruled=RULED,
        )

    def control(self, name: str = "east") -> ControlClient:
        return ControlClient(self.clusters[name].control_url)

    def address(self, server_name: str = "") -> Address:
        return Address(self.port, ssl.create_default_context(cadata=self.authority.pem.decode()), server_name)

    def direct(self, server: APIServerProcess) -> Address:
        """An API server itself, without a certificate."""
        return Address(server.port, ssl.create_default_context(cafile=str(server.ca)))

    def ask(
        self,
        user: str,
        path: str,
        method: str = "GET",
        body: Any = None,
        headers: Sequence[tuple[str, str]] = (),
        *,
        server_name: str = "",
    ) -> Answer:
        """One request of a user through the proxy."""
        data = None if body is None else json.dumps(body).encode()
        fields = [("Authorization", f"Bearer {user}"), ("Content-Type", "application/json"), *headers]
        address = self.address(server_name)
        return ask(address, path, method=method, headers=fields, body=data, host=server_name)

    def _kubeconfig(self) -> dict[str, Any]:
        server = f"https://127.0.0.1:{self.port}"
        cluster = {"name": "proxy", "cluster": {"server": server, "certificate-authority": str(self.ca)}}
        return kubeconfig_of(
            [cluster],
            [{"name": name, "user": {"token": name}} for name in USERS],
            [{"name": name, "context": {"cluster": "proxy", "user": name, "namespace": "demo"}} for name in USERS],
            "admin",
        )

    def kubectl(self, program: str, user: str = "admin") -> Kubectl:
        return Kubectl(program, str(self.kubeconfig), user, self.home)


def _roles() -> list[dict[str, Any]]:
    """Return what the cluster grants: reviews to API servers, and the two groups' resources to some."""
    reviews = ["authentication.k8s.io", "authorization.k8s.io"], ["tokenreviews", "subjectaccessreviews"], ["create"]
    everything = [THINGS, OTHERS], ["*"], ["*"]
    reading = [THINGS], ["widgets"], ["get", "list", "watch"]
    return [
        *_role("authentication-reader", [""], ["configmaps"], ["get"], {"kind": "User", "name": "api-server"}),
        *_role("delegator", *reviews, {"kind": "User", "name": "api-server"}),
        *_role("makers", *everything, {"kind": "Group", "name": "makers"}),
        *_role("widget-readers", *reading, {"kind": "User", "name": "alice"}),
    ]


def _role(
    name: str, groups: list[str], resources: list[str], verbs: list[str], subject: dict[str, str]
) -> list[dict[str, Any]]:
    kinds = {"apiVersion": f"{_RBAC}/v1", "metadata": {"name": name}}
    rule = {"apiGroups": groups, "resources": resources, "verbs": verbs}
    binding = {
        **kinds,
        "kind": "ClusterRoleBinding",
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": _RBAC, **subject}],
    }
    return [{**kinds, "kind": "ClusterRole", "rules": [rule]}, binding]
