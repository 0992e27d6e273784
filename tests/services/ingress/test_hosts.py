"""Hosts of requests, and which a connection may carry."""

from __future__ import annotations

from typing import Any

import pytest

from mcproxy.config.model import Certificate, ListenerTLS
from mcproxy.services.ingress.client_connection import CertificateCoverage, host_name


@pytest.mark.parametrize(
    ("host", "name"),
    [
        (b"web", b"web"),
        (b"web:443", b"web"),
        (b"web.", b"web"),
        (b"web.:443", b"web"),
        (b"web..", b"web."),
        (b"[::1]", b"[::1]"),
        (b"[::1]:80", b"[::1]"),
        (b"192.0.2.1:80", b"192.0.2.1"),
        (b"", b""),
    ],
)
def test_host_name(host: bytes, name: bytes) -> None:
    assert host_name(host) == name


def certificate(name: str, *server_names: str) -> Certificate:
    nothing: Any = None
    return Certificate(name=name, chain=nothing, key=nothing, server_names=server_names)


COVERAGE = CertificateCoverage(
    ListenerTLS(certificates=("one",), hosts=(("two.example.org", "two"),)),
    [certificate("one", "a.example.com", "*.example.net"), certificate("two", "b.example.com")],
)


@pytest.mark.parametrize(
    ("server_name", "host", "misdirected"),
    [
        ("a.example.com", b"a.example.com", False),
        ("a.example.com", b"x.example.net", False),  # the same certificate: a reused connection
        ("a.example.com", b"x.y.example.net", True),
        ("a.example.com", b"b.example.com", True),
        ("b.example.com", b"two.example.org", False),
        ("two.example.org", b"b.example.com", False),
        ("two.example.org", b"a.example.com", True),
        ("unknown", b"a.example.com", False),  # the default certificate covers it
        ("unknown", b"b.example.com", True),
        ("unknown", b"unknown", False),  # what the client asked for by both names
        (None, b"b.example.com", False),
        ("a.example.com", b"[::1]", True),
    ],
)
def test_misdirected(server_name: str | None, host: bytes, misdirected: bool) -> None:
    assert COVERAGE.misdirected(server_name, host) is misdirected
