"""`mcproxy check --connect`: every fault that a connection shows, in the order in which it is to be mended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubesim.auth.certificates import Authority
from mcproxy.cli.connect_checks import ConnectStep, step_of, step_of_redis
from mcproxy.cli.connect_pods import Pods
from mcproxy.net.causes import Cause, CauseCode
from mcproxy.services.endpoint_table import BackendKey
from tests.aggregate.reflector.harness import send
from tests.apiserver.process import APIServerProcess
from tests.proxy.otlp_collector import collecting
from tests.simulated_cluster.process import SimulatedClusterProcess
from tests.support.connect_proxy import ConnectProxy


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedClusterProcess]:
    with SimulatedClusterProcess("east", directory=tmp_path_factory.mktemp("east")) as running:
        yield running


def check(folder: Path, text: str, *options: str) -> tuple[int, list[str]]:
    """Return exit status and what it says; it has a reactor, so each has a process."""
    file = folder / "mcproxy.yaml"
    file.write_text(text)
    command = [sys.executable, "-m", "mcproxy", "check", "--connect", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, (done.stdout + done.stderr).replace(f"{folder}/", "").splitlines()


def entry(cluster: SimulatedClusterProcess, name: str, **keys: str) -> str:
    given = {
        "endpoints": f'[{{url: "{cluster.urls[0]}"}}]',
        "tls": f'{{caFile: "{cluster.ca}"}}',
        "credentials": f"{{token: {cluster.tokens['admin']}}}",
        "identity": "Impersonate",
        **keys,
    }
    return f"  - {{name: {name}, " + ", ".join(f"{key}: {value}" for key, value in given.items() if value) + "}\n"


HEAD = "version: 1\nclusters:\n"


@pytest.mark.slow
def test_all_that_is_good_is_said(cluster: SimulatedClusterProcess, tmp_path: Path) -> None:
    status, lines = check(tmp_path, HEAD + entry(cluster, "east"))
    assert status == 0
    assert any(line.startswith("cluster east: ") and "chain and name are good, answered 200" in line for line in lines)
    assert any("grants the proxy all" in line for line in lines)
    assert lines[-1] == "mcproxy: everything that mcproxy.yaml names can be reached and used"
    assert check(tmp_path, HEAD + entry(cluster, "east"), "-q") == (0, [])


@pytest.mark.slow
def test_faults_come_in_the_order_in_which_they_are_mended(cluster: SimulatedClusterProcess, tmp_path: Path) -> None:
    (tmp_path / "other.crt").write_bytes(Authority("another CA").pem)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, not listening: nothing else takes it
        port = closed.getsockname()[1]
        text = HEAD + "".join(
            [
                entry(cluster, "rights", credentials=f"{{token: {cluster.tokens['alice']}}}"),
                entry(cluster, "token", credentials="{token: nobody-has-this}"),
                entry(cluster, "ca", tls="{caFile: other.crt}"),
                entry(cluster, "name", tls=f'{{caFile: "{cluster.ca}", serverName: east.example.com}}'),
                entry(cluster, "port", endpoints=f'[{{url: "https://127.0.0.1:{port}"}}]'),
                entry(
                    cluster,
                    "off",
                    endpoints=f'[{{url: "{cluster.urls[0]}"}}, {{url: "https://127.0.0.1:{port}", disabled: true}}]',
                ),
            ]
        )
        text += (
            "authentication:\n"
            f'  - {{name: users, oidc: [{{issuer: "https://127.0.0.1:{port}", audiences: [a]}}]}}\n'
            f'  - {{name: more, oidc: [{{issuer: "{cluster.urls[0]}", audiences: [a], caFile: "{cluster.ca}"}}]}}\n'
            f'listeners: [{{name: local, bind: "unix:{tmp_path}/s"}}]\n'
            'servers: [{name: all, default: true, authentication: users, backend: {clusters: "*"}}]\n'
            "flowControls: [{name: all, type: MaxRequestsInflight, max: 9, shared: true}]\n"
            f'daemon: {{sharedState: {{redis: {{url: "redis://127.0.0.1:{port}/0"}}}}}}\n'
        )
        status, lines = check(tmp_path, text)
    assert status == 1
    start = next(number for number, line in enumerate(lines) if line.startswith("to be mended, in this order"))
    faults = [line for line in lines[start + 1 :] if line.lstrip()[:1].isdigit()]
    steps = " ".join(faults)
    positions = [
        steps.index(each)
        for each in ("cluster port:", "cluster ca:", "cluster name:", "cluster token:", "cluster rights:")
    ]
    assert positions == sorted(positions), faults
    assert any("refused the connection" in line and "issuer" in line for line in faults)
    assert any("127.0.0.1" in line and "daemon.sharedState" in line for line in faults)
    assert any("put the CA that signed" in line for line in faults)
    assert any("the certificate is not for" in line for line in faults)
    assert any("mcproxy rbac --cluster rights" in line and "impersonate" in line for line in faults)
    assert any(line.startswith("note: cluster off:") and "it is disabled" in line for line in lines)
    assert not any("cluster off:" in line for line in faults)
    assert lines[-1] == f"mcproxy: {len(faults)} faults in what mcproxy.yaml names"


def test_clusters_are_reached_through_their_http_proxies(cluster: SimulatedClusterProcess, tmp_path: Path) -> None:
    server = cluster.urls[0].removeprefix("https://")
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o600)
    with ConnectProxy(credentials=("edge", "right")) as proxy:
        given = {name: f'{{url: "{proxy.url}", user: edge, passwordFile: {name}}}' for name in ("right", "wrong")}
        text = HEAD + "".join(entry(cluster, name, proxy=value) for name, value in given.items())
        status, lines = check(tmp_path, text)
        assert set(proxy.opened) == {server}
    assert status == 1
    assert any(line.startswith("cluster right: ") and "chain and name are good, answered 200" in line for line in lines)
    (fault,) = [line for line in lines if "cluster wrong" in line]
    refused = f"the proxy 127.0.0.1:{proxy.port} refuses the connection to {server}: 407 Proxy Authentication Required"
    assert refused in fault
    assert "put a user and password that the HTTP proxy accepts into `proxy`" in fault


@pytest.mark.slow
def test_the_collector_of_spans_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "version: 1\nclusters: []\nservers: []\n"
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        status, lines = check(tmp_path, text)
        assert f"collector {collector.url}: accepts spans" in lines, lines
        assert (status, collector.spans) == (0, [])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")  # seconds that the SDK tries again for
    status, lines = check(tmp_path, text)
    (line,) = [line for line in lines if "collector" in line]
    assert status == 0
    assert "requests are not traced: " in line
    assert "see that the collector runs" in line
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    (line,) = [line for line in check(tmp_path, text)[1] if "collector" in line]
    assert "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in line


def test_it_is_not_for_offline(tmp_path: Path) -> None:
    assert check(tmp_path, "version: 1\n", "--offline")[0] == 2


def test_api_services_are_served_by_their_owners_and_hide_what_the_backend_has(
    cluster: SimulatedClusterProcess, tmp_path: Path
) -> None:
    text = HEAD + entry(cluster, "east") + entry(cluster, "owner")
    text += (
        f'listeners: [{{name: local, bind: "unix:{tmp_path}/s"}}]\n'
        "servers:\n"
        "  - name: one\n"
        "    default: true\n"
        "    backend: {cluster: east}\n"
        "    apiServices:\n"
        "      - {group: example.com, version: v1, cluster: owner}  # mcproxy: allow anonymous-users\n"
        "      - {group: absent.example.com, version: v1, cluster: owner}\n"
    )
    status, lines = check(tmp_path, text)
    assert status == 1
    assert "cluster owner: serves example.com/v1" in lines
    (hidden,) = [line for line in lines if line.startswith("warning: ") and "has no authentication" not in line]
    assert hidden == (
        "warning: mcproxy.yaml:11:9: servers[0].apiServices[0]: cluster east (mcproxy.yaml:3:5) serves example.com/v1 "
        "itself, and server one hides that"
    )
    (fault,) = [line for line in lines if line.startswith("1. ")]
    assert "cluster owner: is registered for absent.example.com/v1, and answered 404 to GET" in fault


@pytest.fixture(scope="module")
def widgets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIServerProcess]:
    with APIServerProcess("example.com", tmp_path_factory.mktemp("widgets")) as running:
        yield running


@pytest.mark.parametrize("what", ["well", "html", "another", "impersonate"])
def test_what_is_wrong_with_an_api_server_is_said_in_one_line(
    cluster: SimulatedClusterProcess, widgets: APIServerProcess, tmp_path: Path, what: str
) -> None:
    proxy = widgets.other_proxy if what == "another" else widgets.front_proxy
    certificate, key = proxy
    identity = f"identity: RequestHeader, frontProxy: {{certFile: {certificate}, keyFile: {key}}}"
    if what == "impersonate":
        identity = "identity: Impersonate, credentials: {token: anything}"
    text = HEAD + entry(cluster, "east")
    text += f'  - {{name: widgets, endpoints: [{{url: "{widgets.url}"}}], tls: {{caFile: {widgets.ca}}}, {identity}}}\n'
    text += (
        f'listeners: [{{name: local, bind: "unix:{tmp_path}/s"}}]\n'
        "servers:\n"
        "  - name: one\n"
        "    default: true\n"
        "    backend: {cluster: east}\n"
        "    apiServices: [{group: example.com, version: v1alpha1, cluster: widgets}]\n"
    )
    mode, prefix = {"html": ("html", "/apis"), "impersonate": ("404", "/apis/authorization.k8s.io")}.get(
        what, ("", "/")
    )
    widgets.misbehave(mode, prefix)
    try:
        status, lines = check(tmp_path, text)
    finally:
        widgets.misbehave("")
    faults = [line for line in lines if line[:1].isdigit()]
    expected = {
        "html": "answered 200 to GET /apis/example.com/v1alpha1, which is not its discovery document: ",
        "another": "--requestheader-client-ca-file",
        "impersonate": "does not serve selfsubjectaccessreviews of authorization.k8s.io (404)",
    }
    if what == "well":
        assert (status, faults) == (0, [])
    else:
        assert status == 1
        assert len([line for line in faults if expected[what] in line]) == 1, lines


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (CauseCode.REFUSED, ConnectStep.NETWORK),
        (CauseCode.NO_ADDRESS, ConnectStep.NETWORK),
        (CauseCode.NO_ANSWER_TO_CONNECT, ConnectStep.NETWORK),
        (CauseCode.UNKNOWN_AUTHORITY, ConnectStep.CERTIFICATE),
        (CauseCode.NOT_TLS, ConnectStep.CERTIFICATE),
        (CauseCode.SERVER_ERROR, ConnectStep.ANSWER),
        (CauseCode.BROKEN_OFF, ConnectStep.ANSWER),
    ],
)
def test_the_step_of_a_cause(code: CauseCode, step: ConnectStep) -> None:
    assert step_of(Cause("it failed", code)) is step


@pytest.mark.parametrize(
    ("cause", "step"),
    [
        ("redis://a:1: Connection refused", ConnectStep.NETWORK),
        ("rediss://a:1: certificate verify failed", ConnectStep.CERTIFICATE),
        ("redis://a:1: invalid username-password pair", ConnectStep.CREDENTIAL),
        ("redis://a:1: NOPERM this has no permissions to run the 'eval' command", ConnectStep.RIGHT),
    ],
)
def test_the_step_of_a_failure_of_redis(cause: str, step: ConnectStep) -> None:
    assert step_of_redis(cause) is step


SLICE = {
    "apiVersion": "discovery.k8s.io/v1",
    "kind": "EndpointSlice",
    "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
    "addressType": "IPv4",
    "ports": [{"name": "http", "port": 1, "protocol": "TCP"}],
}


def own_address() -> str:
    """Return an address of this machine that a pod may have: no loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


@pytest.mark.slow
def test_pod_networks_that_overlap_and_pods_that_cannot_be_reached_are_said(
    cluster: SimulatedClusterProcess, tmp_path: Path
) -> None:
    service = {"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}}
    assert send(cluster, "POST", "/api/v1/namespaces/default/services", service)[0] == 201
    address = own_address()
    with socket.socket() as pod, socket.socket() as closed:
        pod.bind((address, 0))
        pod.listen()
        closed.bind((address, 0))
        text = HEAD + entry(cluster, "east") + entry(cluster, "west")
        text += (
            "listeners: [{name: web, serves: Ingress, bind: '127.0.0.1:0'}]\n"
            "ingresses: [{name: web, defaultBackend: {namespace: default, service: web, port: 80, clusters: [east],\n"
            f"  allowedCIDRs: [{address}/32]}}}}]\n"
            "serviceExports: [{name: a, namespace: default, service: web, from: [east], to: [west]}]\n"
        )
        path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
        for listening in (pod, closed):
            port = listening.getsockname()[1]
            piece = {
                **SLICE,
                "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [address]}],
            }
            assert send(cluster, "POST", path, piece)[0] == 201
            lines = check(tmp_path, text)[1]
            assert send(cluster, "DELETE", f"{path}/web-1")[0] == 200
            # Both entries are one cluster, so every address is in both.
            assert any("is a pod of both (" in line and "their pod networks overlap" in line for line in lines)
            reached = f"cluster east: a pod of default/web can be reached at {address}:{port}"
            assert (reached in lines) is (listening is pod)
            refused = "warning: ingress web, cluster east: no pod of default/web can be reached from here"
            assert any(line.startswith(refused) for line in lines) is (listening is closed)


@pytest.mark.parametrize(
    ("service", "port", "cause"),
    [
        ("web", "8080", "service default/web of cluster east has no TCP port 8080; it has http (80)"),
        ("web", "https", "service default/web of cluster east has no TCP port named https; it has http (80)"),
        ("none", "80", "there is no service default/none of cluster east"),
    ],
)
@pytest.mark.parametrize("via", ["Endpoints", "APIServer"])
def test_a_backend_without_a_service_or_port_is_a_fault(
    cluster: SimulatedClusterProcess, tmp_path: Path, service: str, port: str, cause: str, via: str
) -> None:
    web = {"metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}}
    assert send(cluster, "POST", "/api/v1/namespaces/default/services", web)[0] in (201, 409)
    text = HEAD + entry(cluster, "east") + "listeners: [{name: web, serves: Ingress, bind: '127.0.0.1:0'}]\n"
    text += f"ingresses: [{{name: web, defaultBackend: {{namespace: default, service: {service}, port: {port}, "
    status, lines = check(tmp_path, text + f"clusters: [east], via: {via}}}}}]\n")
    assert status == 1
    assert any(f"ingresses[0]: ingress web: {cause}; see the Service" in line for line in lines), lines


def test_a_service_that_cannot_be_read_is_not_said_to_be_missing() -> None:
    found = Pods()
    services = {"items": [{"metadata": {"namespace": "a", "name": "web"}, "spec": {"ports": "many"}}]}
    found.add_slices("east", b'{"items": []}')
    found.add_services("east", json.dumps(services).encode())
    assert not found.endpoints(BackendKey("east", "a", "web", 80)).problem, "nothing was read yet"
    found.read.add(("east", "a"))
    unreadable = found.endpoints(BackendKey("east", "a", "web", 80))
    assert (unreadable.known, unreadable.missing) == (False, False)
    assert unreadable.problem.startswith("service a/web of cluster east: ")
    assert "there is no" not in unreadable.problem
    missing = found.endpoints(BackendKey("east", "a", "other", 80))
    assert (missing.missing, missing.problem) == (True, "there is no service a/other of cluster east")
