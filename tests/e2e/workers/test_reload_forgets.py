"""What a reload takes away is gone in every process when `mcproxy reload` returns, on kept connections too."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.e2e.http2_client import HTTP2Client
from tests.e2e.http_client import Address, Client, ask
from tests.e2e.processes import TIMEOUT, wait_until
from tests.e2e.workers.site import Site, WorkersDaemon
from tests.identity import issuer
from tests.identity.certificates import CLIENT, NO_AUTHORITY, Held, authority, revocations, user

CONFIG = """\
version: 1
daemon: {{controlSocket: control.sock, drainTimeout: 60s, workers: {workers}}}
listeners: [{{name: public, bind: "{bind}", tls: {{certificates: [proxy]}}}}]
certificates: [{{name: proxy, certFile: proxy.crt, keyFile: proxy.key}}]
authentication:
  - name: users
    clientCertificates: {{caFile: clients.crt, crlFile: clients.crl}}
    tokenFile: users.csv
    oidc: [{{issuer: "{issuer}", audiences: [k8s], jwksFile: keys.json, usernamePrefix: "-"}}]
authorization:
  - name: rules
    rules:
      - {{users: {users}, verbs: [get], nonResourceURLs: ["/version"]}}
      - {{users: {users}, verbs: [get], apiGroups: [""], resources: [pods/log]}}
clusters:
  - name: east
    endpoints: [{{url: "{east}"}}]
    tls: {{caFile: "{east_ca}"}}
    credentials: {{token: admin-test-token}}
    identity: Proxy
servers:
  - name: api
    default: true
    authentication: users
    authorization: rules
    sessions: {{endWithCredential: true}}
    backend: {{cluster: east}}
"""
FOLLOWED = "/api/v1/namespaces/demo/pods/db-1/log?follow=true"
WHEN = (-1, 36500)  # days from a fixed moment in the past
EVERYBODY = ("by-token", "by-key", "by-certificate", "by-rule", "kept")
REFUSED = {"by-token": 401, "by-key": 401, "by-certificate": 401, "by-rule": 403, "kept": 200}


class ForgettingDaemon(WorkersDaemon):
    """Users of each kind; `take_away` writes the files without them."""

    def __init__(self, site: Site, directory: Path, *, workers: int) -> None:
        self.rules: tuple[str, ...] = EVERYBODY
        directory.mkdir(exist_ok=True)
        self._clients = authority(valid=WHEN)
        self._held = self._clients.issue(user("by-certificate"), NO_AUTHORITY, CLIENT, valid=WHEN)
        super().__init__(site, directory, workers=workers)
        (directory / "clients.crt").write_bytes(self._clients.pem)
        self.with_certificate = Address(self.port, _context(site, directory, self._held))
        claims = issuer.claims(sub="by-key", exp=4_000_000_000, iat=1)
        self._tokens = {"by-key": issuer.token(claims).decode(), "by-token": "t0", "by-rule": "t1", "kept": "t2"}
        self.give()

    def config(self) -> str:
        cluster = self.site.clusters["east"]
        return CONFIG.format(
            workers=self.workers,
            bind=self.bind,
            issuer=issuer.ISSUER,
            users=json.dumps(self.rules),
            east=cluster.url,
            east_ca=cluster.ca,
        )

    def give(self) -> None:
        """Write all files with everybody in them."""
        self._write(EVERYBODY, "t0,by-token,\nt1,by-rule,\nt2,kept,\n", "one", ())

    def take_away(self) -> None:
        """Write all files without what somebody needs; "kept" keeps everything."""
        rules = tuple(each for each in EVERYBODY if each != "by-rule")
        self._write(rules, "t1,by-rule,\nt2,kept,\n", "two", (self._held,))

    def _write(self, rules: tuple[str, ...], users: str, key: str, revoked: tuple[Held, ...]) -> None:
        self.rules = rules
        (self.directory / "users.csv").write_text(users)
        (self.directory / "keys.json").write_bytes(issuer.jwks(issuer.rsa_jwk(key, kid="one")))
        crl = revocations(self._clients, *revoked, valid=WHEN)
        (self.directory / "clients.crl").write_bytes(crl.public_bytes(Encoding.PEM))
        self.write_config()

    def address_of(self, name: str) -> Address:
        return self.with_certificate if name == "by-certificate" else self.address

    def headers_of(self, name: str) -> list[tuple[str, str]]:
        return [("Authorization", f"Bearer {self._tokens[name]}")] if name in self._tokens else []


def _context(site: Site, directory: Path, held: Held) -> ssl.SSLContext:
    key = held.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "client.pem").write_bytes(held.pem + key)
    context = ssl.create_default_context(cadata=site.authority.pem.decode())
    context.load_cert_chain(directory / "client.pem")
    return context


@pytest.fixture(scope="module")
def daemon(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForgettingDaemon]:
    daemon = ForgettingDaemon(site, tmp_path_factory.mktemp("forgets"), workers=2)
    try:
        daemon.start()
        daemon.wait_until_all_serve()
        wait_until("the cluster is ready", lambda: status_of(daemon, "kept") == 200)
        yield daemon
        daemon.end_cleanly()
    finally:
        daemon.stop()


def status_of(daemon: ForgettingDaemon, name: str) -> int:
    """On a connection of its own."""
    return ask(daemon.address_of(name), "/version", headers=daemon.headers_of(name)).status


class Kept:
    """One user's kept connection to one worker."""

    def __init__(self, daemon: ForgettingDaemon, name: str) -> None:
        self._daemon, self.name = daemon, name
        self.client = Client(daemon.address_of(name))
        self.owner = daemon.family.owner(daemon.port, self.client.socket.getsockname()[1], within=TIMEOUT)

    def status(self) -> int:
        return self.client.request("GET", "/version", self._daemon.headers_of(self.name)).status


@pytest.fixture
def kept(daemon: ForgettingDaemon) -> Iterator[list[Kept]]:
    """A connection of each user to each worker."""
    opened: list[Kept] = []
    for name in EVERYBODY:
        owners: set[int] = set()
        while len(owners) < daemon.workers:
            opened.append(Kept(daemon, name))
            owners.add(opened[-1].owner)
            assert len(opened) < 300, "the kernel spreads connections"
    yield opened
    for each in opened:
        each.client.close()


@pytest.mark.slow
def test_nobody_who_was_taken_away_is_accepted_by_any_worker(daemon: ForgettingDaemon, kept: list[Kept]) -> None:
    before = daemon.children()
    for _ in range(3):
        for _ in range(2):  # the second time from caches
            assert {(each.name, each.status()) for each in kept} == {(name, 200) for name in EVERYBODY}
        daemon.take_away()
        assert daemon.reload_quickly()["ok"]
        assert {(each.name, each.status()) for each in kept} == set(REFUSED.items())
        daemon.give()
        assert daemon.reload_quickly()["ok"]
    assert daemon.children() == before


def test_streams_of_kept_http2_connections_are_judged_anew(daemon: ForgettingDaemon) -> None:
    fields = tuple((name.lower().encode(), value.encode()) for name, value in daemon.headers_of("by-token"))
    clients: dict[int, HTTP2Client] = {}
    with contextlib.ExitStack() as opened:
        while len(clients) < daemon.workers:
            context = ssl.create_default_context(cadata=daemon.site.authority.pem.decode())
            client = opened.enter_context(HTTP2Client(Address(daemon.port, context)))
            clients[daemon.family.owner(daemon.port, client.local_port, within=TIMEOUT)] = client
        for status in (200, 401):
            for client in clients.values():
                stream = client.peer.ask(path=b"/version", fields=fields)
                client.until("an answer", lambda: stream.ended)  # noqa: B023
                assert stream.status == status
            daemon.take_away()
            assert daemon.reload_quickly()["ok"]
    daemon.give()
    assert daemon.reload_quickly()["ok"]


def test_a_worker_that_is_killed_in_a_reload_does_not_come_back_with_what_was_before(daemon: ForgettingDaemon) -> None:
    victim = daemon.pid_of("worker-1")
    daemon.take_away()
    killing = threading.Timer(0.02, os.kill, (victim, signal.SIGKILL))
    killing.start()
    ok = daemon.reload_quickly()["ok"]
    seen: list[int] = []

    def successor_serves() -> bool:
        for _ in range(8):
            with contextlib.suppress(OSError):  # it was queued at the worker that died
                seen.append(status_of(daemon, "by-token"))
        return daemon.all_serve(but=frozenset({victim}))

    wait_until("the successor serves", successor_serves)
    killing.join()
    assert ok
    assert set(seen) == {401}
    daemon.give()
    assert daemon.reload_quickly()["ok"]


@pytest.mark.slow
def test_a_worker_that_only_ends_what_it_has_ends_what_is_taken_away(
    daemon: ForgettingDaemon, kept: list[Kept]
) -> None:
    """Its successor serves already; followed logs have `drainTimeout`, but no removed user has."""
    leaving = daemon.pid_of("worker-0")
    follower = next(each for each in kept if each.name == "by-token" and each.owner == leaving)
    with follower.client.begin("GET", FOLLOWED, daemon.headers_of("by-token")) as response:
        assert response.status == 200
        before = len(daemon.all_lines("a process is ready"))
        os.kill(leaving, signal.SIGTERM)
        daemon.wait_for("a process is ready", count=before + 1)
        daemon.take_away()
        assert daemon.reload_quickly()["ok"]
        begun = time.monotonic()
        with contextlib.suppress(OSError, http.client.IncompleteRead):
            while response.read1():
                pass
        assert time.monotonic() - begun < 40  # of a drain of 60
    wait_until("it ends then", lambda: leaving not in daemon.family.pids())
    daemon.give()
    assert daemon.reload_quickly()["ok"]
