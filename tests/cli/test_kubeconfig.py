"""`mcproxy kubeconfig`: a kubeconfig that kubectl takes, and nothing in it that the configuration does not say."""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.cli import kubeconfig
from tests.config import pki
from tests.e2e.conftest import kubectl as kubectl

CONFIG = """
version: 1
listeners:
  - {name: local, bind: "127.0.0.1:8001"}
  - {name: public, bind: "0.0.0.0:6443", tls: {certificates: [other, good]}}
certificates:
  - {name: good, certFile: good.crt, keyFile: good.key}
  - {name: other, certFile: other.crt, keyFile: other.key}
clusters:
  - {name: east, endpoints: [{url: "https://127.0.0.1:1"}], credentials: {token: hush}}
  - {name: west, endpoints: [{url: "https://127.0.0.1:2"}], credentials: {token: hush}}
  - {name: own, endpoints: [{url: "https://127.0.0.1:3"}], identity: Passthrough}
authentication:
  - name: corp
    clientCertificates: {caFile: ca.crt}
    tokenFile: users.csv
    oidc: [{issuer: "https://login.example.com", audiences: [k8s]}]
    tokenReview: {cluster: east}
    anonymous: {enabled: true}
  - {name: bare, clientCertificates: {caFile: ca.crt}}
servers:
  - {name: one, serverNames: ["*.k8s.example.com", k8s.example.com], backend: {cluster: east}, authentication: corp}
  - {name: all, default: true, backend: {clusters: [east, west]}, authentication: bare, listeners: [public]}
  - {name: open, listeners: [local], default: true, backend: {cluster: own}, authentication: none}
  - {name: nobody, listeners: [public], serverNames: [other.example.com], backend: {cluster: east},
     authentication: none}
"""

USERS = 'tok-alice,alice,1,"dev,ops"\ntok-bob,bob,2\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kubeconfig")
    pki.write(path)
    (path / "users.csv").write_text(USERS)
    (path / "mcproxy.yaml").write_text(CONFIG)
    return path


AGGREGATE = """
aggregates:
  - {name: fleet, clusters: [west, east], primary: own, cache: {resources: [{group: "", version: v1, resource: pods}]}}
"""


class Output:
    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def document(self) -> dict[str, Any]:
        assert self.status == 0, self.err
        content: dict[str, Any] = yaml.safe_load(self.out)
        return content

    @property
    def cluster(self) -> dict[str, str]:
        found: dict[str, str] = self.document["clusters"][0]["cluster"]
        return found

    @property
    def user(self) -> dict[str, str]:
        found: dict[str, str] = self.document["users"][0]["user"]
        return found


class Command:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys

    def __call__(self, server: str, *options: str, config: str = "") -> Output:
        file = self.folder / "mcproxy.yaml"
        if config:
            file = self.folder / "another.yaml"
            file.write_text(config)
        parser = argparse.ArgumentParser()
        kubeconfig.add_parser(parser.add_subparsers())
        args = parser.parse_args(["kubeconfig", "-c", str(file), "--server", server, *options])
        status = kubeconfig.run(args)
        captured = self._capsys.readouterr()
        return Output(status, captured.out, captured.err)


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(folder, capsys)


def test_a_server_is_found_by_its_exact_name_over_tls(command: Command, folder: Path) -> None:
    cluster = command("one").cluster
    assert cluster["server"] == "https://k8s.example.com:6443"
    assert "tls-server-name" not in cluster
    assert base64.b64decode(cluster["certificate-authority-data"]) == (folder / "ca.crt").read_bytes()


def test_kubectl_takes_it(command: Command, kubectl: str, tmp_path: Path) -> None:
    for server, options in (("one", ("--user", "alice")), ("all", ("--address", "10.0.0.1")), ("open", ())):
        file = tmp_path / server
        file.write_text(command(server, *options).out)
        run = [kubectl, "--kubeconfig", str(file), "config"]
        shown = subprocess.run([*run, "view", "--raw", "-o", "json"], capture_output=True, check=True).stdout
        assert json.loads(shown)["clusters"] == yaml.safe_load(file.read_text())["clusters"]
        contexts = subprocess.run([*run, "get-contexts", "-o", "name"], capture_output=True, check=True, text=True)
        assert contexts.stdout.split() == (["east", "west"] if server == "all" else [server])


def test_a_server_of_several_clusters_has_a_context_for_each(command: Command) -> None:
    document = command("all", "--address", "proxy.example.org").document
    urls = {item["name"]: item["cluster"]["server"] for item in document["clusters"]}
    assert urls == {name: f"https://proxy.example.org:6443/clusters/{name}" for name in ("east", "west")}
    assert [item["name"] for item in document["contexts"]] == ["east", "west"]
    assert document["current-context"] == "east"


@pytest.mark.parametrize(("name", "of_east"), [("fleet", "east"), ("east", "east-east")])
def test_a_server_of_an_aggregate_has_a_context_for_it_and_for_each_member(
    command: Command, name: str, of_east: str
) -> None:
    server = f"  - {{name: {name}, serverNames: [a.example.com], backend: {{aggregate: fleet}}, authentication: bare,\n"
    document = command(name, config=f"{CONFIG}{server}     listeners: [public]}}\n{AGGREGATE}").document
    urls = {item["name"]: item["cluster"]["server"] for item in document["clusters"]}
    url = "https://a.example.com:6443"
    assert urls == {name: url, "west": f"{url}/clusters/west", of_east: f"{url}/clusters/east"}
    assert [item["name"] for item in document["contexts"]] == [name, "west", of_east]
    assert document["current-context"] == name


def test_a_user_of_the_token_file_gets_the_token(command: Command) -> None:
    output = command("one", "--user", "alice")
    assert output.user == {"token": "tok-alice"}
    assert output.document["contexts"][0]["context"] == {"cluster": "one", "user": "alice"}
    assert output.err == ""


@pytest.mark.parametrize(
    ("server", "says"),
    [("one", "no such user in its token file"), ("all", "has no token file"), ("open", "has no token file")],
)
def test_a_user_without_a_token_is_refused(command: Command, server: str, says: str) -> None:
    output = command(server, "--user", "carol", "--address", "a.example")
    assert (output.status, output.out) == (2, "")
    assert says in output.err
    assert "tok-" not in output.err


def test_without_a_user_a_note_says_what_to_add(command: Command) -> None:
    output = command("one")
    assert output.user == {}
    assert "tok-" not in output.out + output.err
    for way in ("client-certificate", "users.csv", "https://login.example.com", "service account", "anonymous"):
        assert way in output.err
    assert "client-certificate" in command("all", "--address", "a.example").err


def test_without_authentication_nothing_is_to_be_added(command: Command) -> None:
    assert command("nobody").err == ""
    assert "own token for own" in command("open").err


def test_a_listener_without_tls_is_reached_without(command: Command) -> None:
    assert command("open").cluster == {"server": "http://127.0.0.1:8001"}


@pytest.mark.parametrize(
    ("address", "url", "name"),
    [
        ("10.0.0.1", "https://10.0.0.1:6443", "k8s.example.com"),
        ("10.0.0.1:443", "https://10.0.0.1:443", "k8s.example.com"),
        ("[2001:db8::1]:443", "https://[2001:db8::1]:443", "k8s.example.com"),
        ("2001:db8::1", "https://[2001:db8::1]:6443", "k8s.example.com"),
        ("east.k8s.example.com", "https://east.k8s.example.com:6443", None),
        ("K8S.example.com", "https://k8s.example.com:6443", None),
        ("a.east.k8s.example.com", "https://a.east.k8s.example.com:6443", "k8s.example.com"),
    ],
)
def test_another_address_keeps_the_name_that_finds_the_server(
    command: Command, address: str, url: str, name: str | None
) -> None:
    cluster = command("one", "--address", address).cluster
    assert (cluster["server"], cluster.get("tls-server-name")) == (url, name)


def test_an_address_that_would_lead_elsewhere_is_refused(command: Command) -> None:
    config = CONFIG.replace('["*.k8s.example.com", k8s.example.com]', '["*.k8s.example.com"]')
    output = command("one", "--address", "10.0.0.1", config=config)
    assert (output.status, output.out) == (2, "")
    assert "*.k8s.example.com" in output.err
    assert command("one", "--address", "a.k8s.example.com", config=config).status == 0


def test_an_address_that_is_another_servers_name_is_refused(command: Command) -> None:
    output = command("one", "--address", "other.example.com")  # 421: its Host and the TLS name are not one server's
    assert (output.status, output.out) == (2, "")
    assert "a name of server nobody" in output.err
    config = CONFIG.replace("[other.example.com]", "[nobody.k8s.example.com]")
    assert "a name of server nobody" in command("one", "--address", "nobody.k8s.example.com", config=config).err
    assert command("one", "--address", "a.k8s.example.com", config=config).status == 0


@pytest.mark.parametrize("address", ["", ":443", "a:0", "a:x", "a:70000", "https://a", "[::1", "a/b"])
def test_an_address_that_is_none_is_wrong_usage(command: Command, address: str) -> None:
    assert command("one", "--address", address).status == 2


def test_an_authority_that_the_chain_does_not_hold_is_left_out(command: Command, folder: Path) -> None:
    chain = (folder / "good.crt").read_text()
    (folder / "leaf.crt").write_text(
        chain[: chain.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----\n")]
    )
    output = command("one", config=CONFIG.replace("certFile: good.crt", "certFile: leaf.crt"))
    assert output.cluster == {"server": "https://k8s.example.com:6443"}
    assert "name it with --ca FILE" in output.err
    output = command(
        "one", "--ca", str(folder / "ca.crt"), config=CONFIG.replace("certFile: good.crt", "certFile: leaf.crt")
    )
    assert base64.b64decode(output.cluster["certificate-authority-data"]) == (folder / "ca.crt").read_bytes()
    assert "--ca" not in output.err
    assert "will not trust" not in output.err


def test_an_authority_of_a_file_goes_without_what_else_is_in_it(command: Command, folder: Path) -> None:
    both = folder / "ca-and-key.pem"
    both.write_bytes((folder / "good.key").read_bytes() + b"# a comment\n" + (folder / "both-ca.crt").read_bytes())
    output = command("one", "--ca", str(both))
    data = base64.b64decode(output.cluster["certificate-authority-data"])
    assert data == (folder / "both-ca.crt").read_bytes()
    assert b"PRIVATE" not in data
    assert "will not trust" not in output.err


def test_an_authority_that_is_another_one_is_printed_with_a_note(command: Command, folder: Path) -> None:
    output = command("one", "--ca", str(folder / "front-ca.crt"))
    assert base64.b64decode(output.cluster["certificate-authority-data"]) == (folder / "front-ca.crt").read_bytes()
    assert "they will not trust it" in output.err


@pytest.mark.parametrize(
    ("server", "file", "told"),
    [
        ("one", "nowhere.crt", "No such file"),
        ("one", "junk.pem", "holds no PEM certificate"),
        ("one", "good.key", "holds no PEM certificate"),
        ("open", "ca.crt", "has no tls"),
    ],
)
def test_a_file_that_holds_no_authority_is_wrong_usage(
    command: Command, folder: Path, server: str, file: str, told: str
) -> None:
    output = command(server, "--ca", str(folder / file))
    assert (output.status, output.out) == (2, "")
    assert told in output.err


def test_the_authority_is_that_of_the_certificate_that_the_name_gets(command: Command, folder: Path) -> None:
    from cryptography import x509

    stranger = pki.make("Stranger CA")
    pair = pki.make("lone", names=("other.example.com",), issuer=stranger)
    (folder / "lone.crt").write_bytes(pki.cert_pem(pair[0], stranger[0]))
    (folder / "lone.key").write_bytes(pki.key_pem(pair[1]))
    config = CONFIG.replace("certFile: other.crt, keyFile: other.key", "certFile: lone.crt, keyFile: lone.key")

    def authority(server: str, *options: str) -> str:
        data = command(server, *options, config=config).cluster["certificate-authority-data"]
        return x509.load_pem_x509_certificate(base64.b64decode(data)).subject.rfc4514_string()

    assert authority("one") == "CN=Test CA"
    assert authority("nobody") == "CN=Stranger CA"
    assert authority("all", "--address", "10.0.0.1") == "CN=Stranger CA"  # the first is for whoever names none


def test_a_certificate_of_the_very_name_goes_before_a_wildcard(command: Command, folder: Path) -> None:
    from cryptography import x509

    stranger = pki.make("Stranger CA")
    pair = pki.make("wild", names=("*.example.com",), issuer=stranger)
    (folder / "wild.crt").write_bytes(pki.cert_pem(pair[0], stranger[0]))
    (folder / "wild.key").write_bytes(pki.key_pem(pair[1]))
    config = CONFIG.replace("certFile: other.crt, keyFile: other.key", "certFile: wild.crt, keyFile: wild.key")
    data = command("one", config=config).cluster["certificate-authority-data"]
    authority = x509.load_pem_x509_certificate(base64.b64decode(data)).subject.rfc4514_string()
    assert authority == "CN=Test CA", "its listener's first certificate is for *.example.com"


def test_a_server_without_a_listener_cannot_be_reached(command: Command) -> None:
    config = """
version: 1
clusters: [{name: own, endpoints: [{url: "https://127.0.0.1:3"}], identity: Passthrough}]
servers: [{name: alone, default: true, backend: {cluster: own}}]
"""
    output = command("alone", "--address", "a.example", config=config)
    assert (output.status, output.out) == (2, "")
    assert "server alone is on no listener" in output.err


@pytest.mark.parametrize(
    ("bind", "says"),
    [("0.0.0.0:6443", "--address HOST"), ("unix:/run/x.sock", "--address HOST"), ("127.0.0.1:0", "PORT")],
)
def test_what_the_file_does_not_say_is_asked_for(command: Command, bind: str, says: str) -> None:
    config = CONFIG.replace("0.0.0.0:6443", bind)
    output = command("all", config=config)
    assert output.status == 2
    assert says in output.err


def test_a_server_that_is_not_there_is_wrong_usage(command: Command) -> None:
    output = command("north")
    assert output.status == 2
    assert "no server north; " in output.err


def test_a_file_with_faults_is_told_as_by_check(command: Command) -> None:
    output = command("one", config="version: 2\n")
    assert (output.status, output.out) == (78, "")
    assert "version" in output.err


TUNNELS = """
version: 1
listeners:
  - {name: local, bind: "127.0.0.1:8001"}
  - {name: hub, dial: {tunnel: up, urls: ["https://hub.example"], tls: {caFile: ca.crt},
     credentials: {tokenFile: token}}}
tunnels: [{name: site-a, users: [alice]}]
authentication:
  - {name: edges, tokenFile: users.csv}
  - {name: hubs, requestHeader: {listeners: [hub], hubUser: mcproxy-hub}, tokenFile: users.csv}
authorization: [{name: some, rules: [{verbs: [get], apiGroups: [""], resources: [pods]}]}]
clusters:
  - {name: site-a, identity: RequestHeader, endpoints: [{tunnel: site-a}]}
servers:
  - {name: tunnels, serverNames: [t.example], authentication: edges, backend: {tunnels: "*"}}
  - {name: site, listeners: [hub], backend: {cluster: site-a}, authentication: hubs, authorization: some}
  - {name: both, listeners: [hub, local], default: true, backend: {cluster: site-a}, authentication: hubs,
     authorization: some}
"""


def test_a_server_of_tunnels_and_one_behind_a_tunnel_have_none(command: Command) -> None:
    output = command("tunnels", config=TUNNELS)
    assert (output.status, "accepts tunnels, and has no API" in output.err) == (2, True)
    output = command("site", config=TUNNELS)
    assert (output.status, "is reached through a tunnel alone: make a kubeconfig of the hub" in output.err) == (2, True)
    output = command("both", config=TUNNELS)
    assert output.cluster["server"] == "http://127.0.0.1:8001"
    assert "client-certificate" not in output.err  # only the hub of the tunnel is trusted to name users
