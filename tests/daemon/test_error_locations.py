"""Errors that only putting a file into force shows are reported at their place in it."""

from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.loaded import Loaded
from mcproxy.config.model import TCPBind
from mcproxy.daemon.errors import DaemonError, place_of
from mcproxy.net.bind import BindError
from mcproxy.net.tls_contexts import PairError

TEXT = """version: 1
daemon: {controlSocket: /run/c.sock}
listeners: [{name: a, bind: "127.0.0.1:1"}, {name: b, bind: "127.0.0.1:2", tls: {certificates: [c]}}]
certificates: [{name: c, certFile: c.crt, keyFile: c.key}]
clusters: [{name: a, endpoints: [{url: "http://127.0.0.1:1"}], identity: Passthrough}]
servers: [{name: a, default: true, backend: {cluster: a}}]
logging: {access: {file: /var/log/a.log}}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    (tmp_path / "f.yaml").write_text(TEXT)
    return load(str(tmp_path / "f.yaml"), offline=True)


@pytest.mark.parametrize(
    ("error", "place"),
    [
        (BindError(TCPBind("127.0.0.1", 2), "the address is in use", in_use=True), "3:61: listeners[1].bind: "),
        (PairError("certificate c: ca md too weak"), "4:36: certificates[0].certFile: "),
        (DaemonError("control socket /run/c.sock: Permission denied"), "2:25: daemon.controlSocket: "),
        (PermissionError(13, "Permission denied", "/var/log/a.log"), "7:26: logging.access.file: "),
        (BindError(TCPBind("127.0.0.1", 3), "of an older file"), ""),
        (PairError("no certificate is named"), ""),
        (PermissionError(13, "Permission denied", "/other"), ""),
        (ValueError("a bug"), ""),
    ],
)
def test_an_error_is_at_its_place(loaded: Loaded, tmp_path: Path, error: Exception, place: str) -> None:
    assert place_of(error, loaded) == (f"{tmp_path}/f.yaml:{place}" if place else "")


def test_an_error_of_the_state_directory_is_at_its_place(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(TEXT.replace("controlSocket: /run/c.sock", "stateDir: /var/lib/a"))
    loaded = load(str(tmp_path / "f.yaml"), offline=True)
    error = DaemonError("state directory /var/lib/a: it is not a folder")
    assert place_of(error, loaded) == f"{tmp_path}/f.yaml:2:20: daemon.stateDir: "
