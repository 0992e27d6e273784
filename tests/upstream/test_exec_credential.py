"""The input and output of an exec plugin, by the protocol of client-go."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
import trustme

from mcproxy.config import model
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.exec_plugin import exec_info, parse_exec_credential
from tests.upstream.fakes import cluster_config

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"
PLUGIN = model.ExecPlugin(command="get-token")


def answer(status: Any, **fields: Any) -> bytes:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status, **fields}).encode()


def pem_pair() -> tuple[str, str]:
    issued = trustme.CA().issue_cert("client")
    return issued.cert_chain_pems[0].bytes().decode(), issued.private_key_pem.bytes().decode()


def test_a_token_with_a_time() -> None:
    status = parse_exec_credential(answer({"token": "abc", "expirationTimestamp": "2026-11-21T12:00:00Z"}), PLUGIN)
    assert status.header == b"Bearer abc"
    assert status.expires == datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
    assert "abc" not in repr(status)


def test_a_certificate_with_its_key() -> None:
    chain, key = pem_pair()
    status = parse_exec_credential(answer({"clientCertificateData": chain, "clientKeyData": key}), PLUGIN)
    assert status.header is None
    assert status.certificate is not None
    assert status.certificate.chain.decode() == chain
    assert status.expires is None


def test_v1beta1_is_spoken_where_it_is_configured() -> None:
    plugin = model.ExecPlugin(command="x", api_version=V1BETA1)
    assert parse_exec_credential(answer({"token": "t"}, apiVersion=V1BETA1), plugin).header == b"Bearer t"
    assert json.loads(exec_info(plugin, cluster_config()))["apiVersion"] == V1BETA1


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        (b"", "something other"),
        (b"s3cret", "something other"),
        (b"[" * 100_000, "YAML that cannot be read here"),
        (b'"s3cret"', "something other"),
        (answer({"token": "s3cret"}, kind="Secret"), "something other"),
        (answer({"token": "s3cret"}, apiVersion=V1BETA1), "another apiVersion"),
        (answer(None), "no status"),
        (answer({}), "neither a token nor"),
        (answer({"token": ["s3cret"]}), "status.token is not a string"),
        (answer({"token": "s3\ncret"}), "control or non-ASCII"),
        (answer({"clientCertificateData": "s3cret"}), "without the other"),
        (answer({"clientKeyData": "s3cret"}), "without the other"),
        (answer({"clientCertificateData": "s3cret", "clientKeyData": "s3cret"}), "not PEM"),
        (answer({"clientCertificateData": pem_pair()[0], "clientKeyData": pem_pair()[1]}), "do not belong together"),
        (answer({"token": "s3cret", "expirationTimestamp": "soon"}), "expirationTimestamp"),
        (answer({"token": "s3cret", "expirationTimestamp": "2026-11-21T12:00:00"}), "expirationTimestamp"),
    ],
)
def test_a_wrong_answer_is_an_error_that_does_not_repeat_it(output: bytes, complaint: str) -> None:
    with pytest.raises(CredentialError, match=complaint) as caught:
        parse_exec_credential(output, PLUGIN)
    assert "s3cret" not in str(caught.value)
    assert "get-token" in caught.value.cause


def in_yaml(status: str, head: str = f"apiVersion: {V1}\nkind: ExecCredential\n") -> bytes:
    return f"{head}status:\n{status}".encode()


@pytest.mark.parametrize(
    "output",
    [
        in_yaml("  token: abc\n"),
        in_yaml("  token: abc # with a remark\n", f"---\nkind: 'ExecCredential'\napiVersion: \"{V1}\"\nspec: {{}}\n"),
        in_yaml("  {token: !!str abc, more: [1, 2]}\n"),
        b"\xef\xbb\xbf" + in_yaml("  token: abc\n"),
        b"\n\n " + answer({"token": "abc"}),
        b"\xef\xbb\xbf" + answer({"token": "abc"}),
    ],
)
def test_yaml_is_read_as_kubectl_reads_it(output: bytes) -> None:
    assert parse_exec_credential(output, PLUGIN).header == b"Bearer abc"


def test_certificates_and_times_in_yaml() -> None:
    chain, key = pem_pair()
    blocks = "".join(
        f"  {name}: |\n" + "".join(f"    {line}\n" for line in pem.splitlines())
        for name, pem in (("clientCertificateData", chain), ("clientKeyData", key))
    )
    status = parse_exec_credential(in_yaml("  expirationTimestamp: 2026-11-21T12:00:00Z\n" + blocks), PLUGIN)
    assert status.expires == datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
    assert status.certificate is not None
    assert status.certificate.chain.decode().split() == chain.split()


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        (in_yaml("  token: 123\n"), "status.token is not a string"),
        (in_yaml("  token: yes\n"), "status.token is not a string"),
        (in_yaml("  token: [s3cret]\n"), "status.token is not a string"),
        (in_yaml("  token: &a s3cret\n  more: *a\n"), "YAML that cannot be read here"),
        (in_yaml("  token: !!binary s3cret\n"), "YAML that cannot be read here"),
        (in_yaml("  token: !!python/name:os.system s3cret\n"), "YAML that cannot be read here"),
        (in_yaml("  token: s3cret\n---\ntoken: s3cret\n"), "YAML that cannot be read here"),
        (in_yaml("  token: " + "[" * 1000 + "\n"), "YAML that cannot be read here"),
        (in_yaml("  token: s3cret\n" + "#" * 300_000), "more than 262144 bytes of YAML"),
        (in_yaml("  token: s3cret\n\ttabs: x\n"), "did not print an ExecCredential"),
        (in_yaml("  token: s3cret\n", f"apiVersion: {V1BETA1}\nkind: ExecCredential\n"), "another apiVersion"),
        (in_yaml("  token: s3cret\n", f"apiVersion: {V1}\nkind: Secret\n"), "something other"),
        (answer({"token": "s3cret"}) + b"s3cret", "did not print an ExecCredential"),
        (b"{kind: ExecCredential, apiVersion: v1, status: {token: s3cret}}", "did not print an ExecCredential"),
        (b"token: s3cret \xff", "did not print an ExecCredential"),
    ],
)
def test_what_kubectl_refuses_in_yaml_is_refused(output: bytes, complaint: str) -> None:
    with pytest.raises(CredentialError, match=complaint) as caught:
        parse_exec_credential(output, PLUGIN)
    assert "s3cret" not in str(caught.value)


def test_the_cluster_is_described_only_if_the_plugin_asks() -> None:
    assert json.loads(exec_info(PLUGIN, cluster_config())) == {
        "kind": "ExecCredential",
        "apiVersion": V1,
        "spec": {"interactive": False},
    }
    curious = model.ExecPlugin(command="x", provide_cluster_info=True)
    tls = model.ClusterTLS(ca=model.PEMFile("ca", b"CA"), server_name="kubernetes", insecure_skip_verify=True)
    assert json.loads(exec_info(curious, cluster_config(tls=tls)))["spec"]["cluster"] == {
        "server": "http://10.0.0.1:6443",
        "tls-server-name": "kubernetes",
        "insecure-skip-tls-verify": True,
        "certificate-authority-data": base64.b64encode(b"CA").decode(),
    }


@pytest.mark.parametrize(
    ("user", "password", "url"),
    [(None, None, "http://proxy:3128"), ("ed@ge", "p:ä/", "http://ed%40ge:p%3A%C3%A4%2F@proxy:3128")],
)
def test_a_plugin_is_given_the_http_proxy_with_its_credentials(
    user: str | None, password: str | None, url: str
) -> None:
    curious = model.ExecPlugin(command="x", provide_cluster_info=True)
    secret = None if password is None else model.Secret(password)
    proxy = model.HTTPProxy(url="http://proxy:3128", host="proxy", port=3128, user=user, password=secret)
    assert json.loads(exec_info(curious, cluster_config(proxy=proxy)))["spec"]["cluster"]["proxy-url"] == url


def test_a_plugin_is_given_the_configuration_that_the_kubeconfig_has_for_it() -> None:
    curious = model.ExecPlugin(command="x", provide_cluster_info=True, cluster_config='{"audience":"east"}')
    assert json.loads(exec_info(curious, cluster_config()))["spec"]["cluster"]["config"] == {"audience": "east"}
