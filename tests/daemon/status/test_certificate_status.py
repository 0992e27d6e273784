"""Which certificates the status document has, when each expires, and the hash of a configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcproxy.config import model
from mcproxy.daemon.status.certificate_status import expiries_of, fingerprint_of, of_certificates
from tests.identity.certificates import CLIENT, NO_AUTHORITY, NOW, SERVER, authority, user

DAY = 86400.0
CA = authority("fleet-ca")


def pem(*data: bytes, path: str = "/etc/x.pem") -> model.PEMFile:
    return model.PEMFile(path, b"".join(data))


def certificate(name: str, days: float) -> model.Certificate:
    held = CA.issue(user(name), NO_AUTHORITY, SERVER, valid=(-1, days))
    return model.Certificate(
        name=name, chain=pem(held.pem, CA.pem, path=f"/etc/{name}.crt"), key=pem(b"secret"), server_names=(f"{name}.x",)
    )


def endpoint() -> model.EndpointConfig:
    return model.EndpointConfig(name="a", scheme="https", host="10.0.0.1", port=6443)


def cluster(**fields: Any) -> model.ClusterConfig:
    return model.ClusterConfig(**{"name": "east", "endpoints": (endpoint(),), **fields})


def test_every_use_of_a_certificate_has_one_entry() -> None:
    client = CA.issue(user("proxy"), NO_AUTHORITY, CLIENT, valid=(-1, 30))
    front = CA.issue(user("front"), NO_AUTHORITY, CLIENT, valid=(-1, 60))
    config = model.Config(
        certificates=(certificate("fleet", 10),),
        clusters=(
            cluster(
                tls=model.ClusterTLS(ca=pem(CA.pem)),
                credentials=model.Credentials(certificate=pem(client.pem), key=pem(b"secret")),
                front_proxy=model.FrontProxy(pem(front.pem), pem(b"secret")),
            ),
        ),
        authentication=(
            model.Authentication(
                name="corp",
                client_ca=pem(CA.pem),
                request_header=model.RequestHeader(ca=pem(CA.pem)),
                oidc=(model.OIDC(issuer="https://i", audiences=("k",), ca=pem(CA.pem)),),
            ),
        ),
    )
    found = of_certificates(expiries_of(config, NOW), NOW)
    assert [(each["kind"], each["name"], each["daysLeft"]) for each in found] == [
        ("server", "fleet", 10.0),
        ("client", "east", 30.0),
        ("client", "east/frontProxy", 60.0),
        ("cluster", "east", 3650.0),
        ("ca", "corp", 3650.0),
        ("ca", "corp/requestHeader", 3650.0),
        ("cluster", "corp/oidc[0]", 3650.0),
    ]
    assert found[0] == {
        "name": "fleet",
        "kind": "server",
        "subject": "CN=fleet",
        "names": ["fleet.x"],
        "notAfter": "2026-06-11T12:00:00Z",
        "daysLeft": 10.0,
        "file": "/etc/fleet.crt",
        "certificates": 2,
    }
    assert "secret" not in str(found)


def test_a_listener_that_dials_has_a_client_certificate_and_the_hubs_authorities() -> None:
    client = CA.issue(user("edge"), NO_AUTHORITY, CLIENT, valid=(-1, 20))
    tls = model.DialTLS(ca=pem(CA.pem), certificate=pem(client.pem), key=pem(b"secret"))
    dials = [
        model.Dial(tunnel="site-a", urls=("https://hub.example:443",), tls=each)
        for each in (tls, model.DialTLS(ca=pem(CA.pem)))
    ]
    hub, other = (
        model.ListenerConfig(name=name, dial=dial, protocols=(model.HTTPProtocol.HTTP1,))
        for name, dial in zip(("hub", "other"), dials, strict=True)
    )
    trusting = model.Authentication(
        name="hubs", request_header=model.RequestHeader(listeners=("hub",), hub_user="mcproxy-hub")
    )
    config = model.Config(listeners=(hub, other), authentication=(trusting,))
    found = of_certificates(expiries_of(config, NOW), NOW)
    assert [(each["kind"], each["name"], each["daysLeft"]) for each in found] == [
        ("client", "hub/dial", 20.0),
        ("cluster", "hub/dial", 3650.0),
        ("cluster", "other/dial", 3650.0),
    ]


def test_a_chain_ends_with_the_first_of_its_certificates() -> None:
    between = CA.issue(user("between"), valid=(-1, 5))
    leaf = between.issue(user("leaf"), NO_AUTHORITY, SERVER, valid=(-1, 90))
    chain = model.Certificate(name="c", chain=pem(leaf.pem, between.pem), key=pem(), server_names=())
    (found,) = of_certificates(expiries_of(model.Config(certificates=(chain,)), NOW), NOW)
    assert (found["subject"], found["daysLeft"]) == ("CN=leaf", 5.0)


def test_of_a_bundle_the_next_to_expire_counts_and_an_expired_one_only_alone() -> None:
    gone = authority("gone", valid=(-90, -3))
    soon, late = authority("soon", valid=(-1, 7)), authority("late", valid=(-1, 700))

    def of(*authorities: Any) -> tuple[str, float]:
        bundle = pem(*(each.pem for each in authorities))
        (found,) = of_certificates(
            expiries_of(model.Config(clusters=(cluster(tls=model.ClusterTLS(ca=bundle)),)), NOW), NOW
        )
        return found["subject"], found["daysLeft"]

    assert of(late, gone, soon) == ("CN=soon", 7.0)
    assert of(gone, late) == ("CN=late", 700.0)
    assert of(gone) == ("CN=gone", -3.0)


def test_what_is_no_certificate_is_left_out() -> None:
    assert expiries_of(model.Config(clusters=(cluster(tls=model.ClusterTLS(ca=pem(b"nothing"))),)), NOW) == []


def test_the_hash_follows_settings_and_certificates_but_no_secrets() -> None:
    config = model.Config(certificates=(certificate("fleet", 10),), clusters=(cluster(),))
    same = model.Config(certificates=tuple(replace(each) for each in config.certificates), clusters=(cluster(),))
    assert fingerprint_of(config) == fingerprint_of(same)
    assert len(fingerprint_of(config)) == 12
    renewed = replace(config, certificates=(replace(config.certificates[0], chain=certificate("fleet", 20).chain),))
    assert fingerprint_of(renewed) != fingerprint_of(config)
    assert fingerprint_of(replace(config, clusters=(cluster(preserve_host=True),))) != fingerprint_of(config)

    def with_token(token: str) -> model.Config:
        return model.Config(clusters=(cluster(credentials=model.Credentials(token=model.Secret(token))),))

    assert fingerprint_of(with_token("a")) == fingerprint_of(with_token("b"))
