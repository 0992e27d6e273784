"""/bootstrap/GROUP of an Admin listener: the roles that API servers publish, or that their discovery tells."""

from __future__ import annotations

import json
import re
from typing import Any

from mcproxy.config import model
from tests.apiservices.test_discovered import document
from tests.apiservices.test_published import GROUP, role
from tests.proxy.admin.test_admin_pipeline import API, AWAY, READERS, SECRET, USERS, admin, ask, refusal
from tests.proxy.harness import Harness, Upstream, UpstreamEnd, cluster, config

TARGET = f"/bootstrap/{GROUP}".encode()


class APIServer:
    """Answers by path, and keeps what was asked for templates; probes ask for other paths."""

    def __init__(self, harness: Harness, **bodies: object) -> None:
        self.upstream: Upstream = harness.upstream()
        self.upstream.reply = self.reply
        self.bodies = {path: json.dumps(body).encode() for path, body in bodies.items()}
        self.asked: list[str] = []

    def reply(self, connection: UpstreamEnd) -> None:
        for path in re.findall(rb"GET (\S+) HTTP/1.1\r\n", connection.received):
            if path.startswith(b"/bootstrap"):
                self.asked.append(path.decode())
            body = self.bodies.get(path.decode())
            status, body = (b"404 Not Found", b"no") if body is None else (b"200 OK", body)
            connection.send(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        connection.received = b""


async def serve(harness: Harness, server: APIServer | None, **fields: Any) -> None:
    endpoints = (server.upstream.endpoint(),) if server is not None else (AWAY,)
    clusters = [cluster(harness.upstream().endpoint()), cluster(*endpoints, name="apis")]
    main = model.Server(
        name="main",
        listeners=("api",),
        default=True,
        backend=model.ClusterBackend("east"),
        api_services=tuple(
            model.APIService(group=GROUP, version=version, cluster="apis", authority="apis") for version in ("v2", "v1")
        ),
    )
    listeners = (admin(**fields), API)
    users = {"authentication": (USERS,), "authorization": (READERS,)}
    await harness.serve(config(clusters, [main], listeners=listeners, **users))


async def test_what_is_published_is_served_for_each_version(harness: Harness) -> None:
    server = APIServer(harness, **{f"/bootstrap/{GROUP}": role()})
    await serve(harness, server)
    status, fields, body = await ask(harness, TARGET)
    assert (status, fields["content-type"]) == (200, "application/yaml")
    assert body.startswith(b"# API service v2.garden.example.com: what its API server publishes")
    assert body.count(b'name: "plants-view"') == 2
    asked = len(server.asked)
    assert (await ask(harness, TARGET))[2] == body  # for a moment it is as good as new
    assert len(server.asked) == asked == 2


async def test_without_any_it_is_made_of_discovery(harness: Harness) -> None:
    paths = {f"/apis/{GROUP}/{version}": document(group_version=f"{GROUP}/{version}") for version in ("v1", "v2")}
    await serve(harness, APIServer(harness, **paths))
    _, _, body = await ask(harness, TARGET)
    assert b'"v1.garden.example.com:view"' in body
    assert b'"v2.garden.example.com:edit"' in body


async def test_an_api_server_that_cannot_be_asked_is_503_in_words(harness: Harness) -> None:
    await serve(harness, None)
    answer = await ask(harness, TARGET)
    assert refusal(answer) == (503, "ServiceUnavailable")
    assert "API service v2.garden.example.com: 127.0.0.1:1 refused the connection" in json.loads(answer[2])["message"]


async def test_only_registered_groups_have_any_and_the_path_alone_lists_them(harness: Harness) -> None:
    server = APIServer(harness)
    await serve(harness, server)
    assert (await ask(harness, b"/bootstrap"))[2] == b"/bootstrap/garden.example.com\n"
    for target in (b"/bootstrap/apps", b"/bootstrap/garden.example.com/", b"/bootstrap/", b"/bootstrap/../status"):
        assert refusal(await ask(harness, target))[0] == 404
    assert server.asked == []


async def test_who_may_not_read_the_path_learns_nothing(harness: Harness) -> None:
    server = APIServer(harness)
    await serve(harness, server, authentication="users", authorization="readers")
    bearer = b"Authorization: Bearer " + SECRET.encode()
    for target in (TARGET, b"/bootstrap/apps", b"/bootstrap"):
        assert refusal(await ask(harness, target, bearer)) == (403, "Forbidden")
        assert refusal(await ask(harness, target)) == (401, "Unauthorized")
    assert server.asked == []


async def test_a_listener_that_does_not_list_it_serves_none(harness: Harness) -> None:
    await serve(harness, APIServer(harness), paths=("/metrics",))
    assert refusal(await ask(harness, TARGET))[0] == 404
