"""Recordings replayed over HTTP/2: a sample of the exchanges, and those that were made over HTTP/2."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.kubesim.conftest import Lab
from tests.kubesim.golden import folders, golden_files, seeding
from tests.kubesim.golden.differences import DIFFERENCES
from tests.kubesim.golden.replay import compare, send
from tests.kubesim.raw_client import fetch

SAMPLE = ("get", "errors", "table", "gzip", "frontproxy")
JSONDict = dict[str, Any]


@pytest.mark.parametrize("folder", SAMPLE)
def test_a_folder_is_answered_as_over_http1(lab: Lab, folder: str) -> None:
    """All exchanges but watches, which take the time that they are given; `test_requests.py` has the same checks."""
    clusters = {name: folders.seed(folder, name) for name in ("east", "west")}
    targets = {name: lab.serve(cluster, http2=True) for name, cluster in clusters.items()}
    found, replayed = [], 0
    for name in folders.ordered(folder):
        recording = golden_files.load(name)
        if "watch=" in recording["request"]["path"] or name in DIFFERENCES:
            continue
        cluster = clusters[recording["cluster"]]
        request = folders.prepare(name, recording, cluster)
        target = targets[recording["cluster"]](folders.certificate(recording["auth"]))
        answer = lab.run(send(target, request, recording["response"], limit=20))
        found += [f"{name}: {line}" for line in compare(recording, answer, revisions=True)]
        replayed += 1
    assert not found, "\n".join(found)
    assert replayed >= 6


def recorded(name: str) -> tuple[str, list[tuple[str, str]], int, list[tuple[str, str]], str]:
    """Return path, request headers, status, response headers and body of a `curl -v` over HTTP/2."""
    text = (golden_files.GOLDEN / "http2" / f"{name}.txt").read_text()
    asked = dict(re.findall(r"^\* h2h3 \[(:?[^:]+): (.*)\]$", text, re.M))
    head = re.findall(r"^< ([^:\n]+): (.*)$", text, re.M)
    status = int(re.findall(r"^< HTTP/2 (\d+)", text, re.M)[0])
    body = text[text.index("left intact\n") + len("left intact\n") :]
    return asked.pop(":path"), [(key, asked[key]) for key in ("user-agent", "accept")], status, head, body


@pytest.mark.parametrize("name", ["404", "get-configmap", "watch-2s"])
def test_an_exchange_recorded_over_http2(lab: Lab, name: str) -> None:
    path, headers, status, expected_headers, expected = recorded(name)
    cluster = seeding.base("east")
    content = recorded("get-configmap")[4]
    seeding.put(cluster, json.loads(content), revision=1290)
    target = lab.serve(cluster, http2=True)("admin")
    answer = lab.run(fetch(target, "GET", path.replace("timeoutSeconds=2", "timeoutSeconds=1"), headers))
    assert answer.status == status
    assert {key for key, _ in answer.headers} == {key for key, _ in expected_headers}
    own = {"audit-id", "date"}
    same = {key: value for key, value in expected_headers if key not in own}
    assert {key: value for key, value in answer.headers if key in same} == same
    assert answer.text() == expected[: int(same.get("content-length", len(expected)))]
