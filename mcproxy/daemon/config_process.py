"""Reads the configuration in a process of its own, which ends then.

The daemon keeps only the result: the YAML reader, the schema and the tree of a large file are not in its memory, and
reading never holds up its reactor (a thread would, for it has the interpreter's lock).

The process is this program, and its answer is a pickle that comes through a pipe from it alone.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon import fresh_interpreter

if TYPE_CHECKING:
    from mcproxy.config.loaded import Loaded

MODULE = "mcproxy.daemon.config_process"


class ConfigProcessError(Exception):
    """The process has ended without an answer. An operational error (`daemon.errors.describe`)."""

    def __init__(self, status: int) -> None:
        self.cause = f"the process that reads the configuration has no answer: {fresh_interpreter.describe_end(status)}"
        self.todo = fresh_interpreter.remedy_of_end(status)
        super().__init__(self.cause)


class ConfigProcess:
    """A process that reads one file."""

    def __init__(self, path: str) -> None:
        """Start it. Raises OSError."""
        reader, writer = os.pipe()
        try:
            self._process = subprocess.Popen(
                fresh_interpreter.command(MODULE, path, str(writer)),
                stdin=subprocess.DEVNULL,
                stdout=2,
                env=fresh_interpreter.environment(os.environ),
                pass_fds=_inherited(path, writer),
                process_group=0,  # a signal of the terminal is for the daemon alone
            )
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._answer = reader

    def result(self) -> Loaded:
        """Wait for the result. Raises ConfigErrors and ConfigProcessError."""
        with open(self._answer, "rb") as pipe:
            answer = pipe.read()
        status = self._process.wait()
        if status or not answer:
            raise ConfigProcessError(status)
        loaded: Loaded | ConfigErrors = pickle.loads(answer)
        if isinstance(loaded, ConfigErrors):
            raise loaded
        return loaded


def load(path: str) -> Loaded:
    """Read a file and all that it names, as `config.load.load` does, and wait for it.

    Raises ConfigErrors, ConfigProcessError and OSError.
    """
    return ConfigProcess(path).result()


def _inherited(path: str, writer: int) -> tuple[int, ...]:
    """Return the descriptors for the process: the pipe, and that of a path such as /dev/fd/63."""
    folder, name = os.path.split(path)
    named = folder in ("/dev/fd", "/proc/self/fd") and name.isdecimal()
    return (writer, int(name)) if named else (writer,)


def main(path: str, descriptor: int) -> int:
    """Read `path`, write the pickled result or ConfigErrors, and return the exit status."""
    from mcproxy.config.load import load

    try:
        answer: Loaded | ConfigErrors = load(path)
    except ConfigErrors as error:
        answer = error
    with open(descriptor, "wb") as pipe:
        pickle.dump(answer, pipe, pickle.HIGHEST_PROTOCOL)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
