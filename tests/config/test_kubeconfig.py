"""Kubeconfigs: our reading against the `kubernetes` package's, and what only client-go does."""

import base64
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.config import kube_config

from mcproxy.config.load import load
from mcproxy.config.model import ClusterConfig, EndpointConfig, ExecPlugin, HTTPProxy, Secret
from mcproxy.config.problem import ConfigErrors
from tests.config.pki import NOW


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@pytest.fixture
def place(folder: Path, tmp_path: Path) -> Path:
    for name in ("ca.crt", "client.crt", "client.key", "token", "plugin"):
        (tmp_path / name).symlink_to(folder / name)
    return tmp_path


def read(place: Path, kubeconfig: str, context: str | None = None) -> ClusterConfig:
    (place / "k.kubeconfig").write_text(textwrap.dedent(kubeconfig))
    reference = {"file": "k.kubeconfig", **({"context": context} if context else {})}
    cluster = {"name": "k", "identity": "Proxy", "kubeconfig": reference}
    (place / "mcproxy.yaml").write_text(json.dumps({"version": 1, "clusters": [cluster]}))
    return load(str(place / "mcproxy.yaml"), environ={"PATH": "/usr/bin:/bin"}, now=NOW).config.clusters[0]


def kubeconfig(cluster: dict[str, Any], user: dict[str, Any] | None = None) -> str:
    context = {"cluster": "c", **({"user": "u"} if user is not None else {})}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "contexts": [{"name": "x", "context": context}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}] if user is not None else [],
    }
    return json.dumps(document, indent=2)


SERVER = {"server": "https://10.0.0.1:6443"}
TABLE: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "bare": (SERVER, None),
    "base path": ({"server": "https://rancher.example.com/k8s/clusters/c-1/"}, None),
    "authority in a file": ({**SERVER, "certificate-authority": "ca.crt"}, None),
    "authority embedded": ({**SERVER, "certificate-authority-data": "@ca.crt@"}, None),
    "tls-server-name": ({**SERVER, "tls-server-name": "kubernetes.default"}, None),
    "not verified": ({**SERVER, "insecure-skip-tls-verify": True}, None),
    "verified in words": ({**SERVER, "insecure-skip-tls-verify": False, "certificate-authority": "ca.crt"}, None),
    "token": (SERVER, {"token": "abc"}),
    "token file": (SERVER, {"tokenFile": "token"}),
    "password": (SERVER, {"username": "admin", "password": "s$cret"}),
    "certificate in files": (SERVER, {"client-certificate": "client.crt", "client-key": "client.key"}),
    "certificate embedded": (SERVER, {"client-certificate-data": "@client.crt@", "client-key-data": "@client.key@"}),
    "certificate from both": (SERVER, {"client-certificate-data": "@client.crt@", "client-key": "client.key"}),
    "token and certificate": (SERVER, {"token": "a", "client-certificate": "client.crt", "client-key": "client.key"}),
}


@pytest.mark.parametrize("name", TABLE)
def test_we_read_what_the_kubernetes_package_reads(place: Path, name: str) -> None:
    text = kubeconfig(*TABLE[name])
    for file in ("ca.crt", "client.crt", "client.key"):
        text = text.replace(f"@{file}@", encoded(place / file))
    ours = read(place, text)
    theirs = client.Configuration()
    kube_config.load_kube_config(str(place / "k.kubeconfig"), client_configuration=theirs)  # type: ignore[no-untyped-call]

    assert ours.endpoints[0].url.removesuffix(":443") == _with_port(theirs.host.rstrip("/"))
    assert (ours.tls.ca.data if ours.tls.ca else None) == _content(theirs.ssl_ca_cert)
    assert ours.tls.insecure_skip_verify is not theirs.verify_ssl
    assert ours.tls.server_name == theirs.tls_server_name
    credentials = ours.credentials
    assert (credentials.certificate.data if credentials.certificate else None) == _content(theirs.cert_file)
    assert (credentials.key.data if credentials.key else None) == _content(theirs.key_file)
    theirs_sent = theirs.api_key.get("BearerToken")  # less the line end of a token file, which client-go takes off
    assert _authorization(ours) == (theirs_sent.strip() if theirs_sent else None)


def _with_port(url: str) -> str:
    return url.replace("rancher.example.com/", "rancher.example.com:443/")


def _content(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None


def _authorization(cluster: ClusterConfig) -> str | None:
    credentials = cluster.credentials
    if credentials.token is not None:
        return f"Bearer {credentials.token.reveal()}"
    if credentials.token_file is not None:
        return f"Bearer {Path(credentials.token_file).read_text().strip()}"
    if credentials.basic is not None:
        name, password = credentials.basic
        return "Basic " + base64.b64encode(f"{name}:{password.reveal()}".encode()).decode()
    return None


def test_the_file_and_context_are_kept(place: Path) -> None:
    text = kubeconfig(SERVER)
    cluster = read(place, text)
    assert cluster.kubeconfig is not None
    assert (cluster.kubeconfig.file, cluster.kubeconfig.context) == (str(place / "k.kubeconfig"), "x")
    assert cluster == read(place, text, context="x")


def test_json_indented_with_tabs_is_fine(place: Path) -> None:
    text = json.dumps(json.loads(kubeconfig(SERVER)), indent="\t")
    assert read(place, text) == read(place, kubeconfig(SERVER))


def test_embedded_data_is_named_by_its_place(place: Path) -> None:
    cluster = read(place, kubeconfig({**SERVER, "certificate-authority-data": encoded(place / "ca.crt")}))
    assert cluster.tls.ca is not None
    assert cluster.tls.ca.path == f"{place}/k.kubeconfig#clusters[0].cluster.certificate-authority-data"


def test_yaml_with_unknown_keys_and_extensions_is_fine(place: Path) -> None:
    cluster = read(
        place,
        """
        apiVersion: v1
        kind: Config
        preferences: {colors: true}
        extensions: [{name: minikube, extension: {last-update: Mon}}]
        current-context: a
        contexts: [{name: a, context: {cluster: a, namespace: demo, user: ""}}]
        clusters: [{name: a, cluster: {server: "https://10.0.0.1", disable-compression: true, proxy-url: ""}}]
        users:
        """,
    )
    assert cluster.endpoints == (
        EndpointConfig(name="https://10.0.0.1:443", scheme="https", host="10.0.0.1", port=443),
    )


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        (
            "http://proxy.example.com:3128",
            HTTPProxy(url="http://proxy.example.com:3128", host="proxy.example.com", port=3128),
        ),
        ("HTTP://Proxy/", HTTPProxy(url="http://proxy:80", host="proxy", port=80)),
        ("http://[fd00::1]:3128", HTTPProxy(url="http://[fd00::1]:3128", host="fd00::1", port=3128)),
        (
            "http://a%40b:p%3A%25%c3%a4:@x:1",
            HTTPProxy(url="http://x:1", host="x", port=1, user="a@b", password=Secret("p:%ä:")),
        ),
        ("http://a@x:1", HTTPProxy(url="http://x:1", host="x", port=1, user="a", password=Secret(""))),
        ("http://:b@x:1", HTTPProxy(url="http://x:1", host="x", port=1, user="", password=Secret("b"))),
    ],
)
def test_a_proxy_with_its_decoded_credentials(place: Path, url: str, proxy: HTTPProxy) -> None:
    cluster = read(place, kubeconfig({**SERVER, "proxy-url": url}))
    assert cluster.proxy == proxy
    assert "p:%" not in repr(cluster)


def test_a_server_without_a_scheme_is_https_where_tls_is_configured(place: Path) -> None:
    assert read(place, kubeconfig({"server": "127.0.0.1:8001"})).endpoints[0].url == "http://127.0.0.1:8001"
    secure = read(place, kubeconfig({"server": "10.0.0.1:6443", "certificate-authority": "ca.crt"}))
    assert secure.endpoints[0].url == "https://10.0.0.1:6443"


def test_the_token_file_wins_over_the_token(place: Path) -> None:
    credentials = read(place, kubeconfig(SERVER, {"token": "abc", "tokenFile": "token"})).credentials
    assert (credentials.token, credentials.token_file) == (None, str(place / "token"))


EXEC = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "./plugin"}


def test_an_exec_plugin_with_everything(place: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./plugin",
        "args": ["a", "--b=c"],
        "env": [{"name": "A", "value": "hush"}, {"name": "B"}],
        "interactiveMode": "IfAvailable",
        "provideClusterInfo": True,
        "installHint": "get it",
    }
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x", "n": [1]}}
    found = read(place, kubeconfig({**SERVER, "extensions": [extension]}, {"exec": plugin})).credentials.exec
    assert found == ExecPlugin(
        command=str(place / "plugin"),
        args=("a", "--b=c"),
        env=(("A", "hush"), ("B", "")),
        api_version="client.authentication.k8s.io/v1",
        provide_cluster_info=True,
        install_hint="get it",
        cluster_config='{"audience":"x","n":[1]}',
    )
    assert "hush" not in repr(found)


def test_a_name_without_a_slash_is_looked_for_on_path(place: Path) -> None:
    found = read(place, kubeconfig(SERVER, {"exec": {**EXEC, "command": "sh"}})).credentials.exec
    assert found == ExecPlugin(command="sh", api_version="client.authentication.k8s.io/v1beta1")


@pytest.mark.parametrize("other", [{"token": "abc"}, {"tokenFile": "token"}, {"username": "a", "password": "b"}])
def test_a_token_or_password_is_used_before_an_exec_plugin(place: Path, other: dict[str, str]) -> None:
    credentials = read(place, kubeconfig(SERVER, {"exec": EXEC, **other})).credentials
    assert credentials.exec is None
    assert credentials.token or credentials.token_file or credentials.basic


def test_a_kubeconfig_that_200_clusters_name_is_reported_once(place: Path) -> None:
    (place / "k.kubeconfig").write_text("clusters: [\n")
    entries = [
        {"name": f"k{i}", "identity": "Proxy", "kubeconfig": {"file": "k.kubeconfig", "context": f"c{i}"}}
        for i in range(200)
    ]
    (place / "mcproxy.yaml").write_text(json.dumps({"version": 1, "clusters": entries}))
    with pytest.raises(ConfigErrors) as caught:
        load(str(place / "mcproxy.yaml"), environ={}, now=NOW)
    assert len(caught.value.problems) == 1


def test_a_dollar_sign_in_a_kubeconfig_is_a_dollar_sign(place: Path) -> None:
    token = read(place, kubeconfig(SERVER, {"token": "${HOME}"})).credentials.token
    assert token is not None
    assert token.reveal() == "${HOME}"
