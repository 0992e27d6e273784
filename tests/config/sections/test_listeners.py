"""Listeners that are right, and what they become; errors are in cases/."""

from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import HTTPProtocol, Limits, ListenerConfig, TCPBind, UnixBind
from tests.config.pki import NOW

REST = """
clusters: [{name: a, endpoints: [{url: "http://127.0.0.1:1"}], identity: Passthrough}]
servers: [{name: a, default: true, backend: {cluster: a}, authentication: none}]
"""


CERTIFICATE = "certificates: [{name: c, certFile: good.crt, keyFile: good.key, serverNames: [k8s.example.com]}]"


def listener(folder: Path, text: str, more: str = "") -> ListenerConfig:
    (folder / "f.yaml").write_text(f"version: 1\nlisteners: [{{name: l, {text}}}]\n{REST}{more}")
    loaded = load(str(folder / "f.yaml"), environ={}, now=NOW)
    assert loaded.warnings == ()
    return loaded.config.listeners[0]


@pytest.mark.parametrize(
    ("text", "bind"),
    [
        ("", UnixBind("/run/a", 0o600, None)),
        (", mode: '0660', group: root", UnixBind("/run/a", 0o660, "root")),
        (", mode: '666'", UnixBind("/run/a", 0o666, None)),
        (", mode: '0000', freeBind: false", UnixBind("/run/a", 0, None)),
    ],
)
def test_unix_sockets_have_mode_and_group(tmp_path: Path, text: str, bind: UnixBind) -> None:
    assert listener(tmp_path, f"bind: 'unix:/run/a'{text}").bind == bind


def test_tcp_sockets_may_be_bound_freely(tmp_path: Path) -> None:
    assert listener(tmp_path, "bind: '127.0.0.1:1'").bind == TCPBind("127.0.0.1", 1)
    assert listener(tmp_path, "bind: '127.0.0.1:1', freeBind: true").bind == TCPBind("127.0.0.1", 1, free_bind=True)


def test_limits_of_clients(tmp_path: Path) -> None:
    text = "bind: '127.0.0.1:1', limits: {connectionsPerClient: 7, stallTimeout: 1m30s, headers: 1e2}"
    assert listener(tmp_path, text).limits == Limits(connections_per_client=7, stall_timeout=90.0, headers=100)
    assert isinstance(listener(tmp_path, text).limits.headers, int)


H1, H2 = HTTPProtocol.HTTP1, HTTPProtocol.HTTP2
TLS = "tls: {certificates: [c]}"


@pytest.mark.parametrize(
    ("text", "protocols", "chance", "streams"),
    [
        ("", (H1,), 0.0, 250),
        ("protocols: [HTTP1]", (H1,), 0.0, 250),
        (TLS, (H2, H1), 0.0, 250),
        (f"{TLS}, protocols: [HTTP1, HTTP2]", (H1, H2), 0.0, 250),
        (f"{TLS}, protocols: [HTTP1], goawayChance: 0", (H1,), 0.0, 250),
        (f"{TLS}, protocols: [HTTP2, HTTP1], goawayChance: 0.02, limits: {{streams: 1}}", (H2, H1), 0.02, 1),
        (f"{TLS}, protocols: [HTTP2],  # mcproxy: allow no-http1\n   goawayChance: 0.01", (H2,), 0.01, 250),
    ],
)
def test_protocols(folder: Path, text: str, protocols: tuple[HTTPProtocol, ...], chance: float, streams: int) -> None:
    found = listener(folder, f"bind: '127.0.0.1:1'{', ' if text else ''}{text}", CERTIFICATE if TLS in text else "")
    assert found.protocols == protocols
    assert found.goaway_chance == chance
    assert found.limits.streams == streams


def test_what_limits_http_2_is_no_limit_where_that_is_not_spoken(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(
        f"version: 1\nlisteners: [{{name: l, bind: '127.0.0.1:1', limits: {{streams: 9}}}}]\n{REST}"
    )
    loaded = load(str(tmp_path / "f.yaml"), environ={})
    assert [warning.key for warning in loaded.warnings] == ["listeners[0].limits.streams"]
    assert loaded.config.listeners[0].limits == Limits()
