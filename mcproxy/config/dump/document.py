"""The effective configuration, as a document in the file's own form: with defaults, and file names made absolute.

Secrets are masked unless requested; unmasked, the document loads to the same model again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mcproxy.config.dump.access import authentication, authorization
from mcproxy.config.dump.aggregates import aggregate
from mcproxy.config.dump.dispatch import dispatch, flow_control
from mcproxy.config.model import (
    Backend,
    Bind,
    Certificate,
    Cluster,
    ClusterBackend,
    ClustersBackend,
    Config,
    Credentials,
    ExecPlugin,
    Listener,
    Secret,
    Server,
    Serves,
    SharedState,
    TCPBind,
    UnixBind,
)
from mcproxy.config.units import format_duration, format_size

MASK = "(masked)"
FORMS = ("yaml", "json")
_BARE = re.compile(r"[A-Za-z/][A-Za-z0-9/._-]*\Z|([0-9]+(h|m|s|ms))+\Z|[0-9]+[KMGT]i\Z")
_WORDS_WITH_MEANING = frozenset("null true false yes no on off y n".split())  # noqa: SIM905
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff-\ufeff]")

Document = dict[str, Any]
Path = tuple[str | int, ...]
Comments = Mapping[Path, Sequence[str]]


def effective(config: Config, *, masked: bool = True) -> Document:
    """Return `config` as a document; with `masked`, secrets are replaced by a word."""
    document: Document = _escape(_without_empty(_document(config, masked)))
    return document


def as_text(config: Config, form: str) -> str:
    """Return what `mcproxy dump` prints of `config`, masked; `form` is one of FORMS."""
    document = effective(config)
    return to_yaml(document, resolved(config)) if form == "yaml" else to_json(document)


def to_json(document: Document) -> str:
    return _readable(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"


def to_yaml(document: Document, comments: Comments | None = None) -> str:
    """Return block-style YAML that YAML 1.1 and 1.2 readers understand alike.

    `comments` are lines for mappings, by the path of keys and indices that leads to them.
    """
    return "".join(line + "\n" for line in _yaml(document, "", (), comments or {}))


def resolved(config: Config) -> Comments:
    """Return what kubeconfigs were resolved to, as comments for `to_yaml`; secrets are masked."""
    comments: dict[Path, Sequence[str]] = {}
    for number, cluster in enumerate(config.clusters):
        if cluster.kubeconfig is not None:
            document = {"resolved": _without_empty(_direct_access(cluster, masked=True))}
            comments["clusters", number, "kubeconfig"] = to_yaml(document).splitlines()
    return comments


def _document(config: Config, masked: bool) -> Document:
    daemon, logging = config.daemon, config.logging
    access, audit = logging.access, logging.audit
    return {
        "version": 1,
        "daemon": {
            "controlSocket": daemon.control_socket,
            "shutdownDelay": format_duration(daemon.shutdown_delay),
            "drainTimeout": format_duration(daemon.drain_timeout),
            "workers": daemon.workers,
            "stateDir": daemon.state_dir,
            "sharedState": _shared_state(daemon.shared_state) if daemon.shared_state is not None else None,
        },
        "listeners": [_listener(listener) for listener in config.listeners],
        "certificates": [_certificate(certificate) for certificate in config.certificates],
        "clusters": [_cluster(cluster, masked) for cluster in config.clusters],
        "authentication": [authentication(authenticators) for authenticators in config.authentication],
        "authorization": [authorization(authorizer) for authorizer in config.authorization],
        "flowControls": [flow_control(control) for control in config.flow_controls],
        "aggregates": [aggregate(each) for each in config.aggregates],
        "servers": [_server(server) for server in config.servers],
        "logging": {
            "level": logging.level,
            "format": logging.format,
            "access": {"file": access.file, "format": access.format} if access is not None else None,
            "audit": {"file": audit.file, "level": audit.level} if audit is not None else None,
        },
    }


def _shared_state(state: SharedState) -> Document:
    redis = state.redis
    return {
        "redis": {
            "url": redis.url,
            "caFile": redis.ca.path if redis.ca is not None else None,
            "certFile": redis.certificate.path if redis.certificate is not None else None,
            "keyFile": redis.key.path if redis.key is not None else None,
            "username": redis.username,
            "passwordFile": redis.password_file,
            "prefix": redis.prefix,
        }
    }


def _listener(listener: Listener) -> Document:
    limits, tls, sources = listener.limits, listener.tls, listener.proxy_protocol_from
    return {
        "name": listener.name,
        "serves": str(listener.serves),
        "bind": str(listener.bind),
        **_socket(listener.bind),
        "proxyProtocol": {"from": [str(network) for network in sources]} if sources is not None else None,
        "trustedProxies": [str(network) for network in listener.trusted_proxies],
        "tls": {"certificates": list(tls.certificates), "minVersion": tls.min_version} if tls is not None else None,
        "protocols": [str(protocol) for protocol in listener.protocols],
        "goawayChance": listener.goaway_chance or 0,
        "limits": {
            "connections": limits.connections,
            "connectionsPerClient": limits.connections_per_client,
            "streams": limits.streams,
            "headBytes": _size(limits.head_bytes),
            "targetBytes": _size(limits.target_bytes),
            "headers": limits.headers,
            "bodyBytes": _size(limits.body_bytes),
            "handshakeTimeout": format_duration(limits.handshake_timeout),
            "headTimeout": format_duration(limits.head_timeout),
            "idleTimeout": format_duration(limits.idle_timeout),
            "stallTimeout": format_duration(limits.stall_timeout),
        },
        **(_admin(listener) if listener.serves is Serves.ADMIN else {}),
    }


def _admin(listener: Listener) -> Document:
    return {
        "paths": list(listener.paths),
        "authentication": listener.authentication,
        "authorization": listener.authorization,
    }


def _socket(bind: Bind) -> Document:
    if isinstance(bind, UnixBind):
        return {"mode": f"{bind.mode:04o}", "group": bind.group}
    return {"freeBind": bind.free_bind} if isinstance(bind, TCPBind) else {}


def _size(size: int) -> str | int:
    text = format_size(size)
    return size if text.isdigit() else text


def _certificate(certificate: Certificate) -> Document:
    return {
        "name": certificate.name,
        "certFile": certificate.chain.path,
        "keyFile": certificate.key.path,
        "serverNames": list(certificate.server_names),
    }


def _cluster(cluster: Cluster, masked: bool) -> Document:
    check, connections = cluster.health_check, cluster.connections
    return {
        "name": cluster.name,
        "labels": dict(cluster.labels),
        **_access(cluster, masked),
        "identity": str(cluster.identity),
        "impersonateExtras": list(cluster.impersonate_extras),
        "frontProxy": {"certFile": cluster.front_proxy.certificate.path, "keyFile": cluster.front_proxy.key.path}
        if cluster.front_proxy is not None
        else None,
        "healthCheck": {
            "path": check.path,
            "interval": format_duration(check.interval),
            "timeout": format_duration(check.timeout),
            "unhealthyAfter": check.unhealthy_after,
            "healthyAfter": check.healthy_after,
        },
        "connections": {
            "protocol": str(connections.protocol),
            "maxIdle": connections.max_idle,
            "maxConnections": connections.max_connections,
            "idleTimeout": format_duration(connections.idle_timeout),
            "connectTimeout": format_duration(connections.connect_timeout),
            "responseTimeout": format_duration(connections.response_timeout),
        },
        "preserveHost": cluster.preserve_host,
        "flowControls": list(cluster.flow_controls),
    }


def _access(cluster: Cluster, masked: bool) -> Document:
    """Return endpoints, TLS and credentials of the cluster, or its kubeconfig, which stays a reference."""
    if cluster.kubeconfig is not None:
        return {"kubeconfig": {"file": cluster.kubeconfig.file, "context": cluster.kubeconfig.context}}
    return _direct_access(cluster, masked)


def _direct_access(cluster: Cluster, masked: bool) -> Document:
    tls = cluster.tls
    return {
        "endpoints": [
            {"name": endpoint.name, "url": endpoint.url, "disabled": endpoint.disabled, "weight": endpoint.weight}
            for endpoint in cluster.endpoints
        ],
        "tls": {
            "caFile": tls.ca.path if tls.ca is not None else None,
            "serverName": tls.server_name,
            "insecureSkipVerify": tls.insecure_skip_verify,
        },
        "credentials": _credentials(cluster.credentials, masked),
    }


def _credentials(credentials: Credentials, masked: bool) -> Document:
    return {
        "token": _secret(credentials.token, masked) if credentials.token is not None else None,
        "tokenFile": credentials.token_file,
        "username": credentials.basic[0] if credentials.basic is not None else None,  # of kubeconfigs only
        "password": _secret(credentials.basic[1], masked) if credentials.basic is not None else None,
        "certFile": credentials.certificate.path if credentials.certificate is not None else None,
        "keyFile": credentials.key.path if credentials.key is not None else None,
        "exec": _exec(credentials.exec, masked) if credentials.exec is not None else None,
    }


def _exec(plugin: ExecPlugin, masked: bool) -> Document:
    return {
        "command": plugin.command,
        "args": [MASK if masked else arg for arg in plugin.args],
        "env": {name: MASK if masked else value for name, value in plugin.env},
        "apiVersion": plugin.api_version,
        "provideClusterInfo": plugin.provide_cluster_info,
        "installHint": plugin.install_hint,
    }


def _secret(secret: Secret, masked: bool) -> str:
    return MASK if masked else secret.reveal()


def _server(server: Server) -> Document:
    return {
        "name": server.name,
        "listeners": list(server.listeners) or None,
        "serverNames": list(server.server_names),
        "default": server.default,
        "backend": _backend(server.backend),
        "authentication": server.authentication or "none",  # omitted (on loopback) means none too
        "authorization": server.authorization,
        "accessLog": server.access_log,
        "cors": {"allowedOrigins": list(server.cors.allowed_origins)} if server.cors is not None else None,
        "sessions": {
            "maxAge": format_duration(server.sessions.max_age),
            "endWithCredential": server.sessions.end_with_credential,
        },
        "dispatch": dispatch(server),
    }


def _backend(backend: Backend) -> Document:
    if isinstance(backend, ClusterBackend):
        return {"cluster": backend.cluster}
    if isinstance(backend, ClustersBackend):
        return {"clusters": list(backend.clusters)}
    return {"aggregate": backend.aggregate}


def _without_empty(value: Any) -> Any:
    """Leave out the keys that have no value."""
    if isinstance(value, dict):
        return {key: _without_empty(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    return value


def _escape(value: Any) -> Any:
    """Double the dollar signs, which would name environment variables."""
    if isinstance(value, dict):
        return {key: _escape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escape(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


def _yaml(value: Any, indent: str, path: Path, comments: Comments) -> Iterable[str]:
    if isinstance(value, dict) and value:
        yield from (f"{indent}# {line}" for line in comments.get(path, ()))
        for key, item in value.items():
            if isinstance(item, dict | list) and item:
                yield f"{indent}{_word(key)}:"
                yield from _yaml(item, indent + "  ", (*path, key), comments)
            else:
                yield f"{indent}{_word(key)}: {_word(item)}"
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            nested = isinstance(item, dict | list) and item
            lines = list(_yaml(item, "  ", (*path, number), comments)) if nested else [f"  {_word(item)}"]
            yield f"{indent}- {lines[0][2:]}"
            yield from (indent + line for line in lines[1:])
    else:
        yield f"{indent}{_word(value)}"


def _word(value: Any) -> str:
    """Return a scalar or an empty collection; a string is unquoted only where every YAML reader takes it for one."""
    if isinstance(value, str) and _BARE.match(value) and value.lower() not in _WORDS_WITH_MEANING:
        return value
    return _readable(json.dumps(value, ensure_ascii=False))


def _readable(text: str) -> str:
    return _UNSAFE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
