"""The configuration is read in another process, with the result and the errors of `config.load`."""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import mcproxy
from mcproxy.config import loaded, model, problem
from mcproxy.config.load import load
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon import config_process, interpreter
from mcproxy.daemon.config_process import ConfigProcessError, ConfigReader, _Ended, _Process

ROOT = Path(__file__).parents[2]
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


@pytest.fixture(scope="module")
def reader() -> ConfigReader:
    reader = ConfigReader()
    reader.start()
    return reader


def pid(reader: ConfigReader) -> int:
    assert reader._waiting is not None
    return reader._waiting._popen.pid


def test_the_result_is_that_of_the_reader_and_the_next_one_is_the_same_process(reader: ConfigReader, path: str) -> None:
    assert reader.load(path) == load(path)
    first = pid(reader)
    Path(path).write_text(TEXT.replace("name: a,", "name: b,", 1))
    assert reader.load(path) == load(path)
    assert pid(reader) == first


def test_errors_are_those_of_the_reader(reader: ConfigReader, path: str) -> None:
    Path(path).write_text(TEXT.replace("identity: Passthrough", "identity: Pass"))
    with pytest.raises(ConfigErrors) as expected:
        load(path)
    with pytest.raises(ConfigErrors) as found:
        reader.load(path)
    assert found.value.problems == expected.value.problems != ()
    assert found.value.warnings == expected.value.warnings
    assert str(found.value) == str(expected.value)


def test_a_path_may_have_any_character(reader: ConfigReader, tmp_path: Path) -> None:
    path = tmp_path / "a\nb\udcff.yaml"
    path.write_text(TEXT)
    assert reader.load(str(path)).config.servers


def test_a_file_that_is_a_descriptor_is_read(reader: ConfigReader, path: str) -> None:
    with open(path) as file:
        assert reader.load(f"/dev/fd/{file.fileno()}").config.servers == load(path).config.servers


def test_a_process_that_has_ended_is_replaced(reader: ConfigReader, path: str) -> None:
    reader.load(path)
    before = pid(reader)
    os.kill(before, signal.SIGKILL)
    assert reader.load(path).config == load(path).config
    assert pid(reader) != before


def test_a_process_that_is_killed_while_it_reads_is_an_error_with_words(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "f.yaml")
    process = _Process()
    threading.Timer(0.2, process._popen.kill).start()
    with pytest.raises(_Ended) as found:
        process.ask(str(tmp_path / "f.yaml"))
    assert found.value.words == "SIGKILL ended it"
    assert found.value.todo.startswith("if nobody killed it")


def test_a_process_that_does_not_come_to_an_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "f.yaml")
    monkeypatch.setattr(config_process, "ANSWERS_WITHIN", 0.2)
    with pytest.raises(ConfigProcessError, match=r"it has not read the files within 0\.2 s") as found:
        ConfigReader().load(str(tmp_path / "f.yaml"))
    assert "an unavailable file system" in found.value.todo


def test_files_read_by_another_version_are_refused(
    reader: ConfigReader, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_process, "__version__", "0.0.1")
    with pytest.raises(ConfigProcessError, match=r"is installed now is mcproxy .*, this daemon is 0\.0\.1"):
        reader.load(path)


def test_files_read_by_another_build_of_the_version_are_refused_before_objects_are_made_of_them(
    reader: ConfigReader, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the installation of other files of the same version: what the process sends has other classes."""
    package = tmp_path / "other"
    shutil.copytree(
        Path(mcproxy.__file__).parent, package / "mcproxy", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    changed = package / "mcproxy" / "config" / "model" / "daemon.py"
    changed.write_text(f"{changed.read_text()}\n    of_later: int = 0\n")
    config = package / "mcproxy" / "config" / "loaded.py"
    config.write_text(config.read_text().replace("class Loaded:", "class Reading:") + "\n\nLoaded = Reading\n")
    monkeypatch.setattr(interpreter, "environment", lambda environ: {**environ, "PYTHONPATH": str(package)})
    with pytest.raises(ConfigProcessError, match="were replaced by those of another build") as found:
        ConfigReader().load(path)
    assert found.value.todo.startswith("restart the daemon")


def test_the_build_is_of_all_that_a_result_is_made_of(tmp_path: Path) -> None:
    """So that no change of it goes unnoticed; `build` looks at classes that these modules have."""
    document = yaml.safe_load((ROOT / "tests" / "config" / "contract.yaml").read_text())
    document.pop("include", None)
    (tmp_path / "all.yaml").write_text(json.dumps(document))
    found = load(str(tmp_path / "all.yaml"), offline=True)
    sent = {
        name
        for opcode, name, _ in pickletools.genops(pickle.dumps(found, protocol=3))
        if opcode.name == "GLOBAL" and isinstance(name, str) and name.startswith("mcproxy.")
    }
    known = {
        f"{each.__module__} {each.__qualname__}"
        for module in (loaded, model, problem)
        for each in vars(module).values()
        if isinstance(each, type)
    }
    assert sent
    assert {name for name in sent if not name.split()[1].startswith("_")} - known == set()


def test_a_process_ends_when_nothing_is_asked_and_when_the_daemon_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with open(read, "rb") as questions:
        monkeypatch.setattr(config_process, "STAYS", 0.05)
        config_process.serve(load, questions, os.open(os.devnull, os.O_WRONLY))  # nothing comes
        os.close(write)
        monkeypatch.setattr(config_process, "STAYS", 60.0)
        config_process.serve(load, questions, os.open(os.devnull, os.O_WRONLY))  # they have ended


def test_the_daemon_does_not_import_the_reader(path: str) -> None:
    code = (
        "import sys\n"
        "from mcproxy.daemon import config_process, main, service\n"
        f"config_process.ConfigReader().load({path!r})\n"
        "print(*sorted({'yaml', 'jsonschema_rs', 'mcproxy.config.load'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "\n"


FORKS = """
import os, signal, sys
from mcproxy.daemon.config_process import ConfigReader
reader = ConfigReader()
reader.start()
if os.fork():
    os._exit(0)
os.kill(reader._waiting._popen.pid, signal.SIGKILL)
print(reader.load(sys.argv[1]).config.listeners[0].name)
"""


def test_a_process_that_forked_meanwhile_starts_one_of_its_own(path: str) -> None:
    """As in an upgrade: a reload after it waited for ever for the process that its parent had started."""
    command = [sys.executable, "-W", "ignore", "-c", FORKS, path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)  # until the child has ended
    assert done.stdout == "a\n", done.stderr


def test_signals_for_the_whole_unit_do_not_end_the_process_that_reads(path: str) -> None:
    """`systemctl kill -s USR1` without `--kill-whom=main`, while a daemon starts."""
    reader = ConfigReader()
    reader.start()
    for number in (signal.SIGUSR1, signal.SIGHUP, signal.SIGUSR2, signal.SIGINT):
        os.kill(pid(reader), number)
    first = pid(reader)
    assert reader.load(path) == load(path)
    assert pid(reader) == first
