"""Who calls an API server through the proxy: exactly the user, over the front proxy's certificate, and nobody else."""

from __future__ import annotations

import base64
import os
import struct
from typing import Any

import pytest

from tests.e2e.apiservices.environment import THINGS, WIDGETS, APIServices
from tests.e2e.http_client import Client, ask

FORGED = [
    ("X-Remote-User", "admin"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Uid", "0"),
    ("X-Remote-Extra-Scopes", "all"),
    ("X_Remote_User", "admin"),
]


def sent(entry: dict[str, Any], prefix: str) -> list[tuple[str, str]]:
    return [(name, value) for name, value in entry["headers"] if name.lower().replace("_", "-").startswith(prefix)]


def test_the_api_server_sees_exactly_the_user(services: APIServices) -> None:
    services.things.forget()
    assert services.ask("alice", WIDGETS, headers=FORGED).status == 200
    (seen,) = services.things.seen(WIDGETS)
    assert seen["user"] == {
        "name": "alice",
        "uid": "uid-alice",
        "groups": ["dev", "system:authenticated"],
        "extra": {},
        "by": "front proxy",
    }
    assert sorted(sent(seen, "x-remote-")) == [
        ("X-Remote-Group", "dev"),
        ("X-Remote-Group", "system:authenticated"),
        ("X-Remote-Uid", "uid-alice"),
        ("X-Remote-User", "alice"),
    ]
    assert sent(seen, "authorization") == sent(seen, "impersonate") == []


def test_an_impersonated_user_is_the_user(services: APIServices) -> None:
    services.things.forget()
    as_alice = [("Impersonate-User", "alice"), ("Impersonate-Extra-Scopes", "few"), ("Impersonate-Group", "guests")]
    assert services.ask("admin", WIDGETS, headers=[*as_alice, *FORGED]).status == 200
    (seen,) = services.things.seen(WIDGETS)
    assert (seen["user"]["name"], seen["user"]["groups"]) == ("alice", ["guests", "system:authenticated"])
    assert seen["user"]["extra"] == {"scopes": ["few"]}
    assert sent(seen, "impersonate") == []
    refused = services.ask("alice", WIDGETS, headers=[("Impersonate-User", "admin")])
    assert (refused.status, refused.json["reason"]) == (403, "Forbidden")
    assert len(services.things.seen(WIDGETS)) == 1


def test_the_same_headers_from_anybody_else_are_nobody(services: APIServices) -> None:
    assert ask(services.direct(services.things), WIDGETS, headers=FORGED).status == 401


def test_the_rights_are_those_of_the_cluster(services: APIServices) -> None:
    refused = services.ask("stranger", WIDGETS)
    assert (refused.status, "stranger" in refused.json["message"]) == (403, True)
    assert services.ask("alice", WIDGETS, "POST", {"metadata": {"name": "never"}}).status == 403


@pytest.mark.parametrize("user", ["maker", "admin"])
def test_a_subresource_is_upgraded_as_the_user(services: APIServices, user: str) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    headers = [
        ("Authorization", f"Bearer {user}"),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", key),
        ("Sec-WebSocket-Protocol", "ping.example.com"),
        *FORGED,
    ]
    with Client(services.address()) as client:
        response = client.begin("GET", f"{WIDGETS}/one/ping", headers)
        assert (response.status, response.getheader("Sec-WebSocket-Protocol")) == (101, "ping.example.com")
        mask = b"\1\2\3\4"
        text = b"hello"
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(text))
        client.socket.sendall(struct.pack("!BB", 0x81, 0x80 | len(text)) + mask + masked)
        expected = f"one for {user}: hello".encode()
        received = b""
        while len(received) < 2 + len(expected):
            data = client.socket.recv(1000)
            assert data, received
            received += data
        assert received[2:] == expected
    assert services.ask("alice", f"{WIDGETS}/one/ping").status == 403


def test_what_is_not_below_the_group_version_is_the_clusters(services: APIServices) -> None:
    services.things.forget()
    assert services.ask("admin", "/api/v1/namespaces/demo/pods").json["kind"] == "PodList"
    assert services.ask("admin", f"/apis/{THINGS}/v1beta9/widgets").status == 404
    assert services.things.seen(f"/apis/{THINGS}/v1beta9") == []
