"""The recorded reads of a real kube-apiserver, answered by an aggregate of that one cluster.

The clusters of the recordings are simulated, each behind an aggregate of its own. Status, headers that matter and body
must be the recorded ones, but for the label and the annotation of the cluster. `DIFFERENCES` lists exceptions with
reasons; an entry that matches is a failure too.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubesim.auth.certificates import Authority
from kubesim.cluster import SimulatedCluster
from tests.e2e.processes import Daemon, wait_until
from tests.kubesim.conftest import Lab
from tests.kubesim.golden import folders, golden_files
from tests.kubesim.golden.differences import DIFFERENCES as SIMULATED_DIFFERENCES
from tests.kubesim.golden.replay import compare, send
from tests.kubesim.raw_client import Answer, Target, fetch
from tests.support.ports import reserved_port

JSONDict = dict[str, Any]

FOLDERS = ("list", "get", "table", "partialmeta", "paging", "selectors", "rv")
LABEL, ANNOTATION = "mcproxy.io/cluster", "resource.karmada.io/cached-from-cluster"

TOKEN = "the recorded continue token is the cluster's own; those of an aggregate are bound to what was listed"
HISTORY = "the version is from before the cache was filled"
DIFFERENCES: dict[str, str] = {
    **dict.fromkeys(
        (
            "paging/configmaps-selector-limit10-page2",
            "paging/configmaps-selector-limit10-page3",
            "paging/configmaps-table-limit10-page2",
            "paging/configmaps-table-limit10-page3",
            "paging/continue-of-other-namespace",
            "paging/continue-of-other-resource",
            "paging/continue-other-selector",
            "paging/continue-with-rv0",
            "paging/pods-limit2-page2",
            "paging/pods-limit2-page3",
            "paging/west-pods-all-limit4-page2",
            "paging/west-pods-all-limit4-page3",
            "paging/widgets-limit2-page2",
        ),
        TOKEN,
    ),
    "rv/configmaps-n-exact": HISTORY,
    "rv/configmaps-n-exact-limit": HISTORY,
    "rv/configmaps-n-limit": HISTORY,
    "table/v2-406": "protobuf is not made from cache, and not offered",
    "selectors/widgets-field-unknown": "field selectors work on any scalar field of any resource",
}
PATIENCE = 15.0
"""Seconds an exchange may take: a version in the future is waited for three seconds."""

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock}}
listeners: [{{name: public, bind: "127.0.0.1:{port}", tls: {{certificates: [proxy]}}}}]
certificates: [{{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}]
clusters:
  - name: {name}
    endpoints: [{{url: "https://127.0.0.1:{upstream}"}}]
    tls: {{caFile: lab.crt}}
    credentials: {{certFile: admin.crt, keyFile: admin.key}}
authentication: [{{name: certificates, clientCertificates: {{caFile: lab.crt}}}}]
aggregates:
  - name: fleet
    clusters: [{name}]
    primary: {name}
    cache:
      resources: [{resources}]
servers: [{{name: fleet, default: true, backend: {{aggregate: fleet}}, authentication: certificates}}]
"""


class LabThread(Lab):
    """A Lab whose event loop runs in a thread all the time, so that a daemon reaches its clusters."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._loop = self.runner.get_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def close(self) -> None:
        for runner in self._runners:
            self.run(runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self.runner.close()


def keep_revision(cluster: SimulatedCluster) -> None:
    """Bring the cluster's resourceVersion once to where no object is ahead of it.

    Some lists were recorded later than others. Replays to the cluster itself set its resourceVersion for each of them,
    back and forth; an aggregate follows the cluster all the time, and states the highest that it was told.
    """
    store = cluster.store
    held = (each for collection in store.collections().values() for each in collection.objects.values())
    store.revision = max(store.revision, *(int(each["metadata"]["resourceVersion"]) for each in held))


class Side:
    """One recorded cluster in the state of a folder, and the aggregate of it alone."""

    def __init__(self, lab: LabThread, directory: Path, folder: str, name: str) -> None:
        self.cluster = folders.seed(folder, name)
        if folder == "list":
            keep_revision(self.cluster)
        self.direct = lab.serve(self.cluster)
        port = reserved_port()
        authority = Authority("e2e CA")
        authority.server(["127.0.0.1"]).write(directory, "proxy")
        (directory / "lab.crt").write_bytes(lab.authority.pem)
        lab.authority.client("admin", ("system:masters",)).write(directory, "admin")
        config = CONFIG.format(
            name=name, port=port, upstream=self.direct("admin").port, resources=", ".join(self._resources(lab))
        )
        self._contexts: dict[str, ssl.SSLContext] = {}
        for user in ("", "admin", "alice"):
            context = self._contexts[user] = ssl.create_default_context(cadata=authority.pem.decode())
            if user:
                pair = lab.authority.client(user, ("system:masters",) if user == "admin" else ("dev",))
                context.load_cert_chain(*pair.write(directory, f"client-{user}"))
        self._port = port
        self.daemon = Daemon(directory, config).start()

    def _resources(self, lab: LabThread) -> Iterator[str]:
        """Every group-version of the cluster, and secrets, which must be named."""
        yield '{group: "", version: v1, resource: secrets}'
        yield '{group: "", version: v1, resource: "*"}'
        groups = lab.run(fetch(self.direct("admin"), "GET", "/apis"))
        for group in json.loads(groups.body)["groups"]:
            for version in group["versions"]:
                yield f'{{group: {group["name"]}, version: {version["version"]}, resource: "*"}}'

    def target(self, user: str) -> Target:
        return Target(self._port, self._contexts[user])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabThread]:
    lab = LabThread(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.close()


@pytest.fixture(scope="module")
def side(lab: LabThread, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], Side]]:
    """Return the side of a folder and a cluster, made when it is first needed."""
    sides: dict[tuple[str, str], Side] = {}

    def find(folder: str, name: str) -> Side:
        if (folder, name) not in sides:
            sides[folder, name] = Side(lab, tmp_path_factory.mktemp(f"{folder}-{name}"), folder, name)
        return sides[folder, name]

    yield find
    for made in sides.values():
        made.daemon.stop()


def without_cluster(value: Any) -> Any:
    """Return a JSON value without what an aggregate adds to objects."""
    if isinstance(value, list):
        return [without_cluster(item) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {name: without_cluster(item) for name, item in value.items()}
    metadata = plain.get("metadata")
    if isinstance(metadata, dict):
        for field, key in (("labels", LABEL), ("annotations", ANNOTATION)):
            if key in metadata.get(field, {}):
                del metadata[field][key]
                if not metadata[field]:
                    del metadata[field]
    return plain


def plain(answer: Answer) -> Answer:
    """Return an answer as the cluster itself would have given it."""
    kind = answer.header("Content-Type") or ""
    if kind.startswith("application/json") and answer.body and answer.header("Content-Encoding") is None:
        text = answer.text()
        documents = text.splitlines() if text.startswith('{"type":"') else [text]  # a watch has one on each line
        answer.body = "\n".join(json.dumps(without_cluster(json.loads(document))) for document in documents).encode()
    if kind.startswith("application/yaml"):
        answer.body = yaml.safe_dump(without_cluster(yaml.load(answer.text(), Loader=yaml.BaseLoader))).encode()
    return answer


CASES = [(folder, name) for folder in FOLDERS for name in folders.ordered(folder) if name not in SIMULATED_DIFFERENCES]


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[name for _, name in CASES])
def test_golden(lab: LabThread, side: Callable[[str, str], Side], folder: str, name: str) -> None:
    recording = golden_files.load(name)
    one = side(folder, recording["cluster"])
    request = folders.prepare(name, recording, one.cluster, set_revision=False)
    user = folders.certificate(recording["auth"])
    found = [f"the recording is of {user}"]
    if user in ("", "admin", "alice"):
        try:
            answer = lab.run(send(one.target(user), request, recording["response"], limit=PATIENCE))
            found = compare(recording, plain(answer), revisions=True)
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            found = [f"no answer in time: {error!r}"]
    if name in DIFFERENCES:
        assert found, f"{name} is listed as different ({DIFFERENCES[name]}) but is reproduced: take it off the list"
    else:
        assert not found, "\n".join([name, recording["shows"], *found])


BYTES = (
    "/api/v1/pods",
    "/api/v1/namespaces/demo/configmaps",
    "/api/v1/namespaces/demo/configmaps/app-config",
    "/api/v1/nodes",
    "/apis/apps/v1/deployments",
    "/apis/example.com/v1/widgets",
    "/apis/example.com/v1/namespaces/demo/widgets/red-1",
)


@pytest.mark.parametrize("path", BYTES)
def test_one_member_changes_no_byte_but_label_and_annotation(
    lab: LabThread, side: Callable[[str, str], Side], path: str
) -> None:
    one = side("list", "east")
    version = one.cluster.store.revision
    wait_until("the cache is there", lambda: lab.run(fetch(one.target("admin"), "GET", path)).status == 200)
    direct = lab.run(fetch(one.direct("admin"), "GET", path))
    cached = lab.run(fetch(one.target("admin"), "GET", path))
    assert one.cluster.store.revision == version
    compact = {"separators": (",", ":"), "ensure_ascii": False}
    text, expected = cached.text(), direct.text().rstrip("\n")
    if "items" in json.loads(text):
        # A list claims what its cache has surely seen; a cluster's own, also the changes of other resources since.
        theirs, ours = (json.loads(each)["metadata"]["resourceVersion"] for each in (expected, text))
        assert int(ours) <= int(theirs)
        for before in ("", '"continue":"",'):  # as lists of custom resources have it
            begin = f'"metadata":{{{before}"resourceVersion":'
            expected = expected.replace(f'{begin}"{theirs}"', f'{begin}"{ours}"')
    assert expected == json.dumps(without_cluster(json.loads(text)), **compact)  # type: ignore[arg-type]
    assert LABEL in cached.text()
    assert ANNOTATION in cached.text()
