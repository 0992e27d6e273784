"""Writes the configuration files: nginx as the upstream and as a proxy, and mcproxy.

All of them speak TLS 1.3 with one cipher on both sides, keep their connections for as long as a run lasts, verify the
upstream's certificate and add the same headers, so that each subject does the same work.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.pki import Identity

CIPHER = "TLS_AES_256_GCM_SHA384"  # what OpenSSL's defaults agree on; written out wherever it can be
TOKEN = "bench-token"
OBJECT_PATH = "/api/v1/namespaces/default/configmaps/bench"
TLS_PATH = "/bench/tls"  # answers with the TLS version and cipher of the connection to the upstream
OBJECTS_PATH = "/api/v1/namespaces/apps-"  # below it the upstream gives the object for each path
WHO_PATH = "/bench/who"  # answers with the Impersonate-User of the request
REVIEWED_USER = "system:serviceaccount:bench:reviewed"  # the user that TokenReview gives for every token
OBJECT_BYTES = 1126  # 1.1 KiB
LARGE_BYTES = 1024 * 1024

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_REVIEW_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEW_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """One TLS server of the nginx upstream, found by SNI."""

    server_name: str
    identity: Identity


def object_body() -> bytes:
    """Return the JSON object that every GET is answered with, `OBJECT_BYTES` long."""
    item: dict[str, Any] = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "bench", "namespace": "default", "resourceVersion": "1"},
        "data": {"text": ""},
    }
    item["data"]["text"] = "x" * (OBJECT_BYTES - len(json.dumps(item)))
    return json.dumps(item).encode()


def object_paths(count: int) -> list[str]:
    """Return so many paths below `OBJECTS_PATH`, as clients ask for objects of some namespaces."""
    return [f"{OBJECTS_PATH}{number % 50}/configmaps/settings-{number}" for number in range(count)]


def token_review() -> str:
    """Return what the upstream answers to every TokenReview."""
    namespace = REVIEWED_USER.split(":")[2]
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    user = {"username": REVIEWED_USER, "uid": "6d5c1a0e-6f1b-4d0c-9b0c-0b8f6f2f7a11", "groups": groups}
    status = {"authenticated": True, "user": user}
    return json.dumps({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": status})


def access_review() -> str:
    """Return what the upstream answers when the proxy asks for its own rights: it may impersonate users."""
    return json.dumps({"kind": "SelfSubjectAccessReview", "status": {"allowed": True}})


def openssl_config() -> str:
    """Return an OpenSSL configuration (for OPENSSL_CONF) that leaves a client like wrk one version and one cipher."""
    return (
        "openssl_conf = conf\n[conf]\nssl_conf = ssl\n[ssl]\nsystem_default = system\n"
        f"[system]\nMinProtocol = TLSv1.3\nCiphersuites = {CIPHER}\n"
    )


def nginx_upstream(
    directory: Path, port: int, hosts: Sequence[VirtualHost], status: int, *, http2: bool = False
) -> Path:
    """Write an nginx that serves the object, /readyz and /version under each of `hosts`; return its configuration.

    With `http2` it speaks HTTP/2 as well. On port `status` it says without TLS how many requests it has had (see
    `served`).
    """
    (directory / "object.json").write_bytes(object_body())
    protocol = " http2" if http2 else ""
    servers = "".join(
        f"""
  server {{
    listen 127.0.0.1:{port} ssl{protocol};
    server_name {host.server_name};
    ssl_certificate {host.identity.certificate};
    ssl_certificate_key {host.identity.key};
    location = {OBJECT_PATH} {{ default_type application/json; alias {directory}/object.json; }}
    location ^~ {OBJECTS_PATH} {{ default_type application/json; return 200 '{object_body().decode()}'; }}
    location = /readyz {{ default_type text/plain; return 200 "ok"; }}
    location = /version {{ default_type application/json; return 200 '{{"major":"1","minor":"36"}}'; }}
    location = {TLS_PATH} {{ default_type text/plain; return 200 "$ssl_protocol $ssl_cipher"; }}
    location = {WHO_PATH} {{ default_type text/plain; return 200 "$http_impersonate_user"; }}
    location = {_REVIEW_PATH} {{ default_type application/json; return 201 '{token_review()}'; }}
    location = {ACCESS_REVIEW_PATH} {{ default_type application/json; return 201 '{access_review()}'; }}
  }}"""
        for host in hosts
    )
    return _nginx(
        directory,
        "upstream",
        f"""
  server_names_hash_max_size 2048;
  server_names_hash_bucket_size 128;
  open_file_cache max=16 inactive=1h;
  open_file_cache_valid 1h;
  server {{
    listen 127.0.0.1:{status};
    location / {{ stub_status; }}
  }}{servers}""",
    )


def served(status: str) -> int:
    """Return the requests of nginx's stub_status page; ValueError when it is another text."""
    found = re.search(r"server accepts handled requests\s+\d+ \d+ (\d+)", status)
    if found is None:
        raise ValueError(f"not a status page of nginx: {status[:200]!r}")
    return int(found[1])


def nginx_proxy(directory: Path, listen: int, upstream: int, identity: Identity) -> Path:
    """Write nginx as the proxy to compare with, HTTP/2 or HTTP/1.1 to HTTP/1.1; return its configuration.

    Watches and logs are passed on at once (no buffering, which would hold events back); with buffers of one TLS record
    this was as fast as buffering, and as larger ones.
    """
    return _nginx(
        directory,
        "proxy",
        f"""
  upstream bench {{
    server 127.0.0.1:{upstream};
    keepalive 4096;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }}
  server {{
    listen 127.0.0.1:{listen} ssl http2 backlog=4096;
    server_name localhost;
    ssl_certificate {identity.certificate};
    ssl_certificate_key {identity.key};
    location / {{
      proxy_pass https://bench;
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_buffer_size 16k;
      proxy_buffers 8 16k;
      proxy_read_timeout 1h;
      proxy_send_timeout 1h;
      proxy_ssl_protocols TLSv1.3;
      proxy_ssl_conf_command Ciphersuites {CIPHER};
      proxy_ssl_verify on;
      proxy_ssl_trusted_certificate {identity.authority};
      proxy_ssl_name localhost;
      proxy_ssl_server_name on;
      proxy_ssl_session_reuse on;
      proxy_set_header Connection "";
      proxy_set_header Host localhost;
      proxy_set_header Authorization "Bearer {TOKEN}";
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
    }}
  }}""",
    )


def mcproxy(
    directory: Path,
    listen: int,
    upstream: int,
    identity: Identity,
    *,
    cluster: Mapping[str, Any] = _NOTHING,
    server: Mapping[str, Any] = _NOTHING,
    sections: Mapping[str, Any] = _NOTHING,
    listener: Mapping[str, Any] = _NOTHING,
) -> Path:
    """Write an mcproxy.yaml with one listener, one server and one cluster of one endpoint; return its name.

    `cluster`, `server`, `listener` and `sections` (of the whole file) are what differs from bare forwarding.
    """
    token = directory / "token"
    token.write_text(TOKEN)
    one = {**_cluster("bench", upstream, identity.authority, "localhost", token), **cluster}
    backend = {"cluster": "bench"}
    return _mcproxy(directory / "mcproxy.yaml", listen, identity, [one], backend, server, sections, listener)


def mcproxy_many(directory: Path, listen: int, upstream: int, identity: Identity, hosts: Sequence[VirtualHost]) -> Path:
    """Write an mcproxy.yaml with a cluster for each of `hosts`, all served under /clusters/NAME/; return its name.

    Each cluster has an authority and a token file of its own; it is called like the first label of its host.
    """
    clusters = []
    for host in hosts:
        name = host.server_name.partition(".")[0]
        token = directory / f"{name}.token"
        token.write_text(f"{TOKEN}-{name}")
        clusters.append(_cluster(name, upstream, host.identity.authority, host.server_name, token))
    backend = {"clusters": [cluster["name"] for cluster in clusters]}
    return _mcproxy(directory / "mcproxy-many.yaml", listen, identity, clusters, backend)


def mcproxy_fleet(
    directory: Path, listen: int, upstream: int, identity: Identity, clusters: int, group: str, check: str
) -> Path:
    """Write an mcproxy.yaml with an aggregate of `clusters` (/c000, …) that caches all of `group`; return its name.

    `check` is the interval of the first cluster's health checks.
    """
    token = directory / "token"
    token.write_text(TOKEN)
    members = [
        _cluster(f"c{number:03d}", upstream, identity.authority, "localhost", token) for number in range(clusters)
    ]
    for member in members:
        member["endpoints"] = [{"url": f"https://127.0.0.1:{upstream}/{member['name']}"}]
    members[0]["healthCheck"] = {"interval": check}
    aggregate = {
        "name": "fleet",
        "clusters": [member["name"] for member in members],
        "reads": {"authorize": "Server"},
        "cache": {"resources": [{"group": group, "version": "v1", "resource": "*"}], "maxStaleness": "1h"},
    }
    daemon = {"drainTimeout": "1s", "controlSocket": str(directory / "control")}
    reader = {"name": "reader", "rules": [{"verbs": ["get", "list"], "apiGroups": ["*"], "resources": ["*"]}]}
    sections = {"aggregates": [aggregate], "daemon": daemon, "authorization": [reader]}
    file, backend = directory / "mcproxy-fleet.yaml", {"aggregate": "fleet"}
    return _mcproxy(file, listen, identity, members, backend, {"authorization": "reader"}, sections)


def _cluster(name: str, port: int, authority: Path, server_name: str, token: Path) -> dict[str, Any]:
    return {
        "name": name,
        "endpoints": [{"url": f"https://127.0.0.1:{port}"}],
        "tls": {"caFile": str(authority), "serverName": server_name},
        "credentials": {"tokenFile": str(token)},
        "identity": "Proxy",
    }


def _mcproxy(
    file: Path,
    listen: int,
    identity: Identity,
    clusters: list[dict[str, Any]],
    backend: dict[str, Any],
    server: Mapping[str, Any] = _NOTHING,
    sections: Mapping[str, Any] = _NOTHING,
    listener: Mapping[str, Any] = _NOTHING,
) -> Path:
    document = {
        "version": 1,
        "daemon": {"drainTimeout": "1s"},
        "listeners": [
            {
                "name": "bench",
                "serves": "API",
                "bind": f"127.0.0.1:{listen}",
                "tls": {"certificates": ["bench"], "minVersion": "1.3"},
                **listener,
            }
        ],
        "certificates": [{"name": "bench", "certFile": str(identity.certificate), "keyFile": str(identity.key)}],
        "clusters": clusters,
        "servers": [
            {
                "name": "bench",
                "listeners": ["bench"],
                "serverNames": ["localhost"],
                "default": True,
                "backend": backend,
                "authentication": "none",
                "accessLog": False,
                **server,
            }
        ],
        "logging": {"level": "warn"},
        **sections,
    }
    # Block style, and not JSON (which is YAML too): start-up is measured with the kind of file that people write.
    file.write_text(_yaml(document))
    return file


def _yaml(value: dict[str, Any], indent: str = "") -> str:
    lines = []
    for key, item in value.items():
        if isinstance(item, list) and item and isinstance(item[0], dict):
            lines.append(f"{indent}{key}:\n")
            for entry in item:
                body = _yaml(entry, indent + "    ")
                lines.append(f"{indent}  - {body.lstrip()}")
        elif isinstance(item, dict):
            lines.append(f"{indent}{key}:\n{_yaml(item, indent + '  ')}")
        else:
            lines.append(f"{indent}{key}: {json.dumps(item)}\n")
    return "".join(lines)


def _nginx(directory: Path, name: str, http: str) -> Path:
    for area in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
        (directory / f"nginx-{area}").mkdir(exist_ok=True)
    user = "user root;\n" if os.geteuid() == 0 else ""  # its default user may not read our directory
    file = directory / f"nginx-{name}.conf"
    file.write_text(
        f"""{user}daemon off;
worker_processes 1;
worker_rlimit_nofile 20000;
pid {directory}/nginx-{name}.pid;
error_log stderr warn;
events {{ worker_connections 16000; }}
http {{
  access_log off;
  sendfile on;
  tcp_nodelay on;
  keepalive_timeout 1h;
  keepalive_requests 1000000000;
  client_body_temp_path {directory}/nginx-body;
  proxy_temp_path {directory}/nginx-proxy;
  fastcgi_temp_path {directory}/nginx-fastcgi;
  uwsgi_temp_path {directory}/nginx-uwsgi;
  scgi_temp_path {directory}/nginx-scgi;
  http2_max_concurrent_streams 250;
  ssl_protocols TLSv1.3;
  ssl_conf_command Ciphersuites {CIPHER};{http}
}}
"""
    )
    return file


def nginx_pods(directory: Path, address: str, http1: int, http2: int, status: int) -> Path:
    """Write an nginx that stands for pods without TLS: objects of 1 KB and 1 MB over HTTP/1.1, gRPC over HTTP/2.

    `status` as for `nginx_upstream`. Return its configuration.
    """
    (directory / "object.json").write_bytes(object_body())
    (directory / "large").write_bytes(b"x" * LARGE_BYTES)
    return _nginx(
        directory,
        "pods",
        f"""
  open_file_cache max=16 inactive=1h;
  open_file_cache_valid 1h;
  server {{
    listen 127.0.0.1:{status};
    location / {{ stub_status; }}
  }}
  server {{
    listen {address}:{http1} backlog=4096;
    default_type application/json;
    location = /shop/object {{ alias {directory}/object.json; }}
    location = /shop/large {{ alias {directory}/large; }}
  }}
  server {{
    listen {address}:{http2} http2 backlog=4096;
    default_type application/grpc;
    location / {{ add_trailer grpc-status 0; return 200 "{"x" * 105}"; }}
  }}""",
    )


def nginx_ingress(directory: Path, listen: int, pods: tuple[str, str], identity: Identity) -> Path:
    """Write nginx as an ingress for `nginx_pods`; return its configuration.

    As ingress-nginx does it: buffering off, connections kept, the client's Host, X-Forwarded-* and X-Request-ID.
    """
    upstreams = "".join(
        f"""
  upstream {name} {{
    server {where};
    keepalive 4096;
    keepalive_requests 1000000000;
    keepalive_timeout 1h;
  }}"""
        for name, where in zip(("shop", "echo"), pods, strict=True)
    )
    fields = "".join(
        f"""
      {{directive}} {field};"""
        for field in (
            "Host $http_host",
            "X-Request-ID $request_id",
            "X-Real-IP $remote_addr",
            "X-Forwarded-For $remote_addr",
            "X-Forwarded-Proto $scheme",
            "X-Forwarded-Host $http_host",
        )
    )
    return _nginx(
        directory,
        "ingress",
        f"""{upstreams}
  server {{
    listen 127.0.0.1:{listen} ssl http2 backlog=4096;
    server_name localhost;
    ssl_certificate {identity.certificate};
    ssl_certificate_key {identity.key};
    location /shop {{
      proxy_pass http://shop;
      proxy_http_version 1.1;
      proxy_buffering off;
      proxy_buffer_size 16k;
      proxy_buffers 8 16k;
      proxy_set_header Connection "";{fields.format(directive="proxy_set_header")}
    }}
    location /bench.Echo {{
      grpc_pass grpc://echo;{fields.format(directive="grpc_set_header")}
    }}
  }}""",
    )


def mcproxy_ingress(directory: Path, listen: int, cluster: int, identity: Identity) -> Path:
    """Write an mcproxy.yaml with an ingress like `nginx_ingress` over the cluster on port `cluster`; return it."""

    def backend(service: str, **more: Any) -> dict[str, Any]:
        name = {"namespace": "bench", "service": service, "port": 80, "clusters": ["bench"]}
        return {"backend": {**name, **more}}

    document = {
        "version": 1,
        "daemon": {"drainTimeout": "1s"},
        "listeners": [
            {
                "name": "bench",
                "serves": "Ingress",
                "bind": f"127.0.0.1:{listen}",
                "tls": {"certificates": ["bench"], "minVersion": "1.3"},
            }
        ],
        "certificates": [{"name": "bench", "certFile": str(identity.certificate), "keyFile": str(identity.key)}],
        "clusters": [{"name": "bench", "endpoints": [{"url": f"http://127.0.0.1:{cluster}"}], "identity": "Proxy"}],
        "ingresses": [
            {
                "name": "bench",
                "listeners": ["bench"],
                "rules": [
                    {
                        "host": "localhost",
                        "paths": [
                            {"path": "/shop", "pathType": "Prefix", **backend("shop")},
                            {"path": "/bench.Echo", "pathType": "Prefix", **backend("echo", protocol="HTTP2")},
                        ],
                    }
                ],
            }
        ],
        "logging": {"level": "warn"},
    }
    file = directory / "mcproxy-ingress.yaml"
    file.write_text(json.dumps(document))
    return file


def nginx_file(directory: Path, listen: int, identity: Identity, path: str, file: Path) -> Path:
    """Write an nginx that serves `file` as `path` over TLS; return its configuration."""
    return _nginx(
        directory,
        "file",
        f"""
  open_file_cache max=16 inactive=1h;
  open_file_cache_valid 1h;
  server {{
    listen 127.0.0.1:{listen} ssl;
    server_name localhost;
    ssl_certificate {identity.certificate};
    ssl_certificate_key {identity.key};
    location = {path} {{ default_type application/json; alias {file}; }}
  }}""",
    )
