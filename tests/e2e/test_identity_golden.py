"""The recorded answers about identity come through the proxy as they come from a kube-apiserver itself.

Each recording is replayed with the recorded credential through a proxy that knows the same authorities, has tokens
reviewed by the cluster and impersonates. The clusters are those of the direct replay, seeded as the recorded ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubesim.apimachinery.user import User
from kubesim.cluster import SimulatedCluster
from tests.e2e.processes import Daemon
from tests.kubesim.conftest import Lab
from tests.kubesim.golden import folders, golden_files
from tests.kubesim.golden.differences import DIFFERENCES
from tests.kubesim.golden.replay import compare, send
from tests.kubesim.raw_client import Target
from tests.support.ports import reserved_port

EXTRAS = (
    "authentication.kubernetes.io/credential-id",  # every certificate's user has it
    "scopes",
    "mcproxy.example.com/origin",
    "example.com/k",
)
FOLDERS = ("auth", "frontproxy", "impersonation-legacy", "impersonation", "errors")
OF_ERRORS = ("401-", "403-", "200-bad-token-beside-good-cert", "200-static-token", "200-alice-allowed")

JUDGES = ("cluster", "proxy")
"""Who refuses what a user may not: the cluster, or the proxy after a SubjectAccessReview, in the same words."""


def recordings() -> list[str]:
    """Those that a simulated cluster answers as recorded."""
    names = [name for folder in FOLDERS for name in folders.ordered(folder) if name not in DIFFERENCES]
    return [name for name in names if not name.startswith("errors/") or name[7:].startswith(OF_ERRORS)]


class BusyLab(Lab):
    """Clusters that are served while nobody waits for them: in a thread."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        super().__init__(directory)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def close(self) -> None:
        super().close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class Stage:
    """A cluster for each folder and recorded cluster, and a proxy with a port before each of them."""

    def __init__(self, directory: Path) -> None:
        self.lab = BusyLab(directory)
        self.clusters: dict[tuple[str, str], tuple[SimulatedCluster, dict[str, int]]] = {}
        sections: dict[str, list[str]] = {"listeners": [], "clusters": [], "authentication": [], "servers": []}
        (directory / "ca.crt").write_bytes(self.lab.authority.pem)
        (directory / "front-proxy-ca.crt").write_bytes(self.lab.front_proxy_authority.pem)
        places = sorted({(name.partition("/")[0], golden_files.load(name)["cluster"]) for name in recordings()})
        served = {}
        for folder, of in places:
            cluster = folders.seed(folder, of)
            allow_proxy(cluster)
            served[folder, of] = (cluster, self.lab.serve(cluster)("").port)
        ports = iter([reserved_port() for _ in range(len(places) * len(JUDGES))])
        for (folder, of), (cluster, behind) in served.items():
            before = {judge: next(ports) for judge in JUDGES}
            self.clusters[folder, of] = (cluster, before)
            for section, text in section_texts(f"{folder}-{of}", behind, before, anonymous=of == "east").items():
                sections[section].append(text)
        config = "version: 1\ncertificates: [{name: proxy, certFile: server.crt, keyFile: server.key}]\n"
        config += "authorization: [{name: proxy, subjectAccessReview: {}}]\n"
        config += "".join(f"{section}:\n{''.join(texts)}" for section, texts in sections.items())
        self.daemon = Daemon(directory, config)
        self._endpoints = len(places)

    def start(self) -> Stage:
        self.daemon.start()
        self.daemon.wait_for("takes requests", count=self._endpoints)
        return self

    def close(self) -> None:
        self.daemon.stop()
        self.lab.close()


def allow_proxy(cluster: SimulatedCluster) -> None:
    """Let mcproxy pass on the extras that were recorded, and leave no trace in the revisions."""
    revision = cluster.store.revision
    cluster.tokens["token-of-the-proxy"] = User("mcproxy", "mcproxy-uid", ("mcproxy",))
    rule = {
        "apiGroups": ["authentication.k8s.io"],
        "resources": [f"userextras/{key}" for key in EXTRAS],
        "verbs": ["impersonate"],
    }
    group = "rbac.authorization.k8s.io"
    cluster.store.put((group, "clusterroles"), {"metadata": {"name": "extras"}, "rules": [rule]})
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": "extras"}
    subjects = [{"kind": "User", "apiGroup": group, "name": "mcproxy"}]
    binding = {"metadata": {"name": "extras"}, "roleRef": reference, "subjects": subjects}
    cluster.store.put((group, "clusterrolebindings"), binding)
    cluster.store.revision = revision


def section_texts(name: str, behind: int, before: dict[str, int], *, anonymous: bool) -> dict[str, str]:
    return {
        "listeners": "".join(
            f'  - {{name: {name}-{judge}, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}\n'
            for judge, port in before.items()
        ),
        "clusters": f"""\
  - name: {name}
    endpoints: [{{url: "https://127.0.0.1:{behind}"}}]
    tls: {{caFile: ca.crt}}
    credentials: {{token: token-of-the-proxy}}
    impersonateExtras: [{", ".join(EXTRAS)}]
""",
        "authentication": f"""\
  - name: {name}
    clientCertificates: {{caFile: ca.crt}}
    requestHeader: {{caFile: front-proxy-ca.crt}}
    tokenReview: {{}}
    anonymous: {{enabled: {str(anonymous).lower()}}}
""",
        "servers": f"""\
  - {{name: {name}-cluster, listeners: [{name}-cluster], default: true, backend: {{cluster: {name}}},
     authentication: {name}}}
  - {{name: {name}-proxy, listeners: [{name}-proxy], default: true, backend: {{cluster: {name}}},
     authentication: {name}, authorization: proxy}}
""",
    }


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("golden"))
    try:
        yield stage.start()
    finally:
        stage.close()


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("name", recordings())
def test_the_recorded_answer_comes_through_the_proxy(stage: Stage, name: str, judge: str) -> None:
    recording = golden_files.load(name)
    cluster, ports = stage.clusters[name.partition("/")[0], recording["cluster"]]
    request = folders.prepare(name, recording, cluster)
    target = Target(ports[judge], stage.lab.contexts[folders.certificate(recording["auth"])])
    answer = asyncio.run(send(target, request, recording["response"]))
    if name.startswith("impersonation/") and recording["response"]["status"] in (400, 403):
        assert answer.status == recording["response"]["status"]  # in the words before 1.36
        return
    found = compare(recording, answer, revisions=True)
    assert not found, "\n".join([name, recording["shows"], *found])
