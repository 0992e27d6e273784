"""TLS settings of endpoints: one context for one content, a fresh session cache for a fresh certificate."""

from __future__ import annotations

import gc

import trustme

from mcproxy.config import model
from mcproxy.upstream.tls import ClientCertificate, ClientContexts, EndpointTLS

CA = trustme.CA()
CA_PEM = CA.cert_pem.bytes()


def certificate() -> ClientCertificate:
    issued = CA.issue_cert("client@example.com")
    return ClientCertificate(issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes())


def test_one_content_is_one_context_and_another_is_another() -> None:
    contexts, own = ClientContexts(), certificate()
    base = contexts.get(CA_PEM, None, verify=True)
    assert contexts.get(bytes(bytearray(CA_PEM)), None, verify=True) is base
    others = [contexts.get(CA_PEM, own, verify=True), contexts.get(CA_PEM, None, verify=False)]
    assert len({id(each) for each in (base, *others)}) == 3


def test_a_context_goes_with_its_last_user() -> None:
    contexts = ClientContexts()
    context = contexts.get(CA_PEM, None, verify=True)
    assert len(contexts._contexts) == 1
    del context
    gc.collect()
    assert len(contexts._contexts) == 0


def test_the_name_to_verify_is_the_host_unless_another_is_configured() -> None:
    contexts = ClientContexts()
    ca = model.PEMFile("ca", CA_PEM)
    plain = EndpointTLS(contexts, model.ClusterTLS(ca=ca), "10.0.0.1", lambda: None).client_tls()
    named = EndpointTLS(
        contexts, model.ClusterTLS(ca=ca, server_name="kubernetes"), "10.0.0.1", lambda: None
    ).client_tls()
    assert (plain.server_name, named.server_name) == ("10.0.0.1", "kubernetes")
    assert plain.verify
    assert plain.context is named.context
    assert plain.sessions is not named.sessions


def test_insecure_skip_verify_reaches_the_connection() -> None:
    tls = EndpointTLS(ClientContexts(), model.ClusterTLS(insecure_skip_verify=True), "h", lambda: None)
    assert not tls.client_tls().verify


def test_sessions_are_kept_until_the_certificate_changes() -> None:
    using: list[ClientCertificate | None] = [None]
    tls = EndpointTLS(ClientContexts(), model.ClusterTLS(ca=model.PEMFile("ca", CA_PEM)), "h", lambda: using[0])
    first = tls.client_tls()
    assert tls.client_tls() is first
    own = certificate()
    using[0] = own
    second = tls.client_tls()
    assert second.context is not first.context
    assert second.sessions is not first.sessions
    using[0] = ClientCertificate(own.chain, own.key)  # the same content again
    assert tls.client_tls() is second
