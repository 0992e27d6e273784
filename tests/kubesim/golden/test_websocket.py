"""The recorded WebSocket sessions, replayed against the simulated cluster: the head of the answer and every frame."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kubesim.cluster import ClusterOptions
from tests.kubesim.conftest import Lab
from tests.kubesim.golden import folders, golden_files, seeding, users
from tests.kubesim.raw_client import Target, open_request

JSONDict = dict[str, Any]

OTHER_REASON = {
    "websocket/log-websocket": "the recorded kubelet was a stand-in that ignored tailLines",
    "websocket/watch-410": "a watch of events; its objects are those of another moment",
}
NAMES = [name for name in golden_files.names("websocket") if name not in OTHER_REASON]
HEADERS = ("upgrade", "connection", "sec-websocket-accept", "sec-websocket-protocol")


@pytest.fixture(scope="module")
def target(lab: Lab) -> Any:
    cluster = seeding.base("west")
    cluster.options = ClusterOptions(anonymous_auth=False)
    users.add(cluster)
    return lab.serve(cluster)


async def converse(target: Target, recording: JSONDict) -> tuple[int, list[tuple[str, str]], bytes]:
    """Send the client's recorded bytes after the 101; return (status, headers, bytes after the head)."""
    request = recording["request"]
    headers = [(key, value) for key, value in request["headers"]]
    answer = await open_request(target, request["method"], request["path"], headers, None)
    assert answer.reader is not None
    assert answer.writer is not None
    stream = recording.get("stream") or []
    answer.writer.write(b"".join(bytes.fromhex(item["hex"]) for item in stream if item["dir"] == "client->server"))
    wanted = sum(len(item["hex"]) // 2 for item in stream if item["dir"] == "server->client")
    data = b""
    try:
        async with asyncio.timeout(60):
            if answer.status == 101:
                data = await answer.reader.readexactly(wanted)
            else:
                data = await answer.reader.readexactly(int(answer.header("Content-Length") or 0))
    except asyncio.IncompleteReadError as error:
        data = error.partial
    answer.close()
    return answer.status, answer.headers, data


def sent_by_server(recording: JSONDict) -> bytes:
    stream = recording.get("stream") or []
    return b"".join(bytes.fromhex(item["hex"]) for item in stream if item["dir"] == "server->client")


@pytest.mark.parametrize("name", NAMES)
def test_recorded_session(lab: Lab, target: Any, name: str) -> None:
    recording = golden_files.load(name)
    user = folders.certificate(recording["auth"])
    status, headers, data = lab.run(converse(target(user), recording))
    expected = recording["response"]
    assert status == expected["status"], data
    if status == 101:
        chosen = [(key, value) for key, value in headers if key.lower() in HEADERS]
        assert chosen == [(key, value) for key, value in expected["headers"] if key.lower() in HEADERS]
        assert data == sent_by_server(recording)
    elif expected.get("body", "").startswith("{"):
        assert json.loads(data) == json.loads(expected["body"])
