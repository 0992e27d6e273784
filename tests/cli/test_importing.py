"""`mcproxy import`: files, exit statuses, and where secrets go."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mcproxy.cli.main import main
from mcproxy.config.load import load
from mcproxy.config.model import HTTPProxy
from tests.importing.builders import b64, ca, karmada_cluster, karmada_secret, pair, registry, upstream_cluster


def write(path: Path, *documents: Any) -> str:
    path.write_text("---\n".join(yaml.safe_dump(document) for document in documents))
    path.chmod(0o600)
    return str(path)


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    chain, key = pair("operator")
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/true",
        "args": ["--token=very-secret-argument"],
        "env": [{"name": "KEY", "value": "very-secret-value"}],
        "interactiveMode": "Never",
    }
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority-data": b64(ca())}},
            {"name": "i", "cluster": {"server": "https://10.0.0.2", "insecure-skip-tls-verify": True}},
        ],
        "users": [
            {"name": "token", "user": {"token": "very-secret-token"}},
            {"name": "cert", "user": {"client-certificate-data": b64(chain), "client-key-data": b64(key)}},
            {"name": "basic", "user": {"username": "u", "password": "very-secret-password"}},
            {"name": "plugin", "user": {"exec": plugin}},
            {"name": "gcp", "user": {"auth-provider": {"name": "gcp"}}},
        ],
        "contexts": [
            {"name": "east", "context": {"cluster": "c", "user": "token", "namespace": "team"}},
            {"name": "arn:aws:eks:eu/../../etc", "context": {"cluster": "c", "user": "cert"}},
            {"name": "$(HOME)${HOME}", "context": {"cluster": "i", "user": "token"}},
            {"name": "home", "context": {"cluster": "c", "user": "basic"}},
            {"name": "plugin", "context": {"cluster": "c", "user": "plugin"}},
            {"name": "gone", "context": {"cluster": "c", "user": "gcp"}},
            {"name": "日本", "context": {"cluster": "c", "user": "token"}},
        ],
    }
    write(tmp_path / "kubeconfig", content)
    return tmp_path / "kubeconfig"


def test_kubeconfig_is_referred_to(kubeconfig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "kubeconfig", str(kubeconfig)]) == 3
    captured = capsys.readouterr()
    document = yaml.safe_load(captured.out)
    assert [entry["name"] for entry in document["clusters"]] == [
        "east",
        "arn-aws-eks-eu.etc",
        "home-home",
        "home",
        "plugin",
    ]
    assert all(entry["kubeconfig"]["file"] == str(kubeconfig) for entry in document["clusters"])
    assert "very-secret" not in captured.out + captured.err
    (tmp_path / "mcproxy.yaml").write_text(captured.out)
    config = load(str(tmp_path / "mcproxy.yaml"), environ={"HOME": "stolen"}).config
    assert config.clusters[2].kubeconfig is not None
    assert config.clusters[2].kubeconfig.context == "$(HOME)${HOME}"
    assert "mcproxy import: context gone: left out: users[4].user.auth-provider" in captured.err
    assert "#   context gone: left out: users[4].user.auth-provider" in captured.out
    assert "context 日本: left out" in captured.err
    assert "context east: context.namespace: is not carried over" in captured.err


def test_kubeconfig_is_copied_into_files_of_this_user_alone(kubeconfig: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        command = ["import", "kubeconfig", str(kubeconfig), "--secrets", str(tmp_path / "tls")]
        assert main([*command, "--output", str(tmp_path / "c.yaml")]) == 3
    finally:
        os.umask(before)
    assert mode(tmp_path / "tls") == 0o700
    assert mode(tmp_path / "c.yaml") == 0o600
    files = sorted(path.name for path in (tmp_path / "tls").iterdir())
    assert files == [
        "arn-aws-eks-eu.etc_ca.crt", "arn-aws-eks-eu.etc_client.crt", "arn-aws-eks-eu.etc_client.key", "east_ca.crt",
        "east_token", "home-home_token",
    ]  # fmt: skip
    assert {mode(tmp_path / "tls" / name) for name in files} == {0o600}
    clusters = {cluster.name: cluster for cluster in load(str(tmp_path / "c.yaml")).config.clusters}
    assert clusters["east"].credentials.token_file == str(tmp_path / "tls" / "east_token")
    assert clusters["home-home"].tls.insecure_skip_verify
    assert clusters["home"].kubeconfig is not None  # a password can only be in a kubeconfig
    assert clusters["plugin"].kubeconfig is not None
    assert "very-secret" not in (tmp_path / "c.yaml").read_text()


def test_the_password_of_an_http_proxy_becomes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    urls = {
        "east": "http://edge:very%2Fsecret@proxy.example.com:3128",
        "west": "http://proxy.example.com",
        "empty": "http://edge@proxy.example.com:3128",
        "socks": "socks5://edge:very%2Fsecret@proxy.example.com:1080",
    }
    content = {
        "clusters": [
            {"name": name, "cluster": {"server": "https://10.0.0.1", "proxy-url": url}} for name, url in urls.items()
        ],
        "users": [{"name": "u", "user": {"token": "very-secret-token"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in urls],
    }
    file = write(tmp_path / "kubeconfig", content)
    command = ["import", "kubeconfig", file, "--secrets", str(tmp_path / "tls"), "--output", str(tmp_path / "c.yaml")]
    assert main(command) == 3
    clusters = {cluster.name: cluster for cluster in load(str(tmp_path / "c.yaml")).config.clusters}
    assert list(clusters) == ["east", "west", "empty"]
    password = tmp_path / "tls" / "east_proxy-password"
    proxy = clusters["east"].proxy
    assert proxy is not None
    assert (proxy.url, proxy.user, proxy.password_file) == ("http://proxy.example.com:3128", "edge", str(password))
    assert (password.read_text(), mode(password)) == ("very/secret", 0o600)
    assert clusters["west"].proxy == HTTPProxy(url="http://proxy.example.com:80", host="proxy.example.com", port=80)
    assert clusters["empty"].kubeconfig is not None  # an empty password can only be there
    said = capsys.readouterr().err
    assert "context empty: cluster.proxy-url: the kubeconfig is referred to, not copied" in said
    assert "context socks: clusters[3].cluster.proxy-url: left out: is a proxy of the kind socks5" in said
    for text in (said, (tmp_path / "c.yaml").read_text()):
        assert "secret" not in text.replace("--secrets", "")


def test_only_some_contexts(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "kubeconfig", str(kubeconfig), "--context", "home"]) == 0
    assert [each["name"] for each in yaml.safe_load(capsys.readouterr().out)["clusters"]] == ["home"]
    assert main(["import", "kubeconfig", str(kubeconfig), "--context", "gone"]) == 78
    assert "nothing could be carried over" in capsys.readouterr().err
    assert main(["import", "kubeconfig", str(kubeconfig), "--context", "other"]) == 78
    assert "there is no context other" in capsys.readouterr().err


def kubeadm(folder: Path, *clusters: str) -> str:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": each, "cluster": {"server": "https://10.0.0.1:6443"}} for each in clusters],
        "users": [{"name": "kubernetes-admin", "user": {"token": "t"}}],
        "contexts": [
            {"name": f"kubernetes-admin@{each}", "context": {"cluster": each, "user": "kubernetes-admin"}}
            for each in clusters
        ],
    }
    return write(folder / "admin.conf", content)


def test_contexts_as_kubeadm_calls_them_are_called_like_their_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "kubeconfig", kubeadm(tmp_path, "kubernetes", "Prod_1")]) == 0
    assert [each["name"] for each in yaml.safe_load(capsys.readouterr().out)["clusters"]] == ["kubernetes", "prod-1"]


def test_clusters_can_be_given_names(kubeconfig: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "kubeconfig", kubeadm(tmp_path, "kubernetes"), "--name", "prod"]) == 0
    captured = capsys.readouterr()
    assert [each["name"] for each in yaml.safe_load(captured.out)["clusters"]] == ["prod"]
    assert "the cluster is called" not in captured.err
    both = ["--context", "home", "--name", "h", "--context", "east", "--name", "e"]
    assert main(["import", "kubeconfig", str(kubeconfig), *both]) == 0
    found = yaml.safe_load(capsys.readouterr().out)["clusters"]
    assert {each["name"]: each["kubeconfig"]["context"] for each in found} == {"h": "home", "e": "east"}
    for wrong, told in (
        (["--name", "a"], "1 names for 7 contexts"),
        (["--context", "home", "--name", "Home 1"], "is no name of a cluster"),
        (["--context", "home", "--name", "a", "--context", "east", "--name", "a"], "two clusters of the name a"),
    ):
        assert main(["import", "kubeconfig", str(kubeconfig), *wrong]) == 78
        assert told in capsys.readouterr().err


def test_the_next_steps_name_the_main_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, main_file, folder = kubeadm(tmp_path, "kubernetes"), tmp_path / "mcproxy.yaml", tmp_path / "conf.d"
    folder.mkdir()
    main_file.write_text("version: 1\n")
    output = ["--output", str(folder / "k.yaml"), "--force"]
    assert main(["import", "kubeconfig", source, *output]) == 0
    said = capsys.readouterr().err
    assert f"next: write include: [conf.d/k.yaml] and a server with what was made in {main_file}, then " in said
    assert said.endswith(f"mcproxy check {main_file}\n")
    assert f"mcproxy rbac -c {main_file}" in (folder / "k.yaml").read_text()
    main_file.write_text("version: 1\ninclude: [conf.d/*.yaml]\n")
    assert main(["import", "kubeconfig", source, *output]) == 0
    assert f"next: write a server with what was made in {main_file}, then" in capsys.readouterr().err
    elsewhere = tmp_path / "a" / "b"
    elsewhere.mkdir(parents=True)
    assert main(["import", "kubeconfig", source, "--output", str(elsewhere / "k.yaml")]) == 0
    assert f"include: [{elsewhere}/k.yaml]" in (said := capsys.readouterr().err)
    assert "in /etc/mcproxy/mcproxy.yaml, then mcproxy check\n" in said


def test_upstream_cluster_is_a_good_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "objects.yaml", upstream_cluster(), upstream_cluster("west.example.com", tomorrow=1))
    assert main(["import", "upstreamcluster", file, "--output", str(tmp_path / "mcproxy.yaml")]) == 0
    captured = capsys.readouterr()
    line = "UpstreamCluster west.example.com: spec.tomorrow: is not known to mcproxy"
    assert f"mcproxy import: {line}\n" in captured.err
    text = (tmp_path / "mcproxy.yaml").read_text()
    assert f"#   {line}\n" in text
    assert "very-secret" not in text + captured.err + captured.out
    assert main(["check", "-q", "--strict", "--offline", str(tmp_path / "mcproxy.yaml")]) == 0
    config = load(str(tmp_path / "mcproxy.yaml")).config
    assert [server.name for server in config.servers] == ["east.example.com", "west.example.com"]
    assert mode(tmp_path / "mcproxy-files") == 0o700
    assert {mode(path) for path in (tmp_path / "mcproxy-files").iterdir()} == {0o600}


def test_secrets_are_never_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "objects.yaml", upstream_cluster())
    assert main(["import", "upstreamcluster", file]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "give --output FILE, or --secrets DIR" in captured.err
    assert main(["import", "upstreamcluster", file, "--secrets", str(tmp_path / "s")]) == 0
    assert f"tokenFile: {tmp_path}/s/east.example.com_token\n" in capsys.readouterr().out


def test_nothing_is_overwritten_unless_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "objects.yaml", upstream_cluster())
    output, token = tmp_path / "mcproxy.yaml", tmp_path / "mcproxy-files" / "east.example.com_token"
    command = ["import", "upstreamcluster", file, "--output", str(output)]
    output.write_text("mine")
    assert main(command) == 1
    assert "is there already; --force replaces it" in capsys.readouterr().err
    assert not token.exists()
    output.unlink()
    token.parent.mkdir(mode=0o700)
    (tmp_path / "elsewhere").write_text("mine")
    token.symlink_to(tmp_path / "elsewhere")
    assert main(command) == 78
    assert not output.exists()
    assert main([*command, "--force"]) == 0
    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert token.read_text() == "very-secret-token"
    assert not token.is_symlink()
    assert mode(token) == 0o600


def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "objects.yaml", upstream_cluster())
    (tmp_path / "s").mkdir()
    (tmp_path / "s").chmod(0o777)
    assert main(["import", "upstreamcluster", file, "--secrets", str(tmp_path / "s")]) == 78
    assert "others may write to this folder" in capsys.readouterr().err
    assert list((tmp_path / "s").iterdir()) == []


def test_flags_of_the_gateway(tmp_path: Path) -> None:
    chain, key = pair("gateway.example.com")
    for name, data in (("gw.crt", chain), ("gw.key", key), ("ca.crt", ca())):
        (tmp_path / name).write_bytes(data)
    file = write(tmp_path / "objects.yaml", upstream_cluster(secureServing=None))
    files = [
        "--certificate",
        str(tmp_path / "gw.crt"),
        str(tmp_path / "gw.key"),
        "--client-ca",
        str(tmp_path / "ca.crt"),
    ]
    output = tmp_path / "mcproxy.yaml"
    assert main(["import", "upstreamcluster", file, *files, "--bind", "0.0.0.0:443", "--output", str(output)]) == 0
    config = load(str(output)).config
    assert str(config.listeners[0].bind) == "0.0.0.0:443"
    assert config.authentication[0].client_ca is not None


def test_as_run(tmp_path: Path) -> None:
    policies = [{"rules": [{"verbs": ["-get", "-list"], "apiGroups": ["*"], "resources": ["*"]}]}]
    file = write(tmp_path / "objects.yaml", upstream_cluster(dispatchPolicies=policies))
    for option, verbs in ((), ("-get", "-list")), (("--as-run",), ("*",)):
        output = tmp_path / f"{len(option)}.yaml"
        assert main(["import", "upstreamcluster", file, *option, "--output", str(output)]) == 0
        dispatch = load(str(output)).config.servers[0].dispatch
        assert dispatch is not None
        assert dispatch[0].rules[0].verbs == verbs


def test_resource_registry(tmp_path: Path) -> None:
    objects = [karmada_cluster("east"), karmada_secret("east"), registry("r", {"apiVersion": "v1", "kind": "Secret"})]
    file = write(tmp_path / "karmada.yaml", {"apiVersion": "v1", "kind": "List", "items": objects})
    output = tmp_path / "fleet.yaml"
    assert main(["import", "resourceregistry", file, "--name", "fleet", "--output", str(output)]) == 0
    aggregate = load(str(output)).config.aggregates[0]
    assert (aggregate.name, aggregate.clusters) == ("fleet", ("east",))
    assert [each.resource for each in aggregate.cache.resources] == ["secrets"]


def test_standard_input_can_be_read(tmp_path: Path) -> None:
    text = json.dumps(upstream_cluster())
    command = [sys.executable, "-m", "mcproxy", "import", "upstreamcluster", "-", "--output", str(tmp_path / "m.yaml")]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert "next: mcproxy check" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["upstreamcluster"], "which files? or --live"),
        (["upstreamcluster", "--live", "f"], "give it no files"),
        (["upstreamcluster", "f", "--context", "c"], "are for --live"),
        (["resourceregistry", "-", "-"], "read once"),
        (["kubeconfig", "-"], "cannot be standard input"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("what", ["kubeconfig", "upstreamcluster", "resourceregistry"])
@pytest.mark.parametrize("text", ["a: [", "7\n", "", "a: b\n", "kind: Config\nclusters: 7\ncontexts: 5\n"])
def test_files_that_are_wrong_are_status_78(
    what: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.yaml").write_text(text)
    assert main(["import", what, str(tmp_path / "f.yaml")]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err


def test_a_file_that_is_not_there_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "upstreamcluster", str(tmp_path / "f.yaml")]) == 1
    assert capsys.readouterr().err.endswith("f.yaml: No such file or directory\n")


def test_hostile_text_stays_in_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = upstream_cluster()
    hostile["spec"]["evil\nservers: []\x1b[2J"] = 1
    file = write(tmp_path / "objects.yaml", hostile)
    assert main(["import", "upstreamcluster", file, "--output", str(tmp_path / "m.yaml")]) == 0
    assert "\x1b" not in capsys.readouterr().err
    assert len(yaml.safe_load((tmp_path / "m.yaml").read_text())["servers"]) == 1


def test_a_gateway_certificate_that_is_wrong_is_no_fault_of_the_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gw.pem").write_text("no PEM")
    file = write(tmp_path / "objects.yaml", upstream_cluster())
    pem = str(tmp_path / "gw.pem")
    command = ["import", "upstreamcluster", file, "--certificate", pem, pem, "--output", str(tmp_path / "m.yaml")]
    assert main(command) == 78
    captured = capsys.readouterr()
    assert "certificates[0].certFile" in captured.err
    assert "UpstreamCluster" not in captured.err
    assert not (tmp_path / "m.yaml").exists()
