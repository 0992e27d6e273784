"""The three floods: files that mcproxy takes, requests that differ, and clients that count what they get."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path

import pytest

from bench import floods, origin, pki
from bench.flood_clients import Clients, FloodClients, Outcome
from bench.floods import Flood
from bench.subjects import Place
from mcproxy.config import model
from mcproxy.config.load import load

FLOODS = floods.floods()


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> pki.Identity:
    return pki.make_identity(tmp_path_factory.mktemp("tls"), "localhost", "localhost")


def config(flood: Flood, directory: Path, identity: pki.Identity) -> model.Config:
    argv = flood.subject("mcproxy", None, directory).argv(Place(directory, identity, 8443, 9443))
    assert argv is not None
    return load(argv[-1]).config


def test_each_flood_has_a_configuration_that_loads(tmp_path: Path, identity: pki.Identity) -> None:
    strangers, limited, idle = (config(flood, tmp_path, identity) for flood in FLOODS)
    assert strangers.authentication[0].token_review is not None
    assert limited.authorization[0].subject_access_review is not None
    assert [control.qps for control in limited.flow_controls] == [floods.LIMITED_QPS, floods.OTHERS_QPS]
    assert limited.servers[0].dispatch is not None
    assert [policy.flow_control for policy in limited.servers[0].dispatch] == ["limited", "others"]
    assert idle.listeners[0].limits.connections == floods.LISTENER_CONNECTIONS


def test_another_checkout_is_run_by_its_path(tmp_path: Path, identity: pki.Identity) -> None:
    argv = FLOODS[0].subject("before", Path("/old"), tmp_path).argv(Place(tmp_path, identity, 1, 2))
    assert argv is not None
    assert argv[:2] == ["env", "PYTHONPATH=/old"]


def test_the_floods_have_the_figures_of_the_issue() -> None:
    strangers, limited, idle = (flood.flood() for flood in FLOODS)
    assert (len(strangers), len(limited), len(idle)) == (1300, 900, 20)
    assert {requests for _, requests in idle} == {None}
    assert "127.0.0.1" not in {source for flood in (strangers, limited, idle) for source, _ in flood}


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: str(flood.name))
def test_no_request_can_be_answered_from_a_cache(flood: Flood) -> None:
    sent = [head for number in range(3) for head in islice(flood.legitimate(number), 5)]
    assert len(set(sent)) == 15


def test_the_upstream_knows_legitimate_tokens_and_allows_everything() -> None:
    known = {"kind": "TokenReview", "spec": {"token": "legitimate-3.7"}}
    assert origin.reviewed(known)["status"]["user"]["username"] == "legitimate-3"
    assert origin.reviewed({"kind": "TokenReview", "spec": {"token": "stranger-1.2"}})["status"] == {
        "authenticated": False
    }
    assert origin.reviewed({"kind": "SubjectAccessReview"})["status"] == {"allowed": True}


def test_the_share_is_of_all_that_was_asked() -> None:
    outcome = Outcome()
    assert outcome.share == 0.0
    outcome.statuses.update({200: 3, 503: 1, 0: 1})
    assert outcome.share == 0.6


@asynccontextmanager
async def server(identity: pki.Identity, answer: bytes) -> AsyncIterator[tuple[int, list[str]]]:
    """A TLS server that answers every head with `answer` (b"": it closes); yields its port and who connected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(identity.certificate, identity.key)
    sources: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sources.append(writer.get_extra_info("peername")[0])
        try:
            while await reader.readuntil(b"\r\n\r\n") and answer:
                writer.write(answer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield listening.sockets[0].getsockname()[1], sources
    finally:
        listening.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.mark.parametrize("keep", [True, False])
def test_legitimate_clients_keep_their_connections_or_open_one_for_each_request(
    identity: pki.Identity, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setattr("bench.flood_clients.PERIOD", 0.0)
    context = ssl.create_default_context(cafile=str(identity.authority))

    async def run() -> tuple[Outcome, int]:
        async with server(identity, OK) as (port, sources):
            requests = [FLOODS[0].legitimate(number) for number in range(2)]
            return await Clients(port, context).legitimate(requests, 0.3, keep=keep), len(sources)

    outcome, connections = asyncio.run(run())
    assert outcome.share == 1.0
    assert len(outcome.seconds) == outcome.statuses[200] >= 2
    assert connections == (2 if keep else outcome.statuses[200])


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 503), (b"", 0)],
)
def test_refusals_and_broken_connections_count_against_the_share(
    identity: pki.Identity, answer: bytes, status: int
) -> None:
    context = ssl.create_default_context(cafile=str(identity.authority))

    async def run() -> Outcome:
        async with server(identity, answer) as (port, _):
            return await Clients(port, context).legitimate([FLOODS[0].legitimate(0)], 0.01, keep=True)

    outcome = asyncio.run(run())
    assert outcome.statuses[status] >= 1
    assert (outcome.share, outcome.seconds) == (0.0, [])


def test_a_flood_has_all_its_connections_before_the_context_begins(identity: pki.Identity) -> None:
    context = ssl.create_default_context(cafile=str(identity.authority))
    wanted = [(f"127.0.0.{2 + number}", None) for number in range(3)]

    async def run() -> list[str]:
        async with server(identity, OK) as (port, sources), FloodClients(port, context, wanted):
            return list(sources)

    assert sorted(asyncio.run(run())) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
