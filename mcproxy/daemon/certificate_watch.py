"""Applies certificates and keys that are replaced on disk, without a reload (`daemon.watchFiles`).

Each second the watch checks the files of all key pairs: those of listeners, and those that the proxy presents to
clusters, front proxies, webhooks and Redis. It puts each changed pair whose certificate and key match into the
configuration in force, applies this configuration as a reload does, and reads no other file. So new connections use the
new pairs, and connections that presented the former pairs get no new requests. All processes apply the change, and
status and metrics show the pairs in use.

While only the certificate or only the key is replaced, the two do not match. Then the former pair stays in use, and a
lasting mismatch is logged. The former pair also stays while it is valid and the new one is expired or not valid yet.
A thread reads the files, and another process reads kubeconfigs, as at a reload, so a hanging file system blocks
nothing. client-go's `transport/cert_rotation.go` and kube-apiserver's `dynamiccertificates` work in the same way, but
check their files every minute.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from mcproxy.certificate_blocks import calendar_fault, read_blocks
from mcproxy.config.certificate_pairs import Pair, PairLocation, pairs_in, with_pairs
from mcproxy.config.model import Config, PEMFile
from mcproxy.config.problem import ConfigErrors
from mcproxy.daemon.dependencies import Dependencies, RunningDaemon
from mcproxy.daemon.errors import describe
from mcproxy.net.daemon_thread import in_daemon_thread
from mcproxy.net.tls_contexts import PairError, load_pair
from mcproxy.net.wall_time import wall_clock

log = Logger(__name__)

INTERVAL = 1.0
"""Seconds between two checks of the files."""
PATIENCE = 10.0
"""Seconds for which a pair can be unusable before that is logged."""

_LONGEST_PAUSE = 60.0
_MAX_BYTES = 1024 * 1024
_EMBEDDED = re.compile(r"(.+)#users\[\d+\]\.user\.client-(?:certificate|key)-data\Z")

_Signature = tuple[int, int, int, int] | None


@dataclass(slots=True)
class _Problem:
    cause: str
    since: float
    logged: bool = False


class CertificateWatch:
    """The watch of one daemon. It pauses during a reload (`reloading`), because a reload reads the files itself."""

    def __init__(
        self,
        daemon: RunningDaemon,
        dependencies: Dependencies,
        reloading: Callable[[], bool],
        in_thread: Callable[..., Deferred[Any]] | None = None,
    ) -> None:
        """`in_thread` calls a function with arguments in a thread, because a file system can hang."""
        self._daemon = daemon
        self._dependencies = dependencies
        self._reloading = reloading
        self._reactor = dependencies.reactor
        self._wall_seconds = wall_clock(dependencies.reactor)
        self._config: Config | None = None
        self._pairs: dict[PairLocation, Pair] = {}
        self._seen: dict[str, _Signature] = {}  # signature of each file when it was last read
        self._problems: dict[PairLocation, _Problem] = {}
        self._invalid_now: dict[PairLocation, Pair] = {}  # matching pairs that are not valid yet, or have expired
        self._in_thread = in_thread or partial(in_daemon_thread, self._reactor, "certificate files")
        self._pause = 0.0  # seconds to wait after a failed attempt to apply pairs
        self._not_before = 0.0
        self._loop = LoopingCall(self._run)
        self._loop.clock = self._reactor

    def start(self) -> None:
        """Start checking the files."""
        self._loop.start(INTERVAL, now=False)

    def stop(self) -> None:
        """Stop checking the files."""
        if self._loop.running:
            self._loop.stop()

    @property
    def unusable(self) -> list[dict[str, str]]:
        """The logged, unsolved problems for the status document: `entry` of the configuration, and `cause`."""
        return [
            {"entry": _entry(place), "cause": problem.cause}
            for place, problem in self._problems.items()
            if problem.logged
        ]

    def _run(self) -> Deferred[None]:
        """Check the files once; the next check waits until this one has ended."""
        checked: Deferred[None] = Deferred.fromCoroutine(self.check())
        return checked.addErrback(
            lambda failure: log.failure("checking certificate files failed", event="internal_error", failure=failure)
        )

    async def check(self) -> None:
        """Check the files, and put changed pairs in force."""
        config = self._daemon.config
        if not config.daemon.watch_files or not self._may_apply(config):
            return
        if config is not self._config:
            self._config, self._pairs, self._seen, self._invalid_now = config, pairs_in(config), {}, {}
            self._problems = {place: known for place, known in self._problems.items() if place in self._pairs}
            self._pause = self._not_before = 0.0
        if self._pairs and self._reactor.seconds() >= self._not_before:
            await self._check_pairs(config)
        self._log_lasting()

    def _may_apply(self, config: Config) -> bool:
        """Whether a configuration is in force, and no reload is under way."""
        return self._daemon.config is config and self._daemon.serving and not self._reloading()

    async def _check_pairs(self, config: Config) -> None:
        seen, read = await self._in_thread(_read_changed, self._pairs, self._seen)
        if not self._may_apply(config):  # a reload happened meanwhile: check again
            return
        self._seen = seen
        renewed: dict[PairLocation, Pair] = {}
        invalid, self._invalid_now = self._invalid_now, {}
        for place, pair in {**invalid, **read}.items():
            if isinstance(pair, OSError):
                path = pair.filename or self._pairs[place].chain.path
                self._refuse(place, f"{path} cannot be read: {pair.strerror or pair}")
            elif pair is not None:
                self._accept(place, pair, renewed)
        embedded = [place for place, pair in read.items() if pair is None]
        if embedded:
            await self._read_kubeconfigs(embedded, renewed)
        if renewed and self._may_apply(config):
            await self._apply(config, renewed)
        elif renewed:
            self._seen = {}

    async def _read_kubeconfigs(self, places: Sequence[PairLocation], renewed: dict[PairLocation, Pair]) -> None:
        """Add to `renewed` the changed, matching pairs whose data is embedded in kubeconfigs."""
        try:
            found = pairs_in((await self._dependencies.load(self._dependencies.path)).config)
        except ConfigErrors as error:
            for place in places:
                self._refuse(place, error.lines[0])
            return
        except Exception as error:
            cause, _ = describe(error) or (f"{type(error).__name__}: {error}", "")
            for place in places:
                self._refuse(place, cause)
            return
        for place in places:
            if place in found:
                self._accept(place, found[place], renewed)

    def _accept(self, place: PairLocation, pair: Pair, renewed: dict[PairLocation, Pair]) -> None:
        if [pem.data for pem in pair] == [pem.data for pem in self._pairs[place]]:
            self._problems.pop(place, None)
            return
        try:
            load_pair(pair.chain.data, pair.key.data)
        except PairError as error:
            self._refuse(place, f"{pair.chain.path}: {error}")
            return
        fault = self._calendar_fault(pair)
        if fault and not self._calendar_fault(self._pairs[place]):
            self._invalid_now[place] = pair
            self._refuse(place, f"{pair.chain.path}: the certificate {fault}")
        else:
            renewed[place] = pair

    def _calendar_fault(self, pair: Pair) -> str:
        leaves = read_blocks(pair.chain.data).certificates[:1]
        now = datetime.fromtimestamp(self._wall_seconds(), UTC)
        return calendar_fault(leaves[0], now) if leaves else ""

    def _refuse(self, place: PairLocation, cause: str) -> None:
        known = self._problems.get(place)
        if known is None or known.cause != cause:
            since = self._reactor.seconds() if known is None else known.since
            self._problems[place] = _Problem(cause, since)

    async def _apply(self, config: Config, renewed: dict[PairLocation, Pair]) -> None:
        try:
            await self._daemon.apply(with_pairs(config, renewed))
        except Exception as error:
            cause, _ = describe(error) or (f"{type(error).__name__}: {error}", "")
            for place in renewed:
                self._refuse(place, cause)
            self._seen = {}  # read all pairs again and retry: the cause can be something else than the pair
            self._pause = min(max(INTERVAL, 2 * self._pause), _LONGEST_PAUSE)
            self._not_before = self._reactor.seconds() + self._pause
            return
        self._pause = 0.0
        for place in renewed:
            self._problems.pop(place, None)
        log.info(
            "certificates were replaced on disk: new connections use the new ones",
            event="certificates_renewed",
            entries=", ".join(sorted(map(_entry, renewed))),
            files=", ".join(sorted({_file(pair.chain) for pair in renewed.values()})),
        )

    def _log_lasting(self) -> None:
        now = self._reactor.seconds()
        for place, problem in self._problems.items():
            if problem.logged or now - problem.since < PATIENCE:
                continue
            problem.logged = True
            log.warn(
                "the files of a certificate were changed and cannot be used: the former one stays in use",
                event="certificate_files_unusable",
                entry=_entry(place),
                cause=problem.cause,
                log_subject=("certificate", _entry(place), problem.cause),
            )


def _entry(place: PairLocation) -> str:
    """Return the location of a pair as a key of the configuration file, such as clusters.east.credentials."""
    return ".".join(place)


def _is_embedded(pair: Pair) -> bool:
    return any(_EMBEDDED.match(pem.path) for pem in pair)


def _file(pem: PEMFile) -> str:
    """Return the file that holds a certificate or key: the kubeconfig that embeds it, or its own file."""
    found = _EMBEDDED.match(pem.path)
    return found[1] if found is not None else pem.path


def _read_changed(
    pairs: Mapping[PairLocation, Pair], seen: Mapping[str, _Signature]
) -> tuple[dict[str, _Signature], dict[PairLocation, Pair | OSError | None]]:
    """Read the pairs with a changed file; return the signatures of all files, and these pairs.

    A pair is None if a kubeconfig embeds its data. `seen` has the signatures of the files when they were last read.
    """
    now = {file: _signature(file) for file in {_file(pem) for pair in pairs.values() for pem in pair}}
    changed = {file for file, signature in now.items() if file not in seen or seen[file] != signature}
    read: dict[PairLocation, Pair | OSError | None] = {}
    for place, pair in pairs.items():
        if changed.isdisjoint(map(_file, pair)):
            continue
        if _is_embedded(pair):
            read[place] = None
            continue
        try:
            read[place] = Pair(*(PEMFile(pem.path, _content(pem.path)) for pem in pair))
        except OSError as error:
            read[place] = error
    return now, read


def _signature(file: str) -> _Signature:
    """Return a value that changes when the file changes; None if the file does not exist.

    Symbolic links are followed, because Kubernetes volumes use them."""
    try:
        info = os.stat(file)
    except OSError:
        return None
    return (info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)


def _content(file: str) -> bytes:
    """Return the contents of a regular file; raises OSError."""
    descriptor: Any = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(0, "it is not a regular file", file)
        data = opened.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(0, f"it is larger than {_MAX_BYTES // 1024} KiB", file)
    return data
