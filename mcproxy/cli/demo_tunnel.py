"""The tunnel of `mcproxy demo --tunnel`: the proxy is a hub, and an edge beside the cluster west dials it.

The edge is one more daemon, with its files in the folder `edge`. The demo continues when the edge exits, so that users
can try such a failure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubesim.auth.certificates import Authority

__all__ = [
    "AUTHENTICATION",
    "CLUSTERS",
    "CONFIG_FILE",
    "CONTEXT",
    "LOG_FILE",
    "NAMES",
    "NOTICE",
    "PID_FILE",
    "SERVERS",
    "SERVER_NAMES",
    "SHARED_NAMES",
    "TUNNELS",
    "USERS_NAME",
    "command_lines",
    "edge_config",
    "write_certificates",
]

FOLDER = "edge"
CONFIG_FILE = f"{FOLDER}/mcproxy.yaml"
LOG_FILE = "edge.log"
PID_FILE = f"{FOLDER}/pid"
"""The edge's process, for the command that ends it."""
EDGES_CA = "edges-ca.crt"
NAMES = (FOLDER, LOG_FILE, EDGES_CA)
"""What the demo writes for a tunnel, below its directory."""
TUNNELS_NAME = "tunnels.demo.test"
"""The TLS server name of the virtual server that accepts tunnels."""
USERS_NAME = "west-users.demo.test"
"""The TLS server name of the virtual server for users of west who have client certificates."""
SERVER_NAMES = (TUNNELS_NAME, USERS_NAME)
CONTEXT = "west-editor"
"""The context of the kubeconfig in which the editor uses west."""
USER = "edge-west"
"""The user that the edge's certificate names."""
HUB_USER = "mcproxy-hub"
NOTICE = "West is behind a tunnel: its edge, a daemon of its own, has dialled the proxy."

TUNNELS = f"""\
tunnels:
  - {{name: west, users: [{USER}]}}       # who may open it: the user of the edge's certificate

"""
"""Sections of the proxy's file before `clusters`."""
CLUSTERS = """\
  # West cannot be dialled: its edge dials this proxy (the tunnel), and has the cluster's credentials. The path picks
  # one of the clusters of the edge. A request for which this proxy names no user is that of the edge's hubUser.
  - name: west                 # mcproxy: allow no-credentials
    endpoints:
      - {name: edge, tunnel: west, path: /clusters/west}
    identity: Proxy
  # identity: RequestHeader tells the edge the user, whom it impersonates: the cluster's own RBAC decides.
  - name: west-for-users
    endpoints:
      - {name: edge, tunnel: west, path: /clusters/west-for-users}
    identity: RequestHeader
"""
"""The proxy's entries for west."""
SHARED_NAMES = "  # mcproxy: allow shared-system-names"
"""Two clusters have the users of one CA."""
AUTHENTICATION = f"""\
  - name: edges
    clientCertificates: {{caFile: {EDGES_CA}}}
"""
SERVERS = f"""\
  - name: tunnels              # where edges open tunnels
    serverNames: [{TUNNELS_NAME}]
    backend: {{tunnels: "*"}}
    authentication: edges
  - name: west-users           # west for users with certificates, through the tunnel
    serverNames: [{USERS_NAME}]
    backend: {{cluster: west-for-users}}
    authentication: users
"""

_EDGE = """\
# The edge of `mcproxy demo --tunnel`: it is beside the cluster west, and dials the proxy (the hub).
# While the demo runs, edit this file and apply it with
#     {program} reload -c {file}
version: 1

daemon:
  drainTimeout: 1s

listeners:
  - name: hub                  # no address: requests come over connections that the edge has dialled
    dial:
      tunnel: west
      urls: ["https://127.0.0.1:{port}"]     # all replicas of the hub, each by its own address
      serverName: {tunnels_name}
      tls: {{caFile: ../ca.crt, certFile: {user}.crt, keyFile: {user}.key}}

clusters:
  - name: west
    kubeconfig: {{file: ../west/kubeconfig, context: west}}
    identity: Proxy
  - name: west-for-users
    endpoints:
      - {{name: a, url: "{west}"}}
    tls: {{caFile: ../west/ca.crt}}
    credentials: {{certFile: ../west/mcproxy.crt, keyFile: ../west/mcproxy.key}}
    identity: Impersonate

authentication:
  - name: from-hub             # the users that the hub names in X-Remote-*; hubUser: requests for which it names none
    requestHeader: {{listeners: [hub], hubUser: {hub_user}}}

authorization:                 # what the hub may do here, whatever it asks for
  - name: what-the-hub-may
    rules:
      - {{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}  # mcproxy: allow broad-rule
      - {{verbs: [get], nonResourceURLs: ["*"]}}

servers:
  - name: site
    listeners: [hub]
    backend: {{clusters: "*"}}
    authentication: from-hub
    authorization: what-the-hub-may

logging:
  access: {{file: access.log}}
"""


def write_certificates(directory: Path, edges: Authority) -> None:
    """Write the edge's certificate, and for the proxy the CA that has signed it."""
    (directory / EDGES_CA).write_bytes(edges.pem)
    folder = directory / FOLDER
    folder.mkdir(exist_ok=True)
    edges.client(USER).write(folder, USER)


def edge_config(directory: Path, port: int, west: str, program: str) -> str:
    """Return the edge's configuration. `port`: the proxy's; `west`: the cluster's URL."""
    return _EDGE.format(
        program=program,
        file=shlex.quote(str(directory / CONFIG_FILE)),
        port=port,
        tunnels_name=TUNNELS_NAME,
        user=USER,
        hub_user=HUB_USER,
        west=west,
    )


def command_lines(mcproxy: str, kubectl: str, file: Callable[[str], str]) -> Mapping[str, tuple[str, int]]:
    """Return the commands to try, by what they show, with their exit statuses.

    `file` quotes the path of a file of the demo.
    """
    edge = file(CONFIG_FILE)
    in_fleet = f"{kubectl} --context fleet -n shop get pods -l mcproxy.io/cluster=west"
    return {
        "the editor scales a Deployment in west: the hub names the user, and the edge impersonates it": (
            f"{kubectl} --context {CONTEXT} -n shop scale deploy/frontend --replicas=4",
            0,
        ),
        "but has there the rights that west gives: 403 from the cluster": (
            f"{kubectl} --context {CONTEXT} -n monitoring get pods",
            1,
        ),
        "west's pods in the fleet, which follows west through the tunnel": (in_fleet, 0),
        "the edge, as its own operator sees it": (f"{mcproxy} status -c {edge}", 0),
        "stop the edge": (f"kill $(cat {file(PID_FILE)}) && sleep 2 && grep tunnel_down {file('mcproxy.log')}", 0),
        "west has no tunnel any more: 503 from the proxy": (f"{kubectl} --context west get nodes", 1),
        "but the fleet has its pods in memory": (in_fleet, 0),
        "run it again, here for 20 seconds; without timeout until Ctrl-C, and kubectl works meanwhile": (
            f"timeout --preserve-status 20 {mcproxy} run -c {edge}",
            0,
        ),
    }
