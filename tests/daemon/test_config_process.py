"""The configuration is read in another process, with the result and the errors of `config.load`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon import config_process
from mcproxy.daemon.config_process import ConfigProcess, ConfigProcessError

TEXT = """version: 1
daemon: {controlSocket: control.sock}
listeners: [{name: a, bind: "127.0.0.1:1"}]
clusters: [{name: a, endpoints: [{url: "http://127.0.0.1:1"}], identity: Passthrough}]
servers: [{name: a, default: true, backend: {cluster: a}}]
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "f.yaml").write_text(TEXT)
    return str(tmp_path / "f.yaml")


def test_the_result_is_that_of_the_reader(path: str) -> None:
    assert config_process.load(path) == load(path)


def test_errors_are_those_of_the_reader(path: str) -> None:
    Path(path).write_text(TEXT.replace("identity: Passthrough", "identity: Pass"))
    with pytest.raises(ConfigErrors) as expected:
        load(path)
    with pytest.raises(ConfigErrors) as found:
        config_process.load(path)
    assert found.value.problems == expected.value.problems != ()
    assert found.value.warnings == expected.value.warnings
    assert str(found.value) == str(expected.value)


def test_a_file_that_is_a_descriptor_is_read(path: str) -> None:
    with open(path) as file:
        assert config_process.load(f"/dev/fd/{file.fileno()}").config.servers == load(path).config.servers


def test_a_process_that_is_killed_is_an_error_with_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.yaml")
    process = ConfigProcess(str(tmp_path / "f.yaml"))
    process._process.send_signal(signal.SIGKILL)
    with pytest.raises(ConfigProcessError) as found:
        process.result()
    assert found.value.cause == "the process that reads the configuration has no answer: SIGKILL ended it"
    assert found.value.todo.startswith("if nobody killed it")


def test_the_daemon_does_not_import_the_reader(path: str) -> None:
    code = (
        "import sys\n"
        "from mcproxy.daemon import config_process, main, service\n"
        f"config_process.load({path!r})\n"
        "print(*sorted({'yaml', 'jsonschema_rs', 'mcproxy.config.load'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "\n"
