"""Files that are right, and what they become; faults have their own place in test_cases."""

import copy
import json
import re
import tempfile
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcproxy.config.config_changes import changes
from mcproxy.config.control_socket import default_control_socket
from mcproxy.config.dump import effective, to_yaml
from mcproxy.config.load import load
from mcproxy.config.model import (
    AccessLogConfig,
    ClusterBackend,
    ClustersBackend,
    Config,
    DaemonConfig,
    EndpointConfig,
    ExecPlugin,
    SystemdBind,
    TCPBind,
    UnixBind,
    UpstreamIdentity,
    UpstreamProtocol,
)
from mcproxy.config.problem import ConfigErrors
from tests.config.pki import NOW
from tests.config.reading.test_schema import FULL, ODD, places
from tests.support.processor_time import processor_time


@pytest.fixture
def place(folder: Path) -> Path:
    """A folder beside the certificates for files of one test."""
    path = folder / "load"
    path.mkdir(exist_ok=True)
    for old in path.iterdir():
        old.unlink()
    return path


def config(place: Path, text: str, **environ: str) -> Config:
    file = place / "mcproxy.yaml"
    file.write_text("version: 1\n" + text)
    return load(str(file), environ=environ, now=NOW).config


def test_the_least_file_has_every_default(place: Path) -> None:
    loaded = config(place, "")
    file = str(place / "mcproxy.yaml")
    assert loaded == Config(daemon=DaemonConfig(control_socket=default_control_socket(file, {})), files=(file,))
    assert loaded.daemon.control_socket_is_default


def test_empty_sections_are_no_sections(place: Path) -> None:
    text = "".join(
        f"{key}:\n" for key in ("include", "daemon", "listeners", "certificates", "clusters", "servers", "logging")
    )
    assert config(place, text) == config(place, "")


def test_listeners(place: Path) -> None:
    loaded = config(
        place,
        """
listeners:
  - {name: a, bind: "[::1]:6443", proxyProtocol: {from: [10.0.0.0/8, 192.0.2.1]}, trustedProxies: ["fd00::/8"]}
  - {name: b, bind: "unix:/run/mcproxy/api.sock", limits: {headBytes: 16Ki, bodyBytes: 1Mi, idleTimeout: 0, headers: 5}}
  - {name: c, bind: "systemd:api", tls: {certificates: [k8s], minVersion: "1.3"}}
  - {name: d, bind: "localhost:0"}
certificates: [{name: k8s, certFile: ../good.crt, keyFile: ../good.key}]
""",
    )
    a, b, c, d = loaded.listeners
    assert [a.bind, b.bind, c.bind, d.bind] == [
        TCPBind("::1", 6443),
        UnixBind("/run/mcproxy/api.sock"),
        SystemdBind("api"),
        TCPBind("localhost", 0),
    ]
    assert a.proxy_protocol_from == (ip_network("10.0.0.0/8"), ip_network("192.0.2.1/32"))
    assert (a.trusted_proxies, b.proxy_protocol_from) == ((ip_network("fd00::/8"),), None)
    assert (b.limits.head_bytes, b.limits.body_bytes, b.limits.idle_timeout, b.limits.headers) == (16384, 2**20, 0, 5)
    assert c.tls is not None
    assert (c.tls.certificates, c.tls.min_version) == (("k8s",), "1.3")


def test_a_certificate_is_for_the_names_in_it_unless_others_are_given(place: Path, folder: Path) -> None:
    loaded = config(
        place,
        """
certificates:
  - {name: a, certFile: ../good.crt, keyFile: ../good.key}
  - {name: b, certFile: ../good.crt, keyFile: ../good.key, serverNames: [EAST.k8s.example.com.]}
""",
    )
    a, b = loaded.certificates
    assert a.server_names == ("k8s.example.com", "*.k8s.example.com")
    assert b.server_names == ("east.k8s.example.com",)
    assert (a.chain.path, a.chain.data) == (str(folder / "good.crt"), (folder / "good.crt").read_bytes())
    assert (a.key.path, a.key.data) == (str(folder / "good.key"), (folder / "good.key").read_bytes())


def test_a_cluster_by_endpoints(place: Path, folder: Path) -> None:
    loaded = config(
        place,
        """
clusters:
  - name: east
    labels: {region: eu, "a.b/c": ""}
    endpoints:
      - {name: a, url: "HTTPS://API.example.com/"}
      - {url: "https://[fd00::1]:6443/k8s/clusters/x/"}
    tls: {caFile: ../ca.crt, serverName: Kubernetes}
    credentials: {tokenFile: ../token, certFile: ../client.crt, keyFile: ../client.key}
    identity: Proxy
    healthCheck: {path: /healthz, interval: 1m, timeout: 500ms, unhealthyAfter: 5, healthyAfter: 2}
    connections: {protocol: HTTP1, maxIdle: 0, maxConnections: 7, connectTimeout: 1s, responseTimeout: 0}
    preserveHost: true
""",
    )
    [cluster] = loaded.clusters
    assert cluster.labels == (("region", "eu"), ("a.b/c", ""))
    assert cluster.endpoints == (
        EndpointConfig(name="a", scheme="https", host="api.example.com", port=443),
        EndpointConfig(
            name="https://[fd00::1]:6443/k8s/clusters/x",
            scheme="https",
            host="fd00::1",
            port=6443,
            path="/k8s/clusters/x",
        ),
    )
    assert cluster.tls.ca is not None
    assert (cluster.tls.ca.path, cluster.tls.server_name) == (str(folder / "ca.crt"), "kubernetes")
    assert cluster.credentials.token_file == str(folder / "token")
    assert cluster.credentials.certificate is not None
    assert (cluster.identity, cluster.connections.protocol) == (UpstreamIdentity.PROXY, UpstreamProtocol.HTTP1)
    assert (cluster.health_check.interval, cluster.health_check.timeout) == (60, 0.5)
    assert (cluster.connections.max_idle, cluster.connections.max_connections) == (0, 7)
    assert (cluster.connections.response_timeout, cluster.connections.idle_timeout) == (0, 90)
    assert cluster.preserve_host


def test_an_exec_plugin_is_a_file_or_a_name_on_path(place: Path, folder: Path) -> None:
    loaded = config(
        place,
        """
clusters:
  - name: a
    endpoints: [{url: "https://10.0.0.1"}]
    identity: Proxy
    credentials: {exec: {command: ../plugin, args: [a, "${B}"], env: {C: d}, provideClusterInfo: true}}
  - {name: b, endpoints: [{url: "https://10.0.0.1"}], identity: Proxy, credentials: {exec: {command: plugin}}}
""",
        B="b",
        PATH=str(folder),
    )
    a, b = loaded.clusters
    assert a.credentials.exec == ExecPlugin(
        command=str(folder / "plugin"), args=("a", "b"), env=(("C", "d"),), provide_cluster_info=True
    )
    assert b.credentials.exec == ExecPlugin(command="plugin")


def test_secrets_show_themselves_nowhere(place: Path) -> None:
    text = """
clusters:
  - name: a
    endpoints: [{url: "https://10.0.0.1"}]
    identity: Proxy
    credentials: {token: hush}
  - name: b
    endpoints: [{url: "https://10.0.0.1"}]
    identity: Proxy
    credentials: {exec: {command: sh, env: {A: hush}}}
"""
    loaded = config(place, text, PATH="/bin:/usr/bin")
    token = loaded.clusters[0].credentials.token
    assert token is not None
    assert token.reveal() == "hush"
    assert "hush" not in repr(loaded)


SERVERS = """
listeners:
  - {name: a, bind: "127.0.0.1:1"}
  - {name: b, bind: "127.0.0.1:2"}
clusters:
  - {name: east, endpoints: [{url: "http://127.0.0.1:8001"}], identity: Passthrough}
  - {name: west, endpoints: [{url: "http://127.0.0.1:8002"}], identity: Passthrough}
"""


def test_servers_have_their_references_spelt_out(place: Path) -> None:
    loaded = config(
        place,
        SERVERS
        + """
servers:
  - {name: one, serverNames: [East.Example.com, "*.east.example.com"], backend: {cluster: east}, accessLog: false}
  - {name: all, listeners: [b], default: true, backend: {clusters: "*"}}
  - {name: same, listeners: [a], default: true, backend: {clusters: [west, "*"]}}
  - {name: some, serverNames: [some.example.com], backend: {clusters: [west]}, authentication: none}
""",
    )
    one, every, same, some = loaded.servers
    assert (one.listeners, every.listeners) == (("a", "b"), ("b",))
    assert one.server_names == ("east.example.com", "*.east.example.com")
    assert (one.backend, some.backend) == (ClusterBackend("east"), ClustersBackend(("west",)))
    assert every.backend == same.backend == ClustersBackend(("east", "west"))
    assert (one.access_log, every.access_log, one.default, every.default) == (False, True, False, True)


@pytest.mark.parametrize(("text", "workers"), [("3", 3), ("2.0", 2), ("Auto", "Auto"), ("63", 63)])
def test_workers_are_a_number_or_auto_and_dumped_as_such(place: Path, text: str, workers: object) -> None:
    loaded = config(place, f"daemon: {{workers: {text}}}\n")
    assert loaded.daemon.workers == workers
    assert f"  workers: {workers}\n" in to_yaml(effective(loaded))
    (change,) = changes(loaded, config(place, "daemon: {workers: 1}\n"))
    assert str(change) == f"changed daemon.workers: {workers} -> 1"


def test_daemon_and_logging_with_paths_relative_to_the_file(place: Path) -> None:
    loaded = config(
        place,
        "daemon: {controlSocket: run/c.sock, shutdownDelay: 5s, drainTimeout: 0, workers: 1}\n"
        "logging: {level: debug, format: json, access: {file: log/access.log, format: combined}}\n",
    )
    assert loaded.daemon.control_socket == str(place / "run/c.sock")
    assert (loaded.daemon.shutdown_delay, loaded.daemon.drain_timeout) == (5, 0)
    assert (loaded.logging.level, loaded.logging.format) == ("debug", "json")
    assert loaded.logging.access == AccessLogConfig(file=str(place / "log/access.log"), format="combined")
    assert config(place, "logging: {access: {}}\n").logging.access == AccessLogConfig()


def test_an_environment_variable_in_a_text_and_a_doubled_dollar(place: Path) -> None:
    text = """
clusters:
  - {name: "${NAME}-1", endpoints: [{url: "https://${HOST}"}], identity: Passthrough, labels: {a: "$$x$${y}"}}
"""
    [cluster] = config(place, text, NAME="east", HOST="10.0.0.9").clusters
    assert (cluster.name, cluster.endpoints[0].host, dict(cluster.labels)) == ("east-1", "10.0.0.9", {"a": "$x${y}"})


def test_an_environment_variable_cannot_change_the_structure_or_a_type(place: Path) -> None:
    text = """
clusters:
  - {name: a, endpoints: [{url: "https://a"}], identity: Passthrough, labels: {a: "${X}", b: "${Y}"}}
"""
    [cluster] = config(place, text, X="}], c: ${Y}", Y="true").clusters
    assert dict(cluster.labels) == {"a": "}], c: ${Y}", "b": "true"}


def test_included_files_are_read_in_c_order_and_merged_section_by_section(place: Path) -> None:
    cluster = "clusters: [{name: %s, endpoints: [{url: 'https://a'}], identity: Passthrough}]\n"
    for name in ("b", "B", "a", "é", ".hidden"):
        (place / f"part-{name}.yaml").write_text(cluster % {"B": "b-upper", "é": "e-acute"}.get(name, name))
    (place / ".part-x.yaml").write_text("nonsense: 1\n")
    (place / "extra.yaml").write_text("daemon: {drainTimeout: 1s}\ninclude: [part-a.yaml]\n")
    (place / "part-.hidden.yaml").unlink()
    loaded = config(
        place, "include: ['part-*.yaml', extra.yaml, 'none/*.yaml']\ndaemon: {shutdownDelay: 2s}\n" + cluster % "main"
    )
    assert [cluster.name for cluster in loaded.clusters] == ["main", "b-upper", "a", "b", "e-acute"]
    assert (loaded.daemon.drain_timeout, loaded.daemon.shutdown_delay) == (1, 2)
    assert [Path(file).name for file in loaded.files] == [
        "mcproxy.yaml", "part-B.yaml", "part-a.yaml", "part-b.yaml", "part-é.yaml", "extra.yaml"
    ]  # fmt: skip


def test_relative_names_are_relative_to_the_file_that_names_them(place: Path, folder: Path) -> None:
    (folder / "nested.yaml").write_text("certificates: [{name: n, certFile: good.crt, keyFile: good.key}]\n")
    loaded = config(place, "include: [../nested.yaml]\n")
    assert loaded.certificates[0].chain.path == str(folder / "good.crt")
    (folder / "nested.yaml").unlink()


def test_a_file_that_does_not_exist_is_an_error_of_the_common_form(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(str(tmp_path / "nosuch.yaml"))
    [problem] = caught.value.problems
    assert re.match(r".*/nosuch\.yaml:1:1: cannot be read: No such file or directory; name yours with -c", str(problem))


def test_equal_files_give_equal_configurations(place: Path, folder: Path) -> None:
    text = SERVERS + "servers: [{name: a, default: true, backend: {clusters: '*'}}]\n"
    assert config(place, text) == config(place, text)
    assert config(place, text) != config(place, text.replace("8001", "8003"))


def test_200_clusters_are_read_in_well_under_a_second(place: Path) -> None:
    cluster = """
  - name: c%d
    endpoints: [{name: a, url: "https://10.0.0.1:6443"}, {name: b, url: "https://10.0.0.2:6443"}]
    tls: {caFile: ../ca.crt, serverName: kubernetes}
    credentials: {tokenFile: ../token, certFile: ../client.crt, keyFile: ../client.key}
    identity: Proxy
    healthCheck: {interval: 5s}
"""
    text = "clusters:" + "".join(cluster % number for number in range(200))
    with processor_time() as taken:
        assert len(config(place, text).clusters) == 200
    assert taken.seconds < 1.0


def mutated(document: dict[str, Any], changes: list[tuple[int, Any]]) -> dict[str, Any]:
    """Return the document with values at some of its places replaced."""
    document = copy.deepcopy(document)
    for number, value in changes:
        found = [path for path in places(document) if path]
        path = found[number % len(found)]
        parent: Any = document
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = copy.deepcopy(value)
    return document


_changes = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(ODD)), max_size=4)


def load_all(main: object, kubeconfig: object) -> None:
    """Load a file beside a kubeconfig; every outcome but ConfigErrors with places is a fault of ours."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.kubeconfig").write_text(json.dumps(kubeconfig))
        (Path(folder) / "mcproxy.yaml").write_text(json.dumps(main))
        try:
            load(f"{folder}/mcproxy.yaml", environ={}, now=NOW)
        except ConfigErrors as errors:
            problems = errors.problems
        else:
            return
    assert problems
    assert all(problem.mark and problem.right for problem in problems)


@given(_changes)
def test_a_file_with_odd_values_gives_errors_and_nothing_else(changes: list[tuple[int, Any]]) -> None:
    load_all(mutated(FULL, changes), {})


KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}, {"name": "b", "context": {"cluster": "a"}}],
    "clusters": [
        {
            "name": "a",
            "cluster": {
                "server": "https://a", "certificate-authority": "x", "certificate-authority-data": "", "proxy-url": "",
                "insecure-skip-tls-verify": False, "tls-server-name": "a",
                "extensions": [{"name": "a", "extension": 1}],
            },
        }
    ],
    "users": [
        {
            "name": "a",
            "user": {
                "token": "a", "tokenFile": "", "username": "", "password": "", "client-certificate": "x", "as": "",
                "client-key-data": "eA==", "auth-provider": None,
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["a"],
                    "env": [{"name": "a", "value": "b"}], "interactiveMode": "Never", "provideClusterInfo": True,
                },
            },
        }
    ],
}  # fmt: skip


@given(_changes)
def test_a_kubeconfig_with_odd_values_gives_errors_and_nothing_else(changes: list[tuple[int, Any]]) -> None:
    cluster = {"name": "a", "identity": "Proxy", "kubeconfig": {"file": "k.kubeconfig"}}
    load_all({"version": 1, "clusters": [cluster]}, mutated(KUBECONFIG, changes))


def test_no_error_shows_a_secret(tmp_path: Path) -> None:
    cluster = {"name": "a", "identity": "Proxy", "endpoints": [{"url": "https://u:hush@h"}]}
    variants: list[dict[str, Any]] = [
        {"token": 482910},
        {"token": "hush hush"},
        {"exec": {"command": "sh", "env": {"A": 482910}}},
    ]
    clusters = [{**cluster, "name": f"c{i}", "credentials": variant} for i, variant in enumerate(variants)]
    users = [{"token": 482910}, {"token": "hush hush"}, {"username": "a", "password": 482910}]
    for i, user in enumerate(users):
        document = {
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": "https://u:hush@h"}}],
            "users": [{"name": "a", "user": user}],
        }
        (tmp_path / f"{i}.kubeconfig").write_text(json.dumps(document))
        reference = {"file": f"{i}.kubeconfig", "context": "a"}
        clusters.append({"name": f"k{i}", "identity": "Proxy", "kubeconfig": reference})
    (tmp_path / "mcproxy.yaml").write_text(json.dumps({"version": 1, "clusters": clusters}))
    with pytest.raises(ConfigErrors) as caught:
        load(str(tmp_path / "mcproxy.yaml"), environ={}, now=NOW)
    text = str(caught.value)
    assert len(caught.value.problems) == 12
    assert "hush" not in text
    assert "482910" not in text


def test_a_folder_with_pattern_characters_in_its_name_is_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "[a]*"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "conf.d/x.yaml").write_text("logging: {level: debug}\n")
    (folder / "mcproxy.yaml").write_text("version: 1\ninclude: [conf.d/*.yaml]\n")
    assert load(str(folder / "mcproxy.yaml"), environ={}, now=NOW).config.logging.level == "debug"


def test_a_file_named_without_a_folder_is_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mcproxy.yaml").write_text("version: 1\ninclude: ['*.inc']\ndaemon: {controlSocket: c.sock}\n")
    Path("x.inc").write_text("zebra: 1\n")
    with pytest.raises(ConfigErrors, match=r"^x\.inc:1:1: zebra: "):
        load("mcproxy.yaml", environ={}, now=NOW)
    Path("x.inc").write_text("")
    config = load("mcproxy.yaml", environ={}, now=NOW).config
    assert config.daemon.control_socket == str(tmp_path / "c.sock")
    assert config.files == (str(tmp_path / "mcproxy.yaml"), str(tmp_path / "x.inc"))
