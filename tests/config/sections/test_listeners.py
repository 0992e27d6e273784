"""Listeners that are right, and what they become; errors are in cases/."""

from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.model import Limits, Listener, TCPBind, UnixBind

REST = """
clusters: [{name: a, endpoints: [{url: "http://127.0.0.1:1"}], identity: Passthrough}]
servers: [{name: a, default: true, backend: {cluster: a}, authentication: none}]
"""


def listener(folder: Path, text: str) -> Listener:
    (folder / "f.yaml").write_text(f"version: 1\nlisteners: [{{name: l, {text}}}]\n{REST}")
    loaded = load(str(folder / "f.yaml"), environ={})
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
