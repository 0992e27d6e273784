"""Watches of APIService objects over the wire: the backend's events with ours between them."""

from __future__ import annotations

import builtins
import json
from typing import Any
from unittest.mock import MagicMock

import pytest

from mcproxy.apiservices.availability import Availability, Registration, Verdict, failure
from mcproxy.apiservices.object_merge import Maker, Own, RequestedForm
from mcproxy.config import model
from mcproxy.kube.list_options import ListOptions
from mcproxy.proxy import api_service_watch
from mcproxy.proxy.api_service_watch import APIServiceWatch
from tests.proxy.harness import NAME, Client, Harness, UpstreamEnd, always, cluster, config, get
from tests.proxy.test_api_service_objects import FORBIDDEN, PATH, Backend, answer, listed
from tests.support.clock import Clock
from tests.support.logged import captured_logs

ZOO = Registration("zoo.io", "v1", "zoo")
PASSED = Verdict("True", "Passed", "all checks passed")
DOWN = failure("zoo/a", "refused")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


class Watched(Backend):
    """A backend whose watches the test feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.watches: list[UpstreamEnd] = []
        self.refusal: tuple[int, Any] | None = None

    def __call__(self, end: UpstreamEnd) -> None:
        line = end.received.partition(b"\r\n")[0]
        if b"watch=" in line and end.received.endswith(b"\r\n\r\n") and self.refusal is None:
            end.received = b""
            self.asked.append(("WATCH", line.split(b" ")[1].decode(), ""))
            self.watches.append(end)
            end.send(HEAD)
        else:
            if b"watch=" in line and self.refusal is not None:
                self.answers[PATH.decode()] = self.refusal
            super().__call__(end)

    def send(self, *events: dict[str, Any]) -> None:
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self.watches[-1].send(b"%x\r\n%b\r\n" % (len(line), line))


def event(kind: str, name: str, version: str, **more: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "object": {"kind": "APIService", "metadata": {"name": name, "resourceVersion": version, **more}},
    }


class Bench:
    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.backend = Watched()
        self.core, self.zoo = harness.upstream(), harness.upstream()
        self.core.reply = self.backend
        self.zoo.reply = always(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    async def serve(self, *groups: str) -> None:
        services = [model.APIService(group=group, version="v1", cluster="zoo", authority="east") for group in groups]
        server = model.Server(
            name="main",
            listeners=("tls",),
            server_names=(NAME,),
            backend=model.ClusterBackend("east"),
            api_services=tuple(services),
        )
        clusters = [cluster(self.core.endpoint()), cluster(self.zoo.endpoint(), name="zoo")]
        await self.harness.serve(config(clusters, (server,)))
        known = self.known
        await self.harness.until(lambda: all(each.status == "True" for _, each in known.all()), "the probes")

    @property
    def known(self) -> Any:
        return self.harness.service._availability.known

    async def watch(self, query: bytes = b"", *fields: bytes) -> Client:
        """Watch as clients do, who have listed what they watch from."""
        if query.startswith(b"&resourceVersion=77"):
            agent = [field for field in fields if field.startswith(b"User-Agent:")]
            assert (await answer(self.harness, get(PATH, *agent)))[0] == 200
        client = await self.harness.asks(get(PATH + b"?watch=1" + query, *fields))
        await self.harness.until(lambda: b"\r\n\r\n" in client.received, "the watch")
        return client

    async def events(self, client: Client, count: int) -> list[tuple[str, str, str]]:
        await self.harness.until(lambda: len(lines(client)) >= count, f"{count} events, not {lines(client)}")
        found = []
        for line in lines(client):
            metadata = line["object"].get("metadata", {})
            found.append((line["type"], metadata.get("name", ""), metadata.get("resourceVersion", "")))
        return found


def lines(client: Client) -> list[Any]:
    body = client.received.partition(b"\r\n\r\n")[2]
    return [json.loads(line) for line in body.splitlines() if line.startswith(b"{")]


@pytest.fixture
def bench(harness: Harness) -> Bench:
    return Bench(harness)


async def test_a_watch_from_a_list_has_the_backends_events_and_changes_of_ours(bench: Bench) -> None:
    await bench.serve("zoo.io")
    _, _, found = await answer(bench.harness, get(PATH))
    client = await bench.watch(b"&resourceVersion=77&allowWatchBookmarks=true")
    assert found["metadata"]["resourceVersion"] == "77"
    assert await bench.events(client, 1) == [("MODIFIED", "v1.zoo.io", "77")]
    bench.backend.send(event("ADDED", "v1.new.io", "80"), event("MODIFIED", "v1.zoo.io", "81"))
    bench.backend.send(event("BOOKMARK", "", "82"))
    assert (await bench.events(client, 3))[1:] == [("ADDED", "v1.new.io", "80"), ("BOOKMARK", "", "82")]
    bench.known.take(ZOO, DOWN)
    assert (await bench.events(client, 4))[3] == ("MODIFIED", "v1.zoo.io", "82")
    assert lines(client)[3]["object"]["status"]["conditions"][0]["status"] == "False"
    bench.known.take(ZOO, PASSED)
    await bench.events(client, 5)
    assert bench.backend.asked[-1][1].endswith("?watch=1&resourceVersion=77&allowWatchBookmarks=true")


async def test_initial_events_have_ours_before_their_end(bench: Bench) -> None:
    await bench.serve("zoo.io")
    client = await bench.watch(b"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true")
    bench.backend.send(event("ADDED", "v1.", "5"), event("ADDED", "v1.zoo.io", "6"))
    await bench.events(client, 1)
    bench.known.take(ZOO, DOWN)
    bench.backend.send(event("BOOKMARK", "", "90", annotations={"k8s.io/initial-events-end": "true"}))
    assert await bench.events(client, 3) == [
        ("ADDED", "v1.", "5"),
        ("ADDED", "v1.zoo.io", "90"),
        ("BOOKMARK", "", "90"),
    ]
    assert lines(client)[1]["object"]["status"]["conditions"][0]["status"] == "False"


@pytest.mark.parametrize("query", [b"", b"&resourceVersion=0"])
async def test_a_watch_without_a_version_begins_with_ours(bench: Bench, query: bytes) -> None:
    await bench.serve("zoo.io")
    client = await bench.watch(query)
    assert await bench.events(client, 1) == [("ADDED", "v1.zoo.io", "77")]


@pytest.mark.parametrize(
    ("query", "selected"),
    [(b"&fieldSelector=metadata.name%3Dv1.apps", False), (b"&fieldSelector=metadata.name%3Dv1.zoo.io", True)],
)
async def test_selectors(bench: Bench, query: bytes, selected: bool) -> None:
    await bench.serve("zoo.io")
    client = await bench.watch(b"&resourceVersion=77" + query)
    bench.known.take(ZOO, DOWN)
    bench.backend.send(event("ADDED", "v1.apps", "80"))
    found = await bench.events(client, 1 + 2 * selected)
    assert [name for _, name, _ in found] == ["v1.zoo.io", "v1.zoo.io", "v1.apps"][0 if selected else 2 :]


async def test_a_refusal_of_the_backend_is_the_answer(bench: Bench) -> None:
    await bench.serve("zoo.io")
    await answer(bench.harness, get(PATH))
    bench.backend.refusal = FORBIDDEN
    status, _, found = await answer(bench.harness, get(PATH + b"?watch=1&resourceVersion=77"))
    assert (status, found) == FORBIDDEN
    status, _, found = await answer(bench.harness, get(PATH + b"?watch=1"))
    assert (status, found) == FORBIDDEN


async def test_a_version_from_before_is_expired(bench: Bench) -> None:
    await bench.serve("zoo.io")
    status, _, found = await answer(bench.harness, get(PATH + b"?watch=1&resourceVersion=70"))
    assert (status, found["reason"]) == (410, "Expired")


async def test_the_version_with_which_this_process_began_is_good_for_who_was_told_it(bench: Bench) -> None:
    await bench.serve("zoo.io")
    client, other = b"User-Agent: client", b"User-Agent: another"
    resume = PATH + b"?watch=1&resourceVersion=77"
    for _ in range(2):  # it may be of a process before this one, which had other registrations
        status, _, found = await answer(bench.harness, get(resume, client))
        assert (status, found["reason"]) == (410, "Expired")
    watch = await bench.watch(b"&resourceVersion=77", client)  # it has listed
    assert len(await bench.events(watch, 1)) == 1
    assert (await answer(bench.harness, get(resume, other)))[0] == 410
    watch = await bench.watch(b"&resourceVersion=78", other)  # the backend has gone on, and so has who knows that
    assert len(await bench.events(watch, 1)) == 1
    await bench.serve("zoo.io", "other.io")
    assert (await answer(bench.harness, get(resume, client)))[0] == 410


async def test_a_reload_that_changes_them_ends_the_watch_with_410(bench: Bench) -> None:
    await bench.serve("zoo.io")
    client = await bench.watch(b"&resourceVersion=77")
    await bench.events(client, 1)
    await bench.serve("zoo.io")
    assert len(lines(client)) == 1
    await bench.serve("zoo.io", "other.io")
    await bench.events(client, 2)
    assert (lines(client)[1]["type"], lines(client)[1]["object"]["code"]) == ("ERROR", 410)
    await bench.harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "its end")
    await bench.harness.until(lambda: bench.backend.watches[0].lost, "the end of the backend's watch")
    bench.backend.answers[PATH.decode()] = 200, {**listed(), "metadata": {"resourceVersion": "99"}}
    assert (await answer(bench.harness, get(PATH + b"?watch=1&resourceVersion=98")))[0] == 410


async def test_the_end_of_the_backends_watch_ends_it_cleanly_and_the_clients_ends_the_backends(bench: Bench) -> None:
    await bench.serve("zoo.io")
    before = len(bench.known._listeners), len(bench.known._configured)
    client = await bench.watch(b"&resourceVersion=77")
    await bench.events(client, 1)
    bench.backend.watches[-1].send(b"0\r\n\r\n")
    await bench.harness.until(lambda: client.received.endswith(b"0\r\n\r\n"), "its end")
    client = await bench.watch(b"&resourceVersion=77")
    await bench.events(client, 1)
    client.abort()
    await bench.harness.until(lambda: bench.backend.watches[-1].lost, "the end of the backend's watch")
    await bench.harness.until(lambda: not bench.harness.service.requests, "the end of all requests")
    assert (len(bench.known._listeners), len(bench.known._configured)) == before


async def test_an_event_that_is_none_breaks_the_watch_off(bench: Bench) -> None:
    await bench.serve("zoo.io")
    client = await bench.watch(b"&resourceVersion=77")
    await bench.events(client, 1)
    bench.backend.watches[-1].send(b"8\r\nnothing\n\r\n")
    await bench.harness.until(lambda: client.over, "its end")
    assert not client.received.endswith(b"0\r\n\r\n")


async def test_a_row_whose_name_is_no_text_breaks_the_watch_off(bench: Bench) -> None:
    await bench.serve("zoo.io")
    client = await bench.watch(b"&resourceVersion=77", b"Accept: application/json;as=Table;v=v1;g=meta.k8s.io")
    line = b'{"type":"ADDED","object":{"kind":"Table","rows":[{"cells":["\xff"]}]}}\n'
    with captured_logs() as events:
        bench.backend.watches[-1].send(b"%x\r\n%b\r\n" % (len(line), line))
        await bench.harness.until(lambda: client.over, "its end")
    assert not client.received.endswith(b"0\r\n\r\n")
    assert "internal_error" not in [event.get("event") for event in events]


@pytest.mark.parametrize("version", [b"abc", b"9" * 5000, b"%D9%A3"], ids=["text", "long", "other digits"])
async def test_a_version_that_is_none_is_no_error_of_the_proxys(bench: Bench, version: bytes) -> None:
    await bench.serve("zoo.io")
    bench.backend.refusal = 400, {"kind": "Status", "code": 400}
    assert (await answer(bench.harness, get(PATH + b"?watch=1&resourceVersion=" + version)))[0] in (400, 410)
    bench.backend.refusal = 404, {"kind": "Status", "code": 404}
    bench.backend.answers = {}
    assert (await answer(bench.harness, get(PATH + b"?watch=1&resourceVersion=" + version)))[0] == 410


async def test_a_version_of_the_backend_that_is_none_is_no_error_of_the_proxys(bench: Bench) -> None:
    await bench.serve("zoo.io")
    bench.backend.answers[PATH.decode()] = 200, {**listed(), "metadata": {"resourceVersion": "9" * 5000}}
    assert (await answer(bench.harness, get(PATH)))[0] == 200


@pytest.mark.parametrize("seconds", [b"-1", b"9223372036854775807"])
async def test_a_watch_of_ours_alone_lasts_as_long_as_it_may(bench: Bench, seconds: bytes) -> None:
    await bench.serve("zoo.io")
    bench.backend.refusal = 404, {"kind": "Status", "code": 404}
    bench.backend.answers = {}
    client = await bench.watch(b"&timeoutSeconds=" + seconds)
    assert client.received.startswith(b"HTTP/1.1 200 ")
    assert len(await bench.events(client, 1)) == 1


def test_a_refusal_in_very_many_pieces_takes_no_quadratic_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def summed(pieces: Any) -> int:
        nonlocal counted
        found = list(pieces)
        counted += len(found)
        return builtins.sum(found)

    monkeypatch.setattr(api_service_watch, "sum", summed, raising=False)
    options, maker = ListOptions(watch=True), Maker("main", RequestedForm(), lambda: 0.0)
    watch = APIServiceWatch(MagicMock(), Clock(), maker, options, names=(), ours=lambda: (), version="1")
    watch.head(403, b"")
    for _ in range(1000):
        watch.data(b"x")
    watch.ended()
    refused: Any = watch.begun.result
    assert refused.body == b"x" * 1000
    assert counted < 2000


def test_a_client_that_reads_nothing_is_told_how_it_is_when_it_reads_again() -> None:
    service = model.APIService(group="zoo.io", version="v1", cluster="zoo", authority="east")
    known, request = Availability(lambda: 0.0), MagicMock()
    own = lambda: [Own(service, known.get(ZOO))]  # noqa: E731
    maker, written = Maker("main", RequestedForm(), lambda: 0.0), request.exchange.write
    watch = APIServiceWatch(
        request, Clock(), maker, ListOptions(watch=True), names=("v1.zoo.io",), ours=own, version="1"
    )
    request.exchange.ended, request.exchange.write_blocked = False, True
    watch.head(200, b"")
    known.subscribe(watch.changed)
    for _ in range(100):
        known.take(ZOO, DOWN)
        known.take(ZOO, PASSED)
    known.take(ZOO, DOWN)
    assert written.call_count == 1
    request.exchange.write_blocked = False
    watch.resume_response()
    assert written.call_count == 2
    assert json.loads(written.call_args[0][0])["object"]["status"]["conditions"][0]["status"] == "False"


async def test_ours_alone_where_the_backend_has_no_such_resource(bench: Bench) -> None:
    await bench.serve("zoo.io")
    bench.backend.refusal = 404, {"kind": "Status", "code": 404}
    bench.backend.answers = {}
    query = b"&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    client = await bench.watch(query)
    kinds = [kind for kind, _, _ in await bench.events(client, 2)]
    assert kinds == ["ADDED", "BOOKMARK"]
    bench.known.take(ZOO, DOWN)
    before, after = (await bench.events(client, 3))[1:]
    assert after[:2] == ("MODIFIED", "v1.zoo.io")
    assert int(after[2]) >= int(before[2])
    resumed = await bench.watch(b"&resourceVersion=" + after[2].encode() + b"&timeoutSeconds=1")
    await bench.harness.until(lambda: resumed.received.endswith(b"0\r\n\r\n"), "its end")
    assert (await bench.events(resumed, 1))[0][:2] == ("MODIFIED", "v1.zoo.io")
    assert (await answer(bench.harness, get(PATH + b"?watch=1&resourceVersion=5")))[0] == 410
