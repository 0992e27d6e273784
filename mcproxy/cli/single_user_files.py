"""The files of `mcproxy run --single-user`: a configuration, a kubeconfig, certificates and a token."""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcproxy.config.control_socket import MAX_PATH

GROUP_VERSION = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/v[a-z0-9]{1,62}")
FRONT_PROXY = "front-proxy-client"
"""The common name of the front proxy's certificate, as with kubeadm."""
_CONNECTIONS = 500
"""The connection limit of the listener: every process on this machine can connect, but only this user is served."""


@dataclass(frozen=True, slots=True)
class APIServer:
    """An argument of --api-service. `ca` is a file; None with `insecure`, or for the system's authorities."""

    group_version: str
    url: str
    host: str
    port: int
    ca: str | None
    insecure: bool


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings from the arguments."""

    kubeconfig: str
    context: str | None
    servers: tuple[APIServer, ...]
    user: str
    groups: tuple[str, ...]
    own: dict[str, Any] | None = None
    """The kubeconfig's user (`user_of`), if API servers get its credentials; else they get the user name `user`."""


def user_of(path: Path, context: str | None) -> dict[str, Any]:
    """Return the user of a kubeconfig's context, with resolved file names (relative to the kubeconfig).

    Raises OSError, and ValueError with the fault of the kubeconfig.
    """
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
        name = context or found["current-context"]
        (chosen,) = [each["context"]["user"] for each in found["contexts"] if each["name"] == name]
        (user,) = [dict(each["user"] or {}) for each in found["users"] if each["name"] == chosen]
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        raise ValueError("is no YAML") from None
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"has no user for {f'the context {context}' if context else 'its current-context'}") from None
    for key in ("client-certificate", "client-key", "tokenFile"):
        if user.get(key):
            user[key] = str(path.parent / str(user[key]))
    plugin = user.get("exec")
    if isinstance(plugin, dict) and os.sep in str(plugin.get("command", "")):
        user["exec"] = {**plugin, "command": str(path.parent / str(plugin["command"]))}
    return user


def write_secrets(folder: Path, settings: Settings, token: str) -> bytes:
    """Write certificates, tokens and the API servers' kubeconfigs. Keys of authorities are not kept.

    Returns the authority of the listener's certificate.
    """
    from kubesim.auth.certificates import Authority

    authority = Authority("mcproxy single user")
    authority.server(["127.0.0.1", "localhost"]).write(folder, "mcproxy")
    if settings.own is None:
        front = Authority("mcproxy single user front proxy")
        (folder / "front-proxy-ca.crt").write_bytes(front.pem)
        front.client(FRONT_PROXY).write(folder, "front-proxy")
    else:
        for (host, port), name in _entries(settings).items():
            server = next(each for each in settings.servers if (each.host, each.port) == (host, port))
            cluster: dict[str, Any] = {"server": server.url}
            if server.ca is not None:
                cluster["certificate-authority"] = server.ca
            if server.insecure:
                cluster["insecure-skip-tls-verify"] = True
            (folder / f"{name}.kubeconfig").write_text(_kubeconfig(cluster, settings.own))
    groups = f',"{",".join(settings.groups)}"' if settings.groups else ""
    (folder / "users.csv").write_text(f"{token},{settings.user},{settings.user}{groups}\n")
    return authority.pem


def config(settings: Settings, folder: Path, port: int) -> str:
    """Return the configuration. It is JSON with comments, so that every value is quoted."""
    clusters: dict[str, str] = {}
    entries = _entries(settings)
    services = []
    for server in settings.servers:
        name = entries[server.host, server.port]
        if settings.own is not None:
            allowed = "    # mcproxy: allow not-verified" if server.insecure else ""
            clusters[name] = _OWN.format(name=name, allowed=allowed)
        else:
            tls = f"\n    tls: {{caFile: {_text(server.ca)}}}" if server.ca is not None else ""
            if server.insecure:
                tls = "\n    tls: {insecureSkipVerify: true}    # mcproxy: allow not-verified"
            clusters.setdefault(name, _CLUSTER.format(name=name, url=_text(server.url), tls=tls))
        group, _, version = server.group_version.partition("/")
        services.append(f"      - {{group: {_text(group)}, version: {_text(version)}, cluster: {name}}}")
    context = f", context: {_text(settings.context)}" if settings.context else ""
    socket = folder / "control.sock"
    return _CONFIG.format(
        control=", controlSocket: control.sock" if len(os.fsencode(socket)) <= MAX_PATH else "",
        port=port,
        connections=_CONNECTIONS,
        kubeconfig=f"{{file: {_text(settings.kubeconfig)}{context}}}",
        clusters="\n".join(clusters.values()),
        user=_text(settings.user),
        services="\n".join(services),
    )


def _entries(settings: Settings) -> dict[tuple[str, int], str]:
    """Return the names of the cluster entries, one for each host and port of API servers."""
    addresses = dict.fromkeys((each.host, each.port) for each in settings.servers)
    return {address: f"api-server-{number}" for number, address in enumerate(addresses, 1)}


def kubeconfig(port: int, ca: bytes, token: str) -> str:
    """Return the kubeconfig, with all data embedded."""
    authority = base64.b64encode(ca).decode()
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}
    return _kubeconfig(cluster, {"token": token})


def _kubeconfig(cluster: dict[str, Any], user: dict[str, Any]) -> str:
    name = "mcproxy"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
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

_OWN = """\
  - name: {name}
    kubeconfig: {{file: {name}.kubeconfig}}{allowed}
    identity: Proxy
    healthCheck: {{interval: 2s}}"""

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
