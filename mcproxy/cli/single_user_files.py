"""The files of `mcproxy run --single-user`: a configuration, a kubeconfig, certificates and a token."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mcproxy.config.control_socket import MAX_PATH

GROUP_VERSION = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/v[a-z0-9]{1,62}")
FRONT_PROXY = "front-proxy-client"
"""The common name of the front proxy's certificate, as with kubeadm."""
_CONNECTIONS = 500
"""The limit of the listener: every process on this machine may connect, although only this user is served."""


@dataclass(frozen=True, slots=True)
class APIServer:
    """One --api-service. `ca`: a file; None with `insecure`, or for the authorities of the system."""

    group_version: str
    url: str
    host: str
    port: int
    ca: str | None
    insecure: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that the arguments give."""

    kubeconfig: str
    context: str | None
    servers: tuple[APIServer, ...]
    user: str
    groups: tuple[str, ...]


def write_secrets(folder: Path, settings: Settings, token: str) -> bytes:
    """Write certificates and token; return the authority of the listener's certificate. No authority's key is kept."""
    from mcproxy.demo.auth.certificates import Authority

    authority = Authority("mcproxy single user")
    authority.server(["127.0.0.1", "localhost"]).write(folder, "mcproxy")
    front = Authority("mcproxy single user front proxy")
    (folder / "front-proxy-ca.crt").write_bytes(front.pem)
    front.client(FRONT_PROXY).write(folder, "front-proxy")
    groups = f',"{",".join(settings.groups)}"' if settings.groups else ""
    (folder / "users.csv").write_text(f"{token},{settings.user},{settings.user}{groups}\n")
    return authority.pem


def config(settings: Settings, folder: Path, port: int) -> str:
    """Return the configuration, which is JSON but for comments: every value is quoted."""
    clusters = []
    entries: dict[tuple[str, int], str] = {}
    services = []
    for server in settings.servers:
        address = (server.host, server.port)
        name = entries.get(address)
        if name is None:
            name = entries[address] = f"api-server-{len(entries) + 1}"
            tls = f"\n    tls: {{caFile: {_text(server.ca)}}}" if server.ca is not None else ""
            if server.insecure:
                tls = "\n    tls: {insecureSkipVerify: true}    # mcproxy: allow not-verified"
            clusters.append(_CLUSTER.format(name=name, url=_text(server.url), tls=tls))
        group, _, version = server.group_version.partition("/")
        services.append(f"      - {{group: {_text(group)}, version: {_text(version)}, cluster: {name}}}")
    context = f", context: {_text(settings.context)}" if settings.context else ""
    socket = folder / "control.sock"
    return _CONFIG.format(
        control=", controlSocket: control.sock" if len(os.fsencode(socket)) <= MAX_PATH else "",
        port=port,
        connections=_CONNECTIONS,
        kubeconfig=f"{{file: {_text(settings.kubeconfig)}{context}}}",
        clusters="\n".join(clusters),
        user=_text(settings.user),
        services="\n".join(services),
    )


def kubeconfig(port: int, ca: bytes, token: str) -> str:
    """Return the kubeconfig: all data is embedded."""
    name = "mcproxy"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [
            {
                "name": name,
                "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "certificate-authority-data": base64.b64encode(ca).decode(),
                },
            }
        ],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    return json.dumps(content, indent=2) + "\n"


def _text(value: str) -> str:
    return json.dumps(value)


_CLUSTER = """\
  - name: {name}
    endpoints: [{{url: {url}}}]
    identity: RequestHeader
    frontProxy: {{certFile: front-proxy.crt, keyFile: front-proxy.key}}
    healthCheck: {{interval: 2s}}{tls}"""

_CONFIG = """\
# The configuration of `mcproxy run --single-user`. It goes when that ends.
version: 1
daemon: {{drainTimeout: 1s{control}}}
listeners:
  - name: local
    bind: "127.0.0.1:{port}"
    tls: {{certificates: [local]}}
    limits: {{connections: {connections}}}
certificates:
  - {{name: local, certFile: mcproxy.crt, keyFile: mcproxy.key}}
clusters:
  - name: cluster
    kubeconfig: {kubeconfig}
    identity: Proxy
{clusters}
authentication:
  - {{name: user, tokenFile: users.csv}}
authorization:
  - name: user
    rules:
      - {{users: [{user}], verbs: ["*"], apiGroups: ["*"], resources: ["*"]}}
      - {{users: [{user}], verbs: ["*"], nonResourceURLs: ["*"]}}
servers:
  - name: single-user
    default: true
    backend: {{cluster: cluster}}
    authentication: user
    authorization: user
    apiServices:
{services}
"""
