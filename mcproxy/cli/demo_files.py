"""What `mcproxy demo` writes and prints: a CA and a certificate, a configuration, a kubeconfig, commands to try.

Nothing here starts anything; `mcproxy.cli.demo` does.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from mcproxy.demo.auth.certificates import Authority

__all__ = ["BY_NAME", "CLUSTERS", "CONFIG_FILE", "commands", "write_certificates", "write_config", "write_kubeconfig"]

JSONDict = dict[str, Any]
CLUSTERS = ("east", "west")
BY_NAME = "east.demo.test"
"""The TLS server name of the virtual server that is east alone."""
CONFIG_FILE = "mcproxy.yaml"
LONGEST_SOCKET_PATH = 107
"""Bytes; the kernel's limit for the path of a unix socket (unix(7))."""

_CONFIG = """\
# What `mcproxy demo` runs with: two simulated clusters behind one address. While it runs, change this file and say
#     mcproxy reload -c {file}
version: 1

daemon:
{control}  drainTimeout: 1s

listeners:
  - name: local
    bind: "127.0.0.1:{port}"
    tls: {{certificates: [demo]}}

certificates:
  - {{name: demo, certFile: mcproxy.crt, keyFile: mcproxy.key}}

# identity: Proxy lends the rights below to everybody who can connect. It is meant for a loopback address, as here.
clusters:
  - name: east                 # a cluster by its address and a client certificate
    endpoints:
      - {{name: a, url: "{east}"}}
    tls: {{caFile: east/ca.crt}}
    credentials: {{certFile: east/admin.crt, keyFile: east/admin.key}}
    identity: Proxy
  - name: west                 # and one by a kubeconfig
    kubeconfig: {{file: west/kubeconfig, context: west}}
    identity: Proxy

servers:
  - name: all                  # each cluster under its path: https://127.0.0.1:{port}/clusters/NAME
    default: true
    backend: {{clusters: [east, west]}}
  - name: east                 # east at the root, for clients that ask for this name by TLS
    serverNames: [{name}]
    backend: {{cluster: east}}

logging:
  access: {{file: access.log}}
"""


def write_certificates(directory: Path) -> None:
    """Make a CA and the proxy's certificate: ca.crt, mcproxy.crt and mcproxy.key. The CA's key is kept nowhere."""
    authority = Authority("mcproxy demo CA")
    (directory / "ca.crt").write_bytes(authority.pem)
    authority.server(["127.0.0.1", "::1", "localhost", BY_NAME]).write(directory, "mcproxy")


def write_config(directory: Path, port: int, east: str) -> Path:
    """Write the proxy's configuration; `east` is the URL of that cluster (west's is in its kubeconfig)."""
    path = directory / CONFIG_FILE
    fits = len(bytes(directory / "control.sock")) <= LONGEST_SOCKET_PATH
    control = "  controlSocket: control.sock\n" if fits else ""
    path.write_text(_CONFIG.format(file=shlex.quote(str(path)), control=control, port=port, east=east, name=BY_NAME))
    return path


def write_kubeconfig(directory: Path, port: int) -> Path:
    """Write a kubeconfig with the contexts east and west (by path) and east-by-name (by TLS name)."""
    base = f"https://127.0.0.1:{port}"
    authority = {"certificate-authority": "ca.crt"}
    clusters: dict[str, JSONDict] = {name: {"server": f"{base}/clusters/{name}", **authority} for name in CLUSTERS}
    clusters["east-by-name"] = {"server": base, "tls-server-name": BY_NAME, **authority}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CLUSTERS[0],
        "clusters": [{"name": name, "cluster": cluster} for name, cluster in clusters.items()],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "anybody"}} for name in clusters],
        # The proxy lends its own rights and passes no token on, but without any kubectl would ask for a user name.
        "users": [{"name": "anybody", "user": {"token": "not-looked-at"}}],
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(kubeconfig, indent=2) + "\n")
    return path


def commands(directory: Path, port: int) -> tuple[tuple[str, str], ...]:
    """Return (what it shows, the command line as a shell takes it); each ends by itself."""
    kubectl = f"kubectl --kubeconfig {shlex.quote(str(directory / 'kubeconfig'))}"
    curl = f"curl --cacert {shlex.quote(str(directory / 'ca.crt'))}"
    return (
        ("pods of one cluster", f"{kubectl} --context east -n shop get pods"),
        ("nodes of the other", f"{kubectl} --context west get nodes"),
        ("a shell command in a container", f"{kubectl} --context west -n shop exec deploy/frontend -- hostname"),
        (
            "a log, from a server chosen by TLS name",
            f"{kubectl} --context east-by-name -n shop logs deploy/search --tail=5",
        ),
        ("the same address without kubectl", f"{curl} https://127.0.0.1:{port}/clusters/west/version"),
    )
