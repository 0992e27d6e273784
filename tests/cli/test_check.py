import argparse
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcproxy.cli import check
from tests.config import pki

Run = Callable[..., tuple[int, list[str]]]

GOOD = """
version: 1
listeners: [{name: a, bind: "127.0.0.1:0"}]
clusters: [{name: east, endpoints: [{url: "http://127.0.0.1:8001"}], identity: Passthrough}]
servers: [{name: east, default: true, backend: {cluster: east}}]
"""


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Check a text as the file mcproxy.yaml; returns the exit status and the lines on standard error."""

    def run(text: str, *options: str) -> tuple[int, list[str]]:
        file = tmp_path / "mcproxy.yaml"
        file.write_text(text)
        parser = argparse.ArgumentParser()
        check.add_parser(parser.add_subparsers())
        status = check.run(parser.parse_args(["check", "-c", str(file), *options]))
        captured = capsys.readouterr()
        assert captured.out == ""
        return status, captured.err.replace(f"{tmp_path}/", "").splitlines()

    return run


def test_a_good_file_is_called_good(run: Run) -> None:
    assert run(GOOD) == (0, ["mcproxy: the configuration file mcproxy.yaml is good"])
    assert run(GOOD, "-q") == (0, [])
    assert run(GOOD, "--strict", "--offline") == (0, ["mcproxy: the configuration file mcproxy.yaml is good"])


def test_every_error_is_a_line_and_the_status_is_78(run: Run) -> None:
    status, lines = run("version: 2\nzebra: 1\n", "-q")
    assert status == 78
    assert [line.split(": ")[0] for line in lines] == ["mcproxy.yaml:1:10", "mcproxy.yaml:2:1", "mcproxy"]
    assert lines[-1] == "mcproxy: the configuration file mcproxy.yaml has 2 errors"


def test_a_missing_file_is_an_error_of_the_same_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    assert check.run(parser.parse_args(["check", "-c", str(tmp_path / "nosuch.yaml")])) == 78
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"{tmp_path}/nosuch.yaml:1:1: cannot be read: ")
    assert second.endswith("nosuch.yaml has 1 error")


def test_warnings_are_shown_and_fail_only_under_strict(run: Run) -> None:
    text = GOOD.replace("listeners: [", 'listeners: [{name: b, bind: "127.0.0.1:0"}, ').replace(
        "default: true", "default: true, listeners: [a]"
    )
    warning = "warning: mcproxy.yaml:3:13: listeners[0]: no server is on this listener; "
    status, lines = run(text)
    assert (status, len(lines)) == (0, 2)
    assert lines[0].startswith(warning)
    assert run(text, "-q") == (0, [])
    status, lines = run(text, "--strict", "-q")
    assert status == 3
    assert lines[0].startswith(warning)
    assert lines[1] == "mcproxy: the configuration file mcproxy.yaml has 1 warning"


def test_an_address_that_this_machine_has_not_is_an_error_unless_offline(run: Run) -> None:
    text = GOOD.replace("127.0.0.1:0", "unix:/nosuch-folder/api.sock")
    status, lines = run(text)
    assert status == 78
    assert lines[0].startswith("mcproxy.yaml:3:29: listeners[0].bind: unix:/nosuch-folder/api.sock cannot be bound: ")
    assert run(text, "--offline")[0] == 0


def test_an_address_in_use_is_fine_since_the_daemon_may_have_it(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = GOOD.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        assert run(text)[0] == 0


def test_certificates_are_loaded_as_the_listeners_load_them(run: Run, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    pair = pki.make("a", names=("a.example.com",), start=now - timedelta(days=1), end=now + timedelta(days=90))
    (tmp_path / "a.crt").write_bytes(pki.cert_pem(pair[0]))
    (tmp_path / "a.key").write_bytes(pki.key_pem(pair[1]))
    text = (
        GOOD.replace('0"}', '0", tls: {certificates: [a]}}')
        + "certificates: [{name: a, certFile: a.crt, keyFile: a.key}]"
    )
    assert run(text) == (0, ["mcproxy: the configuration file mcproxy.yaml is good"])


def test_what_openssl_alone_refuses_is_an_error_at_the_certificate(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcproxy.net.certificates import CertificateStore
    from mcproxy.net.contexts import PairError

    def refuse(certificates: object) -> None:
        raise PairError("certificate a: ca md too weak")

    monkeypatch.setattr(CertificateStore, "build", refuse)
    now = datetime.now(UTC)
    pair = pki.make("a", names=("a.example.com",), start=now - timedelta(days=1), end=now + timedelta(days=90))
    (tmp_path / "a.crt").write_bytes(pki.cert_pem(pair[0]))
    (tmp_path / "a.key").write_bytes(pki.key_pem(pair[1]))
    status, lines = run(GOOD + "certificates: [{name: a, certFile: a.crt, keyFile: a.key}]")
    assert status == 78
    assert lines[0].startswith("mcproxy.yaml:6:36: certificates[0].certFile: certificate a: ca md too weak; ")
