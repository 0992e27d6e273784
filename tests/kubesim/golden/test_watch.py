"""The recorded watches, replayed: all are opened, the recorded script of changes runs, each must see the same.

Events are compared except for uids, times and resourceVersions (whose order is checked).
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.kubesim.conftest import Lab
from tests.kubesim.golden import golden_files, seeding
from tests.kubesim.golden.differences import WATCH_DIFFERENCES
from tests.kubesim.raw_client import Answer, Target, chunks, fetch, open_request

PATIENCE = 90.0
"""Seconds to wait for what takes milliseconds, on a machine that may be busy."""
SURPLUS = 0.2
"""Seconds in which an event that should not come would."""
SCRIPT: list[dict[str, Any]] = json.loads((golden_files.GOLDEN / "watch" / "script.json").read_text())
SHORTENED = "timeoutSeconds=14"
SHORT = "timeoutSeconds=6"
"""A deadline in the recordings, and a shorter one. A bookmark is sent two seconds before it: by then the changes, which
take half a second, must have been seen.
"""


def names() -> list[str]:
    recordings = ((name, golden_files.load(name)["response"]) for name in golden_files.names("watch"))
    return [name for name, response in recordings if "stream" in response and response["status"] == 200]


@pytest.fixture(scope="session")
def seen(lab: Lab) -> dict[str, list[dict[str, Any]]]:
    """The events of every recorded watch, by name."""
    targets = {}
    for name, revision in (("east", 398), ("west", 398)):
        cluster = seeding.base(name, revision=revision - 1)
        seeding.put(cluster, _prod_config())
        targets[name] = lab.serve(cluster)("admin")
    found: dict[str, list[dict[str, Any]]] = lab.run(_replay(targets))
    return found


def _prod_config() -> dict[str, Any]:
    """Return a ConfigMap that the script changes and no list has, in its state before."""
    recording = golden_files.load("watch/cm-all-namespaces")
    lines = [json.loads(item["line"]) for item in recording["response"]["stream"]]
    found: dict[str, Any] = next(line["object"] for line in lines if line["object"]["metadata"]["namespace"] == "prod")
    for key in SCRIPT[-1]["body"].get("data", {}):
        found["data"].pop(key, None)
    return found


async def _replay(targets: dict[str, Target]) -> dict[str, list[dict[str, Any]]]:
    lines: dict[str, list[dict[str, Any]]] = {name: [] for name in names()}
    readers = []
    for name in names():
        recording = golden_files.load(name)
        target = targets[recording["cluster"]]
        answer = await _open(target, recording["request"])
        readers.append(asyncio.create_task(_read(answer, lines[name])))
    for step in SCRIPT:
        cluster = "west" if step["step"].startswith("west") else "east"
        await _step(targets[cluster], step)
    expected = {name: len(golden_files.load(name)["response"]["stream"]) for name in lines}
    deadline = time.monotonic() + PATIENCE
    while any(
        len(lines[name]) < count and not reader.done()
        for (name, count), reader in zip(expected.items(), readers, strict=True)
    ):
        if time.monotonic() > deadline:
            break  # the comparison says what is missing
        await asyncio.sleep(0.01)
    await asyncio.sleep(SURPLUS)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return lines


async def _step(target: Target, step: dict[str, Any]) -> None:
    body = None if step["body"] is None else json.dumps(step["body"]).encode()
    headers = [(name, value) for name, value in step["headers"]]
    if body is not None and not headers:
        headers = [("Content-Type", "application/json")]
    answer = await fetch(target, step["method"], step["path"], headers, body)
    assert answer.status == step["status"], (step["step"], answer.body)


async def _open(target: Target, request: dict[str, Any]) -> Answer:
    """Begin a watch: when its head has come it sees all changes from then on."""
    headers = [(name, value) for name, value in request["headers"]]
    return await open_request(target, request["method"], request["path"].replace(SHORTENED, SHORT), headers, None)


async def _read(answer: Answer, lines: list[dict[str, Any]]) -> None:
    rest = b""
    try:
        async for chunk in chunks(answer):
            rest += chunk
            while b"\n" in rest:
                line, _, rest = rest.partition(b"\n")
                lines.append(json.loads(line))
    finally:
        answer.close()


@pytest.mark.parametrize("name", names())
def test_golden_watch(seen: dict[str, list[dict[str, Any]]], name: str) -> None:
    expected = [json.loads(item["line"]) for item in golden_files.load(name)["response"]["stream"]]
    found = golden_files.differences(
        golden_files.normal(expected, revisions=True), golden_files.normal(seen[name], revisions=True), "events"
    )
    if name in WATCH_DIFFERENCES:
        assert found, f"{name} is listed as different but is reproduced: take it off the list"
    else:
        assert not found, "\n".join(found[:10])


def test_revisions_of_changes_rise(seen: dict[str, list[dict[str, Any]]]) -> None:
    events = seen["watch/cm-from-rv"]
    revisions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert revisions
    assert revisions == sorted(set(revisions))
