"""`mcproxy import apiservice`: cluster entries and a server from APIService objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcproxy.cli.main import main
from mcproxy.config import model
from mcproxy.config.load import load
from mcproxy.config.model import UpstreamIdentity
from tests.importing.builders import b64, ca, pair

OURS = """version: 1
include: [apis.yaml]
listeners: [{name: l, bind: "127.0.0.1:1"}]
clusters: [{name: east, endpoints: [{url: "https://10.0.0.1"}], credentials: {token: t}}]
authentication: [{name: corp, anonymous: {enabled: true}}]
"""


def api_service(group_version: str = "metrics.k8s.io/v1beta1", **spec: Any) -> dict[str, Any]:
    group, _, version = group_version.rpartition("/")
    plain = {
        "group": group,
        "version": version,
        "service": {"name": "metrics-server", "namespace": "kube-system"},
        "caBundle": b64(ca()),
        "groupPriorityMinimum": 100,
        "versionPriority": 90,
    }
    kept = {key: value for key, value in {**plain, **spec}.items() if value is not None}
    return {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{version}.{group}"},
        "spec": kept,
        "status": {"conditions": []},
    }


LOCAL = api_service("apps/v1", service=None, caBundle=None)


class Import:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        certificate, key = pair("front-proxy")
        (folder / "fp.crt").write_bytes(certificate)
        (folder / "fp.key").write_bytes(key)
        (folder / "mcproxy.yaml").write_text(OURS)

    def __call__(self, *objects: dict[str, Any], options: tuple[str, ...] = ("--authentication", "corp")) -> int:
        file = self.folder / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        front = ("--front-proxy", str(self.folder / "fp.crt"), str(self.folder / "fp.key"))
        output = ("--output", str(self.folder / "apis.yaml"), "--force")
        return main(["import", "apiservice", str(file), "--cluster", "east", *front, *output, *options])

    @property
    def config(self) -> model.Config:
        return load(str(self.folder / "mcproxy.yaml")).config


@pytest.fixture
def importing(tmp_path: Path) -> Import:
    return Import(tmp_path)


def test_one_api_server_for_each_service(importing: Import) -> None:
    other = {"name": "garden", "namespace": "green", "port": 8443}
    insecure = api_service("garden.io/v2", service=other, caBundle=None, insecureSkipTLSVerify=True)
    assert importing(LOCAL, api_service(), api_service("metrics.k8s.io/v1"), insecure) == 0
    config = importing.config
    (server,) = config.servers
    assert [(each.group_version, each.cluster) for each in server.api_services] == [
        ("metrics.k8s.io/v1beta1", "metrics-server.kube-system"),
        ("metrics.k8s.io/v1", "metrics-server.kube-system"),
        ("garden.io/v2", "garden.green"),
    ]
    assert [(each.group_priority_minimum, each.version_priority) for each in server.api_services] == [(100, 90)] * 3
    assert (server.authentication, server.home) == ("corp", "east")
    clusters = {each.name: each for each in config.clusters}
    metrics, garden = clusters["metrics-server.kube-system"], clusters["garden.green"]
    assert (metrics.endpoints[0].host, metrics.endpoints[0].port) == ("metrics-server.kube-system.svc", 443)
    assert metrics.tls.server_name == "metrics-server.kube-system.svc"
    assert metrics.tls.ca is not None
    assert metrics.tls.ca.data == ca()
    assert (garden.endpoints[0].port, garden.tls.insecure_skip_verify) == (8443, True)
    for each in (metrics, garden):
        assert each.identity is UpstreamIdentity.REQUEST_HEADER
        assert each.front_proxy is not None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"caBundle": b64(b"garbage")}, "spec.caBundle: holds no PEM certificate"),
        ({"caBundle": "***"}, "spec.caBundle: is not base64"),
        ({"insecureSkipTLSVerify": True}, "spec.caBundle: excludes insecureSkipTLSVerify"),
        ({"service": {"name": "a"}}, "spec.service: has no name or no namespace"),
        ({"service": {"name": "a", "namespace": "b", "port": 70000}}, "spec.service.port"),
        ({"service": {"name": "a", "namespace": "b", "port": 0}}, "spec.service.port"),
        ({"service": {"name": "../a", "namespace": "b"}}, "is no name of a Service"),
        ({"version": "v2"}, "metadata.name: it is not v2.garden.io"),
        ({"groupPriorityMinimum": 0}, "groupPriorityMinimum"),
        ({"versionPriority": 1001}, "versionPriority"),
    ],
)
def test_what_kubernetes_refuses_or_nobody_could_trust_is_left_out(
    importing: Import, wrong: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = api_service("garden.io/v1", service={"name": "garden", "namespace": "green"})
    bad["spec"] |= wrong
    assert importing(api_service(), bad) == 3
    assert said in capsys.readouterr().err
    assert [each.group_version for each in importing.config.servers[0].api_services] == ["metrics.k8s.io/v1beta1"]


def test_a_group_of_kubernetes_itself_is_left_out(importing: Import, capsys: pytest.CaptureFixture[str]) -> None:
    assert importing(api_service(), api_service("node.k8s.io/v1")) == 3
    assert "is a group of Kubernetes itself" in capsys.readouterr().err


def test_other_objects_and_none_are_told(importing: Import, capsys: pytest.CaptureFixture[str]) -> None:
    assert importing(LOCAL) == 78
    assert "there is no APIService" in capsys.readouterr().err
    assert importing(api_service(), {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}) == 3
    assert "Secret s: left out" in capsys.readouterr().err


def test_without_authentication_it_is_said_what_that_means(
    importing: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    assert importing(api_service(), options=("--name", "apis")) == 0
    assert "everybody is anonymous" in capsys.readouterr().err
    assert importing.config.servers[0].name == "apis"


RECORDED = sorted((Path(__file__).parents[1] / "golden" / "aggregator" / "validation").glob("*.json"))
NOT_OURS = {"ca-garbage", "local"}
"""What kube-apiserver takes: a caBundle that nobody could verify with, and a group without an API server."""


@pytest.mark.parametrize("recording", RECORDED, ids=[path.stem for path in RECORDED])
def test_kubernetes_and_the_import_refuse_the_same(importing: Import, recording: Path) -> None:
    exchange = json.loads(recording.read_text())
    taken = exchange["response"]["status"] == 201 and recording.stem not in NOT_OURS
    obj = json.loads(exchange["request"]["body"])
    status = importing(api_service(), obj)
    groups = [each.group_version for each in importing.config.servers[0].api_services]
    assert groups == ["metrics.k8s.io/v1beta1", *(["val.example.com/v1"] if taken else [])]
    assert status == (0 if taken or "service" not in obj["spec"] else 3)  # without a Service it is passed over
