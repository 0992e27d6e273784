"""The configuration files that the benchmarks write are complete, valid and equal in what they ask of each subject."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path

import pytest
import yaml

from bench import configs, pki


@pytest.fixture
def identity(tmp_path: Path) -> pki.Identity:
    return pki.make_identity(tmp_path / "tls", "localhost", "localhost")


def test_the_object_has_the_promised_length_and_is_json() -> None:
    body = configs.object_body()
    assert len(body) == configs.OBJECT_BYTES == 1126
    assert json.loads(body)["kind"] == "ConfigMap"


def test_the_mcproxy_file_reads_back_as_one_cluster_behind_one_loopback_listener(
    tmp_path: Path, identity: pki.Identity
) -> None:
    document = yaml.safe_load(configs.mcproxy(tmp_path, 8443, 9443, identity).read_text())
    assert document["version"] == 1
    assert document["listeners"][0]["bind"] == "127.0.0.1:8443"
    (cluster,) = document["clusters"]
    assert cluster["identity"] == "Proxy"
    assert cluster["endpoints"] == [{"url": "https://127.0.0.1:9443"}]
    assert cluster["tls"] == {"caFile": str(identity.authority), "serverName": "localhost"}
    (server,) = document["servers"]
    assert server["backend"] == {"cluster": "bench"}
    assert (server["authentication"], server["default"], server["accessLog"]) == ("none", True, False)


def test_each_of_many_clusters_has_its_own_authority_and_token(tmp_path: Path, identity: pki.Identity) -> None:
    hosts = [
        configs.VirtualHost(f"{name}.test", pki.make_identity(tmp_path / "tls", name, f"{name}.test"))
        for name in ("c000", "c001", "c002")
    ]
    document = yaml.safe_load(configs.mcproxy_many(tmp_path, 8443, 9443, identity, hosts).read_text())
    clusters = document["clusters"]
    assert [cluster["name"] for cluster in clusters] == ["c000", "c001", "c002"]
    assert document["servers"][0]["backend"] == {"clusters": ["c000", "c001", "c002"]}
    assert len({Path(cluster["tls"]["caFile"]).read_bytes() for cluster in clusters}) == 3
    assert len({Path(cluster["credentials"]["tokenFile"]).read_text() for cluster in clusters}) == 3
    assert [cluster["tls"]["serverName"] for cluster in clusters] == ["c000.test", "c001.test", "c002.test"]


def test_nginx_files_have_balanced_blocks_one_cipher_and_unlimited_keep_alive(
    tmp_path: Path, identity: pki.Identity
) -> None:
    upstream = configs.nginx_upstream(tmp_path, 9443, [configs.VirtualHost("localhost", identity)], 9500).read_text()
    proxy = configs.nginx_proxy(tmp_path, 8443, 9443, identity).read_text()
    for text in (upstream, proxy):
        without_strings = re.sub(r"'[^']*'", "", text)
        assert without_strings.count("{") == without_strings.count("}") > 2
        assert all(line.strip().endswith((";", "{", "}")) for line in without_strings.splitlines() if line.strip())
        assert f"ssl_conf_command Ciphersuites {configs.CIPHER};" in text
        assert "keepalive_requests 1000000000;" in text
        assert "access_log off;" in text
        assert "worker_processes 1;" in text
    assert "proxy_ssl_verify on;" in proxy
    assert f"proxy_ssl_conf_command Ciphersuites {configs.CIPHER};" in proxy


def test_a_certificate_is_good_for_its_name_and_authority_only(tmp_path: Path) -> None:
    one, other = (pki.make_identity(tmp_path, name, f"{name}.test") for name in ("one", "other"))
    assert _handshake(one, one.authority, "one.test")
    assert not _handshake(one, one.authority, "other.test")
    assert not _handshake(one, other.authority, "one.test")


def _handshake(identity: pki.Identity, authority: Path, name: str) -> bool:
    """Run a TLS handshake in memory; False when the client refuses the certificate."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(identity.certificate, identity.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = ssl.create_default_context(cafile=str(authority)).wrap_bio(to_client, to_server, server_hostname=name)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError:
            return False
    return True
