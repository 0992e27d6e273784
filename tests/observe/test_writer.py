"""Several processes that write to one file or pipe: batches stay whole."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WRITERS, _BATCHES, _LINES = 3, 10, 12  # a batch is more than a pipe holds
_WRITER = f"""
import os, sys
from mcproxy.observe.writer import write_all
name = sys.argv[1].encode()
fd = 1 if sys.argv[2] == "-" else os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.stdin.read()  # all begin together
for number in range({_BATCHES}):
    write_all(fd, b"".join(name * (20000 + line) + b"\\n" for line in range({_LINES})))
"""


def start(name: str, target: str, stdin: int, stdout: int | None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", _WRITER, name, target], stdin=stdin, stdout=stdout)


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_batches_of_several_processes_do_not_mix(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    reader, writer = os.pipe()
    waiting, begin = os.pipe()
    target, stdout = ("-", writer) if kind == "pipe" else (str(file), None)
    processes = [start(name, target, waiting, stdout) for name in "abc"[:_WRITERS]]
    for fd in (writer, waiting, begin):
        os.close(fd)
    with open(reader, "rb") as pipe:
        written = pipe.read()
    assert [process.wait(60) for process in processes] == [0] * _WRITERS
    lines = (written if kind == "pipe" else file.read_bytes()).split(b"\n")[:-1]
    assert len(lines) == _WRITERS * _BATCHES * _LINES
    for first in range(0, len(lines), _LINES):
        name = lines[first][:1]
        assert [line == name * (20000 + number) for number, line in enumerate(lines[first : first + _LINES])] == [
            True
        ] * _LINES
