"""What is measured: nobody in between, nginx, Go's ReverseProxy, a plain twisted.web proxy, mcproxy, any other command.

A subject only knows its command line; `bench.lab` starts it.
"""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench import configs, golang
from bench.pki import Identity

MCPROXY, NGINX, GO, TWISTED, DIRECT = "mcproxy", "nginx", "go", "twisted.web", "direct"
REFERENCES = (NGINX, GO, TWISTED)
"""What mcproxy is compared with."""
PURE_SUFFIX = "-pure"
"""The end of the name of a subject that is mcproxy interpreted, where compiled modules stand too (`bench.builds`)."""
CACHE = Path(__file__).resolve().parents[1] / ".tools" / "bench"
"""Where what takes long to build or install is kept; git ignores it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a subject finds and writes its files, between which loopback ports it stands, and the Python it runs on."""

    directory: Path
    identity: Identity
    listen: int
    upstream: int
    python: Path = Path(sys.executable)


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
    """nginx with one worker: the reference that targets are set against."""

    name = NGINX

    def argv(self, place: Place) -> list[str]:
        file = configs.nginx_proxy(place.directory, place.listen, place.upstream, place.identity)
        return nginx_argv(place.directory, file)


@dataclass(frozen=True, slots=True)
class GoReverseProxy:
    """net/http/httputil.ReverseProxy, what gateways in Go are made of: HTTP/2 on both sides, or HTTP/1.1."""

    http2: bool = False
    name: str = GO

    def argv(self, place: Place) -> list[str]:
        protocol = "http2" if self.http2 else "http1"
        return [str(golang.reverse_proxy(CACHE)), *_proxy_arguments(place), protocol]


class TwistedWeb:
    """What Twisted offers without a data plane of one's own."""

    name = TWISTED

    def argv(self, place: Place) -> list[str]:
        return [*script_argv("twisted_proxy.py", place.python), *_proxy_arguments(place)]


@dataclass(frozen=True, slots=True)
class Mcproxy:
    """The daemon, as it is started by hand; bare forwarding, unless its parts of the file say otherwise.

    `cluster`, `server` and `sections` are what `configs.mcproxy` takes; `tree` is another checkout to run, if not None.
    `build` is "compiled" or "pure" (`bench.builds`), "" for the one that runs by itself.
    """

    name: str = MCPROXY
    cluster: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    listener: Mapping[str, Any] = field(default_factory=dict)
    tree: Path | None = None
    build: str = ""

    def argv(self, place: Place) -> list[str]:
        file = configs.mcproxy(
            place.directory,
            place.listen,
            place.upstream,
            place.identity,
            cluster=self.cluster,
            server=self.server,
            sections=self.sections,
            listener=self.listener,
        )
        variables = [f"PYTHONPATH={self.tree}"] if self.tree else []
        if self.build:
            variables.append(f"MCPROXY_PURE={int(self.build == 'pure')}")
        return [*(["env", *variables] if variables else []), *mcproxy_argv(file, place.python)]


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


def pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the subjects to compare: mcproxy and what --with added, with each reference and with each other."""
    references = [name for name in REFERENCES if name in names]
    others = [name for name in names if name not in (*REFERENCES, DIRECT)]
    return [(over, under) for over in others for under in references] + list(itertools.combinations(others, 2))


def mcproxy_argv(config: Path, python: Path) -> list[str]:
    return [str(python), "-m", "mcproxy", "run", "-c", str(config)]


def nginx_argv(directory: Path, config: Path) -> list[str]:
    return ["nginx", "-p", str(directory), "-c", str(config)]


def script_argv(name: str, python: Path = Path(sys.executable)) -> list[str]:
    """Return the command of a file of this package (-P: its neighbours must not hide modules of the same name)."""
    return [str(python), "-P", str(Path(__file__).resolve().with_name(name))]


def _proxy_arguments(place: Place) -> list[str]:
    """Return what the proxies of this package are started with: ports, files, the token for the upstream."""
    files = (place.identity.certificate, place.identity.key, place.identity.authority)
    return [str(place.listen), str(place.upstream), *map(str, files), configs.TOKEN]
