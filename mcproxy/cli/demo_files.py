"""The files of `mcproxy demo` (certificates, configuration, kubeconfig) and the commands that it prints.

Nothing here starts anything; `mcproxy.cli.demo` does.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = [
    "CLUSTERS",
    "CONFIG_FILE",
    "KUBECONFIG_FILE",
    "NAMES",
    "REDIS_SOCKET",
    "Command",
    "commands",
    "config",
    "kubeconfig",
    "write_certificates",
]

JSONDict = dict[str, Any]
CLUSTERS = ("east", "west")
EAST_NAME = "east.demo.test"
"""The TLS server name of the virtual server of the cluster east."""
USERS_NAME = "users.demo.test"
"""The TLS server name of the virtual server whose users have client certificates."""
FLEET_NAME = "fleet.demo.test"
"""The TLS server name of the virtual server of both clusters as one."""
USERS = {"editor": "shop-editors", "administrator": "administrators"}
"""The users with a client certificate, and the group of each; `mcproxy.demo.fixtures` binds these groups to roles."""
CONFIG_FILE = "mcproxy.yaml"
KUBECONFIG_FILE = "kubeconfig"
REDIS_SOCKET = "redis.sock"
NAMES = (
    CONFIG_FILE,
    KUBECONFIG_FILE,
    *("ca.crt", "mcproxy.crt", "mcproxy.key", "users-ca.crt"),
    *(f"{user}.{kind}" for user in USERS for kind in ("crt", "key")),
    *CLUSTERS,
    *("mcproxy.log", "access.log", REDIS_SOCKET),
)
"""All files and directories that the demo writes."""
LONGEST_SOCKET_PATH = 107
"""Bytes; the kernel's limit for the path of a unix socket (unix(7))."""

_CONFIG = """\
# The configuration of `mcproxy demo`: two simulated clusters behind one address. While the demo runs, edit this file
# and apply it with
#     mcproxy reload -c {file}
version: 1

daemon:
{control}  drainTimeout: 1s
  workers: {workers}                   # processes that share the address
{shared_state}
listeners:
  - name: local
    bind: "127.0.0.1:{port}"
    tls: {{certificates: [demo]}}
  - name: admin                # status page, health checks, metrics: http://127.0.0.1:{admin_port}/
    serves: Admin
    bind: "127.0.0.1:{admin_port}"

certificates:
  - {{name: demo, certFile: mcproxy.crt, keyFile: mcproxy.key}}

clusters:
  # identity: Proxy gives the rights of the credentials to everyone who can connect. It is meant for a loopback
  # address, as here.
  - name: east                 # a cluster by its address and a client certificate
    endpoints:
      - {{name: a, url: "{east}"}}
    tls: {{caFile: east/ca.crt}}
    credentials: {{certFile: east/admin.crt, keyFile: east/admin.key}}
    identity: Proxy
  - name: west                 # and one by a kubeconfig
    kubeconfig: {{file: west/kubeconfig, context: west}}
    identity: Proxy
  # identity: Impersonate passes the user on, and the cluster's own RBAC decides what that user may do. The credentials
  # are of a user who may impersonate others, and little else.
  - name: east-for-users
    endpoints:
      - {{name: a, url: "{east}"}}
    tls: {{caFile: east/ca.crt}}
    credentials: {{certFile: east/mcproxy.crt, keyFile: east/mcproxy.key}}
    identity: Impersonate

authentication:
  - name: users                # the user is the certificate's CN, the groups are its O
    clientCertificates: {{caFile: users-ca.crt}}

aggregates:
  - name: fleet                # both clusters as one: their objects are read into memory and served from there
    clusters: [east, west]
    primary: east              # answers what is not cached
    cache:
      resources:
        - {{group: "", version: v1, resource: "*"}}     # never secrets
        - {{group: apps, version: v1, resource: "*"}}
        - {{group: batch, version: v1, resource: "*"}}
        - {{group: example.com, version: v1, resource: widgets}}
    create:                    # where a new object goes: to the cluster that its label mcproxy.io/cluster names
      - {{apiGroups: ["*"], resources: ["*"], to: Label}}

flowControls:
  - {{name: three-at-once, type: TokenBucket, qps: 0.5, burst: 3, per: User}}     # then one every two seconds
{shared_limit}
servers:
  - name: all                  # each cluster under its path: https://127.0.0.1:{port}/clusters/NAME
    default: true
    backend: {{clusters: [east, west]}}
  - name: east                 # east at the root, for clients that send this TLS server name
    serverNames: [{east_name}]
    backend: {{cluster: east}}
  - name: fleet                # east and west as one
    serverNames: [{fleet_name}]
    backend: {{aggregate: fleet}}
  - name: users                # east again, for users with certificates
    serverNames: [{users_name}]
    backend: {{cluster: east-for-users}}
    authentication: users
    dispatch:                  # the first policy with a matching rule applies; what matches none is 403
      - name: namespaces-stay
        rules: [{{verbs: [delete, deletecollection], apiGroups: [""], resources: [namespaces]}}]
        reject: {{code: 403, message: "no namespace is deleted through this server"}}
      - name: events-are-limited
        rules: [{{verbs: [list], apiGroups: ["", events.k8s.io], resources: [events]}}]
        flowControl: three-at-once
      - name: everything-else
{shared_policy}        rules:
          - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
          - {{verbs: ["*"], nonResourceURLs: ["*"]}}

logging:
  access: {{file: access.log}}
"""


_SHARED_STATE = """\
  sharedState:                 # where replicas count what is to hold over all of them; started by the demo
    redis: {{url: "unix://{socket}"}}
"""
_SHARED_LIMIT = """\
  # Over all replicas of the proxy. To have a second one, copy this file, write another port and another controlSocket,
  # and say mcproxy run -c COPY: each then has 100, or more while the other needs less.
  - {name: all-replicas, type: MaxRequestsInflight, max: 200, shared: true}
"""
_SHARED_POLICY = """\
        flowControl: all-replicas
"""


@dataclass(frozen=True)
class Command:
    """A command to try: what it shows, its shell command line, and its exit status."""

    about: str
    line: str
    status: int = 0


def write_certificates(directory: Path) -> None:
    """Write the certificates of the proxy and of the users, each with their CA. The CAs' keys are not kept."""
    from mcproxy.demo.auth.certificates import Authority  # takes as long to import as the rest of the command

    authority = Authority("mcproxy demo CA")
    (directory / "ca.crt").write_bytes(authority.pem)
    authority.server(["127.0.0.1", "::1", "localhost", EAST_NAME, USERS_NAME, FLEET_NAME]).write(directory, "mcproxy")
    users = Authority("mcproxy demo users CA")
    (directory / "users-ca.crt").write_bytes(users.pem)
    for user, group in USERS.items():
        users.client(user, (group,)).write(directory, user)


def config(directory: Path, ports: Mapping[str, int], east: str, workers: str = "1", *, redis: bool = False) -> str:
    """Return the proxy's configuration; `east` is the URL of that cluster (west's is in its kubeconfig).

    `ports` has those of the listeners, `proxy` and `admin`.
    `workers` is the value of `daemon.workers`; `redis`: there is one, for a limit over replicas.
    """
    socket = quote(str(directory / REDIS_SOCKET))
    fits = len(bytes(directory / "control.sock")) <= LONGEST_SOCKET_PATH
    return _CONFIG.format(
        file=shlex.quote(str(directory / CONFIG_FILE)),
        control="  controlSocket: control.sock\n" if fits else "",
        port=ports["proxy"],
        admin_port=ports["admin"],
        workers=workers,
        shared_state=_SHARED_STATE.format(socket=socket) if redis else "",
        shared_limit=_SHARED_LIMIT if redis else "",
        shared_policy=_SHARED_POLICY if redis else "",
        east=east,
        east_name=EAST_NAME,
        users_name=USERS_NAME,
        fleet_name=FLEET_NAME,
    )


def kubeconfig(port: int) -> str:
    """Return a kubeconfig: east and west by path, the other servers by TLS name, users by certificate."""
    base = f"https://127.0.0.1:{port}"
    authority = {"certificate-authority": "ca.crt"}
    clusters: dict[str, JSONDict] = {name: {"server": f"{base}/clusters/{name}", **authority} for name in CLUSTERS}
    clusters["fleet"] = {"server": base, "tls-server-name": FLEET_NAME, **authority}
    clusters["east-by-name"] = {"server": base, "tls-server-name": EAST_NAME, **authority}
    contexts = [{"name": name, "context": {"cluster": name, "user": "anybody"}} for name in clusters]
    clusters["users"] = {"server": base, "tls-server-name": USERS_NAME, **authority}
    contexts += [{"name": user, "context": {"cluster": "users", "user": user}} for user in USERS]
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CLUSTERS[0],
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "contexts": contexts,
        "users": [
            # With identity: Proxy tokens are ignored, but without one kubectl prompts for a user name.
            {"name": "anybody", "user": {"token": "not-looked-at"}},
            *(
                {"name": user, "user": {"client-certificate": f"{user}.crt", "client-key": f"{user}.key"}}
                for user in USERS
            ),
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def commands(
    directory: Path, ports: Mapping[str, int], *, redis: bool = False
) -> tuple[tuple[str, tuple[Command, ...]], ...]:
    """Return the commands to try, in groups with a heading each. Each command ends by itself."""
    port = ports["proxy"]

    def file(name: str) -> str:
        return shlex.quote(str(directory / name))

    kubectl = f"kubectl --kubeconfig {file(KUBECONFIG_FILE)}"
    curl = f"curl -sS --cacert {file('ca.crt')}"
    events = f"https://{USERS_NAME}:{port}/api/v1/namespaces/shop/events?limit=[1-5]"
    as_editor = f"--cert {file('editor.crt')} --key {file('editor.key')} --resolve {USERS_NAME}:{port}:127.0.0.1"
    fleet = f"{kubectl} --context fleet"
    columns = r"custom-columns=CLUSTER:.metadata.labels.mcproxy\.io/cluster,COUNT:.data.count"
    replicas = shlex.quote("{mcproxy:all-replicas:short:All}:members")
    shared = (
        "A limit holds over all replicas of the proxy, which count in a Redis:",
        (
            Command(
                "the replicas that share it, here one: until when, since when (ms), of which limit",
                f"redis-cli -s {file(REDIS_SOCKET)} hgetall {replicas}",
            ),
        ),
    )
    ticks = f"-n default get configmaps --field-selector metadata.name=tick -o {shlex.quote(columns)}"
    return (
        (
            "Everybody has the proxy's own rights (identity: Proxy):",
            (
                Command("pods of one cluster", f"{kubectl} --context east -n shop get pods"),
                Command("nodes of the other", f"{kubectl} --context west get nodes"),
                Command(
                    "a shell command in a container",
                    f"{kubectl} --context west -n shop exec deploy/frontend -- hostname",
                ),
                Command(
                    "a log, from a server chosen by TLS name",
                    f"{kubectl} --context east-by-name -n shop logs deploy/search --tail=5",
                ),
                Command("the same address without kubectl", f"{curl} https://127.0.0.1:{port}/clusters/west/version"),
            ),
        ),
        (
            "Both clusters as one (an aggregate), again with the proxy's own rights:",
            (
                Command("pods of both, each with its cluster", f"{fleet} -n shop get pods -L mcproxy.io/cluster"),
                Command("nodes of one of them", f"{fleet} get nodes -l mcproxy.io/cluster=west"),
                Command("changes in both, as they happen", f"{fleet} {ticks} -w | head -n 8"),
                Command(
                    "a log, followed, from the cluster that has the pod",
                    f"{fleet} -n shop logs deploy/warehouse-west -f --tail=2 | head -n 4",
                ),
                Command(
                    "two Deployments, one in each cluster, are scaled",
                    f"{fleet} -n shop scale deploy/warehouse-east deploy/warehouse-west --replicas=3",
                ),
            ),
        ),
        (
            "Users with certificates have the rights that the cluster gives them (identity: Impersonate):",
            (
                Command(
                    "the editor of the namespace shop scales a Deployment",
                    f"{kubectl} --context editor -n shop scale deploy/frontend --replicas=5",
                ),
                Command(
                    "but may not read another namespace: 403 from the cluster",
                    f"{kubectl} --context editor -n monitoring get pods",
                    status=1,
                ),
                Command(
                    "the administrator may",
                    f"{kubectl} --context administrator -n monitoring get pods",
                ),
            ),
        ),
        (
            "Dispatch policies hold for both of them:",
            (
                Command(
                    "one rejects: no namespace is deleted, 403 from the proxy",
                    f"{kubectl} --context administrator delete namespace monitoring",
                    status=1,
                ),
                Command(
                    "one limits: of five lists of events three are 200 and two 429; then one more every two seconds",
                    f"{curl} {as_editor} -o /dev/null -w '%{{http_code}}\\n' {shlex.quote(events)}",
                ),
            ),
        ),
        (
            "What the proxy does and has, for people, balancers and Prometheus:",
            (
                Command(
                    "whether it is ready, check by check",
                    f"curl -sS 'http://127.0.0.1:{ports['admin']}/readyz?verbose'",
                ),
                Command(
                    "its metrics", f"curl -sS http://127.0.0.1:{ports['admin']}/metrics | grep ^mcproxy_requests_total"
                ),
            ),
        ),
        *((shared,) if redis else ()),
    )
