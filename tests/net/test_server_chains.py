"""Which chains of servers are trusted over a real connection, as kubectl and curl trust them."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from mcproxy.net.connect import ClientTLS, connect
from mcproxy.net.connect_errors import TLSError
from mcproxy.net.tls_contexts import client_context
from tests.identity.certificates import CLIENT, Held
from tests.net.authorities import CANNOT_MATCH, PAST, intermediate, key_pem, pem, root, server, showing
from tests.net.conftest import Serve
from tests.net.peers import Recorder, in_thread, reactor

ROOT = root()
INTER = intermediate(ROOT)
LEAF = server(INTER)
OTHER = root()  # of the same name


def key_usage(*, sign: bool) -> tuple[x509.KeyUsage, bool]:
    return x509.KeyUsage(not sign, False, False, False, False, sign, False, False, False), True


def path_length(number: int) -> tuple[x509.BasicConstraints, bool]:
    return x509.BasicConstraints(ca=True, path_length=number), True


async def refusal(
    serve: Serve, chain: tuple[Held, ...], *bundle: Held, name: str = "localhost", host: str = "127.0.0.1"
) -> str:
    """Connect to a server that shows a chain, trusting the bundle; return why it is refused, "" if it is not."""
    listener = serve(showing(*chain))
    protocol = Recorder()
    tls = ClientTLS(client_context(pem(*bundle), None, True), name, True)
    port = listener.address.port  # type: ignore[union-attr]
    try:
        await connect(reactor(), host, port, protocol, tls=tls, timeout=60)
    except TLSError as error:
        return error.cause
    protocol.stream.loseConnection()
    await protocol.lost
    return ""


async def test_names_that_can_match_nothing_do_not_matter(serve: Serve) -> None:
    shown = server(ROOT, "localhost", *CANNOT_MATCH)
    assert await refusal(serve, (shown,), ROOT) == ""
    assert "is not for other" in await refusal(serve, (shown,), ROOT, name="other")


class TestAnAnchorNeedNotBeSelfSigned:
    @pytest.mark.parametrize("bundle", [(INTER,), (LEAF,), (ROOT,), (INTER, ROOT), (ROOT, INTER)])
    async def test_each_certificate_of_the_bundle_is_one(self, serve: Serve, bundle: tuple[Held, ...]) -> None:
        assert await refusal(serve, (LEAF, INTER), *bundle) == ""

    @pytest.mark.parametrize("bundle", [(INTER,), (LEAF,)])
    async def test_of_a_server_that_sends_its_own_certificate_alone(
        self, serve: Serve, bundle: tuple[Held, ...]
    ) -> None:
        assert await refusal(serve, (LEAF,), *bundle) == ""

    async def test_a_server_that_sends_too_little_is_refused(self, serve: Serve) -> None:
        assert "is not trusted" in await refusal(serve, (LEAF,), ROOT)

    async def test_another_intermediate_or_certificate_is_refused(self, serve: Serve) -> None:
        assert "is not trusted" in await refusal(serve, (LEAF, INTER), intermediate(ROOT))
        assert "is not trusted" in await refusal(serve, (LEAF, INTER), server(INTER))

    async def test_an_expired_one_is_refused(self, serve: Serve) -> None:
        old = intermediate(ROOT, valid=PAST)
        assert "expired" in await refusal(serve, (server(old),), old)
        leaf = server(INTER, valid=PAST)
        assert "expired" in await refusal(serve, (leaf,), leaf)

    async def test_a_name_that_is_not_in_the_anchor_itself_is_refused(self, serve: Serve) -> None:
        assert "is not for other" in await refusal(serve, (LEAF,), LEAF, name="other")

    async def test_its_path_length_and_key_usage_hold(self, serve: Serve) -> None:
        short = intermediate(ROOT, "short", path_length(0))
        below = intermediate(short, "below")
        assert "path length" in await refusal(serve, (server(below), below), short)
        unusable = intermediate(ROOT, "unusable", path_length(1), key_usage(sign=False))
        assert "invalid CA" in await refusal(serve, (server(unusable),), unusable)
        good = intermediate(ROOT, "good", path_length(0), key_usage(sign=True))
        assert await refusal(serve, (server(good),), good) == ""

    async def test_one_that_is_no_authority_vouches_for_itself_alone(self, serve: Serve) -> None:
        assert "is not trusted" in await refusal(serve, (server(LEAF),), LEAF)

    async def test_a_clients_certificate_is_no_servers(self, serve: Serve) -> None:
        client = server(INTER, usage=CLIENT)
        for anchor in (client, INTER):
            assert "purpose" in await refusal(serve, (client,), anchor)


class TestTwoAuthoritiesOfOneName:
    @pytest.mark.parametrize("bundle", [(ROOT, OTHER), (OTHER, ROOT)])
    async def test_the_one_that_verifies_counts_in_either_order(self, serve: Serve, bundle: tuple[Held, ...]) -> None:
        assert await refusal(serve, (server(ROOT),), *bundle) == ""
        assert await refusal(serve, (server(OTHER),), *bundle) == ""
        assert await refusal(serve, (LEAF, INTER), *bundle) == ""

    @pytest.mark.parametrize("number", [0, 1])
    async def test_two_intermediates_of_one_name(self, serve: Serve, number: int) -> None:
        two = (INTER, intermediate(ROOT))
        assert await refusal(serve, (server(two[number]), *two), ROOT) == ""
        assert await refusal(serve, (server(two[number]),), *two) == ""
        assert await refusal(serve, (server(two[number]), *two), OTHER, ROOT) == ""

    async def test_the_server_sends_the_old_root_too(self, serve: Serve) -> None:
        assert await refusal(serve, (server(ROOT), OTHER), ROOT) == ""

    async def test_a_third_one_of_that_name_is_refused(self, serve: Serve) -> None:
        third = root()
        assert "is not trusted" in await refusal(serve, (server(third), third), ROOT, OTHER)

    async def test_what_else_is_wrong_is_refused(self, serve: Serve) -> None:
        for bundle in ((ROOT, OTHER), (OTHER, ROOT)):
            assert "expired" in await refusal(serve, (server(ROOT, valid=PAST),), *bundle)
            assert "is not for other" in await refusal(serve, (server(ROOT),), *bundle, name="other")
            assert "is not trusted" in await refusal(serve, (server(ROOT, usage=CLIENT),), *bundle)
        old, limited = root(valid=PAST), root("root", path_length(0))
        for bundle in ((old, OTHER), (OTHER, old)):
            assert "is not trusted" in await refusal(serve, (server(old),), *bundle)
        below = intermediate(limited)
        for bundle in ((limited, OTHER), (OTHER, limited)):
            assert "is not trusted" in await refusal(serve, (server(below), below), *bundle)

    async def test_one_with_a_short_key_is_refused(self, serve: Serve) -> None:
        weak = root(key=rsa.generate_private_key(65537, 1024))
        for bundle in ((weak, OTHER), (OTHER, weak)):
            assert "is not trusted" in await refusal(serve, (server(weak),), *bundle)

    async def test_a_server_cannot_make_it_try_for_ever(self, serve: Serve) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        many = tuple(root("a", key=key) for _ in range(60))  # each has signed each
        assert "is not trusted" in await refusal(serve, (server(many[0]), *many), ROOT)


class TestTheNameThatIsSent:
    @pytest.mark.parametrize(
        ("name", "sent"), [("localhost", "localhost"), ("localhost.", "localhost"), ("127.0.0.1", None)]
    )
    async def test_without_a_final_dot(self, tmp_path: Path, name: str, sent: str | None) -> None:
        shown = server(ROOT, "localhost", "127.0.0.1")
        (tmp_path / "pair").write_bytes(shown.pem + key_pem(shown))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "pair")
        seen: list[str | None] = []
        context.sni_callback = lambda connection, server_name, _: seen.append(server_name)
        listening = socket.create_server(("127.0.0.1", 0))

        def accept() -> None:
            connection, _ = listening.accept()
            with context.wrap_socket(connection, server_side=True) as wrapped:
                assert wrapped.recv(1) == b""

        done = in_thread(accept)
        tls = ClientTLS(client_context(ROOT.pem, None, True), name, True)
        protocol = Recorder()
        await connect(reactor(), "127.0.0.1", listening.getsockname()[1], protocol, tls=tls, timeout=60)
        protocol.stream.loseConnection()
        await done
        await protocol.lost
        listening.close()
        assert seen == [sent]

    async def test_an_ipv4_mapped_address_is_the_ipv4_address(self, serve: Serve) -> None:
        shown, mapped = server(ROOT, "127.0.0.1"), "::ffff:127.0.0.1"
        assert await refusal(serve, (shown,), ROOT, name=mapped, host=mapped) == ""
        assert await refusal(serve, (shown,), ROOT, name="::ffff:7f00:1") == ""
        assert "is not for 127.0.0.2" in await refusal(serve, (shown,), ROOT, name="::ffff:127.0.0.2")
