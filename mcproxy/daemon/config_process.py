"""Reads the configuration in a separate process: `ConfigReader` in the daemon, `main` in the process.

The daemon starts the process by this module's name (`MODULE`).

The daemon keeps only the result: the YAML reader, the schema and the tree of a large file stay out of its memory.
Reading never delays its reactor. A thread would, since it holds the interpreter's lock. The process also reads the
files of the next reloads, and ends after `STAYS` idle seconds.

    daemon: the path, as JSON in a line  ──standard input──>  process
    daemon  <──pipe──  the length of the answer (8 bytes, big-endian), and the answer: a pickle of `_Answer`

The process runs this program, and no other process can write to its pipe. But its program files can be newer than the
code in the daemon's memory. So the answer has their version and build, which are checked before unpickling the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import gc
import hashlib
import json
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

from mcproxy import __version__
from mcproxy.config import loaded as loaded_classes
from mcproxy.config import model, problem
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon import interpreter

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded

MODULE = "mcproxy.daemon.config_process"
ANSWERS_WITHIN = 60.0
"""Limit of the time to read (seconds): a reload that never ends would block all later ones."""
STAYS = 10.0
"""Seconds that the process waits for another file to read before it ends."""

_LENGTH = struct.Struct(">Q")
_Answer = tuple[str, str, bytes]
"""The version and the build (`build`) of the program that has read the file, and a pickle: Loaded or ConfigErrors."""


class ConfigProcessError(Exception):
    """The process gave no answer that this daemon can use. An operational error (`daemon.errors.describe`)."""

    def __init__(self, cause: str, *, todo: str) -> None:
        super().__init__(cause)
        self.cause = cause
        self.todo = todo


class ConfigReader:
    """Reads each file in the idle process of an earlier `load`, or in a new one. `load` can be called in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: _Process | None = None

    def start(self) -> None:
        """Start a process that gets ready for the first `load`. Raises OSError."""
        self._waiting = _Process()

    def load(self, path: str) -> Loaded:
        """Read a configuration file and all files that it names, as `config.load.load` does. Blocks.

        Raises ConfigErrors, ConfigProcessError and OSError.
        """
        with self._lock:
            process, self._waiting = self._waiting, None
        if process is not None and not process.is_child:
            process.close()
            process = None
        answer = None
        if process is not None and not _names_descriptor(path):
            with contextlib.suppress(_Ended):  # raised if the idle process has just ended: start a new one
                answer = process.ask(path)
        if answer is None:
            process = _Process(path)
            try:
                answer = process.ask(path)
            except _Ended as ended:
                cause = f"the process that reads the configuration gave no answer: {ended.words}"
                raise ConfigProcessError(cause, todo=ended.todo) from None
        assert process is not None
        self._keep(process)
        return _result(pickle.loads(answer))

    def _keep(self, process: _Process) -> None:
        """Keep the process for the next `load`, and close a process that another thread has kept meanwhile."""
        with self._lock:
            other, self._waiting = self._waiting, process
        if other is not None:
            other.close()


def _result(answer: _Answer) -> Loaded:
    """Return the result of an answer. Raises ConfigErrors; ConfigProcessError for another version or build."""
    version, its_build, pickled = answer
    if version != __version__:
        raise ConfigProcessError(
            f"the program that is installed now is mcproxy {version}, this daemon is {__version__}",
            todo="run `mcproxy upgrade`, which reads the configuration too",
        )
    if its_build != build():
        raise ConfigProcessError(
            f"the files of mcproxy {version} were replaced by those of another build since this daemon was started",
            todo="restart the daemon, or run `mcproxy upgrade`, which reads the configuration too",
        )
    result: Loaded | ConfigErrors = pickle.loads(pickled)
    if isinstance(result, ConfigErrors):
        raise result
    return result


@functools.cache
def build() -> str:
    """Return a digest of all classes whose instances a result contains: equal digests mean that pickles are compatible.

    It is computed from the classes in memory, because the program's files can have been replaced since the start.
    """
    found = {
        each
        for module in (model, problem, loaded_classes)
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__.startswith("mcproxy.")
    }
    described = sorted(f"{each.__module__}.{each.__qualname__}: {_attributes(each)}" for each in found)
    return hashlib.sha256("\n".join(described).encode()).hexdigest()


def _attributes(of: type) -> str:
    """Return a text of a class's fields, with their types, or of the members of an enum."""
    if dataclasses.is_dataclass(of):
        return ", ".join(f"{field.name} {field.type}" for field in dataclasses.fields(of))
    return ", ".join(of.__members__) if issubclass(of, enum.Enum) else ""


class _Ended(Exception):
    """The process ended without an answer, or was killed because it did not answer in time."""

    def __init__(self, words: str, *, todo: str) -> None:
        super().__init__(words)
        self.words = words
        self.todo = todo


class _Process:
    """A process that reads configuration files, one after another."""

    def __init__(self, path: str = "") -> None:
        """Start the process. If `path` names a descriptor, the process inherits that. Raises OSError."""
        reader, writer = os.pipe()
        try:
            with interpreter.group_signals_blocked():  # the process ends when its input is closed
                self._popen = subprocess.Popen(
                    interpreter.command(MODULE, str(writer)),
                    stdin=subprocess.PIPE,
                    stdout=2,
                    env=interpreter.environment(os.environ),
                    pass_fds=(writer, int(os.path.basename(path))) if _names_descriptor(path) else (writer,),
                    process_group=0,  # signals of a terminal reach only the daemon
                )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._answers = open(reader, "rb")  # noqa: SIM115
        self._parent = os.getpid()
        threading.Thread(target=self._popen.wait, name="config process", daemon=True).start()  # reaps the process

    @property
    def is_child(self) -> bool:
        """Whether the process is a child of the current process.

        The daemon that takes over in an upgrade starts a process and then forks: the forked daemon is not its parent,
        and the lock of `Popen.wait` stays for ever with a thread that does not exist after the fork.
        """
        return self._parent == os.getpid()

    def ask(self, path: str) -> bytes:
        """Send a path and return the pickled `_Answer`. Raises _Ended."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(path).encode() + b"\n")
            self._popen.stdin.flush()
            if not select.select([self._answers], [], [], ANSWERS_WITHIN)[0]:
                self._popen.kill()
                self.close()
                raise _Ended(
                    f"it has not read the files within {ANSWERS_WITHIN:g} s",
                    todo="see whether a file is on an unavailable file system, or is a pipe that nothing writes to",
                )
            head = self._answers.read(_LENGTH.size)
            answer = self._answers.read(_LENGTH.unpack(head)[0])
        except (BrokenPipeError, struct.error):
            answer = b""
        if not answer:
            self.close()
            status = self._popen.wait()
            raise _Ended(interpreter.describe_end(status), todo=interpreter.remedy_of_end(status))
        return answer

    def close(self) -> None:
        """Close the pipes. The process then ends."""
        self._answers.close()
        assert self._popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._popen.stdin.close()


def _names_descriptor(path: str) -> bool:
    """Whether the path names an open descriptor, such as /dev/fd/63."""
    folder, name = os.path.split(path)
    return folder in ("/dev/fd", "/proc/self/fd") and name.isdecimal()


def serve(load: Callable[[str], Loaded], questions: BinaryIO, descriptor: int) -> None:
    """Read paths from `questions` and write answers to `descriptor`, until end of file or `STAYS` idle seconds."""
    with open(descriptor, "wb") as answers:
        while select.select([questions], [], [], STAYS)[0]:
            line = questions.readline()
            if not line.endswith(b"\n"):
                break
            result: Loaded | ConfigErrors
            try:
                result = load(json.loads(line))
            except ConfigErrors as error:
                result = error
            answer: _Answer = (__version__, build(), pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
            data = pickle.dumps(answer, pickle.HIGHEST_PROTOCOL)
            answers.write(_LENGTH.pack(len(data)) + data)
            answers.flush()


def main() -> None:
    """Run the process that reads configurations."""
    gc.disable()  # imported modules live as long as the process, as in `cli.run`
    from mcproxy.config.load import load

    gc.freeze()
    gc.enable()
    serve(load, sys.stdin.buffer, int(sys.argv[1]))


if __name__ == "__main__":
    main()
