"""The files of `mcproxy demo` (certificates, configuration, kubeconfig) and the commands that it prints.

`mcproxy.cli.demo` starts the processes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcproxy.cli import demo_tunnel
from mcproxy.daemon.interpreter import single_file

__all__ = [
    "API_SERVER",
    "CLUSTERS",
    "CONFIG_FILE",
    "KUBECONFIG_FILE",
    "LISTENERS",
    "NAMES",
    "POD_NETWORKS",
    "REDIS_SOCKET",
    "DemoCommand",
    "commands",
    "config",
    "kubeconfig",
    "write_certificates",
]

JSONDict = dict[str, Any]
CLUSTERS = ("east", "west")
LISTENERS = ("proxy", "admin", "web")
"""The listeners of the proxy: for API servers, for Admin, for the ingress."""
POD_NETWORKS = {"east": "10.244", "west": "10.245"}
"""The first bytes of each cluster's pod addresses. They differ because pods are exported."""
API_SERVER = "apis"
"""The name of a separate API server with metrics.k8s.io of both clusters and a small custom API."""
EAST_NAME = "east.demo.test"
"""The TLS server name of the virtual server for the cluster east."""
USERS_NAME = "users.demo.test"
"""The TLS server name of the virtual server whose users have client certificates."""
FLEET_NAME = "fleet.demo.test"
"""The TLS server name of the virtual server that serves both clusters as one."""
USERS = {"editor": "shop-editors", "administrator": "administrators"}
"""The users with a client certificate, and the group of each; `kubesim.fixtures` binds these groups to roles."""
CONFIG_FILE = "mcproxy.yaml"
KUBECONFIG_FILE = "kubeconfig"
REDIS_SOCKET = "redis.sock"
NAMES = (
    CONFIG_FILE,
    KUBECONFIG_FILE,
    *("ca.crt", "mcproxy.crt", "mcproxy.key", "users-ca.crt"),
    *(f"{user}.{kind}" for user in USERS for kind in ("crt", "key")),
    *(*CLUSTERS, API_SERVER),
    *("mcproxy.log", "access.log", REDIS_SOCKET),
    *demo_tunnel.NAMES,
)
"""All files and directories that the demo writes."""

_CONFIG = """\
# The configuration of `mcproxy demo`: two simulated clusters and an API server behind one address. While the demo
# runs, edit this file and apply it with
#     {program} reload -c {file}
version: 1

daemon:
  drainTimeout: 1s
  workers: {workers}                   # processes that share the address
{shared_state}
listeners:
  - name: local
    bind: "127.0.0.1:{port}"
    tls: {{certificates: [demo]}}
  - name: admin                # status page, health checks, metrics: http://127.0.0.1:{admin_port}/
    serves: Admin
    bind: "127.0.0.1:{admin_port}"
  - name: web                  # HTTP to a service in both clusters: http://127.0.0.1:{web_port}/
    serves: Ingress
    bind: "127.0.0.1:{web_port}"

certificates:
  - {{name: demo, certFile: mcproxy.crt, keyFile: mcproxy.key}}

{tunnels}clusters:
  # identity: Proxy gives the rights of the credentials to everyone who can connect. It is meant for a loopback
  # address, as here.
  - name: east                 # a cluster by its address and a client certificate
    endpoints:
      - {{name: a, url: "{east}"}}
    tls: {{caFile: east/ca.crt}}
    credentials: {{certFile: east/admin.crt, keyFile: east/admin.key}}
    identity: Proxy
{west}  # identity: Impersonate passes the user on, and the cluster's own RBAC decides what that user may do. The
  # credentials are of a user who may impersonate others, and little else.
  - name: east-for-users
    endpoints:
      - {{name: a, url: "{east}"}}
    tls: {{caFile: east/ca.crt}}
    credentials: {{certFile: east/mcproxy.crt, keyFile: east/mcproxy.key}}
    identity: Impersonate
  # A separate API server is a cluster entry, too. It gets the user in X-Remote-*, and trusts these because of the
  # front proxy's certificate. Where a server does not authenticate, the user is system:anonymous.
  - name: apis
    endpoints:
      - {{name: a, url: "{apis}"}}
    tls: {{caFile: apis/ca.crt}}
    identity: RequestHeader
    frontProxy: {{certFile: apis/front-proxy.crt, keyFile: apis/front-proxy.key}}

authentication:
  - name: users                # the user is the certificate's CN, the groups are its O
    clientCertificates: {{caFile: users-ca.crt}}{shared_names}
{tunnel_authentication}
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
    apiServices:               # what is below /apis/garden.example.com/v1 is the API server's
      - {{group: garden.example.com, version: v1, cluster: apis}}  # mcproxy: allow anonymous-users
  - name: fleet                # east and west as one, with metrics of both
    serverNames: [{fleet_name}]
    backend: {{aggregate: fleet}}
    apiServices:
      - group: metrics.k8s.io
        version: v1beta1
        cluster: apis          # mcproxy: allow anonymous-users
        groupPriorityMinimum: 100
      - group: metrics.k8s.io  # the same in another version, which is not the preferred one
        version: v1
        cluster: apis
        groupPriorityMinimum: 100
        versionPriority: 90
      - {{group: garden.example.com, version: v1, cluster: apis}}  # mcproxy: allow anonymous-users
  - name: users                # east again, for users with certificates
    serverNames: [{users_name}]
    backend: {{cluster: east-for-users}}
    authentication: users
    apiServices:
      - {{group: garden.example.com, version: v1, cluster: apis}}
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
{tunnel_servers}
serviceExports:                # the service search of west is in east too, as derived-search
  - name: search
    namespace: shop
    service: search
    from: [west]
    to: [east]
    allowedCIDRs: [{west_pods}.0.0/16]     # west's pods; other addresses that west might name are not written to east

ingresses:
  - name: shop                 # one address for a service that both clusters have
    rules:
      - paths:
          - path: /
            pathType: Prefix
            backend:
              namespace: shop
              service: frontend
              port: http
              clusters: [east, west]
              weights: {{east: 1, west: 2}}            # west answers two of three requests
              via: APIServer   # simulated pods have no address that can be reached; for real ones leave this out

logging:
  access: {{file: access.log}}
"""


_WEST = """\
  - name: west                 # and one by a kubeconfig
    kubeconfig: {file: west/kubeconfig, context: west}
    identity: Proxy
"""
_SHARED_STATE = """\
  sharedState:                 # where replicas count limits over all of them; started by the demo
    redis: {{url: "unix://{socket}"}}
"""
_SHARED_LIMIT = """\
  # Over all replicas of the proxy. To have a second one, copy this file, write other ports, and say
  # {program} run -c COPY: each then has 100, or more while the other needs less.
  - {name: all-replicas, type: MaxRequestsInflight, max: 200, shared: true}
"""
_SHARED_POLICY = """\
        flowControl: all-replicas
"""


@dataclass(frozen=True)
class DemoCommand:
    """A command to try: its purpose, its shell command line, and its exit status."""

    about: str
    line: str
    status: int = 0


def program() -> str:
    """Return the command by which a shell calls this program: its name if that is on PATH, else its path."""
    called = single_file() or os.path.abspath(sys.argv[0])
    if os.path.basename(called) == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m mcproxy"
    found = shutil.which("mcproxy")
    if single_file() is None and os.path.basename(called) != "mcproxy":
        return "mcproxy"  # this runs as a library of another program
    if not os.access(called, os.X_OK) or (found is not None and os.path.samefile(found, called)):
        return "mcproxy"
    return shlex.quote(called)


def write_certificates(directory: Path, *, tunnel: bool = False) -> None:
    """Write the certificates of the proxy and of the users, each with their CA. The keys of the CAs are not kept.

    `tunnel`: also that of the edge.
    """
    from kubesim.auth.certificates import Authority  # this import takes as long as all others together

    authority = Authority("mcproxy demo CA")
    (directory / "ca.crt").write_bytes(authority.pem)
    names = ["127.0.0.1", "::1", "localhost", EAST_NAME, USERS_NAME, FLEET_NAME, *demo_tunnel.SERVER_NAMES]
    authority.server(names).write(directory, "mcproxy")
    users = Authority("mcproxy demo users CA")
    (directory / "users-ca.crt").write_bytes(users.pem)
    for user, group in USERS.items():
        users.client(user, (group,)).write(directory, user)
    if tunnel:
        demo_tunnel.write_certificates(directory, Authority("mcproxy demo edges CA"))


def config(
    directory: Path,
    ports: Mapping[str, int],
    east: str,
    apis: str,
    workers: str = "1",
    *,
    redis: bool = False,
    tunnel: bool = False,
) -> str:
    """Return the proxy's configuration; `east` is the URL of that cluster (west's URL is in its kubeconfig).

    `apis` is the URL of the API server.

    `ports` has the ports of the listeners (LISTENERS).
    `workers` is the value of `daemon.workers`; `redis`: Redis runs, for a limit over replicas; `tunnel`: west is behind
    a tunnel.
    """
    socket = quote(str(directory / REDIS_SOCKET))
    return _CONFIG.format(
        program=program(),
        file=shlex.quote(str(directory / CONFIG_FILE)),
        port=ports["proxy"],
        admin_port=ports["admin"],
        web_port=ports["web"],
        west_pods=POD_NETWORKS["west"],
        workers=workers,
        shared_state=_SHARED_STATE.format(socket=socket) if redis else "",
        shared_limit=_SHARED_LIMIT.replace("{program}", program()) if redis else "",
        shared_policy=_SHARED_POLICY if redis else "",
        west=demo_tunnel.CLUSTERS if tunnel else _WEST,
        shared_names=demo_tunnel.SHARED_NAMES if tunnel else "",
        tunnels=demo_tunnel.TUNNELS if tunnel else "",
        tunnel_authentication=demo_tunnel.AUTHENTICATION if tunnel else "",
        tunnel_servers=demo_tunnel.SERVERS if tunnel else "",
        east=east,
        apis=apis,
        east_name=EAST_NAME,
        users_name=USERS_NAME,
        fleet_name=FLEET_NAME,
    )


def kubeconfig(port: int, *, tunnel: bool = False) -> str:
    """Return a kubeconfig: east and west by path, the other servers by TLS name, users by certificate.

    `tunnel`: also the editor in west.
    """
    base = f"https://127.0.0.1:{port}"
    authority = {"certificate-authority": "ca.crt"}
    clusters: dict[str, JSONDict] = {name: {"server": f"{base}/clusters/{name}", **authority} for name in CLUSTERS}
    clusters["fleet"] = {"server": base, "tls-server-name": FLEET_NAME, **authority}
    clusters["east-by-name"] = {"server": base, "tls-server-name": EAST_NAME, **authority}
    contexts = [{"name": name, "context": {"cluster": name, "user": "anybody"}} for name in clusters]
    clusters["users"] = {"server": base, "tls-server-name": USERS_NAME, **authority}
    contexts += [{"name": user, "context": {"cluster": "users", "user": user}} for user in USERS]
    if tunnel:
        clusters["west-users"] = {"server": base, "tls-server-name": demo_tunnel.USERS_NAME, **authority}
        contexts.append({"name": demo_tunnel.CONTEXT, "context": {"cluster": "west-users", "user": "editor"}})
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CLUSTERS[0],
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "contexts": contexts,
        "users": [
            # With identity: Proxy a token is ignored, but without a token kubectl prompts for a user name.
            {"name": "anybody", "user": {"token": "not-looked-at"}},
            *(
                {"name": user, "user": {"client-certificate": f"{user}.crt", "client-key": f"{user}.key"}}
                for user in USERS
            ),
        ],
    }
    return json.dumps(content, indent=2) + "\n"


def commands(
    directory: Path, ports: Mapping[str, int], *, redis: bool = False, tunnel: bool = False, called: str = ""
) -> tuple[tuple[str, tuple[DemoCommand, ...]], ...]:
    """Return the commands to try, in groups with a heading each. Each command ends by itself.

    `called` is how a shell calls this program (default: `program`).
    """
    mcproxy = called or program()
    port = ports["proxy"]
    web = f"http://127.0.0.1:{ports['web']}"

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
            DemoCommand(
                "the replicas that share it, here one: until when, since when (ms), of which limit",
                f"redis-cli -s {file(REDIS_SOCKET)} hgetall {replicas}",
            ),
        ),
    )
    through = (
        "Through the tunnel to west:",
        tuple(
            DemoCommand(about, line, status)
            for about, (line, status) in demo_tunnel.command_lines(mcproxy, kubectl, file).items()
        ),
    )
    ticks = f"-n default get configmaps --field-selector metadata.name=tick -o {shlex.quote(columns)}"
    return (
        (
            "Everybody has the proxy's own rights (identity: Proxy):",
            (
                DemoCommand("pods of one cluster", f"{kubectl} --context east -n shop get pods"),
                DemoCommand("nodes of the other", f"{kubectl} --context west get nodes"),
                DemoCommand(
                    "a shell command in a container",
                    f"{kubectl} --context west -n shop exec deploy/frontend -- hostname",
                ),
                DemoCommand(
                    "a log, from a server chosen by TLS name",
                    f"{kubectl} --context east-by-name -n shop logs deploy/search --tail=5",
                ),
                DemoCommand(
                    "the same address without kubectl", f"{curl} https://127.0.0.1:{port}/clusters/west/version"
                ),
            ),
        ),
        (
            "Both clusters as one (an aggregate), again with the proxy's own rights:",
            (
                DemoCommand("pods of both, each with its cluster", f"{fleet} -n shop get pods -L mcproxy.io/cluster"),
                DemoCommand("nodes of one of them", f"{fleet} get nodes -l mcproxy.io/cluster=west"),
                DemoCommand("changes in both, as they happen", f"{fleet} {ticks} -w | head -n 8"),
                DemoCommand(
                    "a log, followed, from the cluster that has the pod",
                    f"{fleet} -n shop logs deploy/warehouse-west -f --tail=2 | head -n 4",
                ),
                DemoCommand(
                    "two Deployments, one in each cluster, are scaled",
                    f"{fleet} -n shop scale deploy/warehouse-east deploy/warehouse-west --replicas=3",
                ),
            ),
        ),
        (
            "A separate API server, which clients do not see (apiServices):",
            (
                DemoCommand("usage of the nodes of both clusters, which moves", f"{fleet} top nodes"),
                DemoCommand("and of pods", f"{fleet} -n shop top pods -l app=frontend"),
                DemoCommand(
                    "a custom API with one cluster's own", f"{kubectl} --context east-by-name -n shop get plants"
                ),
                DemoCommand(
                    "it gets users in X-Remote-*: the editor waters the cactus, which grows then",
                    f"{kubectl} --context editor -n shop patch plant cactus --type=merge -p "
                    + shlex.quote('{"spec":{"litres":1}}'),
                ),
                DemoCommand("the same in its other version", f"{fleet} get nodes.v1.metrics.k8s.io"),
                DemoCommand("whether it is available, as Kubernetes shows it", f"{fleet} get apiservices"),
                DemoCommand(
                    "the roles that it publishes, for an administrator to review",
                    f"{mcproxy} rbac --apiservice garden.example.com/v1 -c {file(CONFIG_FILE)}",
                ),
            ),
        ),
        (
            "Services across the clusters: one of west in east too, and one address for a service of both:",
            (
                DemoCommand(
                    "the addresses of west's pods, written to east (serviceExports)",
                    f"{kubectl} --context east -n shop get endpointslices -L mcproxy.io/source-cluster"
                    " -l kubernetes.io/service-name=derived-search",
                ),
                DemoCommand(
                    "which pod answers a program in east that uses it",
                    f"{kubectl} --context east -n shop exec deploy/frontend -- wget -qO- http://derived-search/hostname",
                ),
                DemoCommand(
                    "six requests to the ingress, and who answered: west two of three times (ingresses)",
                    f"curl -sS {shlex.quote(web + '/hostname?[1-6]')}",
                ),
                DemoCommand(
                    "which rule a request gets, by the file",
                    f"{mcproxy} check -c {file(CONFIG_FILE)} --explain GET {web}/hostname",
                ),
            ),
        ),
        (
            "Users with certificates have the rights that the cluster gives them (identity: Impersonate):",
            (
                DemoCommand(
                    "the editor of the namespace shop scales a Deployment",
                    f"{kubectl} --context editor -n shop scale deploy/frontend --replicas=5",
                ),
                DemoCommand(
                    "but may not read another namespace: 403 from the cluster",
                    f"{kubectl} --context editor -n monitoring get pods",
                    status=1,
                ),
                DemoCommand(
                    "the administrator may",
                    f"{kubectl} --context administrator -n monitoring get pods",
                ),
            ),
        ),
        (
            "Dispatch policies hold for both of them:",
            (
                DemoCommand(
                    "one rejects: no namespace is deleted, 403 from the proxy",
                    f"{kubectl} --context administrator delete namespace monitoring",
                    status=1,
                ),
                DemoCommand(
                    "one limits: of five lists of events three are 200 and two 429; then one more every two seconds",
                    f"{curl} {as_editor} -o /dev/null -w '%{{http_code}}\\n' {shlex.quote(events)}",
                ),
            ),
        ),
        (
            "What the proxy does and has, for people, balancers and Prometheus:",
            (
                DemoCommand(
                    "whether it is ready, check by check",
                    f"curl -sS 'http://127.0.0.1:{ports['admin']}/readyz?verbose'",
                ),
                DemoCommand(
                    "the same for operators: what is wrong, endpoints, limits, caches",
                    f"{mcproxy} status -c {file(CONFIG_FILE)}",
                ),
                DemoCommand(
                    "rates and latency, once; without -b they stay and change, as in top",
                    f"{mcproxy} top -b 1 -d 1 -c {file(CONFIG_FILE)}",
                ),
                DemoCommand(
                    "its metrics", f"curl -sS http://127.0.0.1:{ports['admin']}/metrics | grep ^mcproxy_requests_total"
                ),
            ),
        ),
        *((shared,) if redis else ()),
        *((through,) if tunnel else ()),  # the last group, because it stops the edge
    )
