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
from mcproxy.upstream.exec_credential import exec_info, parse_exec_credential
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
        (b"", "did not print an ExecCredential"),
        (b"s3cret", "did not print an ExecCredential"),
        (b"[" * 100_000, "did not print an ExecCredential"),
        (b'"s3cret"', "something else"),
        (answer({"token": "s3cret"}, kind="Secret"), "something else"),
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


def test_a_plugin_is_given_the_configuration_that_the_kubeconfig_has_for_it() -> None:
    curious = model.ExecPlugin(command="x", provide_cluster_info=True, cluster_config='{"audience":"east"}')
    assert json.loads(exec_info(curious, cluster_config()))["spec"]["cluster"]["config"] == {"audience": "east"}
