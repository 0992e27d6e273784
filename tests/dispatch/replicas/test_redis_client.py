"""The client against real servers: TLS, passwords, ACL, clusters, and every way in which a Redis cannot be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

from mcproxy.config import model
from mcproxy.dispatch.replicas import redis_client as client
from mcproxy.dispatch.replicas.redis_client import RedisEngine, RedisUnavailable
from mcproxy.dispatch.replicas.script import Ask, Call, parse, renewal
from tests.dispatch.replicas.virtual import FIFTY
from tests.identity.certificates import Held
from tests.net.authorities import CANNOT_MATCH, intermediate, key_pem, pem, root, server
from tests.support.redis_server import RedisServer


def asked(count: int) -> list[Ask]:
    return [Ask(key, 1.0) for key in range(count)]


def call(asks: int = 0) -> Call:
    return renewal(
        "mcproxy",
        FIFTY.id,
        "a",
        2.0,
        FIFTY.amount,
        FIFTY.label,
        asked(asks),
        whole=False,
        known=True,
        seen=0,
    )


@pytest.fixture
def engine_for() -> Iterator[Callable[[model.RedisConfig], RedisEngine]]:
    made: list[RedisEngine] = []

    def make(config: model.RedisConfig) -> RedisEngine:
        made.append(RedisEngine(config))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


Make = Callable[[model.RedisConfig], RedisEngine]


def works(engine: RedisEngine) -> bool:
    one, none = engine.call([call(1), call(0)])
    return (parse(one, asked(1)).members, parse(none, []).members) == (1, 1)


def refusal(engine: RedisEngine) -> tuple[str, str]:
    with pytest.raises(RedisUnavailable) as caught:
        engine.call([call(1)])
    return str(caught.value), caught.value.todo


def test_a_script_cache_that_was_flushed_and_a_server_that_was_restarted(tmp_path: Path, engine_for: Make) -> None:
    with RedisServer(tmp_path) as server:
        engine = engine_for(server.config())
        assert works(engine)
        with server.client() as client:
            client.script_flush()
        assert works(engine)
        server.stop()
        why, todo = refusal(engine)
        assert why.startswith(f"{server.socket}: ")
        assert todo == "see that Redis runs, and can be reached from here"
        server.start()
        assert works(engine)


def test_database_and_password(tmp_path: Path, engine_for: Make) -> None:
    with RedisServer(tmp_path, "--requirepass", "hush") as server:
        assert works(engine_for(server.config(password=model.Secret("hush"), database=3)))
        with server.client(password="hush", db=3) as client:
            assert sorted(key.partition("}")[2] for key in client.scan_iter()) == [":key:0000000000000000", ":members"]
        assert refusal(engine_for(server.config()))[1].startswith("set passwordFile")
        why, todo = refusal(engine_for(server.config(password=model.Secret("wrong"))))
        assert "hush" not in why
        assert "wrong" not in why
        assert todo == "see that username and passwordFile are Redis' own, then reload"


def test_the_rights_that_a_user_needs_are_those_that_the_remedy_names(tmp_path: Path, engine_for: Make) -> None:
    with RedisServer(tmp_path) as server, server.client() as client:
        client.execute_command("ACL", "SETUSER", "m", "on", ">p", "~other*", "+@all")
        engine = engine_for(server.config(username="m", password=model.Secret("p")))
        why, todo = refusal(engine)
        assert "NOPERM" in why
        rights = todo.partition("ACL SETUSER NAME ")[2].replace("PREFIX", "mcproxy").split()
        client.execute_command("ACL", "SETUSER", "m", "reset", "on", ">p", *rights)
        assert works(engine_for(server.config(username="m", password=model.Secret("p"))))


def test_a_replica_and_a_full_server_are_told_apart(tmp_path: Path, engine_for: Make) -> None:
    with RedisServer(tmp_path) as server, server.client() as client:
        engine = engine_for(server.config())
        client.replicaof("127.0.0.1", "1")
        why, todo = refusal(engine)
        assert "READONLY" in why
        assert todo.startswith("name the primary")
        client.replicaof("NO", "ONE")
        client.config_set("maxmemory", "1")
        why, todo = refusal(engine)
        assert "OOM" in why
        assert todo.startswith("give Redis more maxmemory")
        client.config_set("maxmemory", "0")
        assert works(engine)


def test_a_server_that_loads_its_data(tmp_path: Path, engine_for: Make) -> None:
    with RedisServer(tmp_path, "--enable-debug-command", "yes") as server, server.client() as client:
        client.config_set("rdbcompression", "no")
        client.config_set("loading-process-events-interval-bytes", "1024")
        for number in range(500):
            client.set(f"key-{number}", "x" * 2000)
        client.config_set("key-load-delay", "20000")  # microseconds
        with server.client(socket_timeout=0.1, retry=None) as other, pytest.raises(redis.TimeoutError):
            other.execute_command("DEBUG", "RELOAD")
        why, todo = refusal(engine_for(server.config()))
        assert "LOADING" in why
        assert todo == "wait: Redis is loading its data"


def test_a_server_that_stands_still_costs_one_timeout(
    tmp_path: Path, engine_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 1.5)
    with RedisServer(tmp_path) as server:
        engine = engine_for(server.config())
        assert works(engine)
        server.stand_still()
        why, todo = refusal(engine)
        assert why == f"{server.socket}: no answer within 1.5 s"
        assert "overloaded" in todo
        server.go_on()
        assert works(engine)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_server(tmp_path: Path, authority: trustme.CA) -> Iterator[RedisServer]:
    pair = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(tmp_path / "ca"))
    pair.private_key_pem.write_to_path(str(tmp_path / "key"))
    pair.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    files = ["--tls-ca-cert-file", str(tmp_path / "ca"), "--tls-key-file", str(tmp_path / "key")]
    with RedisServer(tmp_path, *files, "--tls-cert-file", str(tmp_path / "cert"), tls=True) as server:
        yield server


def tls_config(server: RedisServer, ca: trustme.CA, host: str = "localhost", **more: Any) -> model.RedisConfig:
    pem = model.PEMFile("ca.crt", ca.cert_pem.bytes())
    return model.RedisConfig(url="rediss://…", host=host, port=server.port, ca=pem, **more)


def test_tls_with_a_client_certificate(tls_server: RedisServer, authority: trustme.CA, engine_for: Make) -> None:
    mine = authority.issue_cert("client")
    certificate = model.PEMFile("c", mine.cert_chain_pems[0].bytes())
    key = model.PEMFile("k", mine.private_key_pem.bytes())
    assert works(engine_for(tls_config(tls_server, authority, certificate=certificate, key=key)))
    assert "localhost:" in refusal(engine_for(tls_config(tls_server, authority)))[0]


def test_another_authority_or_name_is_refused(tls_server: RedisServer, authority: trustme.CA, engine_for: Make) -> None:
    for config in (tls_config(tls_server, trustme.CA()), tls_config(tls_server, authority, host="127.0.0.1")):
        why, todo = refusal(engine_for(config))
        assert "certificate verify failed" in why
        assert todo.startswith("see that caFile holds the authority")


ROOT, OTHER = root(), root()
INTER = intermediate(ROOT)


@pytest.mark.parametrize(
    ("chain", "bundle", "host"),
    [
        ((server(INTER), INTER), INTER.pem, "localhost"),
        (
            (server(INTER), INTER),
            b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n" + ROOT.pem,
            "localhost",
        ),
        ((server(ROOT),), pem(ROOT, OTHER), "localhost"),
        ((server(ROOT),), pem(OTHER, ROOT), "localhost"),
        ((server(ROOT, "localhost", *CANNOT_MATCH),), ROOT.pem, "localhost."),
        ((server(ROOT, "127.0.0.1"),), ROOT.pem, "::ffff:127.0.0.1"),
    ],
)
def test_what_a_cluster_may_show_redis_may(
    tmp_path: Path, engine_for: Make, chain: tuple[Held, ...], bundle: bytes, host: str
) -> None:
    (tmp_path / "cert").write_bytes(pem(*chain))
    (tmp_path / "key").write_bytes(key_pem(chain[0]))
    options = ["--tls-cert-file", str(tmp_path / "cert"), "--tls-key-file", str(tmp_path / "key")]
    options += ["--tls-ca-cert-file", str(tmp_path / "cert"), "--tls-auth-clients", "no"]
    with RedisServer(tmp_path, *options, tls=True) as running:
        config = model.RedisConfig(url="rediss://…", host=host, port=running.port, ca=model.PEMFile("ca.crt", bundle))
        assert works(engine_for(config))
        wrong = model.RedisConfig(
            url="rediss://…", host=host, port=running.port, ca=model.PEMFile("ca.crt", pem(root(), root()))
        )
        engine = engine_for(wrong)
        for _ in range(3):
            assert "certificate verify failed" in refusal(engine)[0]


def test_a_cluster_is_found_out_by_itself(tmp_path: Path, engine_for: Make) -> None:
    def by_socket(server: RedisServer) -> str:
        try:
            return str(works(engine_for(server.config())))
        except RedisUnavailable as error:
            return str(error)

    servers = []
    try:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            servers.append(RedisServer(tmp_path / name, node=True).start())
        one, two = (server.client() for server in servers)
        one.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
        two.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
        one.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[1].port, servers[1].bus_port)
        while not all("cluster_state:ok" in node.execute_command("CLUSTER", "INFO") for node in (one, two)):
            time.sleep(0.02)
        for server in servers:  # the slot of the limit is at one of the two
            assert works(engine_for(model.RedisConfig(url="redis://…", host="127.0.0.1", port=server.port)))
        assert len(one.keys()) + len(two.keys()) == 2
        whys = [by_socket(server) for server in servers]
        assert sum("whose other nodes are reached by TCP alone" in why for why in whys) == 1
        database = model.RedisConfig(url="redis://…", host="127.0.0.1", port=servers[0].port, database=1)
        assert refusal(engine_for(database))[1] == "remove the database from url: a cluster has only one"
        one.close()
        two.close()
    finally:
        for server in servers:
            server.stop()
