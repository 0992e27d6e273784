"""Control traffic and health checks over real TLS on loopback: what is verified, sent, bounded and reused."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import trustme
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater

from mcproxy.config import model
from mcproxy.net.connect_errors import ConnectionRefused, TLSError
from mcproxy.upstream.cluster import Cluster
from mcproxy.upstream.control import ControlError, NotPermittedError
from mcproxy.upstream.credentials import CredentialError
from mcproxy.upstream.upstream_context import UpstreamContext
from tests.upstream.fakes import cluster_config, real_pools
from tests.upstream.https_server import NOT_DONE_YET, HTTPSServer


class Site:
    """A server of one name and clusters that point at it."""

    def __init__(self, reactor: Any, name: str) -> None:
        self.reactor = reactor
        self.ca = trustme.CA()
        self.server = HTTPSServer(reactor, self.ca, name)
        self.port = self.server.start()
        self.clusters: list[Cluster] = []

    @property
    def ca_file(self) -> model.PEMFile:
        return model.PEMFile("ca.crt", self.ca.cert_pem.bytes())

    def cluster(self, *, server_name: str | None = None, path: str = "", **fields: Any) -> Cluster:
        endpoint = model.EndpointConfig(name="a", scheme="https", host="127.0.0.1", port=self.port, path=path)
        tls = fields.pop("tls", model.ClusterTLS(ca=self.ca_file, server_name=server_name))
        shared = UpstreamContext.of(self.reactor, real_pools(self.reactor))
        cluster = Cluster(cluster_config(endpoint, tls=tls, **fields), shared)
        self.clusters.append(cluster)
        return cluster

    def client_pair(self, name: str) -> model.Credentials:
        issued = self.ca.issue_cert(f"{name}@example.com", common_name=name)
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return model.Credentials(
            certificate=model.PEMFile("c", chain), key=model.PEMFile("k", issued.private_key_pem.bytes())
        )


def served(reactor: Any, name: str) -> Iterator[Site]:
    site = Site(reactor, name)
    yield site
    for cluster in site.clusters:
        cluster.stop()
    site.server.stop()


@pytest.fixture
def site(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    yield from served(reactor, "127.0.0.1")


@pytest.fixture
def named(reactor: Any, nothing_left_open: None) -> Iterator[Site]:
    yield from served(reactor, "kubernetes.example")


async def ask(cluster: Cluster, path: str = "/version", timeout: float = 60.0, **more: Any) -> Any:
    return await cluster.control.request(cluster.endpoints[0], more.pop("method", "GET"), path, timeout=timeout, **more)


async def test_a_request_with_body_headers_and_credential(site: Site) -> None:
    def respond(request: Any) -> bytes:
        request.setResponseCode(201)
        request.setHeader("x-answer", "yes")
        return b"created"

    site.server.respond = respond
    cluster = site.cluster(path="/prefix", credentials=model.Credentials(token=model.Secret("s3cret")))
    answer = await ask(
        cluster, "/apis/x?y=%2F", method="POST", headers=(("content-type", "application/json"),), body=b"{}"
    )
    assert (answer.status, answer.body) == (201, b"created")
    assert (b"X-Answer", b"yes") in answer.headers
    seen = site.server.seen[0]
    assert (seen.method, seen.uri, seen.body) == ("POST", "/prefix/apis/x?y=%2F", b"{}")
    assert seen.headers["authorization"] == "Bearer s3cret"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["host"] == f"127.0.0.1:{site.port}"
    assert seen.server_name is None  # no SNI for an address (RFC 6066)


async def test_an_address_in_the_certificate_is_verified(site: Site) -> None:
    assert (await ask(site.cluster())).status == 200


async def test_tls_server_name_is_sent_and_verified_instead_of_the_host(named: Site) -> None:
    assert (await ask(named.cluster(server_name="kubernetes.example"))).status == 200
    assert named.server.seen[0].server_name == "kubernetes.example"


@pytest.mark.parametrize("server_name", [None, "other.example"])
async def test_a_certificate_for_another_name_is_refused(named: Site, server_name: str | None) -> None:
    with pytest.raises(TLSError):
        await ask(named.cluster(server_name=server_name))
    assert named.server.seen == []


async def test_a_certificate_of_another_authority_is_refused(site: Site) -> None:
    other = model.PEMFile("other", trustme.CA().cert_pem.bytes())
    with pytest.raises(TLSError):
        await ask(site.cluster(tls=model.ClusterTLS(ca=other)))
    assert site.server.seen == []


async def test_verification_is_off_only_where_the_file_says_so(named: Site) -> None:
    assert (await ask(named.cluster(tls=model.ClusterTLS(insecure_skip_verify=True)))).status == 200


async def test_the_client_certificate_is_shown_even_for_passthrough(site: Site) -> None:
    await ask(site.cluster(credentials=site.client_pair("proxy"), identity=model.UpstreamIdentity.PASSTHROUGH))
    assert site.server.seen[0].client == "proxy"


class _Asker(Protocol):
    """Sends one request over whatever connection it is given."""

    def __init__(self) -> None:
        self.done: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.write(b"GET /data HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    def connectionLost(self, reason: Any = None) -> None:
        self.done.callback(None)


@pytest.mark.parametrize(
    ("identity", "client"), [(model.UpstreamIdentity.PASSTHROUGH, None), (model.UpstreamIdentity.PROXY, "proxy")]
)
async def test_request_connections_show_the_certificate_only_for_identity_proxy(
    site: Site, identity: model.UpstreamIdentity, client: str | None
) -> None:
    cluster = site.cluster(credentials=site.client_pair("proxy"), identity=identity)
    for _ in range(2):  # the second one may resume
        asker = _Asker()
        protocol: IProtocol = asker
        await cluster.endpoints[0].connect(protocol)
        await asker.done
        await ask(cluster)
    assert [seen.client for seen in site.server.seen] == [client, "proxy", client, "proxy"]


async def test_certificates_that_cannot_be_used_are_a_connect_error(site: Site) -> None:
    broken = model.Credentials(certificate=model.PEMFile("c", b"nonsense"), key=model.PEMFile("k", b"nonsense"))
    with pytest.raises(TLSError, match="certificates for a cannot be used"):
        await ask(site.cluster(credentials=broken))


async def test_connections_are_kept_and_renewed_when_asked(site: Site) -> None:
    cluster = site.cluster()
    for _ in range(3):
        await ask(cluster)
    cluster.endpoints[0].renew_own_connections()
    await ask(cluster)
    connections = [seen.connection for seen in site.server.seen]
    assert connections[0] == connections[1] == connections[2] != connections[3]


async def test_after_the_end_none_is_kept(site: Site) -> None:
    cluster = site.cluster()
    cluster.stop()
    for _ in range(2):
        await ask(cluster)
        await deferLater(site.reactor, 0.01)
    first, second = (seen.connection for seen in site.server.seen)
    assert first != second


async def test_redirects_are_not_followed(site: Site) -> None:
    def respond(request: Any) -> bytes:
        request.setResponseCode(302)
        request.setHeader("location", "/elsewhere")
        return b""

    site.server.respond = respond
    assert (await ask(site.cluster())).status == 302
    assert len(site.server.seen) == 1


async def test_a_body_over_the_bound_is_an_error(site: Site) -> None:
    site.server.respond = lambda request: b"x" * 100_000
    cluster = site.cluster()
    assert len((await ask(cluster, max_body=100_000)).body) == 100_000
    with pytest.raises(ControlError, match="more than 99999 bytes"):
        await ask(cluster, max_body=99_999)


async def test_a_compressed_answer_is_not_unpacked(site: Site) -> None:
    def respond(request: Any) -> bytes:
        request.setHeader("content-encoding", "gzip")
        return gzip.compress(b"x" * 1_000_000)

    site.server.respond = respond
    with pytest.raises(ControlError, match="compressed"):
        await ask(site.cluster())
    assert site.server.seen[0].headers["accept-encoding"] == "identity"


async def test_an_answer_that_never_comes_ends_at_the_timeout(site: Site) -> None:
    cluster = site.cluster()
    await ask(cluster)  # a connection: that it is not there in time is another error
    site.server.respond = lambda request: NOT_DONE_YET
    with pytest.raises(ControlError, match=r"no answer from a on /version within 0\.3 s"):
        await ask(cluster, timeout=0.3)


async def test_what_is_not_permitted_any_more_when_the_connection_is_there_is_not_sent(site: Site) -> None:
    cluster = site.cluster()
    for _ in range(2):  # over a new connection, and with one that is kept
        with pytest.raises(NotPermittedError):
            await ask(cluster, permit=lambda: False)
        assert not site.server.seen
    assert (await ask(cluster, permit=lambda: True)).status == 200
    with pytest.raises(NotPermittedError):
        await ask(cluster, permit=lambda: False)
    assert len(site.server.seen) == 1


async def test_a_body_that_never_ends_ends_at_the_timeout(site: Site) -> None:
    def respond(request: Any) -> Any:
        request.write(b"begin")
        return NOT_DONE_YET

    cluster = site.cluster()
    await ask(cluster)
    site.server.respond = respond
    with pytest.raises(ControlError, match="no answer"):
        await ask(cluster, timeout=0.3)


async def test_a_body_cut_short_is_an_error(site: Site) -> None:
    def respond(request: Any) -> Any:
        request.setHeader("content-length", "100")
        request.write(b"begin")
        request.channel.loseConnection()
        return NOT_DONE_YET

    site.server.respond = respond
    with pytest.raises(ControlError, match="broke off"):
        await ask(site.cluster())


async def test_a_connection_reset_before_the_answer_is_an_error(site: Site) -> None:
    def respond(request: Any) -> Any:
        request.channel.transport.abortConnection()
        return NOT_DONE_YET

    site.server.respond = respond
    with pytest.raises(ControlError, match="broke off"):
        await ask(site.cluster(), method="POST", body=b"{}")


async def test_refused_connection_is_a_connect_error(site: Site) -> None:
    cluster = site.cluster()
    await site.server.stop()
    with pytest.raises(ConnectionRefused):
        await ask(cluster)


async def test_a_401_reads_the_rotated_token_and_tries_once_more(site: Site, tmp_path: Any) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    cluster = site.cluster(credentials=model.Credentials(token_file=str(path)))

    def respond(request: Any) -> bytes:
        request.setResponseCode(200 if request.getHeader("authorization") == "Bearer newer" else 401)
        return b""

    site.server.respond = respond
    assert (await ask(cluster)).status == 401
    assert len(site.server.seen) == 1
    now = site.reactor.seconds()
    assert cluster.credentials.is_refused(now)
    assert not cluster.credentials.is_refused(now + 61)
    cluster.credentials.note_refusal(now - 60)
    path.write_text("newer")
    assert (await ask(cluster)).status == 200
    assert not cluster.credentials.is_refused(now), "another one was had"
    assert [seen.headers["authorization"] for seen in site.server.seen] == ["Bearer old", "Bearer old", "Bearer newer"]


async def test_missing_credential_is_an_error_and_nothing_is_sent(site: Site, tmp_path: Any) -> None:
    cluster = site.cluster(credentials=model.Credentials(token_file=str(tmp_path / "missing")))
    with pytest.raises(CredentialError, match="cannot read the token file"):
        await ask(cluster)
    assert site.server.seen == []


async def test_health_checks_work_over_the_same_tls(named: Site, reactor: Any) -> None:
    check = model.HealthCheck(interval=0.05)
    cluster = named.cluster(
        server_name="kubernetes.example", credentials=named.client_pair("proxy"), health_check=check
    )
    cluster.start()
    for _ in range(3000):
        await deferLater(reactor, 0.01)
        if len(named.server.seen) > 2 and cluster.endpoints[0].ready:
            break
    assert cluster.endpoints[0].ready, cluster.unavailable_message()
    assert {seen.client for seen in named.server.seen} == {"proxy"}
    assert len({seen.connection for seen in named.server.seen}) == len(named.server.seen)


async def test_a_reload_with_another_authority_is_verified_anew(site: Site) -> None:
    cluster = site.cluster()
    await ask(cluster)
    other = model.ClusterTLS(ca=model.PEMFile("other", trustme.CA().cert_pem.bytes()))
    changed = Cluster.build(
        replace(cluster.config, tls=other), UpstreamContext.of(site.reactor, real_pools(site.reactor)), cluster
    )
    with pytest.raises(TLSError):
        await ask(changed)


def test_no_other_client_of_http_is_imported() -> None:
    code = "import sys, mcproxy.upstream.cluster; print('twisted.web.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
