"""An attacker at the edge, with the credential of one tunnel; `test_tunnel_hubs` has the one at the hub."""

from __future__ import annotations

import itertools
import json
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.http_client import Address, ask
from tests.e2e.processes import wait_until
from tests.e2e.tunnel_site import HUB, TunnelSite
from tests.security.tunnel_attackers import INSTANCE, Streams, is_over, read_head, upgrade_request
from tests.soak.invariants import bugs

SITE_B = HUB.replace(
    "clusters:\n",
    """\
clusters:
  - name: site-b
    endpoints: [{{name: b, tunnel: site-b}}]
    identity: RequestHeader
    connections: {{connectTimeout: 2s}}
""",
    1,
)
MEGABYTE = 1 << 20
Answering = Callable[[Streams, int], None]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TunnelSite]:
    site = TunnelSite(tmp_path_factory.mktemp("attacked"))
    try:
        yield site.start(SITE_B)
    finally:
        site.stop()


@pytest.fixture(autouse=True)
def _unharmed(site: TunnelSite) -> Iterator[None]:
    """Whatever the attacker does, the other tunnel goes on, and nothing is logged as a bug."""
    wait_until("the end of earlier tunnels", lambda: not site.is_connected("site-b"))
    before = site.edge.lines("event=tunnel_down")
    yield
    assert site.ask("/version").status == 200
    assert site.edge.lines("event=tunnel_down") == before
    for daemon in (site.hub, site.edge):
        assert bugs(daemon.log) == []


def as_edge_b(site: TunnelSite, raw: bytes, server_name: str = "tunnels.test") -> tuple[ssl.SSLSocket, int]:
    """Send a request with the certificate of edge-site-b; return the connection and the status (0: it has ended)."""
    context = ssl.create_default_context(cadata=site.hubs.pem.decode())
    context.load_cert_chain(site.edge_directory / "edge-site-b.crt", site.edge_directory / "edge-site-b.key")
    sock = Address(site.port, context, server_name).connect()
    sock.sendall(raw)
    head = read_head(sock)
    return sock, int(head.split(b" ")[1]) if head else 0


def status(site: TunnelSite, raw: bytes, server_name: str = "tunnels.test") -> int:
    sock, found = as_edge_b(site, raw, server_name)
    sock.close()
    return found


# -- at the edge: what it may not have ------------------------------------------------------------------------------


def test_another_tunnel_is_refused_whatever_the_request_says(site: TunnelSite) -> None:
    live = next(line for line in site.edge.lines("event=tunnel_up"))
    assert live
    claims = [
        (),
        ("X-Remote-User: edge-site-a",),
        ("Impersonate-User: edge-site-a",),
        ("Authorization: Bearer edge-site-a",),
        ("X-Forwarded-Client-Cert: Subject=CN=edge-site-a",),
    ]
    for fields in claims:
        assert status(site, upgrade_request("site-a", *fields)) == 403
    names = ["site-a/", "./site-a", "site-b/../site-a", "site%2da", "%73ite-a", "SITE-A", "site-a?x=site-b", "", "*"]
    for name in names:
        assert status(site, upgrade_request(name)) in (400, 403, 404), name
    assert not site.is_connected("site-b")


def test_nothing_else_of_the_hub_is_served_to_an_edge(site: TunnelSite) -> None:
    paths = (
        "/",
        "/version",
        "/clusters",
        "/clusters/site-a/version",
        "/clusters/site-a/api/v1/pods",
        "/metrics",
        "/readyz",
    )
    for path in paths:
        assert status(site, upgrade_request("", path=path)) == 404, path
        assert status(site, upgrade_request("", path=path), "localhost") in (401, 404, 421), path
        for host in ("127.0.0.1", "localhost"):
            raw = upgrade_request("", path=path).replace(b"Host: tunnels.test", f"Host: {host}".encode())
            assert status(site, raw) in (401, 404, 421), (path, host)


def test_tickets_are_not_guessed_replayed_or_used_by_another(site: TunnelSite) -> None:
    for number in range(60):
        ticket = f"hub.{secrets.token_hex(16)}" if number % 2 else f"worker-{number % 4}-{number}.{'0' * 32}"
        for tunnel in ("site-a", "site-b"):
            assert status(site, upgrade_request(tunnel, f"Mcproxy-Ticket: {ticket}")) == 403
    tickets: list[str] = []

    def dialled(streams: Streams, stream: int) -> None:
        """Keep the ticket; it is used while the hub still waits."""

    with Edge(site, dialled, tickets) as edge:
        first = edge.ask_in_background()
        wait_until("a dial", lambda: len(tickets) > 0)
        ticket = f"Mcproxy-Ticket: {tickets[0]}"
        assert status(site, upgrade_request("site-a", ticket)) == 403
        changed = tickets[0][:-1] + ("0" if tickets[0][-1] != "0" else "1")
        assert status(site, upgrade_request("site-b", f"Mcproxy-Ticket: {changed}")) == 403
        sock, found = as_edge_b(site, upgrade_request("site-b", ticket))
        assert found == 101
        assert status(site, upgrade_request("site-b", ticket)) == 403, "used"
        sock.close()
        first()


@pytest.mark.parametrize(
    "raw",
    [
        upgrade_request("site-b", "Mcproxy-Instance: " + "cd" * 16),
        upgrade_request("site-b", "Mcproxy-Ticket: a", "Mcproxy-Ticket: b"),
        upgrade_request("site-b", "Mcproxy-Ticket: "),
        upgrade_request("site-b", instance="é" * 32),
        upgrade_request("site-b", instance=INSTANCE.upper()),
        upgrade_request("site-b", instance=INSTANCE * 2),
        upgrade_request("site-b", "Content-Length: 5"),
        upgrade_request("site-b", "Transfer-Encoding: chunked"),
        upgrade_request("site-b", "X: " + "a" * MEGABYTE),
        upgrade_request("site-b", *(f"X-{number}: a" for number in range(5000))),
        upgrade_request("site-b").replace(b"HTTP/1.1", b"HTTP/1.0"),
        upgrade_request("site-b").replace(b"tunnel/1", b"tunnel/2"),
        upgrade_request("site-b").replace(b"Connection: Upgrade\r\n", b""),
        upgrade_request("site-b").replace(b"GET ", b"POST "),
    ],
    ids=itertools.count(),
)
def test_a_request_that_is_not_exactly_right_opens_nothing(site: TunnelSite, raw: bytes) -> None:
    assert status(site, raw) in (0, 400, 403, 408, 411, 413, 417, 431, 501, 505)
    assert not site.is_connected("site-b")


# -- at the edge: with a tunnel of its own --------------------------------------------------------------------------


class Edge:
    """A control connection of site-b; each dial is given to `dialled(streams, stream)`. A context manager."""

    def __init__(self, site: TunnelSite, dialled: Answering, tickets: list[str] | None = None) -> None:
        self.site = site
        self._dialled = dialled
        self.tickets = [] if tickets is None else tickets

    def __enter__(self) -> Edge:
        sock, found = as_edge_b(self.site, upgrade_request("site-b"))
        assert found == 101
        self.streams = Streams(sock, client=False, got=self._got)
        self.streams.start()
        wait_until("the tunnel", lambda: self.site.is_connected("site-b"))
        return self

    def _got(self, stream: int, head: dict[str, str], body: bytes) -> None:
        if not body:
            return  # a dial that the hub has given up
        self.tickets.append(str(json.loads(body)["ticket"]))
        self._dialled(self.streams, stream)

    def ask(self) -> tuple[int, str]:
        """Send a request for the cluster behind this tunnel; return status and message."""
        begun = time.monotonic()
        answer = ask(Address(self.site.port, self.site.context), "/clusters/site-b/version")
        assert time.monotonic() - begun < 20
        return answer.status, str(answer.json["message"])

    def ask_until(self, cause: str) -> list[str]:
        """Send requests until one is refused with this cause; return all messages.

        A health check may have come first, or the endpoint is still out for an earlier cause.
        """
        messages: list[str] = []

        def has_cause() -> bool:
            found, message = self.ask()
            assert found in (502, 503, 504)
            messages.append(message)
            return cause in message

        wait_until(f"a refusal because of {cause}", has_cause)
        return messages

    def ask_in_background(self) -> Callable[[], None]:
        thread = threading.Thread(target=self.ask, daemon=True)
        thread.start()
        return lambda: thread.join(60)

    def __exit__(self, *_: object) -> None:
        self.streams.close()


@pytest.mark.parametrize("answers", [False, True], ids=["never-answers", "answers-200"])
def test_an_edge_that_does_not_dial_is_a_timeout_with_that_cause(site: TunnelSite, answers: bool) -> None:
    def dialled(streams: Streams, stream: int) -> None:
        if answers:
            streams.answer(stream, 200, b"{}")

    with Edge(site, dialled) as edge:
        edge.ask_until("the edge of tunnel site-b has not dialled within 2 s")
        assert site.ask("/version").status == 200


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda streams, stream: streams.answer(stream, 502, b'{"cause": "no route\\n\\u001b[31mred"}'), "no route"),
        (lambda streams, stream: streams.answer(stream, 502, b"[" * 4000), "answers 502 on /dial"),
        (lambda streams, stream: streams.answer(stream, 200, b"x" * 60000), "a long answer"),
        (
            lambda streams, stream: streams.answer(stream, 200, b"{}", [(f"x-{n}", "a" * 90) for n in range(2000)]),
            "site-b",
        ),
        (lambda streams, stream: streams.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}" * 1000), "site-b"),
        (lambda streams, stream: streams.raw(b"\0\0\1\1\4\0\0\1\1\x88"), "site-b"),
        (lambda streams, stream: streams.raw(b"\0\0\4\x08\0\0\0\0\0\xff\xff\xff\xff" * 3), "site-b"),
        (lambda streams, stream: streams.raw((b"\0\0\x08\6\0\0\0\0\0" + b"p" * 8) * 100_000), "site-b"),
        (lambda streams, stream: streams.raw(b"\0\0\0\4\0\0\0\0\0" * 100_000), "site-b"),
    ],
    ids=[
        "cause",
        "deep",
        "long",
        "header-flood",
        "http1",
        "another-stream",
        "window-overflow",
        "ping-flood",
        "settings-flood",
    ],
)
def test_an_edge_that_answers_dials_badly_harms_only_itself(site: TunnelSite, answer: Answering, cause: str) -> None:
    site.ask("/version")
    before = site.hub.memory
    with Edge(site, answer) as edge:
        messages = edge.ask_until(cause)
    assert not any("\x1b" in each for each in messages)
    assert site.hub.memory - before < 20 * MEGABYTE
    assert not any("\x1b" in line for line in site.hub.lines("site-b"))


def test_requests_behind_the_upgrade_are_not_served(site: TunnelSite) -> None:
    more = b"GET /clusters/site-a/api/v1/pods HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 3
    sock, found = as_edge_b(site, upgrade_request("site-b") + more)
    assert found == 101
    received = b""
    sock.settimeout(60)
    try:
        while data := sock.recv(65536):
            received += data
    except OSError:
        pass
    assert b"HTTP/1.1" not in received
    sock.close()


@pytest.mark.slow  # connections that do not answer have 10 s
@pytest.mark.parametrize("count", [80, 1000])
def test_a_thousand_control_connections_are_some_dozen(site: TunnelSite, count: int) -> None:
    before = site.hub.memory
    open_ones, statuses = [], set()
    try:
        for _ in range(count):
            sock, found = as_edge_b(site, upgrade_request("site-b"))
            statuses.add(found)
            if found == 101:
                open_ones.append(sock)
            else:
                sock.close()
        assert statuses == {101, 429}
        assert len(open_ones) <= 64
        assert site.hub.memory - before < 60 * MEGABYTE
        assert site.ask("/version").status == 200
        assert status(site, upgrade_request("site-b", instance="cd" * 16)) in (101, 409, 429)
    finally:
        for sock in open_ones:
            sock.close()


def test_a_data_connection_of_rubbish_ends_with_an_error(site: TunnelSite) -> None:
    tickets: list[str] = []
    ended: list[bool] = []

    def dialled(streams: Streams, stream: int) -> None:
        streams.answer(stream, 200, b"{}")
        sock, found = as_edge_b(site, upgrade_request("site-b", f"Mcproxy-Ticket: {tickets[-1]}"))
        assert found == 101
        sock.sendall(b"\xff" * 100_000)
        ended.append(is_over(sock))
        sock.close()

    with Edge(site, dialled, tickets) as edge:
        edge.ask_until("site-b")
        wait_until("the end", lambda: bool(ended))
    assert set(ended) == {True}
