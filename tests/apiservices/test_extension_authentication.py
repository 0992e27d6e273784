"""The ConfigMap that API servers read: what of it is the proxy's, and what stays the backend's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubesim.auth.certificates import Authority
from mcproxy.apiservices.extension_authentication import event_over, modified, over, trusted
from mcproxy.apiservices.object_merge import UnreadableAnswer
from mcproxy.config import model
from mcproxy.config.model import PEMFile, UpstreamIdentity

GOLDEN = Path(__file__).parents[1] / "golden" / "aggregator"
RECORDED = json.loads(json.loads((GOLDEN / "extension-apiserver-authentication.json").read_text())["response"]["body"])
OURS = {"requestheader-client-ca-file": "ours", "requestheader-allowed-names": '["mcproxy"]'}


def front_proxy(authority: Authority, name: str, tmp_path: Path, *, chain: bool) -> model.FrontProxy:
    certificate, key = authority.client(name).write(tmp_path, name)
    data = Path(certificate).read_bytes() + (authority.pem if chain else b"")
    return model.FrontProxy(PEMFile(f"{name}.crt", data), PEMFile(f"{name}.key", Path(key).read_bytes()))


def config(*fronts: model.FrontProxy | None, **fields: Any) -> tuple[model.Server, model.Config]:
    clusters = [model.ClusterConfig(name="east", endpoints=())]
    services = []
    for number, front in enumerate(fronts):
        identity = UpstreamIdentity.IMPERSONATE if front is None else UpstreamIdentity.REQUEST_HEADER
        clusters.append(model.ClusterConfig(name=f"c{number}", endpoints=(), identity=identity, front_proxy=front))
        services += [
            model.APIService(group=f"g{number}.io", version=version, cluster=f"c{number}") for version in ("v1", "v2")
        ]
    server = model.Server(
        name="a",
        listeners=(),
        backend=model.ClusterBackend("east"),
        authentication="users",
        api_services=tuple(services),
    )
    users = model.Authentication(name="users", **fields)
    return server, model.Config(clusters=tuple(clusters), servers=(server,), authentication=(users,))


def test_it_is_the_authority_behind_the_certificate_and_its_name(tmp_path: Path) -> None:
    authority = Authority("front proxies")
    found = trusted(*config(front_proxy(authority, "mcproxy", tmp_path, chain=True)))
    assert found["requestheader-client-ca-file"].encode() == authority.pem
    recorded = RECORDED["data"]
    assert found["requestheader-allowed-names"] == '["mcproxy"]'
    for key in recorded.keys() - {"client-ca-file", "requestheader-client-ca-file", "requestheader-allowed-names"}:
        assert found[key] == recorded[key]
    assert found.keys() == recorded.keys() - {"client-ca-file"}


def test_without_an_authority_the_certificate_itself_is_trusted(tmp_path: Path) -> None:
    one = front_proxy(Authority("front proxies"), "one", tmp_path, chain=False)
    other = front_proxy(Authority("others"), "other", tmp_path, chain=False)
    found = trusted(*config(one, other, None))
    assert found["requestheader-client-ca-file"].encode() == one.certificate.data + other.certificate.data
    assert found["requestheader-allowed-names"] == '["one", "other"]'


def test_the_authority_of_client_certificates_is_the_servers_where_it_has_one(tmp_path: Path) -> None:
    front = front_proxy(Authority("front proxies"), "one", tmp_path, chain=True)
    ca = Authority("clients").pem
    assert trusted(*config(front, client_ca=PEMFile("ca.crt", ca)))["client-ca-file"].encode() == ca


def test_without_an_api_service_that_is_told_users_nothing_is_put_over() -> None:
    assert trusted(*config(None)) == {}


def test_the_rest_of_the_object_stays() -> None:
    found = json.loads(over(json.dumps(RECORDED).encode(), OURS))
    assert found == {**RECORDED, "data": {**RECORDED["data"], **OURS}}
    listed = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": [RECORDED]}
    assert json.loads(over(json.dumps(listed).encode(), OURS)) == {**listed, "items": [found]}
    assert json.loads(over(b'{"kind":"ConfigMap","metadata":{}}', OURS))["data"] == OURS


def test_events() -> None:
    def told(event: dict[str, Any]) -> Any:
        return json.loads(event_over(json.dumps(event).encode(), OURS))

    for kind in ("ADDED", "MODIFIED", "DELETED"):
        assert told({"type": kind, "object": RECORDED})["object"]["data"].items() >= OURS.items()
    bookmark = {"type": "BOOKMARK", "object": {"kind": "ConfigMap", "metadata": {"resourceVersion": "9"}}}
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    assert told(bookmark) == bookmark
    assert told(error) == error
    resumed = json.loads(modified(json.dumps(RECORDED).encode(), OURS, "77"))
    assert (resumed["type"], resumed["object"]["metadata"]["resourceVersion"]) == ("MODIFIED", "77")
    assert resumed["object"]["data"].items() >= OURS.items()


@pytest.mark.parametrize("body", [b"", b"[]", b'"x"', b"{" * 100_000, b'{"a":' * 5000, b"\xff"])
def test_what_is_no_object_is_unreadable(body: bytes) -> None:
    for put in (over, event_over):
        with pytest.raises(UnreadableAnswer):
            put(body, OURS)
    with pytest.raises(UnreadableAnswer):
        modified(body, OURS, "1")
