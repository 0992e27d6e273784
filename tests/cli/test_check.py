import argparse
import io
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from mcproxy.cli import check, machine_checks
from mcproxy.config.model import Bind
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


def test_a_listener_that_dials_has_no_address_to_bind(run: Run, tmp_path: Path) -> None:
    pki.write(tmp_path)
    dial = 'dial: {tunnel: a, urls: ["https://hub.invalid"], tls: {caFile: ca.crt}, credentials: {tokenFile: token}}'
    status, lines = run(GOOD.replace('"127.0.0.1:0"}', f'"127.0.0.1:0"}}, {{name: hub, {dial}}}'))
    assert status == 0
    assert not any("bound" in line for line in lines)


def test_an_address_that_another_process_has_is_an_error(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = GOOD.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        status, lines = run(text)
        assert status == 78
        assert "is taken by another process: " in lines[0]


def test_a_daemon_of_another_file_that_has_the_address_is_another_process(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine_checks, "is_mcproxy", lambda pid: True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = GOOD.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        status, lines = run(text + f"daemon: {{controlSocket: {tmp_path}/control.sock}}\n")
        assert (status, "is taken by another process: " in lines[0]) == (78, True)
        monkeypatch.setattr(machine_checks, "runs_another_file", lambda file, pid: False)
        assert run(text + f"daemon: {{controlSocket: {tmp_path}/control.sock}}\n")[0] == 0
        assert f"(pid {os.getpid()}); stop it, or bind another address" in lines[0]
        assert run(text, "--offline")[0] == 0


def test_an_address_that_the_running_daemon_has_is_fine(run: Run, tmp_path: Path) -> None:
    """The daemon is whoever listens on the control socket: here this process."""
    with socket.socket(socket.AF_UNIX) as control, socket.create_server(("127.0.0.1", 0)) as taken:
        control.bind(str(tmp_path / "c.sock"))
        control.listen()
        text = GOOD.replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        assert run(text + "daemon: {controlSocket: c.sock}\n")[0] == 0


def test_an_address_that_another_process_than_the_running_daemon_has_is_an_error(run: Run, tmp_path: Path) -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    with (
        socket.socket(socket.AF_UNIX) as control,
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        control.bind(str(tmp_path / "c.sock"))
        control.listen()
        assert other.stdout is not None
        text = GOOD.replace("127.0.0.1:0", f"127.0.0.1:{other.stdout.readline().decode().strip()}")
        status, lines = run(text + "daemon: {controlSocket: c.sock}\n")
        assert status == 78
        assert f"(pid {other.pid})" in lines[0]
        other.communicate(b"\n")


def test_a_port_that_needs_the_capability_of_the_unit_is_a_note(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from mcproxy.net import bind

    def refuse(wanted: Bind) -> None:
        raise bind.BindError(wanted, "permission denied")

    monkeypatch.setattr(bind, "probe_bind", refuse)
    monkeypatch.setattr(machine_checks, "_first_free_port", lambda: 1024)
    status, lines = run(GOOD.replace("127.0.0.1:0", "127.0.0.1:443"))
    assert status == 0
    assert lines[0] == (
        "note: mcproxy.yaml:3:29: listeners[0].bind: port 443 needs CAP_NET_BIND_SERVICE, which this user does not "
        "have; the unit mcproxy.service gives it to the daemon"
    )
    assert run(GOOD.replace("127.0.0.1:0", "127.0.0.1:443"), "--strict", "-q") == (0, [])
    assert run(GOOD.replace("127.0.0.1:0", "127.0.0.1:6443"))[0] == 78


@pytest.mark.parametrize("kind", ["access", "audit"])
@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("folder", "logging.access.file: folder cannot be opened: Is a directory; "),
        ("nosuch/a.log", "logging.access.file: there is no folder nosuch; create it, for the daemon's user"),
    ],
)
def test_a_log_that_cannot_be_opened_is_an_error(run: Run, tmp_path: Path, log: str, said: str, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    status, lines = run(GOOD + f"logging: {{{kind}: {{file: {log}}}}}\n")
    assert status == 78
    assert said.replace("access", kind) in lines[0].replace(str(tmp_path) + "/", "")
    assert lines[0].startswith("mcproxy.yaml:6:")


def test_an_access_log_that_can_be_opened_is_left_as_it_is(run: Run, tmp_path: Path) -> None:
    text = GOOD + "logging: {access: {file: a.log}}\n"
    assert run(text)[0] == 0
    assert not (tmp_path / "a.log").exists()
    (tmp_path / "a.log").write_text("line\n")
    assert run(text)[0] == 0
    assert (tmp_path / "a.log").read_text() == "line\n"


def test_a_control_socket_needs_a_folder_but_the_daemon_makes_the_last_one(run: Run) -> None:
    assert run(GOOD + "daemon: {controlSocket: new/c.sock}\n")[0] == 0
    status, lines = run(GOOD + "daemon: {controlSocket: no/such/c.sock}\n")
    assert status == 78
    assert lines[0].startswith("mcproxy.yaml:6:25: daemon.controlSocket: there is no folder no/such; create it")


def test_a_folder_that_the_unit_makes_is_a_note(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = str(tmp_path / "logs")
    monkeypatch.setattr(machine_checks, "_UNIT_MAKES", {folder: "LogsDirectory"})
    status, lines = run(GOOD + "logging: {access: {file: logs/a.log}}\n")
    assert status == 0
    assert lines[0] == (
        "note: mcproxy.yaml:6:26: logging.access.file: there is no folder logs; "
        "the unit mcproxy.service makes it (LogsDirectory); without systemd create it"
    )


def test_a_state_directory_that_the_daemon_makes_is_fine_and_not_made(run: Run, tmp_path: Path) -> None:
    assert run(GOOD + "daemon: {stateDir: state}\n")[0] == 0
    assert not (tmp_path / "state").exists()


def test_a_state_directory_for_the_owner_alone_is_fine(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    assert run(GOOD + "daemon: {stateDir: state}\n")[0] == 0


def test_a_state_directory_that_others_can_read_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o755)
    status, lines = run(GOOD + "daemon: {stateDir: state}\n")
    assert status == 78
    assert lines[0] == (
        "mcproxy.yaml:6:20: daemon.stateDir: state: others have access to it (mode 0755); chmod 700 state"
    )


def test_a_state_directory_without_a_folder_above_it_is_an_error(run: Run) -> None:
    status, lines = run(GOOD + "daemon: {stateDir: no/such/state}\n")
    assert status == 78
    assert lines[0].startswith("mcproxy.yaml:6:20: daemon.stateDir: there is no folder no/such; create it")


def test_a_state_directory_that_the_unit_makes_is_a_note(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_checks, "_UNIT_MAKES", {str(tmp_path / "state"): "StateDirectory"})
    status, lines = run(GOOD + "daemon: {stateDir: state}\n")
    assert status == 0
    assert lines[0] == (
        "note: mcproxy.yaml:6:20: daemon.stateDir: there is no folder state; "
        "the unit mcproxy.service makes it (StateDirectory); without systemd create it"
    )


def test_root_may_check_the_state_directory_of_the_daemons_user(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    status, lines = run(GOOD + "daemon: {stateDir: state}\n")
    assert status == 78
    assert "it belongs to another user" in lines[0]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if os.getuid() == 0:
        os.chown(tmp_path / "state", 12345, -1)
    assert run(GOOD + "daemon: {stateDir: state}\n")[0] == 0


def test_the_file_may_be_named_without_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mcproxy.yaml"
    file.write_text(GOOD)
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    assert check.run(parser.parse_args(["check", str(file)])) == 0
    assert check.run(parser.parse_args(["check", str(file), "-c", "/other"])) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"mcproxy: two files: {file} and -c /other"


@pytest.mark.parametrize("options", [["-c", "-"], ["-"]])
def test_standard_input_is_a_file_too(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(GOOD.replace("true", "5").encode())))
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    assert check.run(parser.parse_args(["check", *options])) == 78
    assert capsys.readouterr().err.startswith("-:5:33: servers[0].default: is the number 5; write true or false\n")


def test_offline_no_file_is_needed_but_the_yaml(run: Run) -> None:
    text = """version: 1
daemon: {controlSocket: /nosuch/place/c.sock}
listeners:
  - {name: a, bind: "${ADDRESS}:443", tls: {certificates: [a]}}
  - {name: b, bind: "unix:/nosuch/place/a.sock", group: no-such-group}
certificates: [{name: a, certFile: no.crt, keyFile: no.key}]
clusters:
  - {name: a, endpoints: [{url: "https://${HOST}:6443"}], tls: {caFile: no.crt}, credentials: {tokenFile: no}}
  - {name: b, endpoints: [{url: "https://b"}], credentials: {certFile: no.crt, keyFile: no.key}}
  - {name: c, endpoints: [{url: "https://c"}], credentials: {exec: {command: /no/program}}}
  - {name: d, kubeconfig: {file: no.kubeconfig}}
  - {name: e, endpoints: [{url: "https://e"}], credentials: {token: "${TOKEN}"}}
authentication:
  - name: all
    clientCertificates: {caFile: no.crt, crlFile: no.crl}
    requestHeader: {caFile: no.crt}
    tokenFile: no.csv
    webhook: {kubeconfig: no.kubeconfig}
    oidc: [{issuer: "https://a.example.com", audiences: [a], jwksFile: no.json}]
servers:
  - {name: a, serverNames: [a.example.com], backend: {clusters: "*"}, authentication: all}
  - name: d
    serverNames: [d.example.com]
    backend: {cluster: d}
    authentication: all
    dispatch: [{rules: [{verbs: [get], nonResourceURLs: ["*"]}], endpoints: ["https://d:6443"]}]
logging: {access: {file: /nosuch/place/a.log}}
"""
    assert run(text, "--offline", "--strict") == (0, ["mcproxy: the configuration file mcproxy.yaml is good"])
    assert run(text)[0] == 78
    status, lines = run(text.replace("cluster: d}", "cluster: z}"), "--offline")
    assert (status, len(lines)) == (78, 2)


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
    from mcproxy.net.certificate_store import CertificateStore
    from mcproxy.net.tls_contexts import PairError

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


def test_more_workers_than_cores_are_a_note(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3})
    for workers in ("1", "2", "Auto"):
        assert run(f"{GOOD}daemon: {{workers: {workers}}}\n")[1] == [
            "mcproxy: the configuration file mcproxy.yaml is good"
        ]
    status, lines = run(f"{GOOD}daemon: {{workers: 3}}\n", "--strict")
    assert status == 0
    assert lines[0] == (
        "note: mcproxy.yaml:6:19: daemon.workers: 3 workers on a machine that has 2 cores for them; "
        "Auto is one for each core"
    )
