"""What is measured: nobody in between, nginx, a plain twisted.web proxy, mcproxy, and any other command.

A subject only knows its command line; `bench.lab` starts it.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench import configs
from bench.pki import Identity

MCPROXY, NGINX, TWISTED, DIRECT = "mcproxy", "nginx", "twisted.web", "direct"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subject finds and writes its files, and between which loopback ports it stands."""

    directory: Path
    identity: Identity
    listen: int
    upstream: int


class Subject(Protocol):
    """Something that stands between the load and the upstream."""

    @property
    def name(self) -> str: ...

    def argv(self, place: Place) -> list[str] | None:
        """Write what it needs and return its command; None when there is nothing to start."""


class Direct:
    """The load goes straight to the upstream: the ceiling of the machine."""

    name = DIRECT

    def argv(self, place: Place) -> None:
        return None


class Nginx:
    """nginx with one worker, the mark to reach."""

    name = NGINX

    def argv(self, place: Place) -> list[str]:
        file = configs.nginx_proxy(place.directory, place.listen, place.upstream, place.identity)
        return nginx_argv(place.directory, file)


class TwistedWeb:
    """What Twisted offers without a data plane of one's own."""

    name = TWISTED

    def argv(self, place: Place) -> list[str]:
        files = [str(file) for file in (place.identity.certificate, place.identity.key, place.identity.authority)]
        return [*script_argv("twisted_proxy.py"), str(place.listen), str(place.upstream), *files, configs.TOKEN]


class Mcproxy:
    """The daemon, as it is started by hand."""

    name = MCPROXY

    def argv(self, place: Place) -> list[str]:
        return mcproxy_argv(configs.mcproxy(place.directory, place.listen, place.upstream, place.identity))


@dataclass(frozen=True, slots=True)
class Command:
    """Any other proxy, for example another version of mcproxy, as a command line with places to fill in.

    {listen} and {upstream} are ports; {cert}, {key} and {ca} files; {config} is an mcproxy.yaml for those ports.
    """

    name: str
    command: str

    def argv(self, place: Place) -> list[str]:
        config = configs.mcproxy(place.directory, place.listen, place.upstream, place.identity)
        filled = self.command.format(
            listen=place.listen,
            upstream=place.upstream,
            cert=place.identity.certificate,
            key=place.identity.key,
            ca=place.identity.authority,
            config=config,
        )
        return shlex.split(filled)


def parse_command(text: str) -> Command:
    """Read ``NAME=COMMAND``; ValueError when it is not that."""
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise ValueError(f"{text!r} is not NAME=COMMAND")
    return Command(name, command)


def mcproxy_argv(config: Path) -> list[str]:
    return [sys.executable, "-m", "mcproxy", "run", "-c", str(config)]


def nginx_argv(directory: Path, config: Path) -> list[str]:
    return ["nginx", "-p", str(directory), "-c", str(config)]


def script_argv(name: str) -> list[str]:
    """Return the command of a file of this package (-P: its neighbours must not hide modules of the same name)."""
    return [sys.executable, "-P", str(Path(__file__).resolve().with_name(name))]
