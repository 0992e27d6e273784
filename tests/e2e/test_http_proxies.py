"""Clusters that only an HTTP proxy reaches: kubectl through both, exec too, and what is said if the proxy refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.environment import Environment
from tests.e2e.kubectl_output import SPDY, WEBSOCKET
from tests.e2e.processes import Kubectl, wait_until
from tests.support.connect_proxy import ConnectProxy
from tests.support.environment import PUBLIC_LISTENER

EAST = "east.behind-the-proxy.example:6443"  # names that no DNS has
WEST = "west.behind-the-proxy.example:6443"

CONFIG = (
    """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 5s}}
"""
    + PUBLIC_LISTENER
    + """\
clusters:
  - name: east
    endpoints: [{{name: a, url: "https://@EAST@"}}]
    tls: {{caFile: "{east_ca}", serverName: 127.0.0.1}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
    proxy: {{url: "@PROXY@", user: edge, passwordFile: proxy-password}}
    healthCheck: {{interval: 200ms, unhealthyAfter: 1}}
  - name: west
    kubeconfig: {{file: proxied.kubeconfig}}
    identity: Proxy
  - name: own
    endpoints: [{{name: a, url: "https://@EAST@"}}, {{name: direct, url: "{east_a}"}}]
    tls: {{caFile: "{east_ca}", serverName: 127.0.0.1}}
    identity: Passthrough
    proxy: {{url: "@PROXY@", user: edge, passwordFile: proxy-password}}
servers:
  - {{name: all, default: true, backend: {{clusters: [east, west, own]}}}}
  - {{name: east, serverNames: [east.e2e.test], backend: {{cluster: east}}}}
logging: {{access: {{file: access.log}}}}
"""
)


class ProxiedEnvironment(Environment):
    """The clusters behind HTTP proxies: east by keys with credentials, west by proxy-url without."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.guarded = ConnectProxy(credentials=("edge", "pässword"))
        self.free = ConnectProxy()

    def config(self, template: str = CONFIG) -> str:
        self.guarded.routes[EAST] = ("127.0.0.1", self.east.ports[0])
        self.free.routes[WEST] = ("127.0.0.1", self.west.ports[0])
        self.set_password("pässword")
        (self.directory / "proxied.kubeconfig").write_text(json.dumps(self._west()))
        (self.directory / "proxied.kubeconfig").chmod(0o600)
        return super().config(template).replace("@EAST@", EAST).replace("@PROXY@", self.guarded.url)

    def set_password(self, password: str) -> None:
        file = self.directory / "proxy-password"
        file.write_text(password + "\n")
        file.chmod(0o600)

    def _west(self) -> dict[str, object]:
        cluster = {
            "server": f"https://{WEST}",
            "tls-server-name": "127.0.0.1",
            "certificate-authority": str(self.west.ca),
            "proxy-url": self.free.url,
        }
        return {
            "current-context": "west",
            "clusters": [{"name": "west", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": "admin-test-token"}}],
            "contexts": [{"name": "west", "context": {"cluster": "west", "user": "admin"}}],
        }

    def stop(self) -> None:
        super().stop()
        self.guarded.close()
        self.free.close()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedEnvironment]:
    environment = ProxiedEnvironment(tmp_path_factory.mktemp("proxied"))
    try:
        environment.start()
        yield environment
    finally:
        environment.stop()


def test_kubectl_reads_writes_and_watches_through_the_proxies(proxied: ProxiedEnvironment, kubectl: str) -> None:
    for route, proxy, server in (("path", proxied.guarded, EAST), ("west", proxied.free, WEST)):
        kube = proxied.kubectl(kubectl, route)
        assert "pod/" in kube.good("get", "pods", "-o", "name")
        kube.good("create", "configmap", "through", "--from-literal=a=b")
        assert kube.good("get", "cm", "through", "-o", "jsonpath={.data.a}") == "b"
        kube.good("delete", "cm", "through")
        assert server in proxy.opened
    assert set(proxied.free.opened) == {WEST}
    assert set(proxied.guarded.opened) == {EAST, f"127.0.0.1:{proxied.east.ports[0]}"}


@pytest.mark.parametrize("environ", [WEBSOCKET, SPDY], ids=["websocket", "spdy"])
def test_exec_upgrades_through_the_proxies(proxied: ProxiedEnvironment, kubectl: str, environ: dict[str, str]) -> None:
    for route in ("path", "west"):
        kube = proxied.kubectl(kubectl, route)
        result = kube("exec", "-i", "db-0", "--", "sh", "-c", "cat; exit 7", stdin="one\ntwo\n", environ=environ)
        assert (result.status, result.stdout) == (7, "one\ntwo\n"), result.stderr


@pytest.mark.slow  # kubectl repeats what is refused with Retry-After
def test_a_rotated_password_is_used_after_a_reload_and_a_wrong_one_is_named(
    proxied: ProxiedEnvironment, kubectl: str
) -> None:
    kube, daemon = proxied.kubectl(kubectl, "path"), proxied.daemon
    proxied.set_password("wrong")
    assert daemon.reload().returncode == 0
    lines = daemon.wait_for("endpoint=a", "407 Proxy Authentication Required")
    assert any("put a user and password that the HTTP proxy accepts into `proxy`" in line for line in lines)
    refused = kube("get", "pods")
    assert refused.status != 0
    assert re.search(f"refuses the connection to {EAST}: 407 Proxy Authentication Required", refused.stderr)
    proxied.set_password("pässword")
    assert daemon.reload().returncode == 0
    wait_until("it is reached again", lambda: _is_served(kube))
    assert "wrong" not in daemon.log
    assert "pässword" not in daemon.log


def _is_served(kube: Kubectl) -> bool:
    return kube("get", "pods").status == 0


def test_broken_connections_of_the_proxy_are_opened_anew(proxied: ProxiedEnvironment, kubectl: str) -> None:
    kube = proxied.kubectl(kubectl, "west")
    kube.good("get", "pods")
    proxied.free.drop_connections()
    wait_until("it is reached again", lambda: _is_served(kube))
