"""`bench instructions`: how many instructions a request takes, in both builds and in other trees.

Processor time needs a quiet machine and still swings by several percent; instructions are the same at each run (within
1 %), so that a small change shows its effect. What they leave out: the kernel, TLS, caches and mispredicted branches.

Requests are those of `bench http2`: GETs of 1.1 KB for 5,000 paths in turn, with kubectl's head and a token. They come
over HTTP/1.1 and HTTP/2, to API servers that speak the same, or (`mixed`) over HTTP/2 to API servers that speak
HTTP/1.1; through mcproxy bare, with its whole chain (token, impersonation, policies, a bucket), and with that and the
access log and the audit log, too. Metrics are counted in all of them.

`--only` chooses by words of each kind: shapes (h1-16, …), chains (bare, …), builds (pure, compiled). A kind of which no
word is given is counted whole. `--with NAME=DIR` adds another checkout, for a before and after.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpack import Encoder, HeaderTuple, NeverIndexedHeaderTuple

from bench import builds, callgrind, configs, identity
from bench.builds import COMPILED, PURE
from bench.counted_service import Settings
from bench.function_names import FunctionNames
from bench.http2 import FIELDS, PATHS
from bench.lab import Lab
from bench.processes import Failed
from bench.report import Section
from bench.socket_peers import Traffic
from bench.subjects import CACHE, Command

ROOT = Path(__file__).resolve().parents[1]
BARE, CHAIN, OBSERVED = "bare", "chain", "observed"
CHAINS = (BARE, CHAIN, OBSERVED)
THIS = "this tree"
_FUNCTIONS = 30
"""How many functions are shown of a case."""
_HOST = "localhost"
_API_SERVER = 6443  # the port in the daemon's file, to which nothing connects


@dataclass(frozen=True, slots=True)
class Shape:
    """How requests come and go."""

    name: str
    connections: int
    streams: int = 1
    http2: bool = False
    http2_upstream: bool = False


SHAPES = (
    *(Shape(f"h1-{connections}", connections) for connections in (16, 100, 500)),
    Shape("h2-4x25", 4, 25, http2=True, http2_upstream=True),
    Shape("h2-16x1", 16, 1, http2=True, http2_upstream=True),
    Shape("mixed-4x25", 4, 25, http2=True),
)


_KINDS = ([shape.name for shape in SHAPES], CHAINS, (PURE, COMPILED))


@dataclass(frozen=True, slots=True)
class Tree:
    """A checkout of mcproxy, and the builds that stand in it."""

    name: str
    place: Path

    @property
    def builds(self) -> tuple[str, ...]:
        """Pure always; compiled where `make native` has left modules."""
        return tuple(reversed(builds.standing(self.place)))


@dataclass(frozen=True, slots=True)
class Case:
    """What one run counts."""

    shape: Shape
    chain: str
    tree: Tree
    build: str

    @property
    def subject(self) -> str:
        """Its column: the build, and the tree if it is another one."""
        return self.build if self.tree.name == THIS else f"{self.tree.name} {self.build}"


@dataclass(frozen=True, slots=True)
class Count:
    """What one run has counted."""

    requests: int
    opened: int  # connections to API servers meanwhile
    profile: callgrind.Profile

    @property
    def instructions(self) -> float:
        """Instructions of a request."""
        return self.profile.total / self.requests


def trees(extra: Sequence[Command]) -> list[Tree]:
    """Return this checkout and those of `--with NAME=DIR`. Raises Failed."""
    found = [Tree(THIS, ROOT)]
    for each in extra:
        place = Path(each.command).resolve()
        if not (place / "mcproxy" / "__init__.py").exists():
            raise Failed(f"--with {each.name}={each.command}: not the directory of a checkout of mcproxy")
        found.append(Tree(each.name, place))
    return found


def words() -> list[str]:
    """Return what `--only` knows."""
    return [word for kind in _KINDS for word in kind]


def choose(trees: Sequence[Tree], only: str | None) -> list[Case]:
    """Return the cases that the words of `--only` leave, shape by shape. Raises Failed for an unknown word."""
    chosen = set(only.split(",")) if only else set()
    if unknown := chosen.difference(words()):
        raise Failed(f"--only {','.join(sorted(unknown))}: instructions knows {', '.join(words())}")
    shapes, chains, builds = (chosen.intersection(names) or set(names) for names in _KINDS)
    return [
        Case(shape, chain, tree, build)
        for shape in SHAPES
        if shape.name in shapes
        for chain in CHAINS
        if chain in chains
        for tree in trees
        for build in tree.builds
        if build in builds
    ]


def measure(lab: Lab, cases: Sequence[Case], requests: int) -> list[Section]:
    """Count each case, as many at once as there are cores, and return the sections of the report."""
    if not cases:
        raise Failed("there is no compiled module in mcproxy/: make native")
    library = callgrind.library(CACHE)
    traffic = lab.directory / "traffic"
    traffic.write_bytes(pickle.dumps(make_traffic()))
    cores = {lab.cores.proxy, lab.cores.upstream, lab.cores.load}
    os.sched_setaffinity(0, cores)  # counts do not suffer from neighbours
    with ThreadPoolExecutor(max_workers=len(cores)) as pool:
        counts = list(pool.map(lambda case: count(lab, case, traffic, library, requests), cases))
    return summarise(dict(zip(cases, counts, strict=True)))


def make_traffic() -> Traffic:
    """Encode requests and responses once, for all runs."""
    fields = [tuple(line.split(": ", 1)) for line in FIELDS]
    paths, body = configs.object_paths(PATHS), configs.object_body()
    head = "".join(f"{line}\r\n" for line in FIELDS)
    encoder = Encoder()

    def block(path: str) -> bytes:
        request = [
            HeaderTuple(":method", "GET"),
            NeverIndexedHeaderTuple(":path", path),
            HeaderTuple(":scheme", "http"),  # the service sees no TLS
            HeaderTuple(":authority", _HOST),
        ]
        secret = [NeverIndexedHeaderTuple(*field) for field in fields if field[0] == "authorization"]
        rest = [HeaderTuple(*field) for field in fields if field[0] != "authorization"]
        return bytes(encoder.encode([*request, *rest, *secret]))

    response_encoder = Encoder()
    response = [
        ("content-type", "application/json"),
        ("date", "Sun, 22 Nov 2026 16:40:43 GMT"),
        ("content-length", str(len(body))),
        ("audit-id", "8d1cd3a3-6c5b-4f4e-9ad4-0a2a1c2b3d4e"),
        ("cache-control", "no-cache, private"),
    ]
    response_head = "".join(f"{name}: {value}\r\n" for name, value in response)
    response_block = [HeaderTuple(":status", "200"), *(HeaderTuple(*field) for field in response)]
    return Traffic(
        requests=[f"GET {path} HTTP/1.1\r\nhost: {_HOST}\r\n{head}\r\n".encode() for path in paths],
        first_block=block(paths[0]),
        blocks=[block(path) for path in paths],
        response=f"HTTP/1.1 200 OK\r\n{response_head}\r\n".encode() + body,
        first_response_block=bytes(response_encoder.encode(response_block)),
        response_block=bytes(response_encoder.encode(response_block)),
        body=body,
        token_review=configs.token_review().encode(),
        access_review=configs.access_review().encode(),
    )


def count(lab: Lab, case: Case, traffic: Path, library: Path, requests: int) -> Count:
    """Run one case under callgrind. Raises Failed, also when another build runs than that of the case."""
    settings = write_settings(lab, case, traffic, str(library), requests)
    argv = [str(lab.python.program), "-P", "-m", "bench.counted_service", str(settings)]
    printed, profile = callgrind.run(argv, environ(settings.parent, case), settings.with_name("callgrind.out"))
    found = json.loads(printed)
    if found["compiled"] is not (case.build == COMPILED):
        raise Failed(f"{case.tree.place}: the {case.build} modules were wanted, and others ran")
    return Count(found["requests"], found["opened"], profile)


def write_settings(lab: Lab, case: Case, traffic: Path, library: str, requests: int) -> Path:
    """Write the files of a case into a directory of its own; return that of the program's settings."""
    name = "-".join([case.shape.name, case.chain, case.tree.name.replace(" ", "-"), case.build])
    place = lab.place(name, _API_SERVER)
    shape = case.shape
    config = configs.mcproxy(
        place.directory, place.listen, place.upstream, place.identity, **_parts(place.directory, case.chain)
    )
    settings = Settings(
        config=str(config),
        traffic=str(traffic),
        http2=shape.http2,
        http2_upstream=shape.http2_upstream,
        connections=shape.connections,
        streams=shape.streams,
        warm=PATHS,
        requests=requests,
        library=library,
    )
    file = place.directory / "settings.json"
    file.write_text(json.dumps(dataclasses.asdict(settings)))
    return file


def _parts(directory: Path, chain: str) -> dict[str, Any]:
    """Return what differs from bare forwarding in the daemon's file."""
    if chain == BARE:
        return {}
    parts = identity.whole_chain(identity.TOKEN_REVIEW, access_log=chain == OBSERVED)
    if chain == OBSERVED:
        access = {"file": str(directory / "access.log"), "format": "json"}
        logging = {"level": "warn", "access": access, "audit": {"file": str(directory / "audit.log")}}
        parts["sections"] = {**parts["sections"], "logging": logging}
    return parts


def environ(directory: Path, case: Case) -> dict[str, str]:
    """Return the environment of the counted program: mcproxy of the case's tree, this bench, hashes that repeat."""
    packages = directory / "packages"
    packages.mkdir()
    # Only mcproxy of the tree: a directory in PYTHONPATH would hide this bench by the tree's own.
    for part in (case.tree.place / "mcproxy", case.tree.place / "pyproject.toml", *case.tree.place.glob("*.so")):
        (packages / part.name).symlink_to(part)
    known = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MCPROXY_PURE")}
    pure = {"MCPROXY_PURE": "1"} if case.build == PURE else {}
    return {**known, **pure, "PYTHONPATH": f"{packages}:{ROOT}", "PYTHONHASHSEED": "0"}


def summarise(counts: dict[Case, Count]) -> list[Section]:
    """Make the table of all cases, and the functions of those that few enough are asked for."""
    subjects = list(dict.fromkeys(case.subject for case in counts))
    ratios = [f"{subject} / {subjects[0]}" for subject in subjects[1:]]
    section = Section(
        "Instructions of a request, without kernel and TLS (thousands)",
        ["shape", "through", *subjects, *ratios, "connections opened"],
    )
    rows: dict[tuple[str, str], dict[str, Count]] = {}
    for case, found in counts.items():
        rows.setdefault((case.shape.name, case.chain), {})[case.subject] = found
    for (shape, chain), by_subject in rows.items():
        costs = {subject: found.instructions for subject, found in by_subject.items()}
        first = costs.get(subjects[0])
        cells = [f"{costs[subject] / 1e3:.1f}" if subject in costs else "-" for subject in subjects]
        shares = [f"{costs[each] / first:.3f}" if first and each in costs else "-" for each in subjects[1:]]
        opened = max(found.opened for found in by_subject.values())
        section.rows.append([shape, chain, *cells, *shares, str(opened)])
    return [section, *(_functions(case, counts[case]) for case in _shown(list(counts)))]


def _shown(cases: Sequence[Case]) -> list[Case]:
    """Return the cases whose functions are shown: all if a few are counted, else the first shape's whole chain."""
    if len(cases) <= 4:
        return list(cases)
    chains = [case for case in cases if case.chain == CHAIN] or list(cases)
    return [case for case in chains if case.shape == chains[0].shape]


def _functions(case: Case, found: Count) -> Section:
    names = FunctionNames(case.tree.place)
    section = Section(
        f"Where they go: {case.shape.name}, {case.chain}, {case.subject}",
        ["function", "with callees", "share", "own", "calls"],
    )
    # The interpreter calls itself through nearly all of its functions: only what each does itself says something.
    if case.build == COMPILED and not any(name.startswith("CPyDef_") for name in found.profile.own):
        section.comparisons.append("The compiled modules have no names: packaging/native.py --symbols")
    for name, inclusive, own in found.profile.top(_FUNCTIONS, by_own=case.build == PURE):
        section.rows.append(
            [
                names.show(name),
                f"{inclusive / found.requests:,.0f}",
                f"{inclusive / found.profile.total:.1%}",
                f"{own / found.requests:,.0f}",
                f"{found.profile.calls[name] / found.requests:.2f}",
            ]
        )
    return section
