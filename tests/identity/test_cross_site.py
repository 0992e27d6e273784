"""What a web page could ask of a proxy that lends its rights to whoever can connect."""

from __future__ import annotations

import pytest

from mcproxy.http.head import parse_request_head
from mcproxy.http.messages import RequestHead
from mcproxy.identity.cross_site import is_foreign, refuse_cross_site
from mcproxy.kube.status import StatusError


def head(host: str, *fields: str) -> RequestHead:
    lines = [f"GET /x HTTP/1.1\r\nHost: {host}", *fields, "\r\n"]
    return parse_request_head("\r\n".join(lines).encode(), 1000, 100)


def upgrade(host: str, *fields: str) -> RequestHead:
    return head(host, "Connection: Upgrade", "Upgrade: websocket", *fields)


@pytest.mark.parametrize("host", ["", "localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_names_of_this_machine(host: str) -> None:
    assert not is_foreign(host)


@pytest.mark.parametrize("host", ["evil.test", "localhost.evil.test", "10.0.0.1", "::2", "127.0.0.1.evil.test"])
def test_other_names(host: str) -> None:
    assert is_foreign(host)


def test_a_foreign_host_is_refused_with_what_to_do() -> None:
    with pytest.raises(StatusError, match="serverNames") as caught:
        refuse_cross_site(head("evil.test"), True)
    assert caught.value.code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.test", "null", "https://localhost.evil.test", "https://localhost:6444", "localhost:6443"]
)
def test_upgrades_of_another_origin_are_refused(origin: str) -> None:
    with pytest.raises(StatusError) as caught:
        refuse_cross_site(upgrade("localhost:6443", f"Origin: {origin}"), False)
    assert caught.value.code == 403


@pytest.mark.parametrize(
    ("host", "fields"),
    [
        ("localhost:6443", ()),
        ("localhost:6443", ("Origin: https://localhost:6443",)),
        ("k8s.test", ("Origin: https://K8S.test:443",)),
        ("k8s.test:80", ("Origin: http://k8s.test",)),
    ],
)
def test_upgrades_of_clients_and_of_the_own_origin_pass(host: str, fields: tuple[str, ...]) -> None:
    refuse_cross_site(upgrade(host, *fields), False)


def test_an_origin_matters_to_upgrades_only() -> None:
    refuse_cross_site(head("localhost", "Origin: http://evil.test"), False)
